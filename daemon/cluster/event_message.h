/* SPDX-License-Identifier: Apache-2.0 */
/* Events of a part as messages of gacc/internal/v1/cluster.proto. Any thread; no state.
 */
#ifndef GACC_CLUSTER_EVENT_MESSAGE_H
#define GACC_CLUSTER_EVENT_MESSAGE_H

#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct part_event {
	uint64_t job_id, epoch;
	uint64_t window; /* the part's open one when it happened */
	uint32_t part;
	bool warning;
	int64_t rank;	 /* the job's number; -1: it is about the job */
	char reason[32]; /* a word of letters and digits */
	char text[512];
};

/* For free(); NULL: no memory. Text that is no UTF-8 is mended on the way. */
void *event_pack(const struct part_event *, size_t *out_n);
/* An event about a job with so many ranks. ST_VERSION_SKEW: `why` is one sentence that names field and value;
 * ST_NO_MEMORY. *out is written only with ST_OK. Texts that are too long are cut at a character. */
enum status event_unpack(const void *bytes, size_t n, uint32_t ranks, struct part_event *out, char *why, size_t n_why);

#endif
