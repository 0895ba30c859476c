/* SPDX-License-Identifier: Apache-2.0 */
/* What is shown of a part, as a message of gacc/internal/v1/cluster.proto. Any thread; no state.
 *
 * It is bounded: at most PART_VIEW_BYTES packed, whatever ranks and tensors the job has.
 */
#ifndef GACC_CLUSTER_PART_VIEW_MESSAGE_H
#define GACC_CLUSTER_PART_VIEW_MESSAGE_H

#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PART_VIEW_BUFFERS 16
#define PART_VIEW_BYTES 1472

struct part_buffer {
	char kind[24]; /* "slots" */
	uint32_t segments, clients;
	uint64_t bytes, tensors;
};

struct part_view {
	uint64_t job_id, epoch, incarnation;
	uint64_t number; /* counts the views of this incarnation about the part, from 1 */
	uint32_t part;
	uint32_t links; /* connections of trainers to the attach socket */
	uint64_t bytes; /* of shared memory */
	bool allocating, ended;
	bool released;	  /* the memory is given back for good; only where `ended` */
	bool ranks_known; /* reports say all that there is to know of the ranks */
	bool has_tensors;
	uint32_t engine_starts; /* by this incarnation */
	int64_t engine_pid;	/* 0: none runs */
	uint64_t tensors, parameters;
	char gpu[48]; /* whose memory it has; "": none */
	uint64_t gpu_bytes;
	uint32_t n_buffers;
	struct part_buffer buffer[PART_VIEW_BUFFERS];
};

/* Do they say the same? Numbers aside; buffers are not looked at, as they follow from the rest. */
bool part_view_same(const struct part_view *, const struct part_view *);
/* For free(); NULL: no memory. Text that is no UTF-8 is mended on the way. */
void *part_view_pack(const struct part_view *, size_t *out_n);
/* ST_VERSION_SKEW: `why` is one sentence that names field and value; ST_NO_MEMORY. *out is written only with ST_OK. Of
 * more buffers than there is room for the first are taken; a text that is too long is cut at a character. */
enum status part_view_unpack(const void *bytes, size_t n, struct part_view *out, char *why, size_t n_why);

#endif
