/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the sum of a window, where it is in a slot converted block by block. For pass.c, update.c and norms.c; the
 * engine's workers. */
#include "engine/sum_view.h"

struct sum_view sum_view_of_half(const struct plan *plan, const struct kernels *kernels, const void *half)
{
	return (struct sum_view){ .plan = plan, .kernels = kernels, .half = half };
}

struct sum_view sum_view_of_slot(const struct plan *plan, const struct kernels *kernels, const void *slot,
				 double coefficient)
{
	return (struct sum_view){ .plan = plan, .kernels = kernels, .slot = slot, .coefficient = coefficient };
}

/* As an accumulator gets the first micro-batch. */
static uint64_t convert(const struct sum_view *v, uint32_t dtype_group, uint64_t start, uint64_t n, void *to,
			const struct kernel_partials *partials)
{
	const struct arena_group *g = &v->plan->group[dtype_group];
	const struct kernel_src src = { v->slot + g->slot_offset + (start - g->start) * dtype_size(g->grad_dtype),
					v->coefficient };
	uint64_t nonfinite = 0;
	v->kernels->accumulate_cached(to, NULL, true, (enum dtype)v->plan->acc_dtype, &src, 1, g->grad_dtype, n,
				      partials ? &nonfinite : NULL, partials);
	return nonfinite;
}

const void *sum_view_at(const struct sum_view *v, uint32_t dtype_group, uint64_t start, uint64_t n, void *scratch)
{
	if (v->half)
		return v->half + start * dtype_size((enum dtype)v->plan->acc_dtype);
	convert(v, dtype_group, start, n, scratch, NULL);
	return scratch;
}

uint64_t sum_view_inspect(const struct sum_view *v, uint32_t dtype_group, uint64_t start, uint64_t n,
			  const struct kernel_partials *out)
{
	_Alignas(64) float wide[KERNEL_BLOCK];
	uint64_t nonfinite = 0;
	for (uint64_t at = 0, block = 0; at < n; at += KERNEL_BLOCK, block++) {
		const struct kernel_partials one = { out->sumsq + block, out->digest + block, out->nonfinite + block };
		nonfinite +=
			convert(v, dtype_group, start + at, n - at < KERNEL_BLOCK ? n - at : KERNEL_BLOCK, wide, &one);
	}
	return nonfinite;
}
