/* SPDX-License-Identifier: Apache-2.0 */
/* Decisions as messages of gacc/internal/v1/commit.proto: struct commit and struct update, to them and from them.
 *
 * What comes in is judged: it may be of another version, or altered. Errors are ST_VERSION_SKEW with one sentence in
 * `why` that names the field, its value and what it may be, or ST_NO_MEMORY. Any thread; no state.
 */
#ifndef GACC_CLUSTER_COMMIT_MESSAGE_H
#define GACC_CLUSTER_COMMIT_MESSAGE_H

#include "control/messages.h"
#include "control/updates.h"
#include "proto/status.h"

#include <stddef.h>

struct Gacc__Internal__V1__Commit;
struct Gacc__Internal__V1__Update;

/* What a job's specification allows in messages about it. */
struct message_bounds {
	uint32_t ranks, max_micro_size, parts; /* ranks, parts: of the whole job */
};
struct message_bounds message_bounds_of(const struct job_spec *);

/* Room for a commit's message and those in it. */
struct commit_room {
	uint64_t words[64];
};
/* In `room`, where it stays; borrows nothing. */
struct Gacc__Internal__V1__Commit *commit_to_message(const struct commit *, struct commit_room *room);
/* `bounds` NULL: of a job with another specification, as the last outcome in a checkpoint may be. *out is written only
 * with ST_OK. */
enum status commit_from_message(const struct Gacc__Internal__V1__Commit *, const struct message_bounds *bounds,
				struct commit *out, char *why, size_t n_why);
/* The rules that a commit of any origin must keep; commit_from_message includes them. */
enum status commit_check(const struct commit *, const struct message_bounds *bounds, char *why, size_t n_why);

/* Into a message that borrows nothing. Members that `set` does not name are left out, and come back as zero. */
void update_to_message(const struct update *, struct Gacc__Internal__V1__Update *m);
/* The rule that an update of any origin must keep, which update_from_message includes: it sets known values, at least
 * one. Whether they suit the job is not judged here (update_check). */
enum status update_judge(const struct update *, char *why, size_t n_why);
enum status update_from_message(const struct Gacc__Internal__V1__Update *, struct update *out, char *why, size_t n_why);

#endif
