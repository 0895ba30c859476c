/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers the shares of the parameters that the parts of a sharded job have updated, and their digests. For
 * arith_host.c; the communication thread, and the digest on the engine's main thread. No state. */
#include "engine/share_params.h"

#include "engine/sum_parts.h"
#include "proto/failpoint.h"

/* Of an element where a group of dtypes begins, or inside of one. */
static uint64_t byte_of(const struct plan *p, uint64_t element)
{
	for (uint32_t i = 0; i < p->n_groups; i++) {
		const struct arena_group *g = &p->group[i];
		if (element < g->start + g->count)
			return g->param_offset + (element - g->start) * dtype_size(g->param_dtype);
	}
	return p->param_bytes;
}

void share_params_bounds(const struct plan *p, uint64_t *out)
{
	uint64_t share[PLAN_MAX_PARTS + 1];
	plan_shares(p, share);
	for (uint32_t s = 0; s <= p->n_parts; s++)
		out[s] = s ? byte_of(p, share[s]) : 0;
}

static enum status gather_table(const struct plan *p, struct coll *coll, struct arith_share *table)
{
	uint64_t bounds[PLAN_MAX_PARTS + 1];
	for (uint32_t s = 0; s <= p->n_parts; s++)
		bounds[s] = s * sizeof(*table);
	return coll_gather(coll, &(struct coll_gather){ .buffer = table, .bounds = bounds, .piece = sizeof(*table) });
}

enum status share_params_gather(const struct memory *m, struct coll *coll, bool whole, struct arith_share *table)
{
	uint64_t bounds[PLAN_MAX_PARTS + 1];
	share_params_bounds(m->plan, bounds);
	const struct coll_gather params = {
		.buffer = m->params, .bounds = bounds, .piece = SUM_PARTS_PIECE, .whole = whole
	};
	enum status st = coll_gather(coll, &params);
	FAILPOINT(engine_shares_gathered);
	return st ? st : gather_table(m->plan, coll, table);
}

uint64_t share_params_digest(const struct plan *p, const struct arith_share *table, uint64_t others)
{
	uint64_t sum = others;
	for (uint32_t s = 0; s < p->n_parts; s++)
		sum += s == p->part ? table[s].values : table[s].values - table[s].seen;
	return sum;
}
