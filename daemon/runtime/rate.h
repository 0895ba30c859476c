/* SPDX-License-Identifier: Apache-2.0 */
/* How fast a job's steps are, and how long its ranks wait in them, over the last few. Loop thread. */
#ifndef GACC_RUNTIME_RATE_H
#define GACC_RUNTIME_RATE_H

#include <stdint.h>

#define RATE_STEPS 16

/* Zeroed: no step yet. */
struct rate {
	int64_t unix_ns[RATE_STEPS];
	double wait[RATE_STEPS];
	uint64_t n; /* ever */
};

/* A step that was committed then. wait: share of its time that a rank waited for others, 0 to 1, mean over the ranks.
 * One of the same time as the last is the same step, and ignored. */
void rate_add(struct rate *, int64_t unix_ns, double wait);
/* Mean of the last RATE_STEPS; 0: no step yet. */
double rate_wait(const struct rate *);
/* Steps in a second; 0: not known, from fewer than two steps or times that do not ascend. */
double rate_per_s(const struct rate *);

#endif
