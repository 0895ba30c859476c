/* SPDX-License-Identifier: Apache-2.0 */
/* Passes over sums on a GPU: what engine/pass.h does on the host, with the same bits. Main thread. */
#ifndef GACC_CUDA_PASS_H
#define GACC_CUDA_PASS_H

#include "cuda/partials.h"
#include "engine/arith.h"
#include "engine/gaps.h"

struct cuda_passes;

/* All borrowed until cuda_passes_free. ST_NO_MEMORY, or as of the device. */
enum status cuda_passes_new(struct cuda_passes **out, const struct cuda_life *, const struct cuda_results *,
			    const struct gaps *);
void cuda_passes_free(struct cuda_passes *); /* NULL is fine */

/* As the operations of arith.h with these names. */
enum status cuda_passes_add(struct cuda_passes *, uint32_t dst, uint32_t src, bool first, const struct arith_source *s,
			    uint32_t n, uint64_t *nonfinite, struct arith_norm *norm);
enum status cuda_passes_inspect(struct cuda_passes *, uint32_t half, struct arith_norm *out);
enum status cuda_passes_scale(struct cuda_passes *, uint32_t dst, uint32_t src, double scale, double clip_value);
enum status cuda_passes_zero(struct cuda_passes *, uint32_t slot);

#endif
