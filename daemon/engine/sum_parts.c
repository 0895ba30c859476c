/* SPDX-License-Identifier: Apache-2.0 */
/* Sums the accumulators of all parts with the engine's own kernel, piece by piece as they come. For arith_host.c; the
 * communication thread, one call at a time. */
#include "engine/sum_parts.h"

#include "engine/workers.h"
#include "math/norm_tree.h"
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
	uint32_t element;		     /* bytes */
	uint32_t small;			     /* bytes; 0: shares are exchanged and gathered */
	uint64_t bounds[PLAN_MAX_PARTS + 1]; /* of the shares; bytes */
	struct coll_division summed, given;  /* who sums a share; who has a use for its sum */
	unsigned char *scratch; /* a piece, where one call of the kernel cannot take all parts; else NULL */
	unsigned char *dst;	/* of the sum at hand */
	/* a sharded job: of the blocks that this part has the sum of, from `first` on; of a small arena it has all */
	struct kernel_partials partials;
	uint64_t first_block, n_blocks;
	struct vote *vote; /* [n_parts] */
};

/* What a part of a sharded job tells the others of its share. */
struct vote {
	uint64_t digest, nonfinite;
	struct norm_tree norm;
};

uint32_t sum_parts_small(const struct plan *plan)
{
	const uint64_t bytes = plan->n_elements * dtype_size((enum dtype)plan->acc_dtype);
	return plan->n_parts > 1 && bytes * (plan->n_parts - 1) <= SUM_PARTS_SMALL ? (uint32_t)bytes : 0;
}

static enum status keep_partials(struct sum_parts *p)
{
	const uint64_t block = KERNEL_BLOCK * (uint64_t)p->element;
	const uint32_t own = p->summed.owns[p->plan->part];
	p->first_block = p->small ? 0 : p->bounds[own] / block;
	p->n_blocks = (p->small ? p->bounds[p->plan->n_parts] : p->bounds[own + 1]) / block - p->first_block;
	p->partials = (struct kernel_partials){ .sumsq = calloc(p->n_blocks + 1, sizeof(double)),
						.digest = calloc(p->n_blocks + 1, sizeof(uint64_t)),
						.nonfinite = calloc(p->n_blocks + 1, sizeof(uint32_t)) };
	p->vote = calloc(p->plan->n_parts, sizeof(*p->vote));
	return p->partials.sumsq && p->partials.digest && p->partials.nonfinite && p->vote ? ST_OK : ST_NO_MEMORY;
}

/* The parts that have the same shard give each other their sums of it. */
static void divide(struct sum_parts *p)
{
	const struct plan *plan = p->plan;
	plan_shares(plan, p->bounds);
	for (uint32_t s = 0; s <= plan->n_parts; s++)
		p->bounds[s] *= p->element;
	p->summed = (struct coll_division){ .n_shares = plan->n_parts };
	for (uint32_t part = 0; part < plan->n_parts; part++)
		p->summed.owns[part] = plan_share_of(plan, part);
	p->given = p->summed;
	p->given.group = plan->n_shards;
	p->given.across = 1;
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
	divide(p);
	enum status st = plan_is_sharded(plan) ? keep_partials(p) : ST_OK;
	if (!st && plan->n_parts > KERNEL_MAX_SLOTS) {
		p->scratch = aligned_alloc(64, SUM_PARTS_PIECE);
		st = p->scratch ? ST_OK : ST_NO_MEMORY;
	}
	if (st)
		sum_parts_free(p);
	else
		*out = p;
	return st;
}

void sum_parts_free(struct sum_parts *p)
{
	if (!p)
		return;
	free(p->scratch);
	free(p->partials.sumsq);
	free(p->partials.digest);
	free(p->partials.nonfinite);
	free(p->vote);
	free(p);
}

/* Of a piece that begins at this byte of the arena. Pieces and shares are of whole blocks. */
static struct kernel_partials partials_at(const struct sum_parts *p, uint64_t byte)
{
	const uint64_t i = byte / (KERNEL_BLOCK * (uint64_t)p->element) - p->first_block;
	return (struct kernel_partials){ p->partials.sumsq + i, p->partials.digest + i, p->partials.nonfinite + i };
}

/* The kernel adds KERNEL_MAX_SLOTS sources at a time, and not in place: sums of some parts are in the scratch piece and
 * in dst by turns, so that the last one is in dst. */
