/* SPDX-License-Identifier: Apache-2.0 */
/* Digests, norms and lost values of what lies on a GPU: a launch for each dtype group, over spans that are its ranges
 * or its tensors. For arith_cuda.c and update.c; the engine's main thread. */
#include "cuda/looks.h"

#include "engine/finite.h"
#include "engine/runs.h"

#include <stdlib.h>
#include <string.h>

/* What blocks are counted in: a range of the plan, or a tensor. */
struct stretch {
	uint64_t start, count; /* elements of the arena */
	uint32_t group;
};

/* Spans on the device, in the order of the arena, with their blocks numbered through. A group's begin at its first
 * element and its first block. */
struct table {
	cu_memory at;
	struct {
		uint64_t first, n, first_block, n_blocks;
	} of[ARENA_MAX_GROUPS];
	uint64_t n, n_blocks;
	uint64_t *first_block; /* [n + 1], on the host */
};

struct cuda_looks {
	const struct cuda_life *life;
	const struct cuda_memory *memory;
	const struct cuda_device *device;
	const struct plan *plan;
	const struct cuda_results *results;
	const struct cuda_bytes *bytes;
	const struct control_page *page;
	struct runs *runs;
	struct table ranges, tensors;
	cu_memory in_half; /* spans of tensors in a sum, which is one array */
	double *sumsq;	   /* [tensors.n_blocks] */
	uint32_t *lost;	   /* [ranges.n_blocks] */
	bool *any;	   /* the same */
};

static uint64_t blocks_of(uint64_t elements)
{
	return (elements + KERNEL_BLOCK - 1) / KERNEL_BLOCK;
}

static enum status upload_spans(const struct cuda_looks *l, const struct cuda_span *span, uint64_t n, cu_memory *out)
{
	const enum status st = cuda_private(l->device, n * sizeof(*span), out);
	return st ? st : cuda_upload(l->device, *out, span, n * sizeof(*span));
}

static void number(struct table *t, const struct stretch *s)
{
	for (uint64_t i = 0; i < t->n; i++) {
		const uint64_t n = blocks_of(s[i].count);
		if (!t->of[s[i].group].n++) {
			t->of[s[i].group].first = i;
			t->of[s[i].group].first_block = t->n_blocks;
		}
		t->of[s[i].group].n_blocks += n;
		t->n_blocks += n;
		t->first_block[i + 1] = t->n_blocks;
	}
}

static enum status make_table(const struct cuda_looks *l, const struct stretch *s, uint64_t n, struct table *t,
			      cu_memory *in_half)
{
	struct cuda_span *span = calloc(n + 1, sizeof(*span));
	enum status st = ST_NO_MEMORY;
	t->n = n;
	t->first_block = calloc(n + 1, sizeof(*t->first_block));
	if (span && t->first_block) {
		number(t, s);
		for (uint64_t i = 0; i < n; i++)
			span[i] = (struct cuda_span){ s[i].start - l->plan->group[s[i].group].start, s[i].count,
						      t->first_block[i] - t->of[s[i].group].first_block };
		st = upload_spans(l, span, n, &t->at);
		for (uint64_t i = 0; i < n; i++)
			span[i] = (struct cuda_span){ s[i].start, s[i].count, t->first_block[i] };
		if (!st && in_half)
			st = upload_spans(l, span, n, in_half);
	}
	free(span);
	return st;
}

static enum status make_tables(struct cuda_looks *l)
{
	const struct plan_range *r = plan_ranges(l->plan);
	uint64_t n_owners;
	const struct run_owner *owner = runs_owners(l->runs, &n_owners);
	struct stretch *s = calloc(l->plan->n_ranges + n_owners + 1, sizeof(*s));
	if (!s)
		return ST_NO_MEMORY;
	for (uint64_t i = 0; i < l->plan->n_ranges; i++)
		s[i] = (struct stretch){ r[i].start, r[i].count, r[i].dtype_group };
	enum status st = make_table(l, s, l->plan->n_ranges, &l->ranges, NULL);
	for (uint64_t i = 0; i < n_owners; i++)
		s[i] = (struct stretch){ owner[i].start, plan_tensors(l->plan)[owner[i].tensor].count, owner[i].group };
	if (!st)
		st = make_table(l, s, n_owners, &l->tensors, &l->in_half);
	free(s);
	if (st)
		return st;
	l->sumsq = calloc(l->tensors.n_blocks + 1, sizeof(*l->sumsq));
	l->lost = calloc(l->ranges.n_blocks + 1, sizeof(*l->lost));
	l->any = calloc(l->ranges.n_blocks + 1, sizeof(*l->any));
	return l->sumsq && l->lost && l->any ? ST_OK : ST_NO_MEMORY;
}

