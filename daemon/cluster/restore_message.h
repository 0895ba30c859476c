/* SPDX-License-Identifier: Apache-2.0 */
/* The checkpoint that a job begins with, as a message of gacc/internal/v1/placement.proto, which is a part of the
 * placement. Any thread; no state.
 */
#ifndef GACC_CLUSTER_RESTORE_MESSAGE_H
#define GACC_CLUSTER_RESTORE_MESSAGE_H

#include "engine/channel.h"
#include "proto/status.h"

#include <stddef.h>

#define RESTORE_MAX_PATH 4095 /* bytes, as of a path anywhere */

struct Gacc__Internal__V1__Restore;

/* What the node's engine is told (ENGINE_RESTORE). */
struct part_restore {
	struct engine_restore from;
	const char *path; /* of the checkpoint's directory; borrowed, without a terminator */
	size_t n_path;
};

/* Room for its message and those in it. */
struct restore_room {
	uint64_t words[224];
};
/* In `room`, where it stays; borrows from the struct. */
struct Gacc__Internal__V1__Restore *restore_to_message(const struct part_restore *, struct restore_room *room);
/* Of a job with this max_micro_size; the path is borrowed from the message. ST_VERSION_SKEW: `why` is one sentence that
 * names field and value. Whether the numbers are those of the files is the engine's to judge. *out is written only with
 * ST_OK. */
enum status restore_from_message(const struct Gacc__Internal__V1__Restore *, uint32_t max_micro_size,
				 struct part_restore *out, char *why, size_t n_why);

#endif
