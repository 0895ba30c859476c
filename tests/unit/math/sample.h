/* SPDX-License-Identifier: Apache-2.0 */
/* Seeded test data and comparisons for the kernel tests. */
#ifndef GACC_TEST_MATH_SAMPLE_H
#define GACC_TEST_MATH_SAMPLE_H

#include "math/kernels.h"

/* What values an array is drawn from. */
enum sample { SAMPLE_NORMAL, SAMPLE_SUBNORMAL, SAMPLE_SPECIAL /* everything, inf and NaN included */ };

struct rng {
	uint64_t state;
};
uint64_t rng_next(struct rng *);
double rng_unit(struct rng *); /* [0, 1) */

/* n zeroed elements, 64-byte aligned; never NULL. Free with free. */
void *sample_alloc(enum dtype t, size_t n);
/* dst[0..n) of dtype t. */
void sample_fill(void *dst, enum dtype t, size_t n, enum sample, struct rng *);

/* Index of the first element that differs in its bits, where any two NaNs are equal; n if there is none. */
size_t sample_differs(const void *a, const void *b, enum dtype t, size_t n);
bool sample_has_nan(const void *a, enum dtype t, size_t n);

#endif
