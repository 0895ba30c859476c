/* SPDX-License-Identifier: Apache-2.0 */
/* Sums and first parameters of a job of several parts, each on a GPU of its own, exchanged through the host's memory.
 * For arith_cuda.c; communication thread and main thread, never both at a time. */
#include "cuda/parts.h"

#include "engine/sum_parts.h"

#include <assert.h>
#include <stdlib.h>

struct cuda_parts {
	const struct cuda_bytes *bytes;
	const struct cuda_memory *memory;
	const struct plan *plan;
	struct sum_parts *sums;
	uint64_t n; /* bytes of a half, which neither parameters nor masters exceed */
	/* this part's sum and that of all parts; before the first window the parameters and the masters */
	void *own, *sum;
	cu_memory own_seen, sum_seen;
};

enum status cuda_parts_new(struct cuda_parts **out, const struct cuda_bytes *b)
{
	const struct cuda_memory *m = b->life->memory;
	struct cuda_parts *p = calloc(1, sizeof(*p));
	if (!p)
		return ST_NO_MEMORY;
	*p = (struct cuda_parts){ .bytes = b, .memory = m, .plan = m->plan, .n = m->plan->n_elements * sizeof(float) };
	assert(plan_role_bytes(p->plan, SEG_PARAMS) <= p->n && plan_role_bytes(p->plan, SEG_MASTER) <= p->n);
	enum status st = sum_parts_new(&p->sums, p->plan, kernels_get(NULL)); /* all tables have the same bits */
	if (!st)
		st = cuda_pinned(m->device, p->n, &p->own, &p->own_seen);
	if (!st)
		st = cuda_pinned(m->device, p->n, &p->sum, &p->sum_seen);
	if (st)
		cuda_parts_free(p);
	else
		*out = p;
	return st;
}

void cuda_parts_free(struct cuda_parts *p)
{
	if (!p)
		return;
	cuda_pinned_free(p->memory->device, p->own);
	cuda_pinned_free(p->memory->device, p->sum);
	sum_parts_free(p->sums);
	free(p);
}

/* ---- sums ---- */

enum status cuda_parts_reduce(struct cuda_parts *p, struct coll *coll, uint32_t src, bool filled)
{
	struct arith_norm unused; /* the main thread looks at the sum, where it is whole */
	const enum status st = filled ? cuda_bytes_read_pinned(p->bytes, p->own, p->memory->accum[src], p->n) : ST_OK;
	return st ? st : sum_parts_run(p->sums, coll, p->sum, p->own, filled, &unused);
}

enum status cuda_parts_reduced(struct cuda_parts *p, uint32_t dst)
{
	return cuda_bytes_take(p->bytes, p->memory->accum[dst], p->sum_seen, p->n);
}

/* ---- the first parameters ---- */

static enum status move(struct cuda_parts *p, struct coll *coll, uint32_t root, cu_memory at, uint64_t n, void *buffer)
{
	const enum status st = n && root == p->plan->part ? cuda_bytes_read_pinned(p->bytes, buffer, at, n) : ST_OK;
	return st || !n ? st : coll_broadcast(coll, buffer, n, root);
}

enum status cuda_parts_broadcast(struct cuda_parts *p, struct coll *coll, uint32_t root)
{
	const struct cuda_memory *m = p->memory;
	enum status st = move(p, coll, root, m->params, plan_role_bytes(p->plan, SEG_PARAMS), p->own);
	return st ? st : move(p, coll, root, m->master, plan_role_bytes(p->plan, SEG_MASTER), p->sum);
}

enum status cuda_parts_filled(struct cuda_parts *p)
{
	const struct cuda_memory *m = p->memory;
	enum status st = cuda_bytes_take(p->bytes, m->params, p->own_seen, plan_role_bytes(p->plan, SEG_PARAMS));
	return st ? st : cuda_bytes_take(p->bytes, m->master, p->sum_seen, plan_role_bytes(p->plan, SEG_MASTER));
}
