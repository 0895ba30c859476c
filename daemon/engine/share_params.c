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
	uint64_t shard[PLAN_MAX_PARTS + 1];
	plan_shards(p, shard);
	for (uint32_t s = 0; s <= p->n_shards; s++)
		out[s] = s ? byte_of(p, shard[s]) : 0;
}

/* The first element that lies at this byte or behind it. */
static uint64_t element_at(const struct plan *p, uint64_t byte)
{
	for (uint32_t i = 0; i < p->n_groups; i++) {
		const struct arena_group *g = &p->group[i];
		const uint64_t size = dtype_size(g->param_dtype);
		if (byte <= g->param_offset)
			return g->start;
		if (byte < g->param_offset + g->count * size)
			return g->start + (byte - g->param_offset + size - 1) / size;
	}
	return p->n_elements;
}

/* The own shard, while it is updated. */
struct giving {
	const struct plan *plan;
	struct front *front;
};

static enum status await_piece(void *arg, const struct coll_piece *piece)
{
	const struct giving *g = arg;
	front_wait(g->front, element_at(g->plan, piece->from + piece->n));
	FAILPOINT(engine_share_piece);
	return ST_OK;
}

static enum status gather_table(const struct plan *p, struct coll *coll, struct arith_share *table)
{
	uint64_t bounds[PLAN_MAX_PARTS + 1];
	for (uint32_t s = 0; s <= p->n_parts; s++)
		bounds[s] = s * sizeof(*table);
	return coll_gather(coll, &(struct coll_gather){ .buffer = table, .bounds = bounds, .piece = sizeof(*table) });
}

enum status share_params_gather(const struct memory *m, struct coll *coll, struct front *front, bool whole,
				struct arith_share *table)
{
	uint64_t bounds[PLAN_MAX_PARTS + 1];
	struct giving giving = { m->plan, front };
	struct coll_division division = { .n_shares = m->plan->n_shards, .group = m->plan->n_shards };
	for (uint32_t part = 0; part < m->plan->n_parts; part++)
		division.owns[part] = part % m->plan->n_shards;
	share_params_bounds(m->plan, bounds);
	const struct coll_gather params = { .buffer = m->params,
					    .bounds = bounds,
					    .piece = SUM_PARTS_PIECE,
					    .produce = await_piece,
					    .arg = &giving,
					    .whole = whole,
					    .division = &division };
	enum status st = coll_gather(coll, &params);
	FAILPOINT(engine_shares_gathered);
	if (st)
		return st;
	table[m->plan->part] = front_wait_end(front);
	return gather_table(m->plan, coll, table);
}

uint64_t share_params_digest(const struct plan *p, const struct arith_share *table, uint64_t others)
{
	const uint32_t first = p->part - p->part % p->n_shards;
	uint64_t sum = others;
	for (uint32_t s = first; s < first + p->n_shards; s++)
		sum += s == p->part ? table[s].values : table[s].values - table[s].seen;
	return sum;
}
