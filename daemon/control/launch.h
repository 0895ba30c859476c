/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of one job as processes: when each is started, started again, asked to end and killed; whose failure came
 * first.
 *
 * Pure state machine of a launcher (`gaccd --launcher`); one thread; time is an argument; processes are its ports'.
 * States and transitions: docs/protocol.md, "Ranks under a launcher".
 *
 * A failure is an exit with another status than 0 that we did not order. It costs one of the restarts that are allowed,
 * which all ranks here share. When none is left, and no more will be allowed, all are stopped and the result is FAILED.
 * Of a job on several nodes more may be allowed: the rank waits for that (`wanted`; control/launch_share.h). The cause
 * is the first failure of the row that ended so: a failure more than LAUNCH_QUIET_NS after the one before it begins a
 * new row, as the ranks had recovered.
 *
 * Ranks are counted from 0 here; their numbers in the job are the launcher's business.
 */
#ifndef GACC_CONTROL_LAUNCH_H
#define GACC_CONTROL_LAUNCH_H

#include "control/messages.h"

#define LAUNCH_QUIET_NS (INT64_C(60) * 1000000000)
#define LAUNCH_NO_STATUS (-1)
#define LAUNCH_HELD_NS INT64_MAX /* due_ns of a rank that waits for a restart to be allowed */

enum launch_phase {
	LAUNCH_IDLE = 0, /* not started */
	LAUNCH_RUNNING,
	LAUNCH_DRAINING, /* ranks end by themselves; nothing is started again and nothing is a failure */
	LAUNCH_STOPPING, /* SIGTERM is sent, SIGKILL comes after the grace */
	LAUNCH_OVER	 /* no process is left */
};

enum launch_result { LAUNCH_UNDECIDED = 0, LAUNCH_SUCCEEDED, LAUNCH_FAILED, LAUNCH_STOPPED };

enum launch_rank_state { LAUNCH_RANK_WAITING = 0, LAUNCH_RANK_RUNNING, LAUNCH_RANK_EXITED };

struct launch_rank {
	enum launch_rank_state state;
	int64_t pid; /* of its last process; 0: none yet */
	/* of its last process that ended: exit code, or 128 + signal; LAUNCH_NO_STATUS: none yet */
	int32_t exit_status;
	uint32_t restarts; /* how often it was started again */
	int64_t due_ns;	   /* WAITING: when it is to be started */
};

struct launch_cause {
	bool known;
	uint32_t rank;
	int64_t pid;
	int32_t exit_status;
	int64_t unix_ns;
};

struct launch_summary {
	enum launch_phase phase;
	enum launch_result result;
	uint32_t charged; /* restarts that the budget has paid for */
	struct launch_cause cause;
	uint32_t allowed; /* restarts that the budget has so far */
	uint32_t wanted;  /* ranks that wait for more */
	/* at which ranks may meet; the launcher's word, not known to the state machine. 0: not known */
	uint32_t master_port;
};

struct launch_ports {
	void *ctx;
	/* Starts a process of the rank: its pid, or 0 when that is impossible now, which counts as a failure. */
	int64_t (*start)(void *ctx, uint32_t rank, uint32_t restarts);
	/* To the process group of a running rank. */
	void (*signal)(void *ctx, uint32_t rank, int64_t pid, int signal);
	/* This rank is not as it was; the summary may have changed, too. */
	void (*changed)(void *ctx, uint32_t rank);
};

struct launch;

/* n_ranks >= 1. max_restarts is all that is allowed, unless launch_allow says otherwise. ST_NO_MEMORY. */
enum status launch_new(struct launch **out, uint32_t n_ranks, uint32_t max_restarts, int64_t grace_ns,
		       const struct launch_ports *);
void launch_free(struct launch *);

/* An earlier launcher had started this rank, `restarts` times again, and had charged so much in all: this start is one
 * more that costs nothing. Before launch_start. */
void launch_resume(struct launch *, uint32_t rank, uint32_t restarts, uint32_t charged);
/* The budget is shared with other nodes: so many restarts are allowed here in all; the number never falls. `final`: no
 * more will be. Repeated without harm; before launch_start, too. */
void launch_allow(struct launch *, uint32_t allowed, bool final, struct now);
/* Starts all ranks. Once; later calls do nothing. */
void launch_start(struct launch *, struct now);
/* The rank's process has ended; status as in launch_rank. Others than its current process are ignored. */
void launch_on_exit(struct launch *, uint32_t rank, int64_t pid, int32_t status, struct now);
/* The job is complete: what runs may end by itself. */
void launch_drain(struct launch *, struct now);
/* SIGTERM to all, SIGKILL after the grace. Nothing is started any more. Of several stops the one whose grace ends first
 * counts. */
void launch_stop(struct launch *, int64_t grace_ns, struct now);
/* Starts what is due, kills what has used up its grace. When to call it next; INT64_MAX: nothing is due. */
int64_t launch_tick(struct launch *, struct now);

const struct launch_rank *launch_rank(const struct launch *, uint32_t rank);
const struct launch_summary *launch_summary(const struct launch *);

#endif
