/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts the tree of kernel_sum into the subtrees of several parts, and puts them together again: the same walk on both
 * sides. For engine/sum_parts.c, on the communication thread. Pure, no state. */
#include "math/norm_tree.h"

#include "math/kernels.h"

#include <assert.h>
#include <stddef.h>

static uint64_t half_of(uint64_t n)
{
	return UINT64_C(1) << (63 - __builtin_clzll(n - 1));
}

/* Of the subtree with the blocks [begin, begin + n). */
static void take(const double *sumsq, uint64_t begin, uint64_t n, struct norm_tree *out)
{
	if (begin >= out->to || begin + n <= out->from)
		return;
	if (begin >= out->from && begin + n <= out->to) {
		assert(out->n < NORM_TREE_MAX);
		out->sum[out->n++] = kernel_sum(sumsq + (begin - out->from), n);
		return;
	}
	assert(n > NORM_TREE_ALIGN);
	take(sumsq, begin, half_of(n), out);
	take(sumsq, begin + half_of(n), n - half_of(n), out);
}

void norm_tree_take(const double *sumsq, uint64_t from, uint64_t to, uint64_t of, struct norm_tree *out)
{
	assert(from <= to && to <= of && of > 0);
	assert(from % NORM_TREE_ALIGN == 0 && (to % NORM_TREE_ALIGN == 0 || to == of));
	*out = (struct norm_tree){ .from = from, .to = to, .of = of };
	if (from < to)
		take(sumsq, 0, of, out);
}

struct walk {
	const struct norm_tree *const *tree;
	uint32_t n, at; /* at: the part whose sums are taken */
	uint32_t used;	/* of them */
	bool wrong;
};

/* The sum of the subtree with the blocks [begin, begin + n). */
static double join(struct walk *w, uint64_t begin, uint64_t n)
{
	while (w->at < w->n && w->tree[w->at]->to <= begin) { /* empty ones, too */
		w->wrong |= w->used != w->tree[w->at]->n;
		w->at++;
		w->used = 0;
	}
	const struct norm_tree *t = w->at < w->n ? w->tree[w->at] : NULL;
	if (!t || w->wrong) {
		w->wrong = true;
		return 0;
	}
	if (begin >= t->from && begin + n <= t->to) {
		w->wrong |= w->used >= t->n;
		return w->wrong ? 0 : t->sum[w->used++];
	}
	if (n <= NORM_TREE_ALIGN) {
		w->wrong = true;
		return 0;
	}
	const double left = join(w, begin, half_of(n));
	return left + join(w, begin + half_of(n), n - half_of(n));
}

/* One behind the other, from 0 to the end, and no longer than they may be. */
static bool fit(const struct norm_tree *const *tree, uint32_t n)
{
	uint64_t at = 0;
	for (uint32_t i = 0; i < n; i++) {
		const struct norm_tree *t = tree[i];
		if (t->from != at || t->to < at || t->of != tree[0]->of || t->n > NORM_TREE_MAX)
			return false;
		at = t->to;
	}
	return n && at == tree[0]->of && at > 0;
}

bool norm_tree_join(const struct norm_tree *const *tree, uint32_t n, double *out)
{
	struct walk w = { .tree = tree, .n = n };
	if (!fit(tree, n))
		return false;
	const double sum = join(&w, 0, tree[0]->of);
	if (w.wrong || (w.at < n && w.used != tree[w.at]->n))
		return false;
	*out = sum;
	return true;
}
