/* SPDX-License-Identifier: Apache-2.0 */
/* Sums the accumulators of all parts with the engine's own kernel, piece by piece as they come. For arith_host.c; the
 * communication thread, one call at a time. */
#include "engine/sum_parts.h"

#include "engine/workers.h"
#include "proto/failpoint.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(SUM_PARTS_PIECE % (KERNEL_BLOCK * sizeof(double)) == 0, "the kernels want whole blocks");
_Static_assert(SUM_PARTS_SMALL <= COLL_MAX_SMALL && SUM_PARTS_SMALL <= SUM_PARTS_PIECE, "one message, one piece");
_Static_assert(PLAN_MAX_PARTS <= COLL_MAX_PARTS, "a job's parts fit into one communicator");

struct sum_parts {
	const struct plan *plan;
	kernel_accumulate_fn *add;
	enum dtype acc;
	uint32_t element; /* bytes */
	uint32_t small;	  /* bytes; 0: shares are exchanged and gathered */
	uint64_t bounds[PLAN_MAX_PARTS + 1];
	unsigned char *scratch; /* a piece, where one call of the kernel cannot take all parts; else NULL */
	unsigned char *dst;	/* of the sum at hand */
};

uint32_t sum_parts_small(const struct plan *plan)
{
	const uint64_t bytes = plan->n_elements * dtype_size((enum dtype)plan->acc_dtype);
	return plan->n_parts > 1 && bytes * (plan->n_parts - 1) <= SUM_PARTS_SMALL ? (uint32_t)bytes : 0;
}

enum status sum_parts_new(struct sum_parts **out, const struct plan *plan, const struct kernels *k)
{
	struct sum_parts *p = calloc(1, sizeof(*p));
	if (!p)
		return ST_NO_MEMORY;
	p->plan = plan;
	p->acc = (enum dtype)plan->acc_dtype;
	p->element = (uint32_t)dtype_size(p->acc);
	p->small = sum_parts_small(plan);
	/* as in a pass: a small arena stays in the cache */
	p->add = plan->n_elements <= KERNEL_CACHED_ELEMENTS ? k->accumulate_cached : k->accumulate;
	plan_shares(plan, p->bounds);
	for (uint32_t s = 0; s <= plan->n_parts; s++)
		p->bounds[s] *= p->element;
	if (plan->n_parts > KERNEL_MAX_SLOTS) {
		p->scratch = aligned_alloc(64, SUM_PARTS_PIECE);
		if (!p->scratch) {
			sum_parts_free(p);
			return ST_NO_MEMORY;
		}
	}
	*out = p;
	return ST_OK;
}

void sum_parts_free(struct sum_parts *p)
{
	if (!p)
		return;
	free(p->scratch);
	free(p);
}

/* The kernel adds KERNEL_MAX_SLOTS sources at a time, and not in place: sums of some parts are in the scratch piece and
 * in dst by turns, so that the last one is in dst. */
static enum status add_piece(void *arg, const struct coll_piece *piece, const void *const *source, uint32_t n)
{
	const struct sum_parts *p = arg;
	const size_t count = piece->n / p->element;
	unsigned char *dst = p->dst + piece->from, *from = NULL;
	for (uint32_t done = 0, left = (n + KERNEL_MAX_SLOTS - 1) / KERNEL_MAX_SLOTS; left; left--) {
		struct kernel_src src[KERNEL_MAX_SLOTS];
		int k = 0;
		while (k < KERNEL_MAX_SLOTS && done < n)
			src[k++] = (struct kernel_src){ source[done++], 1 };
		unsigned char *to = left % 2 ? dst : p->scratch;
		p->add(to, from, !from, p->acc, src, k, p->acc, count, NULL, NULL);
		from = to;
	}
	FAILPOINT(engine_piece_summed);
	return ST_OK;
}

static enum status exchange_and_gather(struct sum_parts *p, struct coll *coll, const void *own)
{
	const struct coll_exchange exchange = { .in = own,
						.bounds = p->bounds,
						.piece = SUM_PARTS_PIECE,
						.element = p->element,
						.sum = add_piece,
						.arg = p };
	const struct coll_gather gather = { .buffer = p->dst, .bounds = p->bounds, .piece = SUM_PARTS_PIECE };
	enum status st = coll_exchange(coll, &exchange);
	return st ? st : coll_gather(coll, &gather);
}

enum status sum_parts_run(struct sum_parts *p, struct coll *coll, void *dst, void *own, bool filled)
{
	assert(dst != own && coll->n_parts == p->plan->n_parts && coll->part == p->plan->part);
	workers_flush_subnormals();
	p->dst = dst;
	if (!filled)
		memset(own, 0, p->bounds[p->plan->n_parts]);
	const struct coll_sum_small whole = {
		.in = own, .n = p->small, .element = p->element, .sum = add_piece, .arg = p
	};
	enum status st = p->small ? coll_sum_small(coll, &whole) : exchange_and_gather(p, coll, own);
	if (!st)
		FAILPOINT(engine_reduce_done);
	return st;
}
