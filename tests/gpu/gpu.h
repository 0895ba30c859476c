/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of a shared object for the host, by name, for tests of Check. GPU_KERNELS is the object's path. */
#ifndef GACC_TESTS_GPU_H
#define GACC_TESTS_GPU_H

#include "sim/sim.h"

#include <stdbool.h>

/* Loads the object, once for a process; subnormals count as zero from here on, as in the engine's threads. */
void gpu_open(void);
void *gpu_symbol(const char *name);
/* For the launches that follow: sim_seed, sim_weak, sim_kill_after. */
void gpu_order(uint64_t seed, bool weak);
void gpu_kill_after(int64_t effects);
/* Runs `kernel` with one argument, in blocks of CUDA_THREADS threads. */
void gpu_launch(const char *kernel, const void *argument, unsigned grid);
/* Zeroed memory that children share. */
void *gpu_shared(size_t bytes);

#endif
