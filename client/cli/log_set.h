/* SPDX-License-Identifier: Apache-2.0 */
/* The log files of a job's ranks. */
#ifndef GACCCTL_LOG_SET_H
#define GACCCTL_LOG_SET_H

#include "command.h"
#include "follow.h"

struct log_set {
	/* set by the caller before log_set_open */
	const char *list; /* of ranks: "all", "none", "0,2"; borrowed */
	uint64_t tail;	  /* start with the last so many lines of each */
	bool escaped;	  /* as of struct follower */
	/* the rest is zero before it */
	struct follower *follower;
	size_t n;
	char *dir;	     /* NULL: the job has none yet */
	gacc_client *client; /* for logs of ranks on other nodes */
	bool far;	     /* some may be on other nodes: nothing here tells when they grow */
};

/* The files of the listed ranks; none while the job has no log directory. False: fail_with() was called. */
bool log_set_open(struct invocation *inv, const gacc_job_info *job, struct log_set *set, int *exit_status);
/* A job that gaccd starts may get its directory only when its turn comes. */
void log_set_update(struct log_set *set, const gacc_job_info *job);
/* What some node could not tell when it was asked last: fail_client says why. */
bool log_set_failed(const struct log_set *set);
/* At least one of them is there. */
bool log_set_exists(const struct log_set *set);
/* Prints what came since the last call; at_end: also a line that is not finished. */
void log_set_pump(struct log_set *set, FILE *out, bool at_end);
/* Also of one that was not opened. */
void log_set_fini(struct log_set *set);

#endif
