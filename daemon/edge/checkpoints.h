/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of a running job: connects control/saver.h with the node of the part, pool and journal, and keeps the
 * list. Private to the edge; loop thread.
 *
 * The pool makes, seals and deletes directories; the part's engine writes the files.
 */
#ifndef GACC_EDGE_CHECKPOINTS_H
#define GACC_EDGE_CHECKPOINTS_H

#include "edge/hosted.h"
#include "edge/links.h"
#include "runtime/saved_list.h"

/* The machine of a new hosted. */
enum status saving_new(struct hosted *);
/* Reads its checkpoints of the journal. */
enum status saving_from_journal(struct hosted *);
void saving_free(struct hosted *);
/* The pool works on this job's directories. */
bool saving_busy(const struct hosted *);

/* What became of the part's files. */
links_take saving_take_saved;
/* The gaccd of this part's node has started anew, and the engine of before is dead, with what it was writing: a
 * checkpoint under way is tried once more. */
void saving_part_lost(struct hosted *, uint32_t part);
/* The node has the part: what its files of a checkpoint take on a disk, and what the sum adds to that; 0: no memory
 * yet.
 */
void saving_on_placed(struct hosted *, uint32_t part, uint64_t save_bytes, uint64_t carry_bytes);
/* The coordinator may have the next window, or be at its end: the policy may want a checkpoint. */
void saving_look(struct hosted *);
void saving_tick(struct hosted *, struct now);
/* The job ends: true when a checkpoint comes first, which then calls hosted_write_end. */
bool saving_hold_end(struct hosted *, enum status end, const char *reason);

/* It knows which checkpoints there are. false: it has just been recovered, and its node has not said that it has it. */
bool saving_ready(const struct hosted *);
/* Wants a checkpoint; one with this request id that is known already is that one. ST_NOT_SUPPORTED: its directory
 * cannot be used (an event has said why). ST_RESOURCE_EXHAUSTED, ST_JOB_ENDED. */
enum status saving_request(struct hosted *, const uint8_t request_id[16], bool inside_window);
/* The one with this request id. NULL: none, or it has not begun. Valid until the loop turns. */
const struct saved *saving_of(const struct hosted *, const uint8_t request_id[16]);
/* A page of its checkpoints (runtime/saved_list.h). */
const struct saved *saving_page(const struct hosted *, uint64_t before_id, uint32_t limit, size_t *out_n);
/* A checkpoint of it is being written. */
bool saving_under_way(const struct hosted *);
#define SAVING_MAX_CALLS 1024 /* that may wait for a job's checkpoints: all may be answered in one turn */
/* Answers this call when the checkpoint is complete or has failed, or, unless `wait`, has begun. ST_NO_MEMORY;
 * ST_RESOURCE_EXHAUSTED. */
enum status saving_wait(struct hosted *, uint64_t call, const uint8_t request_id[16], bool wait);
/* SaveCheckpoint's answer. */
void saving_answer(struct rpc_call *, const struct saved *);

/* Are the job's directories (checkpoint.dir, restore_from) ones that its user may name? By their text; the places that
 * they lead to are judged when they are used. ST_PERMISSION_DENIED with field and why. */
enum status saving_check_dirs(const struct hosted *, const char **field, char *why, size_t n_why);

#endif
