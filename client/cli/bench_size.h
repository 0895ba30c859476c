/* SPDX-License-Identifier: Apache-2.0 */
/* One size of `gaccctl bench`: a job of its own, whose ranks are threads here. */
#ifndef GACCCTL_BENCH_SIZE_H
#define GACCCTL_BENCH_SIZE_H

#include "gacc/gacc_admin.h"

#include <stdbool.h>
#include <stdint.h>

struct bench_size {
	const char *endpoint;
	uint64_t count; /* elements, f32 */
	uint32_t ranks;
	uint32_t iters, warmup;
	bool check, inlined;
};

/* Means over the measured windows, microseconds; wrong: elements that are not the sum that was pushed. */
struct bench_result {
	double push_us;	  /* of a rank's push, without waiting for its turn */
	double turn_us;	  /* for its turn: micro-batches are added in rank order */
	double reduce_us; /* from the push's return until the reduced gradients are readable */
	double total_us;  /* of the window, its slowest rank's */
	uint64_t wrong;
};

/* Makes the job, runs its ranks, and ends it. `signals` is a descriptor that becomes readable when the user wants no
 * more: GACC_EAGAIN. Else a rank's or the client's failure, which `why` tells. */
gacc_status bench_size_run(gacc_client *client, const struct bench_size *size, int signals, struct bench_result *out,
			   char *why, size_t n_why);

#endif
