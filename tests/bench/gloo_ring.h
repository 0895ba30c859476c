/* SPDX-License-Identifier: Apache-2.0 */
/* Gloo's own all-reduce in a ring, for comparison with what gacc makes of Gloo. One thread a process. */
#ifndef GACC_TESTS_GLOO_RING_H
#define GACC_TESTS_GLOO_RING_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gloo_ring;

/* A member that is reached at `address`; the others are met in the empty directory `dir`. NULL: it failed. */
struct gloo_ring *gloo_ring_new(const char *dir, const char *address, int rank, int size);
/* out: the sums of all members' `in`, n floats each. Returns 0, or -1 when it failed. */
int gloo_ring_sum(struct gloo_ring *, const float *in, float *out, size_t n);
void gloo_ring_free(struct gloo_ring *);

#ifdef __cplusplus
}
#endif

#endif
