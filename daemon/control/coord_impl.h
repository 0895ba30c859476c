/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of struct coord, shared by coordinator.c and coord_*.c alone. */
#ifndef GACC_CONTROL_COORD_IMPL_H
#define GACC_CONTROL_COORD_IMPL_H

#include "base/node_name.h"
#include "coll/coll.h"
#include "control/coordinator.h"
#include "control/part.h"

/* An order is repeated this often to nodes whose reports do not show that they have it. */
#define COORD_RESEND_NS (INT64_C(200) * 1000000)
/* Who is late is told to all nodes as often, but for each of them not more than one order in this time. */
#define COORD_LATE_EACH_NS (INT64_C(1) * 1000000)

#define COORD_NODE (NODE_NAME_MAX + 16)

/* What a part's newest report means to the coordinator; each is counted over all parts. */
enum mark {
	MARK_ALLOCATED, /* it has its memory, and an engine whose life is known: a job of several parts */
	MARK_JOINED,	/* and that engine is in the communicator */
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
	char node[NODE_NAME_MAX + 1]; /* for texts; "": all parts are on the coordinator's */
	char away[128];		      /* why its node cannot be heard, or does not take it; "": it can, and does */
	char unlike[REPORT_TEXT];     /* why its engine may not exchange anything with that of part 0; "": it may */
	uint32_t marks;		      /* bits by enum mark */
	bool has_bitmap;	      /* `counted` holds what this part had when it closed the window */
	uint64_t life;		      /* of the engine whose address is on the board of the communicator; 0: none is */
	uint64_t
		unreachable; /* bits of the parts that it could not reach, in a failed attempt since the last success */
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

struct board;

/* The communicator of a job of several parts: k, the number of the attempt that it was made for, names it in this term.
 * Orders tell the parts of it from START to COMMIT, and so do reports. Nothing of it is durable.
 *
 *   state      | event                                          | next  | what is done
 *   -----------+------------------------------------------------+-------+-------------------------------------------
 *   NONE       | START, all parts have memory and an engine     | BOARD | the next attempt's number is k; order
 *   NONE       | GO begins                                      | BOARD | k is its number; order
 *   OPEN       | GO begins; a part is not in it any more, or    | BOARD | the same
 *              | its engine has another life                    |       |
 *   OPEN       | GO begins                                      | OPEN  | order: the communicator is used again
 *   BOARD      | an address, of the engine that the part's      | BOARD |
 *              | newest report has                              |       |
 *   BOARD      | the last one, and all nodes are alike          | OPEN  | board to all parts
 *   BOARD      | nodes are alike again, all addresses are there | OPEN  | the same
 *   OPEN       | an address that is on the board                | OPEN  | board to that part
 *   any        | another address                                | same  | refused
 *   BOARD,OPEN | another life of an engine whose address is     | NONE  | START: again after a pause. GO: unless the
 *              | here                                           |       | part has voted, the attempt fails (below).
 *              |                                                |       | COLLECT, CLOSE, COMMIT: all leave it
 *   NONE       | COMMIT of a sharded job's step: not all parts  | BOARD | the next attempt's number is k; order, also
 * to | have applied it, all have an engine            |       | those that have BOARD,OPEN | the same; a vote against
 * k, a part that has    | NONE  | again after a pause | left it, or nobody gets on                     |       |
 *   BOARD,OPEN | an attempt fails in GO                         | BOARD | k is the next one's; order after its pause
 *   BOARD,OPEN | a vote against k in START                      | NONE  | again after a pause
 *   OPEN       | START, all have joined, and they do not have   | OPEN  | order: fill, from the first part that had
 *              | equal parameters                               |       | parameters
 *   OPEN       | START, all have joined, equal parameters       | OPEN  | the job runs
 *   any        | the job ends, another coordinator takes over   | NONE  | addresses are forgotten
 */
struct coord_comm {
	struct board *board; /* NULL: there are no communicators, as with one part; all else is 0 then */
	int64_t stall_ns;    /* after which engines give up on one that does not answer: coll.stall */
	enum { COMM_NONE, COMM_BOARD, COMM_OPEN } state;
	uint64_t k;	     /* 0 in NONE */
	int64_t since_ns;    /* of the state */
	int64_t retry_ns;    /* START, NONE: not before this time */
	bool joined;	     /* all parts have been in it */
	int64_t join_ns;     /* that joining may take: more when it was too little */
	uint32_t source;     /* + 1: the first part that had parameters; 0: none has */
	uint32_t fill;	     /* + 1: the part that the others get theirs from; 0: none gets any */
	uint64_t fill_order; /* the number of the order that said so first */
};

/* The exchange slots of a job of several parts: it holds one on each of its nodes from GO to the last vote. Nothing of
 * it is durable: each GO, also of a new coordinator, asks for its own. Without ports.exchange_ask: HELD.
 *
 *   state | event                                              | next  | what is done
 *   ------+----------------------------------------------------+-------+----------------------------------------------
 *   NONE  | COLLECT: all parts are complete; CLOSE: all are    | ASKED | ask; COLLECT: CLOSE, which freezes the window
 *         | complete, or closed; GO: the pause after a failed  |       |
 *         | attempt is over. And no part is hindered           |       |
 *   ASKED | they are there                                     | HELD  | GO, or GO of the next attempt
 *   ASKED | they are there, a part is not closed any more      | NONE  | give
 *   ASKED | a part is hindered                                 | NONE  | give
 *   HELD  | the last vote; the attempt fails                   | NONE  | give, before its pause
 *   HELD  | a part is hindered, and nobody gets on for as long | NONE  | the attempt fails; others must not wait for a
 *         | as makes an attempt fail                           |       | node that is away
 *   any   | the job ends, another coordinator takes over       | NONE  | give
 *
 * While it is ASKED no bound of the job runs: it is not at fault.
 */
struct coord_slots {
	enum { SLOTS_NONE, SLOTS_ASKED, SLOTS_HELD } state;
	int64_t since_ns;      /* ASKED */
	int64_t looked_ns;     /* ASKED: up to here the bounds have been moved */
	int64_t not_before_ns; /* GO, NONE: the end of the pause */
	int64_t hindered_ns;   /* HELD: since when nobody has got on while a part is hindered; 0: not so */
	bool told;	       /* the job's reason says what it waits for */
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
	uint32_t failed_norms;	  /* of these, those that asked for norms */
	char failure[300];	  /* of the last one */
	int64_t phase_since_ns, sent_ns, opened_ns;
	int64_t readers_since_ns; /* trainers that still read hold the step up (coord_look.c); 0: none do */
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
	char hindrance[256]; /* why an engine does not come up or a node cannot be heard; "": nothing of that */
	bool hindered_by_node;
	bool norms_wanted, norms_asked; /* of the next window that closes; of the one under way */
	struct peer *peer;
	uint32_t n_peers, n_marked[N_MARKS];
	uint64_t order_number;
	int64_t late_sent_ns; /* to all nodes; 0: they know of nobody */
	int64_t progress_ns;  /* of the open attempt: when it began, or when a part has last got on with it */
	int64_t failing_ns;   /* since when the attempts of this window have failed; 0: none has */
	struct coord_comm comm;
	struct coord_slots slots;
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
/* For texts, behind the number of a part: " (node b)", or nothing. Returns `out`. */
const char *coord_node_of(const struct coord *, uint32_t part, char out[COORD_NODE]);
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
/* Exchange slots. Has it them, if it needs any? */
bool coord_slots_held(const struct coord *);
/* Asks for them. True: it has them. */
bool coord_slots_ask(struct coord *, struct now);
void coord_slots_give(struct coord *, struct now);
/* The bounds of a job that waits for them stand still, and after a while its reason says so. True: nobody has got on
 * for too long with an attempt that holds slots, while a part is hindered. */
bool coord_slots_watch(struct coord *, struct now);
/* Asks for the frozen bitmaps anew, also of nodes that closed under an earlier coordinator. */
void coord_start_close(struct coord *, struct now);
/* All nodes have voted: decides and persists, or fails the attempt. */
void coord_decide(struct coord *, struct now);
/* An attempt that no part gets on with has failed, also if it `gives_up` its slots; and so have all since stall_warn or
 * stall_abort. */
void coord_watch_attempt(struct coord *, bool gives_up, struct now);
/* The next attempt, after a pause. */
void coord_fail_attempt(struct coord *, const char *why, struct now);
/* So long after this many failed attempts in a row. */
int64_t coord_pause_after(uint32_t failures);
/* The vote that has failed the attempt, in words. */
void coord_take_failed_vote(struct coord *, char *text, size_t n);
/* Communicators; these are for jobs that have a board, where nothing else is said. */
struct coll_id coord_comm_id(const struct coord *);
/* The one of the present attempt; without memory there is none, and the tick tries again. */
void coord_comm_form(struct coord *, struct now);
void coord_comm_leave(struct coord *);
/* It cannot be used for an attempt that begins now. */
bool coord_comm_is_over(const struct coord *);
/* Have all joined? */
void coord_comm_look(struct coord *, struct now);
/* An attempt that no part has got on with for so long has failed. */
int64_t coord_comm_stuck_ns(const struct coord *);
/* It was not joined in time: the next one gets more. Nothing without a board, or if it was. */
void coord_comm_late(struct coord *);
/* All parts have just reached each other: what failed before is over. */
void coord_comm_reached(struct coord *);
/* Takes every step of the start that is due. True: all parts have joined, and have equal parameters. */
bool coord_comm_start(struct coord *, struct now);
void coord_comm_fail(struct coord *, const char *why, struct now);
/* In COMMIT of a sharded job that changes parameters: the parts gather their shares in a communicator, until all have
 * applied. coord_comm_commit forms one where there is none, and leaves one that has failed. */
bool coord_comm_gathers(const struct coord *);
void coord_comm_commit(struct coord *, struct now);
/* What it waits for, as a sentence; false: nothing. Of any job. */
bool coord_describe_comm(const struct coord *, char *text, size_t n, struct now);
/* A report was taken; the tick. Of any job. */
void coord_comm_report(struct coord *, const struct peer *, struct now);
void coord_comm_tick(struct coord *, struct now);
/* A monotonic time without the pauses before it: it stands still while the job is held. */
int64_t coord_ran_ns(const struct coord *, int64_t mono_ns);
/* Sets waiting_since_ns: the search for late ranks must not go through all of them for each. */
void coord_find_waiting(struct coord *);
/* The progress of the ranks in a report. */
void coord_take_ranks(struct coord *, const struct report *, int64_t heard_ns);
/* The window opens: what has been reported of its ranks before that takes effect. */
void coord_take_early(struct coord *);
/* A phase that waits for nodes or for the journal: says so after stall_warn, and after stall_abort ends the job, or
 * holds it where something that is durable would be given up. */
void coord_watch_phase(struct coord *, struct now);
/* Pauses the job although nobody has asked for that: its end would give away an outcome that is durable. A resume looks
 * again. Said once for each reason. */
void coord_hold(struct coord *, const char *why, struct now);
void coord_hold_on_difference(struct coord *, struct now); /* of the parts' parameters */
/* What a node has reported cannot be waited for: the job ends. True: it does. A refused outcome holds the job. */
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
/* The engine of a part does not come up, or its node cannot be heard (by_node), for this reason: STALLED, or STARTING
 * with the reason. Nobody counts as late, and no attempt times out, until why is "". Told once for each reason; not
 * durable. */
void coord_hinder(struct coord *, const char *why, bool by_node, struct now);

#endif
