/* SPDX-License-Identifier: Apache-2.0 */
/* All kernels for GPUs, in one module: for the engine of a job whose memory is on a device, and for the simulator in
 * tests/gpu. Compiled by nvcc and by g++ and clang++ from the same text. */
#include "math/cuda/device.cuh"

#include "math/cuda/memory.cuh"
#include "math/cuda/pass.cuh"
#include "math/cuda/update.cuh"
