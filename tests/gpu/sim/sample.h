/* SPDX-License-Identifier: Apache-2.0 */
/* The argument of the sample kernels. */
#ifndef GACC_TESTS_SAMPLE_KERNELS_H
#define GACC_TESTS_SAMPLE_KERNELS_H

#include <stdint.h>

#define SAMPLE_THREADS 128
#define SAMPLE_TICKETS 8

struct sample {
	uint64_t *out;
	unsigned long long *counter; /* [2] */
};

#endif
