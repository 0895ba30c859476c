/* SPDX-License-Identifier: Apache-2.0 */
/* The journal's record EXITS: how the ranks of a job ended that gaccd has launched. A message of
 * gacc/internal/v1/record.proto (record.h); those of earlier gaccds are read, too. Any thread; no state.
 */
#ifndef GACC_CLUSTER_EXITS_RECORD_H
#define GACC_CLUSTER_EXITS_RECORD_H

#include "control/launch.h"

#include <stddef.h>

struct exits {
	struct launch_summary summary;
	struct launch_rank *rank; /* [n_ranks]; due_ns is not kept */
	uint32_t n_ranks;
	const void *tail; /* what the cause's rank wrote last */
	size_t n_tail;
};

/* For free(); NULL: no memory. */
void *exits_record_pack(const struct exits *, size_t *out_n);
/* A record of a job with so many ranks. *out is written only with ST_OK: out->rank is one block for free(), and the
 * tail lies in it. ST_VERSION_SKEW: `why` is one sentence that names what is wrong. ST_NO_MEMORY. */
enum status exits_record_read(const void *bytes, size_t n, uint32_t ranks, struct exits *out, char *why, size_t n_why);

#endif
