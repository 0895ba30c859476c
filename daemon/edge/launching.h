/* SPDX-License-Identifier: Apache-2.0 */
/* What gaccd knows of a job's ranks as processes. Shared by launching.c, launching_view.c and launching_exits.c alone;
 * loop thread. */
#ifndef GACC_EDGE_LAUNCHING_H
#define GACC_EDGE_LAUNCHING_H

#include "launch/proc.h"
#include "proto/path.h"

struct hosted;

enum launch_asked { ASKED_NOTHING, ASKED_START, ASKED_DRAIN, ASKED_END };

struct launching {
	char uuid[UUID_TEXT];	  /* after which its files are named; "": after the id alone, by an older gaccd */
	struct launch_proc *proc; /* NULL: not connected */
	struct launch_rank *rank; /* as last told; spec.ranks */
	struct launch_summary summary;
	bool heard;		    /* all of it, on this connection */
	enum launch_asked asked;    /* the last order that was sent on this connection */
	uint64_t log_max;	    /* that was sent last */
	char tail[LAUNCH_MAX_TAIL]; /* what the cause's rank wrote last */
	uint32_t n_tail;
	int64_t opened_ns, retry_ns; /* retry 0: nothing due */
	uint32_t deaths;	     /* of launchers, in a row */
	int64_t grace_ns;	     /* that a cancel has asked for; 0: the specification's */
	int64_t stop_ns;	     /* completed: when its ranks' time is over */
	bool impatient;		     /* completed: it is over now */
	int64_t puzzled_ns;	     /* since when a rank is gone that the job still needs */
	bool done;		     /* nothing is left to do */
	bool kept;		     /* how they ended is in the journal */
};

/* h->launch, with no launcher. false: no memory. */
bool launching_make(struct hosted *);
/* Writes to the journal how the ranks ended. */
void launching_exits_keep(struct hosted *);
/* "rank 2 (pid 77) exited with code 3", "... was killed by signal 9 (Killed)". */
void launch_say_exit(uint32_t rank, int64_t pid, int32_t status, char *out, size_t n);
/* A path of the specification with the job's id, name and uuid in it; malloc'ed, NULL without memory. */
char *hosted_path(const struct hosted *, const char *pattern);
/* The directory of the ranks' logs, %j, %x and %u replaced; malloc'ed, "" when there is none. */
char *hosted_log_dir(const struct hosted *);

/* What a rank's log may have has become this, about. */
void launching_limit_logs(struct hosted *, uint64_t bytes);

#endif
