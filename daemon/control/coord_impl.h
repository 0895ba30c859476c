/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of struct coord, shared by coordinator.c and coord_*.c alone. */
#ifndef GACC_CONTROL_COORD_IMPL_H
#define GACC_CONTROL_COORD_IMPL_H

#include "control/coordinator.h"
#include "control/part.h"

/* An order is repeated this often to nodes whose reports do not show that they have it. */
#define COORD_RESEND_NS (INT64_C(200) * 1000000)
/* Who is late is told to all nodes as often, but for each of them not more than one order in this time. */
#define COORD_LATE_EACH_NS (INT64_C(1) * 1000000)

/* What a part's newest report means to the coordinator; each is counted over all parts. */
enum mark {
	MARK_STARTED,	/* it has its parameters */
	MARK_COMPLETE,	/* of the open window: nothing is missing */
	MARK_FROZEN,	/* it is closed */
	MARK_CLOSED,	/* ... and its bitmap is here */
	MARK_LEFT,	/* all ranks have left */
	MARK_VOTED,	/* for the open attempt */
	MARK_FAILED,	/* ... against it */
	MARK_AHEAD,	/* it is in a later window */
	MARK_FAR_AHEAD, /* ... that no commit of this coordinator has opened */
	MARK_REFUSES,	/* for good, what it was ordered or has drawn */
	N_MARKS
};

/* What the coordinator knows of one part: its newest report, without the borrowed arrays. */
struct peer {
	struct part_ranks ranks;
	struct report last;
	bool known;
	uint32_t marks;	 /* bits by enum mark */
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
	uint64_t attempt; /* open or last attempt of this term */
	bool armed;	  /* the part may vote for it by itself in the open window, or after COMMIT in the next */
	uint32_t failed_attempts; /* of this window, in a row */
	char failure[200];	  /* of the last one */
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
	uint32_t n_peers, n_marked[N_MARKS];
	uint64_t order_number;
	int64_t late_sent_ns; /* to all nodes; 0: they know of nobody */
	int64_t progress_ns;  /* of the open attempt: when it began, or when a part has last got on with it */
	int64_t failing_ns;   /* since when the attempts of this window have failed; 0: none has */
	uint32_t *part_ranks; /* [ranks]: the lists of all peers */
	uint32_t *part_of;    /* [ranks] */
	/* [ranks], the job's numbers: */
	struct rank_progress *rank; /* as last reported, with its ages as they were then */
	struct rank_times *times;
	struct early_rank *early;
	/* Since when any rank has been waiting in this window; 0: none is. One that has stopped counts until the next
	 * tick. */
	int64_t waiting_since_ns;
	/* micro-batches of the open window, as far as reported */
	uint64_t n_counted, n_voided;
	uint64_t *visited, n_visited; /* ranks and parts that were looked at: visited points to n_visited */
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

/* Every loop over all ranks or all parts goes through these: what is done for each report must not. */
#define COORD_EACH_RANK(c, r) for (uint32_t r = 0; r < (c)->spec->ranks && ++*(c)->visited; r++)
#define COORD_EACH_PART(c, i) for (uint32_t i = 0; i < (c)->n_peers && ++*(c)->visited; i++)

static inline bool coord_all(const struct coord *c, enum mark m)
{
	return c->n_marked[m] == c->n_peers;
}

/* The report or what it is compared with (window, attempt, bitmap) has changed. */
void coord_mark(struct coord *, struct peer *);
void coord_mark_all(struct coord *);
void coord_set_state(struct coord *, enum job_state, const char *reason, struct now);
/* RUNNING, or PAUSED when it is held, or STALLED by its engine. A straggler that held the job up until now is told to
 * be back. */
void coord_set_running(struct coord *, struct now);
void coord_set_phase(struct coord *, enum coord_phase, struct now);
void coord_event(struct coord *, bool warning, const char *reason, int64_t rank, const char *text);
/* Starts an attempt for which the part votes by itself when it is complete; the caller sends the order. */
void coord_arm(struct coord *);
/* The current order to the node of this part. */
void coord_send_order(struct coord *, uint32_t part);
/* Something else is wanted from now on: to all nodes that want an order, at once, and again to those that seem not to
 * have it. */
void coord_broadcast(struct coord *, struct now);
/* The same, but only from the next repetition on. */
void coord_renew_order(struct coord *);
/* Repeats to nodes that seem not to have the order; tells all of them of late ranks. */
void coord_repeat(struct coord *, struct now);
/* Takes every step that is due. */
void coord_step(struct coord *, struct now);
/* Asks for the frozen bitmaps anew, also of nodes that closed under an earlier coordinator. */
void coord_start_close(struct coord *, struct now);
/* All nodes have voted: decides and persists, or fails the attempt. */
void coord_decide(struct coord *, struct now);
/* An attempt that no part gets on with has failed; and so have all since stall_warn or stall_abort. */
void coord_watch_attempt(struct coord *, struct now);
/* The next attempt, after a pause. */
void coord_fail_attempt(struct coord *, const char *why, struct now);
/* A monotonic time without the pauses before it: it stands still while the job is held. */
int64_t coord_ran_ns(const struct coord *, int64_t mono_ns);
/* Sets waiting_since_ns: the search for late ranks must not go through all of them for each. */
void coord_find_waiting(struct coord *);
/* The progress of the ranks in a report. */
void coord_take_ranks(struct coord *, const struct report *, int64_t heard_ns);
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
/* No rank is attached: warns, marks the job STALLED, ends it after `abandoned`. False: one is, or none has to be. */
bool coord_watch_abandoned(struct coord *, struct now);
/* Whose micro-batches are missing from the closed window, as a sentence. */
void coord_describe_missing(const struct coord *, uint64_t missing, char *text, size_t n);
/* An event for a window that was committed without a step: none goes by in silence. */
void coord_tell_outcome(struct coord *);
/* Events for what is different in the next window: values, loss scale. */
void coord_tell_changes(struct coord *);
/* The engine of a part does not come up, for this reason: STALLED, or STARTING with the reason. Nobody counts as late,
 * and no attempt times out, until why is "". Told once for each reason; not durable. */
void coord_hinder(struct coord *, const char *why, struct now);

#endif
