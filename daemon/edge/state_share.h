/* SPDX-License-Identifier: Apache-2.0 */
/* Each user's share of state_dir: logs and checkpoints there count for the owner of the files. Loop thread; a pool
 * thread scans.
 *
 * The files are counted every ten seconds, and sooner after a checkpoint or when a job is deleted. A checkpoint that
 * would exceed its user's share is refused; logs get what checkpoints leave. The same scan deletes the logs of deleted
 * jobs.
 */
#ifndef GACC_EDGE_STATE_SHARE_H
#define GACC_EDGE_STATE_SHARE_H

#include "edge/daemon.h"

struct starter;
struct state_share;

struct state_use {
	uint64_t checkpoints, logs; /* bytes; as of the last look, and checkpoints begun since */
	uint64_t limit;		    /* of both together */
};

enum status state_share_new(struct daemon *); /* ST_NO_MEMORY */
void state_share_tick(struct daemon *, struct now);
/* Once a second: what the logs may have is to be told to the launchers again (starter_limit_logs). */
bool state_share_limits_due(struct daemon *, struct now);
/* The pool must not look at what is gone: called until it says false, while the loop runs. */
bool state_share_busy(const struct daemon *);
void state_share_free(struct state_share *); /* NULL is fine */

struct state_use state_share_of(const struct daemon *, uint32_t uid);
/* Something was deleted or added: the next look is due. */
void state_share_changed(struct daemon *);

/* May this job write a checkpoint of so many bytes into `dir` (resolved)? Counts them if it may. ST_RESOURCE_EXHAUSTED
 * with `why`. */
enum status state_share_admit(struct hosted *, const char *dir, uint64_t bytes, char *why, size_t n_why);
/* Its ranks run and write their logs in state_dir. */
bool state_share_has_logs(const struct starter *);
/* Bytes that a log in state_dir may have, of a job of this user with so many ranks here. */
uint64_t state_share_log_max(const struct daemon *, uint32_t uid, uint32_t n_ranks);

#endif
