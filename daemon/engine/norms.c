/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the norms of each tensor's gradient and parameters, block by block. For arith_host.c; the engine's main
 * thread, with the workers. */
#include "engine/norms.h"

#include <stdlib.h>

#define ITEM_BLOCKS 64
#define ALONE_BELOW 65536 /* elements */

struct norms {
	const struct memory *m;
	const struct kernels *kernels;
	struct workers *workers;
	uint64_t *first_block; /* [n_tensors + 1]: number of each tensor's first block; an alias has none */
	uint64_t n_blocks;
	double *grad, *param; /* [n_blocks] */
	const unsigned char *sum;
};

enum status norms_new(struct norms **out, const struct memory *m, const struct kernels *kernels,
		      struct workers *workers)
{
	const struct plan_tensor *t = plan_tensors(m->plan);
	const uint64_t n = m->plan->n_tensors;
	struct norms *s = calloc(1, sizeof(*s));
	if (!s)
		return ST_NO_MEMORY;
	s->m = m;
	s->kernels = kernels;
	s->workers = workers;
	s->first_block = calloc(n + 1, sizeof(*s->first_block));
	if (!s->first_block)
		goto fail;
	for (uint64_t i = 0; i < n; i++) {
		uint64_t blocks = t[i].alias < 0 ? (t[i].count + KERNEL_BLOCK - 1) / KERNEL_BLOCK : 0;
		s->first_block[i + 1] = s->first_block[i] + blocks;
	}
	s->n_blocks = s->first_block[n];
	s->grad = calloc(s->n_blocks + 1, sizeof(*s->grad));
	s->param = calloc(s->n_blocks + 1, sizeof(*s->param));
	if (!s->grad || !s->param)
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
	free(s->first_block);
	free(s->grad);
	free(s->param);
	free(s);
}

/* The tensor that a block belongs to: the last one that begins at or before it, which is no alias. */
static uint64_t tensor_of(const struct norms *s, uint64_t block)
{
	uint64_t low = 0, high = s->m->plan->n_tensors;
	while (high - low > 1) {
		uint64_t mid = low + (high - low) / 2;
		if (s->first_block[mid] <= block)
			low = mid;
		else
			high = mid;
	}
	return low;
}

static void take_block(const struct norms *s, uint64_t block)
{
	const uint64_t tensor = tensor_of(s, block), at = (block - s->first_block[tensor]) * KERNEL_BLOCK;
	const struct plan_tensor *t = &plan_tensors(s->m->plan)[tensor];
	const uint64_t start = t->start + at, n = t->count - at < KERNEL_BLOCK ? t->count - at : KERNEL_BLOCK;
	const enum dtype acc = (enum dtype)s->m->plan->acc_dtype;
	_Alignas(64) float wide[KERNEL_BLOCK];
	struct kernel_params p;
	enum dtype dtype;
	s->grad[block] = 0;
	if (s->sum)
		s->kernels->inspect(s->sum + start * dtype_size(acc), acc, n,
				    &(struct kernel_partials){ .sumsq = &s->grad[block] });
	memory_params(s->m, t->dtype_group, start, &p);
	const void *values = memory_values(&p, &dtype);
	if (dtype != DTYPE_F32) {
		s->kernels->to_f32(wide, values, dtype, n);
		values = wide;
	}
	s->kernels->inspect(values, DTYPE_F32, n, &(struct kernel_partials){ .sumsq = &s->param[block] });
}

static void take_item(void *arg, uint32_t item, uint32_t worker)
{
	const struct norms *s = arg;
	uint64_t first = (uint64_t)item * ITEM_BLOCKS;
	for (uint64_t block = first; block < first + ITEM_BLOCKS && block < s->n_blocks; block++)
		take_block(s, block);
}

void norms_take(struct norms *s, const void *sum)
{
	const struct plan_tensor *t = plan_tensors(s->m->plan);
	struct tensor_norm *row = control_page_norms(&s->m->page);
	s->sum = sum;
	workers_run(s->workers, take_item, s, (uint32_t)((s->n_blocks + ITEM_BLOCKS - 1) / ITEM_BLOCKS),
		    s->m->plan->n_elements < ALONE_BELOW);
	for (uint64_t i = 0; i < s->m->plan->n_tensors; i++) {
		uint64_t first = s->first_block[i], n = s->first_block[i + 1] - first;
		if (t[i].alias < 0)
			row[i] =
				(struct tensor_norm){ kernel_sum(s->grad + first, n), kernel_sum(s->param + first, n) };
	}
}
