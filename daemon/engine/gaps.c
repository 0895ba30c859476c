/* SPDX-License-Identifier: Apache-2.0 */
/* Lists the bytes of slots and parameters that lie between tensors, in ascending order, and zeroes those in a range.
 * For pass.c and params.c; built on the engine's main thread, then only read, by any thread. */
#include "engine/gaps.h"

#include <stdlib.h>
#include <string.h>

struct gaps {
	uint64_t n;
	struct gap *slot, *params; /* [n], ascending */
};

static int by_start(const void *a, const void *b)
{
	const struct plan_tensor *x = *(const struct plan_tensor *const *)a, *y = *(const struct plan_tensor *const *)b;
	return (x->start > y->start) - (x->start < y->start);
}

/* Elements [from, to) of group g, as bytes of both layouts. */
static void add_gap(struct gaps *out, const struct arena_group *g, uint64_t from, uint64_t to)
{
	size_t grad = dtype_size(g->grad_dtype), param = dtype_size(g->param_dtype);
	if (from == to)
		return;
	from -= g->start;
	to -= g->start;
	out->slot[out->n] = (struct gap){ g->slot_offset + from * grad, g->slot_offset + to * grad };
	out->params[out->n++] = (struct gap){ g->param_offset + from * param, g->param_offset + to * param };
}

static void list_gaps(struct gaps *out, const struct plan *p, const struct plan_tensor **owner, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		const struct plan_tensor *t = owner[i], *next = i + 1 < n ? owner[i + 1] : NULL;
		const struct arena_group *g = &p->group[t->dtype_group];
		bool last = !next || next->dtype_group != t->dtype_group;
		add_gap(out, g, t->start + t->count, last ? g->start + g->count : next->start);
	}
}

enum status gaps_new(struct gaps **out, const struct plan *p)
{
	const struct plan_tensor *t = plan_tensors(p);
	size_t room = p->n_tensors ? p->n_tensors : 1;
	uint64_t n = 0;
	struct gaps *new = calloc(1, sizeof(*new));
	const struct plan_tensor **owner = calloc(room, sizeof(const struct plan_tensor *));
	if (!new || !owner)
		goto fail;
	new->slot = calloc(room, sizeof(*new->slot));
	new->params = calloc(room, sizeof(*new->params));
	if (!new->slot || !new->params)
		goto fail;
	for (uint64_t i = 0; i < p->n_tensors; i++)
		if (t[i].alias < 0)
			owner[n++] = &t[i];
	qsort(owner, n, sizeof(*owner), by_start);
	list_gaps(new, p, owner, n);
	free(owner);
	*out = new;
	return ST_OK;
fail:
	free(owner);
	gaps_free(new);
	return ST_NO_MEMORY;
}

void gaps_free(struct gaps *g)
{
	if (!g)
		return;
	free(g->slot);
	free(g->params);
	free(g);
}

static void zero(const struct gap *gap, uint64_t n, unsigned char *base, uint64_t from, uint64_t to)
{
	uint64_t low = 0, high = n; /* the first gap that ends behind `from` */
	while (low < high) {
		uint64_t mid = low + (high - low) / 2;
		if (gap[mid].to <= from)
			low = mid + 1;
		else
			high = mid;
	}
	for (; low < n && gap[low].from < to; low++) {
		uint64_t a = gap[low].from > from ? gap[low].from : from, b = gap[low].to < to ? gap[low].to : to;
		memset(base + a, 0, b - a);
	}
}

void gaps_zero_slot(const struct gaps *g, unsigned char *slot, uint64_t from, uint64_t to)
{
	zero(g->slot, g->n, slot, from, to);
}

void gaps_zero_params(const struct gaps *g, unsigned char *params, uint64_t from, uint64_t to)
{
	zero(g->params, g->n, params, from, to);
}

const struct gap *gaps_of_slot(const struct gaps *g, uint64_t *n)
{
	*n = g->n;
	return g->slot;
}

const struct gap *gaps_of_params(const struct gaps *g, uint64_t *n)
{
	*n = g->n;
	return g->params;
}
