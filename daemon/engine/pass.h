/* SPDX-License-Identifier: Apache-2.0 */
/* Passes over the arena: add micro-batches to the accumulator, look at a sum, scale it.
 *
 * A pass runs in chunks that the workers share; block partials (norm, non-finite count, digest) go to arrays allocated
 * at the start, indexed by the block's place in the arena, so that the result does not depend on threads, chunks or on
 * which tensors were present. Tensors of frozen parameter groups are never added: they count as zero. Main thread.
 */
#ifndef GACC_ENGINE_PASS_H
#define GACC_ENGINE_PASS_H

#include "engine/arith.h"
#include "engine/gaps.h"
#include "engine/plan.h"
#include "engine/sum_view.h"
#include "engine/workers.h"

#include <stddef.h>

#define PASS_CHUNK 65536       /* elements; 256 KiB of f32 */
#define PASS_ALONE_BELOW 65536 /* elements of an arena that one thread does faster */

struct pass;

/* One micro-batch. */
struct pass_source {
	unsigned char *slot; /* what of it belongs to no tensor is zeroed */
	double coefficient;
	const unsigned char *present; /* bit i of byte i / 8: tensor i; NULL: all. An alias stands for its target */
};

/* plan, gaps, kernels and workers are borrowed until pass_free. ST_NO_MEMORY. */
enum status pass_new(struct pass **out, const struct plan *, const struct gaps *, const struct kernels *,
		     struct workers *);
void pass_free(struct pass *); /* NULL is fine */

/* dst = (first ? 0 : src) + sum of coefficient * gradient over s[0..n), n <= KERNEL_MAX_SLOTS, left to right.
 * nonfinite: NULL, or n counters, set to the non-finite products of each source. norm: NULL, or what dst then holds.
 * dst may be src only when first. */
void pass_add(struct pass *, void *dst, const void *src, bool first, const struct pass_source *s, uint32_t n,
	      uint64_t *nonfinite, struct arith_norm *norm);
/* Makes s the sum, in its slot: zeros to what belongs to no tensor, and to tensors that are absent or frozen.
 * nonfinite: set to its non-finite products. norm: of the products. */
void pass_take(struct pass *, const struct pass_source *s, uint64_t *nonfinite, struct arith_norm *norm);
void pass_inspect(struct pass *, const struct sum_view *sum, struct arith_norm *out);
/* dst = clamp(scale * src): the reduced gradient of the client optimizer. */
void pass_scale(struct pass *, void *dst, const void *src, double scale, double clip_value);
/* Zeroes a slot. */
void pass_zero(struct pass *, unsigned char *slot);

#endif