enum status cuda_looks_new(struct cuda_looks **out, const struct cuda_life *life, const struct cuda_results *results,
			   const struct cuda_bytes *bytes, const struct control_page *page)
{
	struct cuda_looks *l = calloc(1, sizeof(*l));
	if (!l)
		return ST_NO_MEMORY;
	*l = (struct cuda_looks){ .life = life,
				  .memory = life->memory,
				  .device = life->memory->device,
				  .plan = life->memory->plan,
				  .results = results,
				  .bytes = bytes,
				  .page = page };
	enum status st = runs_new(&l->runs, l->plan);
	if (!st)
		st = make_tables(l);
	if (st)
		cuda_looks_free(l);
	else
		*out = l;
	return st;
}

void cuda_looks_free(struct cuda_looks *l)
{
	if (!l)
		return;
	cuda_private_free(l->device, l->ranges.at);
	cuda_private_free(l->device, l->tensors.at);
	cuda_private_free(l->device, l->in_half);
	free(l->ranges.first_block);
	free(l->tensors.first_block);
	free(l->sumsq);
	free(l->lost);
	free(l->any);
	runs_free(l->runs);
	free(l);
}

static enum status inspect(const struct cuda_looks *l, enum dtype t, cu_memory values, cu_memory spans, uint64_t n,
			   uint64_t n_blocks, struct cuda_partials out)
{
	const struct cuda_inspect a = { .pass = l->life->pass,
					.values = cuda_pointer(values),
					.span = cuda_pointer(spans),
					.n_spans = n,
					.n_blocks = n_blocks,
					.out = out,
					.keys = l->results->keys };
	const char *kernel = t == DTYPE_F32 ? "inspect_f32" : t == DTYPE_BF16 ? "inspect_bf16" : "inspect_f16";
	return n ? cuda_launch(l->device, kernel, &a, cuda_blocks(l->device, n_blocks / CUDA_TILE)) : ST_OK;
}

/* Of one group, with results where its blocks are numbered. */
static enum status inspect_group(const struct cuda_looks *l, const struct table *t, uint32_t group, enum dtype dtype,
				 cu_memory values)
{
	return inspect(l, dtype, values, t->at + t->of[group].first * sizeof(struct cuda_span), t->of[group].n,
		       t->of[group].n_blocks, cuda_results_from(l->results, t->of[group].first_block));
}

static enum status inspect_values(const struct cuda_looks *l, const struct table *t)
{
	enum status st = ST_OK;
	for (uint32_t g = 0; g < l->plan->n_groups && !st; g++) {
		enum dtype dtype;
		const cu_memory values = cuda_values(l->memory, g, &dtype);
		st = inspect_group(l, t, g, dtype, values);
	}
	return st;
}

static uint64_t bytes_of_values(const struct cuda_looks *l)
{
	return l->plan->n_elements * sizeof(float);
}

/* Of the ranges, which have been inspected. */
static enum status total_digest(const struct cuda_looks *l, uint64_t *digest)
{
	struct cuda_total total;
	const enum status st =
		cuda_total_of(l->results, l->results->at, l->ranges.n_blocks, bytes_of_values(l), &total);
	if (!st)
		*digest = total.digest;
	return st;
}

enum status cuda_looks_digest(struct cuda_looks *l, uint64_t *digest)
{
	const enum status st = inspect_values(l, &l->ranges);
	return st ? st : total_digest(l, digest);
}

enum status cuda_looks_seen(struct cuda_looks *l, uint64_t *digest)
{
	enum status st = ST_OK;
	for (uint32_t g = 0; g < l->plan->n_groups && !st; g++)
		st = inspect_group(l, &l->ranges, g, l->plan->group[g].param_dtype, cuda_params(l->memory, g));
	return st ? st : total_digest(l, digest);
}

/* ---- lost values ---- */

enum copy { OF_32, OF_16, OF_V, COPIES };

/* A group's values in one of the copies; 0: it has none. */
static cu_memory copy_of(const struct cuda_looks *l, uint32_t group, enum copy copy, enum dtype *dtype)
{
	const struct arena_group *g = &l->plan->group[group];
	const uint64_t at = g->start * sizeof(float);
	*dtype = copy == OF_16 ? g->param_dtype : DTYPE_F32;
	if (copy == OF_V)
		return l->memory->state[1] ? l->memory->state[1] + at : 0;
	if (copy == OF_32 && g->param_dtype != DTYPE_F32)
		return l->memory->master ? l->memory->master + at : 0;
	return (copy == OF_32) == (g->param_dtype == DTYPE_F32) ? cuda_params(l->memory, group) : 0;
}

