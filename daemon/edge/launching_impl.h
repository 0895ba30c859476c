/* SPDX-License-Identifier: Apache-2.0 */
/* What a coordinator knows of a job's ranks as processes: how those of each node are, and what is wanted there. Shared
 * by the files launching*.c alone; loop thread. */
#ifndef GACC_EDGE_LAUNCHING_IMPL_H
#define GACC_EDGE_LAUNCHING_IMPL_H

#include "control/launch_share.h"
#include "edge/launching.h"
#include "edge/starter.h"

/* The ranks of one node, which are a block. */
struct launch_site {
	uint32_t node; /* as in struct link_message; 0: this one */
	uint32_t part; /* the job's first one there */
	uint32_t first, n_ranks;
	/* as told last */
	bool heard;   /* since this gaccd launches the job */
	bool over;    /* nothing is left to do there */
	bool ended;   /* no process is left */
	bool doubted; /* it was told in an event that the node claims restarts which it was not given */
	struct launch_summary summary;
	int64_t launcher_pid;		/* 0: none */
	char failure[LAUNCHED_FAILURE]; /* why they cannot be launched there; "": they can */
	char *tail;			/* what the cause's rank wrote last; LAUNCHED_MAX_TAIL, NULL: nothing */
	uint32_t n_tail;
	/* of another node (launching_far.c) */
	uint64_t incarnation, number; /* of the news that was taken last */
	int64_t heard_ns;
	struct launch_wish sent;
	uint64_t order; /* number of what was sent; 0: nothing */
	uint64_t taken; /* number that the node says it has taken of this coordinator */
	int64_t sent_ns;
};

struct launching {
	struct launch_rank *rank; /* as last told; spec.ranks */
	struct starter *starter;  /* of the ranks on this node; NULL: there are none */
	uint32_t n_sites;
	struct launch_site *site;	 /* in the order of the ranks */
	struct launch_share *share;	 /* of the restarts, [n_sites] */
	uint32_t master_port;		 /* where the ranks of several nodes meet; 0: not known yet */
	const struct launch_site *cause; /* where the failure was that is shown; NULL: nowhere */
	int64_t grace_ns;		 /* that a cancel has asked for; 0: the specification's */
	int64_t ended_ns;		 /* when the job's end was seen; 0: not yet */
	bool impatient;			 /* completed: its ranks' time is over now */
	int64_t puzzled_ns;		 /* since when a rank is gone that the job still needs */
	bool kept;			 /* how they ended is in the journal */
};

/* h->launch, with nothing heard. false: no memory. */
bool launching_make(struct hosted *);
/* What is told of a site has changed. */
void launching_changed(struct hosted *);

/* ---- launching_far.c ---- */
/* What is wanted of the ranks of another node: sent if that is new, or has not been taken for a while. */
void launching_far_wish(struct hosted *, struct launch_site *, const struct launch_wish *, struct now);
/* IP address of a node as others reach it; "": not known yet. */
const char *launching_address(const struct hosted *, const struct launch_site *);

/* ---- launching_exits.c ---- */
/* Writes to the journal how the ranks ended. */
void launching_exits_keep(struct hosted *);

/* ---- launching_view.c ---- */
/* "rank 2 (pid 77) on node b exited with code 3"; without the node where all ranks are here. */
void launching_say_cause(const struct hosted *, const struct launch_site *, char *out, size_t n);

#endif
