/* SPDX-License-Identifier: Apache-2.0 */
/* The sum of a window as those read it who need its values: an accumulator, or the slot of the only micro-batch in a
 * job without accumulators. The values of a slot are converted as an accumulator would have got them, by the same
 * kernel, so every reader finds the same bits. Any thread; nothing is written but what the caller gives.
 */
#ifndef GACC_ENGINE_SUM_VIEW_H
#define GACC_ENGINE_SUM_VIEW_H

#include "engine/plan.h"
#include "math/kernels.h"

struct sum_view {
	const struct plan *plan;
	const struct kernels *kernels;
	const unsigned char *half; /* NULL: the sum is in `slot` */
	const unsigned char *slot;
	double coefficient; /* of the slot's values */
};

/* Both borrow what they are given. */
struct sum_view sum_view_of_half(const struct plan *, const struct kernels *, const void *half);
struct sum_view sum_view_of_slot(const struct plan *, const struct kernels *, const void *slot, double coefficient);

/* The sum's elements [start, start + n), of one dtype group, in the accumulator's dtype: where they lie, or converted
 * into `scratch`, which has room for n f32 and is 64-byte aligned. `start` is a multiple of ARENA_ALIGN. */
const void *sum_view_at(const struct sum_view *, uint32_t dtype_group, uint64_t start, uint64_t n, void *scratch);
/* Partials of the elements [start, start + n) of a slot, of one dtype group; `start` is a multiple of KERNEL_BLOCK.
 * Returns how many of the products are not finite. */
uint64_t sum_view_inspect(const struct sum_view *, uint32_t dtype_group, uint64_t start, uint64_t n,
			  const struct kernel_partials *);

#endif
