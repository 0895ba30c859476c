/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the norms of each tensor's gradient and parameters, block by block; of a sharded job each part those of its
 * own blocks, which all parts then gather. For arith_host.c; the engine's main thread, with the workers, or the
 * communication thread. */
#include "engine/norms.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define ITEM_BLOCKS 64
#define ALONE_BELOW 65536	  /* elements */
#define PIECE (UINT64_C(1) << 20) /* bytes of a gather */

/* The first elements of a part's share: a block that begins in the share before may end there. Shares are longer than a
 * block, or end the arena. */
struct head {
	float master[KERNEL_BLOCK];
	double sum[KERNEL_BLOCK]; /* in the accumulator's dtype */
};

struct norms {
	const struct memory *m;
	const struct kernels *kernels;
	struct workers *workers;
	/* Blocks are numbered through the arena, so that those of a share follow each other. */
	uint64_t n_owners;
	uint64_t *tensor;      /* [n_owners]: those that are no alias, by their place in the arena */
	uint64_t *first_block; /* [n_owners + 1]: number of each one's first block */
	uint64_t n_blocks;
	double *grad, *param; /* [n_blocks] */
	const struct sum_view *sum;
	/* of a sharded job: */
	struct head *head;	 /* [n_parts], in the order of the shares; NULL: it is not */
	const struct head *next; /* of the share behind the own one; NULL: there is none */
	uint32_t own;		 /* the own share */
	uint64_t share[PLAN_MAX_PARTS + 1], bounds[PLAN_MAX_PARTS + 1]; /* elements; bytes of grad, and of param */
	struct coll_division division;
};

static int by_start(const void *a, const void *b, void *tensors)
{
	const struct plan_tensor *t = tensors;
	const uint64_t x = t[*(const uint64_t *)a].start, y = t[*(const uint64_t *)b].start;
	return (x > y) - (x < y);
}

static void number_blocks(struct norms *s)
{
	const struct plan_tensor *t = plan_tensors(s->m->plan);
	for (uint64_t i = 0; i < s->m->plan->n_tensors; i++)
		if (t[i].alias < 0)
			s->tensor[s->n_owners++] = i;
	qsort_r(s->tensor, s->n_owners, sizeof(*s->tensor), by_start, (void *)t); /* not written to */
	for (uint64_t i = 0; i < s->n_owners; i++)
		s->first_block[i + 1] = s->first_block[i] + (t[s->tensor[i]].count + KERNEL_BLOCK - 1) / KERNEL_BLOCK;
	s->n_blocks = s->first_block[s->n_owners];
}

/* Which of the owners a block belongs to: the last one that begins at or before it. */
static uint64_t owner_of(const struct norms *s, uint64_t block)
{
	uint64_t low = 0, high = s->n_owners;
	while (high - low > 1) {
		uint64_t mid = low + (high - low) / 2;
		if (s->first_block[mid] <= block)
			low = mid;
		else
			high = mid;
	}
	return low;
}

/* Its first element. */
static uint64_t start_of(const struct norms *s, uint64_t block)
{
	const uint64_t owner = owner_of(s, block);
	return plan_tensors(s->m->plan)[s->tensor[owner]].start + (block - s->first_block[owner]) * KERNEL_BLOCK;
}

