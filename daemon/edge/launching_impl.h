/* SPDX-License-Identifier: Apache-2.0 */
/* What gaccd knows of a job's ranks as processes. Shared by launching.c, launching_orders.c, launching_view.c and
 * launching_exits.c alone; loop thread. */
#ifndef GACC_EDGE_LAUNCHING_IMPL_H
#define GACC_EDGE_LAUNCHING_IMPL_H

#include "edge/launching.h"
#include "launch/launcher.h"
#include "launch/proc.h"
#include "proto/path.h"

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

/* ---- launching_orders.c ---- */
/* h->launch, with no launcher. false: no memory. */
bool launching_make(struct hosted *);
/* By what its launcher is found. `uuid`: launching.uuid. */
struct launcher_args launching_args(const struct hosted *, const char *uuid);
/* Whether a launcher of these has left files. */
bool launching_left_traces(const struct hosted *, const char *uuid);
/* To the launcher that is connected; `words` belong to a START. false: it cannot be sent now. */
bool launching_order(struct hosted *, enum launch_op, const void *words, size_t n);
/* LAUNCH_OP_START; the tick tries again what cannot be sent now. */
void launching_start_ranks(struct hosted *);

/* ---- launching_exits.c ---- */
/* Writes to the journal how the ranks ended. */
void launching_exits_keep(struct hosted *);

/* ---- launching_view.c ---- */
/* "rank 2 (pid 77) exited with code 3", "... was killed by signal 9 (Killed)". */
void launch_say_exit(uint32_t rank, int64_t pid, int32_t status, char *out, size_t n);

#endif
