/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels compiled for the host: the shared object FAKE_CUDA_KERNELS, which has a function host_NAME for each kernel
 * NAME (operation.h's host_kernel) and may have the simulator's variables (tests/gpu/sim/sim.h), which are set when it
 * is loaded: FAKE_CUDA_SEED, FAKE_CUDA_WEAK and FAKE_CUDA_KILL. */
#ifndef GACC_FAKE_CUDA_KERNELS_H
#define GACC_FAKE_CUDA_KERNELS_H

#include "operation.h"

/* Loads it, if it is not loaded. INVALID_IMAGE: none is named, or it cannot be loaded; says why on stderr. */
cu_result kernels_load(void);
host_kernel *kernels_find(const char *name); /* NULL: no such kernel */
/* Copies a kernel's parameter, of which the size is not known: up to `max` bytes, as far as they are mapped. How many.
 */
size_t kernels_copy_params(void *to, const void *from, size_t max);

/* Kernels that run, or run next, die at their next store. */
void kernels_kill_now(void);

#define KERNELS_MAX_PARAMS 4096 /* bytes, as for CUDA */

#endif