/* The first block that begins at this element or behind it. */
static uint64_t block_from(const struct norms *s, uint64_t element)
{
	uint64_t low = 0, high = s->n_blocks;
	while (low < high) {
		uint64_t mid = low + (high - low) / 2;
		if (start_of(s, mid) < element)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static enum status divide(struct norms *s)
{
	const struct plan *p = s->m->plan;
	s->head = calloc(p->n_parts, sizeof(*s->head));
	if (!s->head)
		return ST_NO_MEMORY;
	plan_shares(p, s->share);
	s->own = plan_share_of(p, p->part);
	s->division.n_shares = p->n_parts;
	for (uint32_t part = 0; part < p->n_parts; part++)
		s->division.owns[part] = plan_share_of(p, part);
	for (uint32_t i = 0; i <= p->n_parts; i++)
		s->bounds[i] = block_from(s, s->share[i]) * sizeof(double);
	for (uint32_t i = p->n_parts - 1; i > s->own; i--)
		if (s->share[i + 1] > s->share[i])
			s->next = &s->head[i];
	return ST_OK;
}

enum status norms_new(struct norms **out, const struct memory *m, const struct kernels *kernels,
		      struct workers *workers)
{
	const uint64_t n = m->plan->n_tensors;
	struct norms *s = calloc(1, sizeof(*s));
	if (!s)
		return ST_NO_MEMORY;
	s->m = m;
	s->kernels = kernels;
	s->workers = workers;
	s->tensor = calloc(n + 1, sizeof(*s->tensor));
	s->first_block = calloc(n + 1, sizeof(*s->first_block));
	if (!s->tensor || !s->first_block)
		goto fail;
	number_blocks(s);
	s->grad = calloc(s->n_blocks + 1, sizeof(*s->grad));
	s->param = calloc(s->n_blocks + 1, sizeof(*s->param));
	if (!s->grad || !s->param || (plan_is_sharded(m->plan) && divide(s)))
		goto fail;
	*out = s;
	return ST_OK;
fail:
	norms_free(s);
	return ST_NO_MEMORY;
}

void norms_free(struct norms *s)
{
	if (!s)
		return;
	free(s->tensor);
	free(s->first_block);
	free(s->head);
	free(s->grad);
	free(s->param);
	free(s);
}

/* n elements of a block, `here` of which are this part's own: they are put together where the rest is another's. */
static const void *whole_of(const void *own, const void *rest, size_t element, uint64_t n, uint64_t here, void *room)
{
	if (here == n)
		return own;
	memcpy(room, own, here * element);
	memcpy((char *)room + here * element, rest, (n - here) * element);
	return room;
}

/* How many of the n elements from `start` on are in this part's share. */
static uint64_t here_of(const struct norms *s, uint64_t start, uint64_t n)
{
	const uint64_t end = s->head ? s->share[s->own + 1] : s->m->plan->n_elements;
	assert(end > start && (end - start >= n || s->next));
	return end - start < n ? end - start : n;
}

static void take_gradient(const struct norms *s, uint64_t block, uint32_t dtype_group, uint64_t start, uint64_t n)
{
	const enum dtype acc = (enum dtype)s->m->plan->acc_dtype;
	_Alignas(64) double room[KERNEL_BLOCK];
	_Alignas(64) float wide[KERNEL_BLOCK];
	s->grad[block] = 0;
	if (!s->sum)
		return;
	const uint64_t here = here_of(s, start, n);
	const void *values = whole_of(sum_view_at(s->sum, dtype_group, start, here, wide),
				      s->next ? s->next->sum : NULL, dtype_size(acc), n, here, room);
	s->kernels->inspect(values, acc, n, &(struct kernel_partials){ .sumsq = &s->grad[block] });
}

static void take_parameters(const struct norms *s, uint64_t block, uint32_t dtype_group, uint64_t start, uint64_t n)
{
	_Alignas(64) float room[KERNEL_BLOCK];
	struct kernel_params p;
	enum dtype dtype;
	memory_params(s->m, dtype_group, start, &p);
	const void *values = memory_values(&p, &dtype);
	if (dtype != DTYPE_F32) {
		s->kernels->to_f32(room, values, dtype, n);
		values = room;
	} else if (p.p16) { /* masters, of which a part has those of its share alone */
		values = whole_of(values, s->next ? s->next->master : NULL, sizeof(float), n, here_of(s, start, n),
				  room);
	}
	s->kernels->inspect(values, DTYPE_F32, n, &(struct kernel_partials){ .sumsq = &s->param[block] });
}

static void take_block(const struct norms *s, uint64_t block)
{
	const uint64_t owner = owner_of(s, block), at = (block - s->first_block[owner]) * KERNEL_BLOCK;
	const struct plan_tensor *t = &plan_tensors(s->m->plan)[s->tensor[owner]];
	const uint64_t n = t->count - at < KERNEL_BLOCK ? t->count - at : KERNEL_BLOCK;
	take_gradient(s, block, t->dtype_group, t->start + at, n);
	take_parameters(s, block, t->dtype_group, t->start + at, n);
}

static void take_item(void *arg, uint32_t item, uint32_t worker)
{
	const struct norms *s = arg;
	uint64_t first = (uint64_t)item * ITEM_BLOCKS;
	for (uint64_t block = first; block < first + ITEM_BLOCKS && block < s->n_blocks; block++)
		take_block(s, block);
}

static void write_rows(const struct norms *s)
{
	struct tensor_norm *row = control_page_norms(&s->m->page);
	for (uint64_t i = 0; i < s->n_owners; i++) {
		uint64_t first = s->first_block[i], n = s->first_block[i + 1] - first;
		row[s->tensor[i]] =
			(struct tensor_norm){ kernel_sum(s->grad + first, n), kernel_sum(s->param + first, n) };
	}
}

void norms_take(struct norms *s, const struct sum_view *sum)
{
	assert(!s->head);
	s->sum = sum;
	workers_run(s->workers, take_item, s, (uint32_t)((s->n_blocks + ITEM_BLOCKS - 1) / ITEM_BLOCKS),
		    s->m->plan->n_elements < ALONE_BELOW);
	write_rows(s);
}

/* ---- sharded ---- */

static enum status gather_heads(struct norms *s, struct coll *coll)
{
	const struct plan *p = s->m->plan;
	const uint64_t from = s->share[s->own], n = s->share[s->own + 1] - from;
	const uint64_t k = n < KERNEL_BLOCK ? n : KERNEL_BLOCK;
	const size_t element = dtype_size((enum dtype)p->acc_dtype);
	struct head *own = &s->head[s->own];
	uint64_t bounds[PLAN_MAX_PARTS + 1];
	for (uint32_t i = 0; i <= p->n_parts; i++)
		bounds[i] = i * sizeof(*own);
	memcpy(own->sum, sum_view_at(s->sum, 0, from, k, NULL), k * element); /* an accumulator: nothing is converted */
	if (s->m->master)
		memcpy(own->master, s->m->master + (from - s->m->own), k * sizeof(float));
	return coll_gather(
		coll, &(struct coll_gather){
			      .buffer = s->head, .bounds = bounds, .piece = sizeof(*own), .division = &s->division });
}

static enum status gather_blocks(const struct norms *s, struct coll *coll, double *blocks)
{
	return coll_gather(coll,
			   &(struct coll_gather){
				   .buffer = blocks, .bounds = s->bounds, .piece = PIECE, .division = &s->division });
}

enum status norms_take_shares(struct norms *s, struct coll *coll, const struct sum_view *sum)
{
	assert(s->head);
	workers_flush_subnormals();
	s->sum = sum;
	enum status st = gather_heads(s, coll);
	for (uint64_t b = s->bounds[s->own]; b < s->bounds[s->own + 1] && !st; b += sizeof(double))
		take_block(s, b / sizeof(double));
	if (!st)
		st = gather_blocks(s, coll, s->grad);
	if (!st)
		st = gather_blocks(s, coll, s->param);
	if (!st)
		write_rows(s);
	return st;
}
