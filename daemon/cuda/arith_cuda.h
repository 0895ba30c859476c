/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of arenas in a GPU's memory: arith.h by the kernels of math/cuda, with the bits of arith_host.
 *
 * Of a job of one part, with accumulators of f32; there are no operations for others. */
#ifndef GACC_CUDA_ARITH_CUDA_H
#define GACC_CUDA_ARITH_CUDA_H

#include "cuda/memory.h"
#include "engine/arith.h"
#include "engine/control_page.h"

#include <stdbool.h>

/* Whether a job can be on a device at all; if not, `why` is a sentence for whoever has submitted it. Pure. */
bool arith_cuda_takes(const struct plan *, char *why, size_t n_why);

/* Begins a life on this memory, which comes before anything else there. All is borrowed until close. Further arguments
 * and errors: cuda_life_begin. ST_INVALID_CONFIG: arith_cuda_takes says no. */
enum status arith_cuda_open(struct arith **out, const struct cuda_memory *, const struct control_page *,
			    bool others_are_over, uint64_t quiet_ns, char *why, size_t n_why);

#endif