/* Notes in `any` which blocks of the ranges have lost values in this copy. */
static enum status note_lost(struct cuda_looks *l, enum copy copy)
{
	const struct table *t = &l->ranges;
	enum dtype dtype;
	enum status st = ST_OK;
	for (uint32_t g = 0; g < l->plan->n_groups && !st; g++) {
		const cu_memory values = copy_of(l, g, copy, &dtype);
		if (values)
			st = inspect_group(l, t, g, dtype, values);
	}
	if (!st)
		st = cuda_life_wait(l->life, bytes_of_values(l));
	if (!st)
		st = cuda_download(l->device, l->lost, l->results->nonfinite, t->n_blocks * sizeof(*l->lost));
	for (uint32_t g = 0; g < l->plan->n_groups && !st; g++)
		for (uint64_t b = t->of[g].first_block, end = b + t->of[g].n_blocks;
		     copy_of(l, g, copy, &dtype) && b < end; b++)
			l->any[b] |= l->lost[b] != 0;
	return st;
}

/* Element by element, of n from `start` on. */
static enum status search(const struct cuda_looks *l, uint32_t group, uint64_t start, uint64_t n, struct nonfinite *out)
{
	float wide[KERNEL_BLOCK], v[KERNEL_BLOCK];
	uint16_t narrow[KERNEL_BLOCK];
	void *const to[COPIES] = { wide, narrow, v };
	bool has[COPIES];
	enum dtype dtype[COPIES];
	const uint64_t at = start - l->plan->group[group].start, before = out->count;
	for (int c = 0; c < COPIES; c++) {
		const cu_memory values = copy_of(l, group, (enum copy)c, &dtype[c]);
		const size_t size = dtype_size(dtype[c]);
		has[c] = values != 0;
		const enum status st = values ? cuda_bytes_read(l->bytes, to[c], values + at * size, n * size) : ST_OK;
		if (st)
			return st;
	}
	const size_t first = finite_count(&(struct kernel_params){ .p = has[OF_32] ? wide : NULL,
								   .p16 = has[OF_16] ? narrow : NULL,
								   .p16_dtype = dtype[OF_16],
								   .v = has[OF_V] ? v : NULL },
					  n, &out->count);
	if (!before && out->count)
		out->tensor = finite_tensor(l->plan, start + first);
	return ST_OK;
}

enum status cuda_looks_nonfinite(struct cuda_looks *l, struct nonfinite *out)
{
	const struct plan_range *r = plan_ranges(l->plan);
	enum status st = ST_OK;
	*out = (struct nonfinite){ 0, 0 };
	memset(l->any, 0, l->ranges.n_blocks * sizeof(*l->any));
	for (int c = 0; c < COPIES && !st; c++)
		st = note_lost(l, (enum copy)c);
	for (uint64_t i = 0; i < l->plan->n_ranges && !st; i++) {
		const uint64_t first = l->ranges.first_block[i], n = l->ranges.first_block[i + 1] - first;
		for (uint64_t b = 0; b < n && !plan_optim_groups(l->plan)[r[i].optim_group].frozen && !st; b++) {
			const uint64_t at = b * KERNEL_BLOCK, left = r[i].count - at;
			if (l->any[first + b])
				st = search(l, r[i].dtype_group, r[i].start + at,
					    left < KERNEL_BLOCK ? left : KERNEL_BLOCK, out);
		}
	}
	return st;
}

/* ---- norms ---- */

static enum status read_sums(struct cuda_looks *l)
{
	const enum status st = cuda_life_wait(l->life, bytes_of_values(l));
	return st ? st : cuda_download(l->device, l->sumsq, l->results->sumsq, l->tensors.n_blocks * sizeof(*l->sumsq));
}

static double sum_of(const struct cuda_looks *l, uint64_t i)
{
	const uint64_t first = l->tensors.first_block[i];
	return kernel_sum(l->sumsq + first, l->tensors.first_block[i + 1] - first);
}

enum status cuda_looks_norms(struct cuda_looks *l, uint32_t half)
{
	struct tensor_norm *row = control_page_norms(l->page);
	uint64_t n;
	const struct run_owner *owner = runs_owners(l->runs, &n);
	enum status st = ST_OK;
	memset(l->sumsq, 0, l->tensors.n_blocks * sizeof(*l->sumsq));
	if (half != ARITH_NO_HALF) {
		st = inspect(l, DTYPE_F32, l->memory->accum[half], l->in_half, l->tensors.n, l->tensors.n_blocks,
			     l->results->at);
		if (!st)
			st = read_sums(l);
	}
	for (uint64_t i = 0; i < n && !st; i++)
		row[owner[i].tensor].grad_sumsq = sum_of(l, i);
	if (!st)
		st = inspect_values(l, &l->tensors);
	if (!st)
		st = read_sums(l);
	for (uint64_t i = 0; i < n && !st; i++)
		row[owner[i].tensor].param_sumsq = sum_of(l, i);
	return st;
}
