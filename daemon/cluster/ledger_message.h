/* SPDX-License-Identifier: Apache-2.0 */
/* The micro-batches of a window, from the node of a part, as messages of gacc/internal/v1/cluster.proto: columns, which
 * are copied as a whole. Any thread; no state. */
#ifndef GACC_CLUSTER_LEDGER_MESSAGE_H
#define GACC_CLUSTER_LEDGER_MESSAGE_H

#include "proto/status.h"

#include <stddef.h>
#include <stdint.h>

/* Micro-batches of a window that are sent at all: they take some 30 ms of both sides' loops, and 10 MB on the way. */
#define LEDGER_MOST (1u << 18)
/* Of one part, of so many: the coordinator holds those of all parts at once. */
static inline uint64_t ledger_most(uint32_t n_parts)
{
	return LEDGER_MOST / n_parts;
}
#define LEDGER_PORTION                                                                                                 \
	2048 /* micro-batches in a message, at most: some 80 KiB, which malloc gives without a system call */

struct message_bounds;
struct ProtobufCMessage;

/* A portion of a ledger. The columns are borrowed by ledger_pack, and are the message's after ledger_unpack. */
struct part_ledger {
	uint64_t job_id, epoch, incarnation, window;
	uint64_t total, counted; /* micro-batches of the whole; those in the sum come first, the others are void */
	uint64_t first;		 /* micro-batches before this portion */
	uint32_t part;
	uint32_t n; /* of this portion: at least one, unless the ledger is empty */
	uint32_t *rank, *micro;
	double *weight, *loss;
	uint64_t *data_key;
	int64_t *unix_nanos;
	struct ProtobufCMessage *message;
};

/* For free(); NULL: no memory. */
void *ledger_pack(const struct part_ledger *, size_t *out_n);
/* Of a job with these bounds. ST_VERSION_SKEW: `why` is one sentence that names field and value; ST_NO_MEMORY. *out is
 * written only with ST_OK: then for ledger_release. */
enum status ledger_unpack(const void *bytes, size_t n, const struct message_bounds *, struct part_ledger *out,
			  char *why, size_t n_why);
void ledger_release(struct part_ledger *); /* of ledger_unpack */

#endif
