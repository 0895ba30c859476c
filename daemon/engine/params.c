/* SPDX-License-Identifier: Apache-2.0 */
/* Sets initial parameters, copied from a slot or drawn at random. For arith_host.c; the engine's main thread, with the
 * workers. */
#include "engine/params.h"

#include <assert.h>
#include <string.h>

#define INIT_CHUNK 65536 /* elements that one worker draws at a time */

static uint64_t min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t max(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* Masters of this group's elements that have a byte in [offset, end); widened to whole ARENA_ALIGNs for the kernel. */
static void derive_master(const struct memory *m, const struct kernels *k, const struct arena_group *g, uint64_t offset,
			  uint64_t end)
{
	uint64_t from = max(offset, g->param_offset), to = min(end, g->param_offset + 2 * g->count);
	if (from >= to)
		return;
	uint64_t first = (from - g->param_offset) / 2 / ARENA_ALIGN * ARENA_ALIGN;
	uint64_t last = ((to - g->param_offset + 1) / 2 + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
	first = max(g->start + first, m->own);
	last = min(g->start + last, m->own_end);
	if (first < last)
		k->to_f32(m->master + (first - m->own), m->params + g->param_offset + 2 * (first - g->start),
			  g->param_dtype, last - first);
}

void params_derive_masters(const struct memory *m, const struct kernels *k)
{
	for (uint32_t i = 0; m->master && i < m->plan->n_groups; i++)
		if (dtype_size(m->plan->group[i].param_dtype) == 2)
			derive_master(m, k, &m->plan->group[i], 0, m->plan->param_bytes);
}

void params_put(const struct memory *m, const struct gaps *g, const struct kernels *k, uint32_t slot, uint64_t offset,
		uint64_t bytes)
{
	const struct plan *p = m->plan;
	assert(slot < p->slots && bytes <= p->slot_bytes && offset <= p->param_bytes &&
	       bytes <= p->param_bytes - offset);
	memcpy(m->params + offset, m->slot[slot], bytes);
	gaps_zero_params(g, m->params, offset, offset + bytes);
	for (uint32_t i = 0; m->master && i < p->n_groups; i++)
		if (dtype_size(p->group[i].param_dtype) == 2)
			derive_master(m, k, &p->group[i], offset, offset + bytes);
}

struct draw {
	const struct memory *m;
	const struct kernels *kernels;
	const struct plan_tensor *tensor;
};

/* Of those elements that are this part's own: a block of a tensor may have others, too. */
static void keep_master(const struct memory *m, uint64_t start, const float *value, size_t n)
{
	const uint64_t from = max(start, m->own), end = min(start + n, m->own_end);
	if (m->master && from < end)
		memcpy(m->master + (from - m->own), value + (from - start), (end - from) * sizeof(*value));
}

/* Values first..first+n of the tensor, n <= KERNEL_BLOCK; all dtypes go through f32. */
static void draw_block(const struct draw *d, uint64_t first, size_t n)
{
	const struct plan_tensor *t = d->tensor;
	_Alignas(64) float buffer[KERNEL_BLOCK];
	struct kernel_params p;
	memory_params(d->m, t->dtype_group, t->start + first, &p);
	float *value = p.p && !p.p16 ? p.p : buffer;
	init_fill(value, first, n, &t->init, t->fan_in, t->fan_out, d->m->plan->seed, t->key);
	if (!p.p16)
		return;
	d->kernels->from_f32(p.p16, p.p16_dtype, value, n);
	keep_master(d->m, t->start + first, value, n);
}

static void draw_chunk(void *arg, uint32_t item, uint32_t worker)
{
	const struct draw *d = arg;
	uint64_t first = (uint64_t)item * INIT_CHUNK, end = min(first + INIT_CHUNK, d->tensor->count);
	for (; first < end; first += KERNEL_BLOCK)
		draw_block(d, first, min(KERNEL_BLOCK, end - first));
}

void params_init(const struct memory *m, const struct kernels *k, struct workers *w)
{
	const struct plan_tensor *t = plan_tensors(m->plan);
	for (uint64_t i = 0; i < m->plan->n_tensors; i++) {
		struct draw d = { m, k, &t[i] };
		if (t[i].alias < 0 && t[i].init.type)
			workers_run(w, draw_chunk, &d, (uint32_t)((t[i].count + INIT_CHUNK - 1) / INIT_CHUNK), false);
	}
}
