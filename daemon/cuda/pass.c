/* SPDX-License-Identifier: Apache-2.0 */
/* Adds micro-batches to sums on a GPU, looks at sums and scales them: one launch for each dtype group. For
 * arith_cuda.c; the engine's main thread. */
#include "cuda/pass.h"

#include "engine/runs.h"
#include "math/cuda/launches.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

struct cuda_passes {
	const struct cuda_life *life;
	const struct cuda_memory *memory;
	const struct cuda_device *device;
	const struct plan *plan;
	const struct cuda_results *results;
	struct runs *runs;
	struct cuda_run *table; /* of all groups, as it is uploaded */
	uint64_t n_gaps;
	cu_memory run, gap, span, nonfinite; /* on the device */
};

_Static_assert(sizeof(struct gap) == sizeof(struct cuda_gap), "gaps are uploaded as they are");

enum status cuda_passes_new(struct cuda_passes **out, const struct cuda_life *life, const struct cuda_results *results,
			    const struct gaps *gaps)
{
	const struct plan *plan = life->memory->plan;
	const struct cuda_device *d = life->memory->device;
	const struct cuda_span all = { 0, plan->n_elements, 0 };
	struct cuda_passes *p = calloc(1, sizeof(*p));
	if (!p)
		return ST_NO_MEMORY;
	*p = (struct cuda_passes){
		.life = life, .memory = life->memory, .device = d, .plan = plan, .results = results
	};
	const struct gap *gap = gaps_of_slot(gaps, &p->n_gaps);
	p->table = calloc(plan->n_tensors + 1, sizeof(*p->table));
	enum status st = p->table ? runs_new(&p->runs, plan) : ST_NO_MEMORY;
	if (!st)
		st = cuda_private(d, (plan->n_tensors + 1) * sizeof(*p->table), &p->run);
	if (!st)
		st = cuda_private(d, p->n_gaps * sizeof(*gap), &p->gap);
	if (!st)
		st = cuda_private(d, sizeof(all), &p->span);
	if (!st)
		st = cuda_private(d, KERNEL_MAX_SLOTS * sizeof(cuda_word), &p->nonfinite);
	if (!st)
		st = cuda_upload(d, p->gap, gap, p->n_gaps * sizeof(*gap));
	if (!st)
		st = cuda_upload(d, p->span, &all, sizeof(all));
	if (st)
		cuda_passes_free(p);
	else
		*out = p;
	return st;
}

void cuda_passes_free(struct cuda_passes *p)
{
	if (!p)
		return;
	cuda_private_free(p->device, p->run);
	cuda_private_free(p->device, p->gap);
	cuda_private_free(p->device, p->span);
	cuda_private_free(p->device, p->nonfinite);
	runs_free(p->runs);
	free(p->table);
	free(p);
}

static uint64_t half_bytes(const struct cuda_passes *p)
{
	return p->plan->n_elements * sizeof(float);
}

static uint64_t tiles(uint64_t elements)
{
	return (elements / KERNEL_BLOCK + CUDA_TILE - 1) / CUDA_TILE;
}

/* ---- add ---- */

/* A group's entries in the table. */
struct group_runs {
	uint32_t first, n;
};

/* Starts count from the group's first element there. */
static void list_runs(struct cuda_passes *p, const struct arith_source *s, uint32_t n, struct group_runs *of)
{
	const unsigned char *present[KERNEL_MAX_SLOTS] = { NULL };
	uint32_t n_runs;
	for (uint32_t i = 0; i < n; i++)
		present[i] = s[i].present;
	const struct run *run = runs_of(p->runs, present, n, &n_runs);
	for (uint32_t i = 0; i < n_runs; i++) {
		struct group_runs *g = &of[run[i].group];
		if (!g->n++)
			g->first = i;
		p->table[i] = (struct cuda_run){ .start = run[i].start - p->plan->group[run[i].group].start,
						 .sources = run[i].sources & ((1u << n) - 1) };
	}
}

/* Kernels run across tensor borders: what lies between tensors must be zero. */
static enum status zero_gaps(const struct cuda_passes *p, uint32_t slot)
{
	const struct cuda_zero a = { .pass = p->life->pass,
				     .base = cuda_pointer(p->memory->slot[slot]),
				     .gap = cuda_pointer(p->gap),
				     .n_gaps = p->n_gaps };
	return p->n_gaps ? cuda_launch(p->device, "zero_gaps", &a, cuda_blocks(p->device, p->n_gaps / 8)) : ST_OK;
}

static enum status add_group(const struct cuda_passes *p, uint32_t group, struct cuda_add a, struct group_runs runs,
			     bool norm)
{
	const struct arena_group *g = &p->plan->group[group];
	char kernel[CUDA_NAME_MAX];
	a.dst += g->start;
	a.src = a.src ? a.src + g->start : NULL;
	for (uint32_t i = 0; i < a.n_sources; i++)
		a.g[i] = (const char *)a.g[i] + g->slot_offset;
	a.n = g->count;
	a.run = (const struct cuda_run *)cuda_pointer(p->run) + runs.first;
	a.n_runs = runs.n;
	if (norm)
		a.out = cuda_results_from(p->results, g->start / KERNEL_BLOCK);
	cuda_add_name(g->grad_dtype, a.n_sources, norm, kernel);
	return cuda_launch(p->device, kernel, &a, cuda_blocks(p->device, tiles(g->count)));
}

