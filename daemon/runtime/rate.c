/* SPDX-License-Identifier: Apache-2.0 */
/* Computes steps per second and the mean waiting time of a job from its last steps, for the views that
 * edge/hosted_view.c makes. No state but the caller's struct rate; loop thread. */
#include "runtime/rate.h"

static uint64_t n_known(const struct rate *r)
{
	return r->n < RATE_STEPS ? r->n : RATE_STEPS;
}

void rate_add(struct rate *r, int64_t unix_ns, double wait)
{
	if (r->n && r->unix_ns[(r->n - 1) % RATE_STEPS] == unix_ns)
		return;
	r->wait[r->n % RATE_STEPS] = wait;
	r->unix_ns[r->n++ % RATE_STEPS] = unix_ns;
}

double rate_wait(const struct rate *r)
{
	double mean = 0;
	for (uint64_t i = 0; i < n_known(r); i++)
		mean += r->wait[i] / (double)n_known(r);
	return mean;
}

double rate_per_s(const struct rate *r)
{
	uint64_t n = n_known(r);
	if (n < 2)
		return 0;
	int64_t last = r->unix_ns[(r->n - 1) % RATE_STEPS], first = r->unix_ns[(r->n - n) % RATE_STEPS];
	return last > first ? (double)(n - 1) * 1e9 / (double)(last - first) : 0;
}
