/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of a job that this gaccd launches on its own node: their launcher, which is found, started, replaced when
 * it dies, and told what is wanted of it. For whoever knows that: launching.c for a job that is coordinated here,
 * part_launch.c for one of another gaccd. Private to the edge; loop thread.
 *
 * What is wanted is state (struct launch_wish): it is told to each launcher that needs to hear it, as often as needed.
 */
#ifndef GACC_EDGE_STARTER_H
#define GACC_EDGE_STARTER_H

#include "cluster/launch_message.h"
#include "edge/daemon.h"
#include "launch/launcher.h"
#include "launch/proc.h"
#include "proto/path.h"

struct Gacc__V1__JobSpec;

/* What a starter asks of its owner. */
struct starter_ports {
	/* The specification with the command; NULL: the job is over. */
	const struct Gacc__V1__JobSpec *(*spec)(const void *owner);
	/* The job has ended: failures are of no interest, and a new launcher only cleans up. */
	bool (*ended)(const void *owner);
	/* Something that an operator wants to read; rank: the job's number, -1 of the job. */
	void (*event)(void *owner, bool warning, const char *reason, int64_t rank, const char *text);
	/* A rank, the summary, or the launcher is not as it was. May say what is wanted now. */
	void (*changed)(void *owner);
};

enum starter_asked { ASKED_NOTHING, ASKED_START, ASKED_DRAIN, ASKED_END };

/* What it launches; all is the job's. */
struct starter_job {
	uint64_t id;
	uint32_t uid;
	const uint8_t *uuid;
	const struct job_spec *spec;
	bool may_be_old; /* an older gaccd may have started it, which named launchers after the id alone */
};

struct starter {
	struct daemon *d;
	struct starter *next; /* of d->starter */
	const struct starter_ports *ports;
	void *owner;
	struct starter_job job;
	char uuid[UUID_TEXT];	  /* after which its files are named; "": after the id alone, by an older gaccd */
	uint32_t first, n_ranks;  /* of the job's ranks; they are counted from 0 here */
	struct launch_rank *rank; /* as last told; the owner's */
	struct launch_wish wish;
	struct launch_proc *proc; /* NULL: not connected */
	struct launch_summary summary;
	bool heard;		  /* all of it, on this connection */
	enum starter_asked asked; /* the last order that was sent on this connection */
	int64_t grace_ns;	  /* that the last END was sent with */
	uint32_t allowed;	  /* that were sent last on this connection */
	bool final;
	uint64_t log_max;	    /* that was sent last */
	char tail[LAUNCH_MAX_TAIL]; /* what the cause's rank wrote last */
	uint32_t n_tail;
	int64_t opened_ns, retry_ns; /* retry 0: nothing due */
	uint32_t deaths;	     /* of launchers, in a row */
	bool default_logs;	     /* in state_dir, where users have shares */
	bool ended_ranks;	     /* no process is left, or none that anybody knows */
	bool done;		     /* nothing is left to do */
};

/* Fills in a starter that has no launcher; `rank` has n_ranks and is lent. */
void starter_init(struct starter *, struct daemon *, const struct starter_job *, uint32_t first, uint32_t n_ranks,
		  struct launch_rank *rank, const struct starter_ports *, void *owner);
/* Lets go of the launcher: it and the ranks live on. */
void starter_fini(struct starter *);
/* Connects to the launcher that an earlier gaccd has started; `start`: or starts one. ST_UNAVAILABLE: there is none;
 * else as launch_proc_open, and what fails is tried again by the tick. */
enum status starter_open(struct starter *, bool start);
/* Whether a launcher of this job has left files. */
bool starter_left_traces(const struct starter *);
/* What is wanted from now on. Orders go out now if they can, else with the tick. */
void starter_wish(struct starter *, const struct launch_wish *);
void starter_tick(struct starter *, struct now);
/* So many launchers in a row have died that no other is started. */
bool starter_gave_up(const struct starter *, char *why, size_t n_why);

/* ---- starter_orders.c ---- */
/* May ranks be launched here for this user? ST_PERMISSION_DENIED with why. */
enum status starter_check(uint32_t uid, const char *user, char *why, size_t n_why);
/* By what its launcher is found. `uuid`: starter.uuid. */
struct launcher_args starter_args(const struct starter *, const char *uuid);
/* To the launcher that is connected; `words` belong to a START. false: it cannot be sent now. */
bool starter_order(struct starter *, enum launch_op, const void *words, size_t n);
/* LAUNCH_OP_START; the tick tries again what cannot be sent now. */
void starter_start_ranks(struct starter *);
/* What a rank's log may have is told to the launcher again, if it is another than before, about. */
void starter_limit_logs(struct starter *);

/* ---- launching_view.c ---- */
/* A path of the specification with the job's id, name and uuid in it; malloc'ed, NULL without memory. */
char *starter_path(uint64_t id, const char *name, const uint8_t uuid[16], const char *pattern);
/* The directory of the logs of ranks that gaccd launches, on this node; malloc'ed, NULL without memory. */
char *starter_log_dir(const struct daemon *, uint64_t id, const char *name, const uint8_t uuid[16],
		      const char *pattern);
/* "rank 2 (pid 77) exited with code 3", "... was killed by signal 9 (Killed)". */
void launch_say_exit(uint32_t rank, int64_t pid, int32_t status, char *out, size_t n);

#endif
