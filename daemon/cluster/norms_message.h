/* SPDX-License-Identifier: Apache-2.0 */
/* Norms of tensors, asked for by the coordinator and left by the engine of a part, as messages of
 * gacc/internal/v1/cluster.proto. Any thread; no state. Each may be lost. */
#ifndef GACC_CLUSTER_NORMS_MESSAGE_H
#define GACC_CLUSTER_NORMS_MESSAGE_H

#include "proto/status.h"

#include <stddef.h>
#include <stdint.h>

#define NORMS_PORTION 16384 /* tensors in a message, at most: 256 KiB, which take less than a millisecond */
#define NORMS_TEXT 160

/* The norms that were left with one vote, from tensor `first` on. */
struct norms_ask {
	uint64_t job_id, epoch, number; /* number: of the question, not 0 */
	uint64_t window, term, attempt; /* the vote */
	uint64_t first, uuid_high, uuid_low;
	uint32_t part;
};

/* The columns are borrowed by norms_pack, and are the message's after norms_unpack. */
struct part_norms {
	uint64_t job_id, epoch, number;
	uint64_t first, total; /* tensors */
	uint32_t part;
	uint32_t n;	      /* of this portion: at least one, unless there is a status */
	double *grad, *param; /* sums of squares, not negative; inf or NaN where the values are */
	enum status status;   /* ST_OK, or why there are none, with text */
	char text[NORMS_TEXT];
	struct ProtobufCMessage *message;
};

/* For free(); NULL: no memory. */
void *norms_ask_pack(const struct norms_ask *, size_t *out_n);
/* ST_VERSION_SKEW: `why` is one sentence that names field and value; ST_NO_MEMORY. *out is written only with ST_OK. */
enum status norms_ask_unpack(const void *bytes, size_t n, struct norms_ask *out, char *why, size_t n_why);
void *norms_pack(const struct part_norms *, size_t *out_n);
/* The same; with ST_OK for norms_release. */
enum status norms_unpack(const void *bytes, size_t n, struct part_norms *out, char *why, size_t n_why);
void norms_release(struct part_norms *);

#endif