static enum status add_piece(void *arg, const struct coll_piece *piece, const void *const *source, uint32_t n)
{
	const struct sum_parts *p = arg;
	const size_t count = piece->n / p->element;
	unsigned char *dst = p->dst + piece->from, *from = NULL;
	const struct kernel_partials found =
		plan_is_sharded(p->plan) ? partials_at(p, piece->from) : (struct kernel_partials){ NULL, NULL, NULL };
	for (uint32_t done = 0, left = (n + KERNEL_MAX_SLOTS - 1) / KERNEL_MAX_SLOTS; left; left--) {
		struct kernel_src src[KERNEL_MAX_SLOTS];
		int k = 0;
		while (k < KERNEL_MAX_SLOTS && done < n)
			src[k++] = (struct kernel_src){ source[done++], 1 };
		unsigned char *to = left % 2 ? dst : p->scratch;
		p->add(to, from, !from, p->acc, src, k, p->acc, count, NULL,
		       plan_is_sharded(p->plan) && left == 1 ? &found : NULL);
		from = to;
	}
	FAILPOINT(engine_piece_summed);
	return ST_OK;
}

/* Everybody hears of all shares, so that all votes say the same of the whole sum, which nobody has. */
static enum status tell_votes(struct sum_parts *p, struct coll *coll, struct arith_norm *norm)
{
	const uint32_t n = p->plan->n_parts;
	const struct norm_tree *tree[PLAN_MAX_PARTS];
	uint64_t bounds[PLAN_MAX_PARTS + 1];
	for (uint32_t s = 0; s <= n; s++)
		bounds[s] = s * sizeof(*p->vote);
	for (uint32_t s = 0; s < n; s++)
		tree[p->summed.owns[s]] = &p->vote[s].norm; /* in the order of the arena */
	const struct coll_gather gather = { .buffer = p->vote, .bounds = bounds, .piece = sizeof(*p->vote) };
	enum status st = coll_gather(coll, &gather);
	if (st)
		return st;
	*norm = (struct arith_norm){ 0 };
	for (uint32_t s = 0; s < n; s++) {
		norm->digest += p->vote[s].digest;
		norm->nonfinite += p->vote[s].nonfinite;
	}
	return norm_tree_join(tree, n, &norm->sumsq) ? ST_OK : ST_MALFORMED;
}

static enum status find_norm(struct sum_parts *p, struct coll *coll, struct arith_norm *norm)
{
	struct vote *own = &p->vote[p->plan->part];
	*own = (struct vote){ .digest = kernel_digest_combine(p->partials.digest, p->n_blocks, p->first_block) };
	for (uint64_t b = 0; b < p->n_blocks; b++)
		own->nonfinite += p->partials.nonfinite[b];
	if (p->small) { /* all is here */
		*norm = (struct arith_norm){ .sumsq = kernel_sum(p->partials.sumsq, p->n_blocks),
					     .nonfinite = own->nonfinite,
					     .digest = own->digest };
		return ST_OK;
	}
	norm_tree_take(p->partials.sumsq, p->first_block, p->first_block + p->n_blocks,
		       p->plan->n_elements / KERNEL_BLOCK, &own->norm);
	return tell_votes(p, coll, norm);
}

static enum status exchange(struct sum_parts *p, struct coll *coll, const void *own)
{
	const struct coll_exchange exchange = { .in = own,
						.bounds = p->bounds,
						.piece = SUM_PARTS_PIECE,
						.element = p->element,
						.sum = add_piece,
						.arg = p,
						.division = &p->summed };
	const struct coll_gather gather = {
		.buffer = p->dst, .bounds = p->bounds, .piece = SUM_PARTS_PIECE, .division = &p->given
	};
	enum status st = coll_exchange(coll, &exchange);
	return st || p->plan->n_shards == p->plan->n_parts ? st : coll_gather(coll, &gather);
}

enum status sum_parts_run(struct sum_parts *p, struct coll *coll, void *dst, void *own, bool filled,
			  struct arith_norm *norm)
{
	assert(dst != own && coll->n_parts == p->plan->n_parts && coll->part == p->plan->part);
	workers_flush_subnormals();
	p->dst = dst;
	if (!filled)
		memset(own, 0, p->bounds[p->plan->n_parts]);
	const struct coll_sum_small whole = {
		.in = own, .n = p->small, .element = p->element, .sum = add_piece, .arg = p
	};
	enum status st = p->small ? coll_sum_small(coll, &whole) : exchange(p, coll, own);
	if (!st && plan_is_sharded(p->plan))
		st = find_norm(p, coll, norm);
	if (!st)
		FAILPOINT(engine_reduce_done);
	return st;
}
