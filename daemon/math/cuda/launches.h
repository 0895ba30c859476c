/* SPDX-License-Identifier: Apache-2.0 */
/* The host's side of the kernels for GPUs: which kernel an operation needs, and what its arguments are. No CUDA here:
 * who launches, and how, is the caller's matter. Pure; any thread. */
#ifndef GACC_MATH_LAUNCHES_H
#define GACC_MATH_LAUNCHES_H

#include "math/cuda/kernels_cuda.h"
#include "math/kernels.h"

#include <stdbool.h>

#define CUDA_NAME_MAX 24

/* Name of the kernel that adds so many sources, up to KERNEL_MAX_SLOTS, of dtype F32, BF16 or F16. */
void cuda_add_name(enum dtype, uint32_t n_sources, bool norm, char out[CUDA_NAME_MAX]);
void cuda_scalars_of(const struct kernel_update *, struct cuda_scalars *out);
/* A cell of the gate whose blocks have not all ended, or -1. `gate` is a copy, read after this life's open_gate was
 * done. settled: bit i is set for a cell whose lives are known to be over in some other way. */
int cuda_gate_unsettled(const struct cuda_gate *gate, uint64_t settled);

#endif
