/* SPDX-License-Identifier: Apache-2.0 */
/* Sets initial parameters on a GPU, copied from a slot or drawn at random. For arith_cuda.c; the engine's main thread.
 */
#include "cuda/params.h"

#include "math/kernels.h"

#include <assert.h>
#include <stdlib.h>

#define DRAWN 65536 /* elements at a time */

struct cuda_first {
	const struct cuda_life *life;
	const struct cuda_memory *memory;
	const struct cuda_device *device;
	const struct plan *plan;
	const struct cuda_bytes *bytes;
	const struct kernels *kernels; /* of the host, to round what is drawn */
	const struct gap *gap;	       /* of the parameters, [n_gaps] */
	uint64_t n_gaps;
	struct cuda_gap *clipped; /* as they are uploaded */
	cu_memory gaps_there;
	float *value;	  /* [DRAWN] */
	uint16_t *narrow; /* the same */
};

enum status cuda_first_new(struct cuda_first **out, const struct cuda_life *life, const struct cuda_bytes *bytes,
			   const struct gaps *gaps)
{
	struct cuda_first *f = calloc(1, sizeof(*f));
	if (!f)
		return ST_NO_MEMORY;
	*f = (struct cuda_first){ .life = life,
				  .memory = life->memory,
				  .device = life->memory->device,
				  .plan = life->memory->plan,
				  .bytes = bytes,
				  .kernels = kernels_get(NULL) };
	f->gap = gaps_of_params(gaps, &f->n_gaps);
	f->clipped = calloc(f->n_gaps + 1, sizeof(*f->clipped));
	f->value = aligned_alloc(64, DRAWN * sizeof(*f->value));
	f->narrow = aligned_alloc(64, DRAWN * sizeof(*f->narrow));
	enum status st = f->clipped && f->value && f->narrow ? ST_OK : ST_NO_MEMORY;
	if (!st)
		st = cuda_private(f->device, f->n_gaps * sizeof(*f->clipped), &f->gaps_there);
	if (st)
		cuda_first_free(f);
	else
		*out = f;
	return st;
}

void cuda_first_free(struct cuda_first *f)
{
	if (!f)
		return;
	cuda_private_free(f->device, f->gaps_there);
	free(f->clipped);
	free(f->value);
	free(f->narrow);
	free(f);
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* ---- uploaded ---- */

/* The gaps that bytes [from, to) touch, cut to whole elements of 16 bits: what is in a gap is zero anyhow. */
static uint64_t clip_gaps(const struct cuda_first *f, uint64_t from, uint64_t to)
{
	uint64_t n = 0;
	for (uint64_t i = 0; i < f->n_gaps; i++) {
		const struct gap *g = &f->gap[i];
		if (g->from < to && from < g->to)
			f->clipped[n++] = (struct cuda_gap){ most(g->from, from & ~UINT64_C(1)),
							     least(g->to, (to + 1) & ~UINT64_C(1)) };
	}
	return n;
}

/* Masters of this group's elements that have a byte in [offset, end); widened to whole ARENA_ALIGNs. */
static enum status widen(const struct cuda_first *f, uint32_t group, uint64_t offset, uint64_t end)
{
	const struct arena_group *g = &f->plan->group[group];
	const uint64_t from = most(offset, g->param_offset), to = least(end, g->param_offset + 2 * g->count);
	if (from >= to)
		return ST_OK;
	const uint64_t first = (from - g->param_offset) / 2 / ARENA_ALIGN * ARENA_ALIGN;
	const uint64_t last = ((to - g->param_offset + 1) / 2 + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
	const struct cuda_widen a = { .pass = f->life->pass,
				      .dst = cuda_pointer(f->memory->master + (g->start + first) * sizeof(float)),
				      .src = cuda_pointer(cuda_params(f->memory, group) + 2 * first),
				      .n = last - first };
	return cuda_launch(f->device, g->param_dtype == DTYPE_BF16 ? "widen_bf16" : "widen_f16", &a,
			   cuda_blocks(f->device, a.n / KERNEL_BLOCK));
}

enum status cuda_first_put(struct cuda_first *f, uint32_t slot, uint64_t offset, uint64_t bytes)
{
	const struct plan *p = f->plan;
	assert(slot < p->slots && bytes <= p->slot_bytes && offset <= p->param_bytes &&
	       bytes <= p->param_bytes - offset);
	const struct cuda_copy copy = { .pass = f->life->pass,
					.to = cuda_pointer(f->memory->params + offset),
					.from = cuda_pointer(f->memory->slot[slot]),
					.bytes = bytes };
	const struct cuda_zero zero = { .pass = f->life->pass,
					.base = cuda_pointer(f->memory->params),
					.gap = cuda_pointer(f->gaps_there),
					.n_gaps = clip_gaps(f, offset, offset + bytes) };
	enum status st = cuda_upload(f->device, f->gaps_there, f->clipped, zero.n_gaps * sizeof(*f->clipped));
	if (!st && bytes)
		st = cuda_launch(f->device, "copy_bytes", &copy, cuda_blocks(f->device, bytes / 4096));
	if (!st && zero.n_gaps)
		st = cuda_launch(f->device, "zero_gaps", &zero, cuda_blocks(f->device, zero.n_gaps / 8));
	for (uint32_t g = 0; g < p->n_groups && f->memory->master && !st; g++)
		if (dtype_size(p->group[g].param_dtype) == 2)
			st = widen(f, g, offset, offset + bytes);
	return st ? st : cuda_life_wait(f->life, 4 * bytes);
}

/* ---- drawn ---- */

/* Values first..first+n of the tensor, n <= DRAWN; all dtypes go through f32. */
static enum status draw(const struct cuda_first *f, const struct plan_tensor *t, uint64_t first, uint64_t n)
{
	const struct arena_group *g = &f->plan->group[t->dtype_group];
	const uint64_t at = t->start + first;
	const cu_memory to = cuda_params(f->memory, t->dtype_group) + (at - g->start) * dtype_size(g->param_dtype);
	init_fill(f->value, first, n, &t->init, t->fan_in, t->fan_out, f->plan->seed, t->key);
	if (g->param_dtype == DTYPE_F32)
		return cuda_bytes_write(f->bytes, to, f->value, n * sizeof(*f->value));
	f->kernels->from_f32(f->narrow, g->param_dtype, f->value, n);
	enum status st = cuda_bytes_write(f->bytes, to, f->narrow, n * sizeof(*f->narrow));
	if (!st && f->memory->master)
		st = cuda_bytes_write(f->bytes, f->memory->master + at * sizeof(float), f->value,
				      n * sizeof(*f->value));
	return st;
}

enum status cuda_first_init(struct cuda_first *f, const struct arith *a)
{
	const struct plan_tensor *t = plan_tensors(f->plan);
	enum status st = ST_OK;
	for (uint64_t i = 0; i < f->plan->n_tensors; i++)
		for (uint64_t at = 0; t[i].alias < 0 && t[i].init.type && at < t[i].count && !st; at += DRAWN) {
			st = draw(f, &t[i], at, least(DRAWN, t[i].count - at));
			arith_at_work(a); /* one thread draws them all: minutes for 10^10 */
		}
	return st;
}
