/* SPDX-License-Identifier: Apache-2.0 */
/* The journal's record VIEW, which END also has: what is shown of a job that has ended. A message of
 * gacc/internal/v1/record.proto (record.h); those of earlier gaccds are read, too. Any thread; no state.
 */
#ifndef GACC_CLUSTER_VIEW_RECORD_H
#define GACC_CLUSTER_VIEW_RECORD_H

#include "control/spec.h"

#include <stddef.h>

struct Gacc__V1__Job;

/* What gaccd itself needs to know of such a job. */
struct view_head {
	/* nothing can change any more; else it is as of the decision to end, and ranks and state came later */
	bool settled;
	uint32_t ranks, micro_size, max_micro_size;
	enum launch_mode launch_mode;
	enum optim_type optimizer;
	int64_t grace_ns;
	uint8_t spec_sum[16];
};

/* For free(); NULL: no memory. */
void *view_record_pack(const struct view_head *, const struct Gacc__V1__Job *, size_t *out_n);
/* *job is for gacc__v1__job__free_unpacked. ST_VERSION_SKEW: `why` is one sentence on what is wrong. ST_NO_MEMORY. */
enum status view_record_read(const void *bytes, size_t n, struct view_head *, struct Gacc__V1__Job **job, char *why,
			     size_t n_why);

#endif
