/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of struct coord, shared by coordinator.c and coord_*.c alone. */
#ifndef GACC_CONTROL_COORD_IMPL_H
#define GACC_CONTROL_COORD_IMPL_H

#include "control/coordinator.h"
#include "control/part.h"

#define COORD_RESEND_NS (INT64_C(200) * 1000000)

/* What the coordinator knows of one part: its newest report, without the borrowed arrays. */
struct peer {
	struct part_ranks ranks;
	struct report last;
	bool known;
	bool has_bitmap; /* `counted` holds what this part had when it closed the window */
};

/* The ages of a rank's progress as times of this machine's monotonic clock; 0: it does not wait, ... */
struct rank_times {
	int64_t waiting_ns, lost_ns;
	int64_t ready_ns, ready_ran_ns; /* ran: on the clock of coord_ran_ns */
};

/* What a node has reported of a rank in a window that is not open here yet. */
struct early_rank {
	bool known;
	uint64_t window;
	int64_t heard_ns; /* when the report came */
	struct rank_progress progress;
};

struct coord {
	uint64_t job_id, epoch, term;
	const struct job_spec *spec;
	struct coord_ports ports;
	enum coord_phase phase;
	bool superseded;
	bool queued; /* waits for its turn */
	uint64_t window, applied_step;
	uint64_t attempt;	  /* open or last attempt of this term */
	uint32_t failed_attempts; /* of this window */
	int64_t phase_since_ns, sent_ns, opened_ns;
	int64_t opened_ran_ns;
	struct commit commit; /* being persisted, or the last durable one */
	bool have_commit;
	/* what holds in `window`, and what its decision builds on besides */
	struct values values;
	struct updates updates; /* of later windows */
	struct carry carry;
	/* what operators want */
	bool held; /* the open window is not closed */
	char hold_reason[256];
	int64_t held_since_ns, held_ns; /* this pause; all earlier ones together */
	int64_t late_from_ns;		/* lateness counts from here on: the last resume */
	char hindrance[256];		/* why the engine does not come up; "": it does */
	bool norms_wanted, norms_asked; /* of the next window that closes; of the one under way */
	struct peer *peer;
	uint32_t n_peers;
	uint32_t *part_ranks; /* [ranks]: the lists of all peers */
	uint32_t *part_of;    /* [ranks] */
	/* [ranks], the job's numbers: */
	struct rank_progress *rank; /* as last reported, with its ages as they were then */
	struct rank_times *times;
	struct early_rank *early;
	/* since when any rank has been waiting in this window, 0: none is; of one that has stopped until the next tick
	 */
	int64_t waiting_since_ns;
	struct late_rank *late;
	uint32_t n_late;
	struct {
		/* others have been waiting for it since then; 0: the job is not STALLED by a straggler */
		int64_t since_ns;
		uint64_t window;
		uint32_t rank, n_more; /* the straggler that was named, and how many besides */
	} straggler;
	int64_t alone_since_ns; /* no rank is attached, as far as time counts; 0: one is */
	bool alone_told;	/* ... and people have been told */
	uint64_t *counted;	/* of the window being committed */
	uint32_t n_words;
	enum job_state state;
	char reason[256];
	int64_t state_since_unix_ns, window_opened_unix_ns;
	enum status end_status;
	char end_reason[256];
};

void coord_set_state(struct coord *, enum job_state, const char *reason, struct now);
/* RUNNING, or PAUSED when it is held, or STALLED by its engine. A straggler that held the job up until now is told to
 * be back. */
void coord_set_running(struct coord *, struct now);
void coord_set_phase(struct coord *, enum coord_phase, struct now);
void coord_event(struct coord *, bool warning, const char *reason, int64_t rank, const char *text);
/* The current order to the node of this part. */
void coord_send_order(struct coord *, uint32_t part);
/* The same to all that want one. */
void coord_broadcast(struct coord *, struct now);
/* Takes every step that is due. */
void coord_step(struct coord *, struct now);
/* Asks for the frozen bitmaps anew, also of nodes that closed under an earlier coordinator. */
void coord_start_close(struct coord *, struct now);
/* All ranks of all nodes have left for good. */
bool coord_all_left(const struct coord *);
/* All nodes have voted: decides and persists, or fails the attempt. */
void coord_decide(struct coord *, struct now);
/* The next attempt, or the end after too many. */
void coord_fail_attempt(struct coord *, const char *why, struct now);
/* A monotonic time without the pauses before it: it stands still while the job is held. */
int64_t coord_ran_ns(const struct coord *, int64_t mono_ns);
/* Sets waiting_since_ns: who looks for late ranks must not go through all of them for each. */
void coord_find_waiting(struct coord *);
/* The window opens: what has been reported of its ranks before that takes effect. */
void coord_take_early(struct coord *);
/* A phase that waits for nodes or for the journal: says so after stall_warn, and ends the job after stall_abort where
 * nothing that is durable would be given up. */
void coord_watch_phase(struct coord *, struct now);
/* What a node has reported cannot be waited for: the job ends. True: it does. */
bool coord_end_on_refusal(struct coord *, struct now);
/* A window's update has left parameters that are inf or NaN on some node: the job ends. True: it does. */
bool coord_end_on_lost(struct coord *, struct now);
/* Finds late ranks; warns, marks the job STALLED or ends it. */
void coord_watch_late(struct coord *, struct now);
/* The job does not wait for a straggler any more; `back`: because that has caught up, which is told. */
void coord_forget_straggler(struct coord *, bool back, struct now);
/* No rank is attached: warns, marks the job STALLED, ends it after `abandoned`. False: a rank is, or nobody has to be.
 */
bool coord_watch_abandoned(struct coord *, struct now);
/* Whose micro-batches are missing from the closed window, as a sentence. */
void coord_describe_missing(const struct coord *, uint64_t missing, char *text, size_t n);
/* An event for a window that was committed without a step: none goes by in silence. */
void coord_tell_outcome(struct coord *);
/* Events for what is different in the next window: values, loss scale. */
void coord_tell_changes(struct coord *);

#endif
