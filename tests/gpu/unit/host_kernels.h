/* SPDX-License-Identifier: Apache-2.0 */
/* The parameter of the kernels in host_kernels.c. */
#ifndef GACC_TESTS_GPU_HOST_KERNELS_H
#define GACC_TESTS_GPU_HOST_KERNELS_H

#include <stdint.h>

struct fill {
	_Atomic uint64_t *to;
	uint64_t n, value;
};

#endif
