/* SPDX-License-Identifier: Apache-2.0 */
/* What decides the bits of reductions, for C and for the kernels of GPUs; kernels.h explains it. */
#ifndef GACC_MATH_KERNEL_SIZES_H
#define GACC_MATH_KERNEL_SIZES_H

#define KERNEL_BLOCK 1024 /* elements per reduction block */
#define KERNEL_LANES 16
#define KERNEL_MAX_SLOTS 8 /* gradients added in one pass */

#endif
