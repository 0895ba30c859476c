/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the files below state_dir by owner, and deletes the logs of jobs that have been deleted. Blocks: for a pool
 * thread.
 *
 * Directories of other users are read with their rights (setfsuid), which apply only to the calling thread.
 */
#ifndef GACC_RUNTIME_STATE_SCAN_H
#define GACC_RUNTIME_STATE_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct state_user {
	uint32_t uid;
	uint64_t checkpoints, logs; /* bytes on the disk */
	uint64_t running_logs;	    /* of these, of jobs that run */
	uint32_t n_entries;	    /* files and folders in folders of this user */
	bool cut;		    /* there were more than max_entries: the others are not counted */
};

struct state_scan {
	const char *state_dir;
	uint32_t max_entries; /* of a user: who has more hides nobody else's */
	/* ascending ids; logs of another job below `first_new` are deleted: of it those files that the writer of logs
	 * made */
	uint64_t *known;
	size_t n_known;
	uint64_t first_new;
	/* so many logs of jobs with the highest ids are not deleted in any case */
	uint64_t keep_newest;
	uint64_t *running; /* ascending */
	size_t n_running;
	/* found; free() */
	struct state_user *user;
	size_t n_users;
	uint32_t n_deleted;
};

void state_scan_run(struct state_scan *);
void state_scan_fini(struct state_scan *);

#endif