/* All that kernels will read, before any is launched: a copy might otherwise wait for one that does not end. */
static enum status upload(const struct cuda_passes *p)
{
	const struct cuda_driver *cu = &p->device->cu;
	const enum status st = cuda_upload(p->device, p->run, p->table, p->plan->n_tensors * sizeof(*p->table));
	return st ? st
		  : cuda_check(p->device, "cuMemsetD8Async",
			       cu->cuMemsetD8Async(p->nonfinite, 0, KERNEL_MAX_SLOTS * sizeof(cuda_word),
						   p->device->stream));
}

static enum status launch_add(struct cuda_passes *p, struct cuda_add a, const struct arith_source *s, bool norm)
{
	struct group_runs runs[ARENA_MAX_GROUPS] = { { 0, 0 } };
	list_runs(p, s, a.n_sources, runs);
	enum status st = upload(p);
	for (uint32_t i = 0; i < a.n_sources && !st; i++) {
		a.g[i] = cuda_pointer(p->memory->slot[s[i].slot]);
		a.coef[i] = (float)s[i].coefficient;
		st = zero_gaps(p, s[i].slot);
	}
	for (uint32_t g = 0; g < p->plan->n_groups && !st; g++)
		st = add_group(p, g, a, runs[g], norm);
	return st;
}

static enum status total(const struct cuda_passes *p, uint64_t bytes, struct arith_norm *out)
{
	struct cuda_total t;
	const enum status st = cuda_total_of(p->results, p->results->at, p->plan->n_elements / KERNEL_BLOCK, bytes, &t);
	if (!st)
		*out = (struct arith_norm){ t.sumsq, t.nonfinite, t.digest };
	return st;
}

enum status cuda_passes_add(struct cuda_passes *p, uint32_t dst, uint32_t src, bool first, const struct arith_source *s,
			    uint32_t n, uint64_t *nonfinite, struct arith_norm *norm)
{
	const uint64_t bytes = 2 * half_bytes(p) + n * p->plan->slot_bytes;
	cuda_word count[KERNEL_MAX_SLOTS];
	assert(n <= KERNEL_MAX_SLOTS && dst < 2 && (first || src < 2));
	const struct cuda_add a = { .pass = p->life->pass,
				    .dst = cuda_pointer(p->memory->accum[dst]),
				    .src = first ? NULL : cuda_pointer(p->memory->accum[src]),
				    .n_sources = n,
				    .src_nonfinite = cuda_pointer(p->nonfinite),
				    .keys = p->results->keys };
	enum status st = launch_add(p, a, s, norm != NULL);
	if (!st)
		st = norm ? total(p, bytes, norm) : cuda_life_wait(p->life, bytes);
	if (!st)
		st = cuda_download(p->device, count, p->nonfinite, n * sizeof(*count));
	for (uint32_t i = 0; i < n && !st; i++)
		nonfinite[i] = count[i];
	return st;
}

/* ---- the others ---- */

enum status cuda_passes_inspect(struct cuda_passes *p, uint32_t half, struct arith_norm *out)
{
	const uint64_t blocks = p->plan->n_elements / KERNEL_BLOCK;
	const struct cuda_inspect a = { .pass = p->life->pass,
					.values = cuda_pointer(p->memory->accum[half]),
					.span = cuda_pointer(p->span),
					.n_spans = 1,
					.n_blocks = blocks,
					.out = p->results->at,
					.keys = p->results->keys };
	const enum status st =
		cuda_launch(p->device, "inspect_f32", &a, cuda_blocks(p->device, tiles(p->plan->n_elements)));
	return st ? st : total(p, half_bytes(p), out);
}

enum status cuda_passes_scale(struct cuda_passes *p, uint32_t dst, uint32_t src, double scale, double clip_value)
{
	const struct cuda_scale a = { .pass = p->life->pass,
				      .dst = cuda_pointer(p->memory->accum[dst]),
				      .src = cuda_pointer(p->memory->accum[src]),
				      .scale = (float)scale,
				      .limit = (float)clip_value > 0 ? (float)clip_value : INFINITY,
				      .n = p->plan->n_elements };
	const enum status st =
		cuda_launch(p->device, "scale", &a, cuda_blocks(p->device, p->plan->n_elements / KERNEL_BLOCK));
	return st ? st : cuda_life_wait(p->life, 2 * half_bytes(p));
}

enum status cuda_passes_zero(struct cuda_passes *p, uint32_t slot)
{
	const struct cuda_zero a = { .pass = p->life->pass,
				     .base = cuda_pointer(p->memory->slot[slot]),
				     .bytes = p->plan->slot_bytes };
	const enum status st =
		cuda_launch(p->device, "zero_bytes", &a, cuda_blocks(p->device, p->plan->slot_bytes / 4096));
	return st ? st : cuda_life_wait(p->life, p->plan->slot_bytes);
}
