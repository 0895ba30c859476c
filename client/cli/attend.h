/* SPDX-License-Identifier: Apache-2.0 */
/* A job's log files, and following a job to its end. */
#ifndef GACCCTL_ATTEND_H
#define GACCCTL_ATTEND_H

#include "command.h"
#include "follow.h"

struct log_set {
	struct follower *follower;
	size_t n;
	const char *list; /* borrowed */
	uint64_t tail;
	bool escaped; /* as of struct follower */
	char *dir;    /* NULL: the job has none yet */
};

/* The files of the listed ranks ("all", "none", "0,2"); none while the job has no log directory. False: fail_with() was
 * called. */
bool log_set_open(struct invocation *inv, const gacc_job_info *job, const char *list, uint64_t tail,
		  struct log_set *set, int *exit_status);
/* A job that gaccd starts may get its directory only when its turn comes. */
void log_set_update(struct log_set *set, const gacc_job_info *job);
/* At least one of them is there. */
bool log_set_exists(const struct log_set *set);
/* What came since the last call. */
void log_set_pump(struct log_set *set, FILE *out, bool at_end);
void log_set_fini(struct log_set *set);

/* Prints the logs to `out` until the job has ended: EXIT_OK, *out_last is its last state (may be NULL: not wanted). A
 * signal ends it before: EXIT_INTERRUPTED, and `again` is said. signals_block() must have been called before the client
 * was opened. */
int attend(struct invocation *inv, const gacc_job_info *job, struct log_set *set, FILE *out, const char *again,
	   gacc_jobs **out_last);

#endif
