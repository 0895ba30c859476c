/* SPDX-License-Identifier: Apache-2.0 */
/* What a node needs to have a part of a job, as a message of gacc/internal/v1/placement.proto: for the node, and for
 * the record that it keeps. Any thread; no state.
 */
#ifndef GACC_CLUSTER_PLACEMENT_MESSAGE_H
#define GACC_CLUSTER_PLACEMENT_MESSAGE_H

#include "base/shared.h"
#include "cluster/job_records.h"
#include "cluster/restore_message.h"

#define PLACEMENT_MAX_WINDOWS 16

enum placement_begin { PLACEMENT_NEW = 1, PLACEMENT_RESTORE = 2, PLACEMENT_HEAL = 3 };

struct placement_bytes {
	const void *data;
	size_t n;
};

/* Everything that is pointed to is borrowed. */
struct placement {
	uint8_t cluster[16], uuid[16]; /* of the cluster, zero: none; of the job */
	uint64_t job_id, epoch, term;
	uint32_t uid, part, n_parts;
	uint32_t ranks, max_micro_size; /* of the whole job, as in its specification */
	enum placement_begin begin;
	uint32_t heal_from;	 /* PLACEMENT_HEAL: the part that it gets its parameters from */
	const char *user, *node; /* the job's owner; where the part is */
	const uint32_t *rank;	 /* the part's, by the job's numbers, ascending */
	uint32_t n_ranks;
	struct placement_bytes spec; /* gacc.v1.JobSpec, packed as submitted */
	/* gacc.v1.JobSpec with the tensor set alone; NULL: in spec, or not known yet */
	struct shared *tensors;
	const struct decided *window; /* the last ones, oldest first, with the bits of the part's ranks */
	uint32_t n_windows;
	bool begun;			    /* the job has its parameters: memory that is lost is not made anew */
	const struct part_restore *restore; /* PLACEMENT_RESTORE of a job that has not begun; else NULL */
};

/* For free(); NULL: no memory. `user` and `node` are UTF-8. The tensors, which may have 50 MB, are not in it: they are
 * the message's end (link_send_shared). */
void *placement_pack(const struct placement *, size_t *out_n);

/* One that was unpacked, with what it points to. */
struct held_placement {
	struct placement placement;
	struct ProtobufCMessage *message;
	struct shared *tensors; /* held; placement.tensors */
	struct decided window[PLACEMENT_MAX_WINDOWS];
	struct part_restore restore;
};

/* Of the message with its tensors behind it; or of a whole message, where `tensors` is NULL. Whether the specification
 * can be read, and says the same of ranks and max_micro_size, is the caller's to judge. ST_VERSION_SKEW: `why` is one
 * sentence that names field and value; ST_NO_MEMORY. *out, which must not be copied, is written only with ST_OK: then
 * for placement_release. */
enum status placement_unpack(const void *bytes, size_t n, struct shared *tensors, struct held_placement *out, char *why,
			     size_t n_why);
void placement_release(struct held_placement *);
/* The tensors, for shared_drop(): the placement has none from here on. NULL: it has none. */
struct shared *placement_take_tensors(struct held_placement *);

#endif
