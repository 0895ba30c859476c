/* SPDX-License-Identifier: Apache-2.0 */
/* Which bytes have arrived: a sorted list of disjoint pieces. For inline streams and initial parameters; any thread, no
 * state of its own. */
#include "control/coverage.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>

/* The first piece that ends at or behind `at`; n: none does. */
static uint32_t find(const struct coverage *c, uint64_t at)
{
	uint32_t lo = 0, hi = c->n;
	while (lo < hi) {
		uint32_t mid = (lo + hi) / 2;
		if (c->piece[mid].end < at)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

enum status coverage_add(struct coverage *c, uint64_t start, uint64_t end)
{
	if (start == end)
		return ST_OK;
	uint32_t first = find(c, start), last = first; /* [first, last): the pieces that it touches */
	while (last < c->n && c->piece[last].start <= end)
		last++;
	if (first == last) {
		if (c->n == COVERAGE_MAX)
			return ST_RESOURCE_EXHAUSTED;
		struct coverage_piece *p = array_grow(c->piece, c->n, &c->capacity, sizeof(*p));
		if (!p)
			return ST_NO_MEMORY;
		c->piece = p;
		memmove(&p[first + 1], &p[first], (c->n - first) * sizeof(*p));
		p[first] = (struct coverage_piece){ start, end };
		c->n++;
		return ST_OK;
	}
	struct coverage_piece *p = &c->piece[first];
	if (end < c->piece[last - 1].end)
		end = c->piece[last - 1].end;
	*p = (struct coverage_piece){ start < p->start ? start : p->start, end };
	memmove(p + 1, &c->piece[last], (c->n - last) * sizeof(*p));
	c->n -= last - first - 1;
	return ST_OK;
}

static bool has_behind(const struct coverage *c, uint64_t start, uint64_t end, uint32_t *at)
{
	if (*at < c->n && c->piece[*at].start <= start && end <= c->piece[*at].end)
		return true;
	if (start == end)
		return true;
	*at = find(c, end);
	return *at < c->n && c->piece[*at].start <= start;
}

bool coverage_has(const struct coverage *c, uint64_t start, uint64_t end)
{
	uint32_t at = c->n;
	return has_behind(c, start, end, &at);
}

void coverage_fini(struct coverage *c)
{
	free(c->piece);
	*c = (struct coverage){ 0 };
}

uint64_t coverage_missing(const struct coverage *c, const struct arena *a, enum coverage_layout layout,
			  const uint8_t *present, uint64_t *out_start, uint64_t *out_end)
{
	bool slot = layout == COVERAGE_SLOT;
	if (coverage_has(c, 0, slot ? a->slot_bytes : a->param_bytes))
		return a->n_tensors; /* most clients send all bytes: no need to look at up to a million tensors */
	/* the piece that held the tensor before: it mostly holds the next one, too, and a search takes ten times as
	 * long */
	uint32_t at = 0;
	for (uint64_t i = 0; i < a->n_tensors; i++) {
		const struct arena_tensor *t = &a->tensor[i];
		const struct arena_group *g = &a->group[t->group];
		*out_start = slot ? t->slot_offset : t->param_offset;
		*out_end = *out_start + t->count * dtype_size(slot ? g->grad_dtype : g->param_dtype);
		bool must = !present || present[i / 8] >> i % 8 & 1;
		if (must && !has_behind(c, *out_start, *out_end, &at))
			return i;
	}
	return a->n_tensors;
}
