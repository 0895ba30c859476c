/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of struct job, shared by its files alone. Each uses only those above it in this list:
 *
 *   job_base.c                        what all of them stand on
 *   job_counts.c                      what each rank has given to the open window, and still owes
 *   session.c, streams.c              sessions, inline streams
 *   mailboxes.c                       mailboxes, and what has come in them
 *   job_report.c                      reports to the coordinator
 *   waits.c, initial.c, pushes.c      trainers' calls, each from its checks to its answer
 *   leaving.c, attach.c, stream_calls.c
 *   job_comm.c                        the engine's communicator, of a job of several parts
 *   job_engine.c                      what the engine is sent when anything may have changed
 *   job_answers.c, job_order.c        the engine's answers, the coordinator's orders
 *   job.c, job_state.c, job_tick.c    a job's life
 */
#ifndef GACC_CONTROL_JOB_IMPL_H
#define GACC_CONTROL_JOB_IMPL_H

#include "control/coverage.h"
#include "control/job.h"

#define RANK_MAX_SLOTS 2
/* two slots, and for each the calls that an engine lets wait for one micro-batch (ACCUM_MAX_ASKERS) */
#define RANK_MAX_PUSHES 8
/* The slot of a push for which none may be read. No session has it: the engine refuses the push where it would read the
 * slot, when everything else about it is right. */
#define NO_SLOT UINT32_MAX

/* Whether a push has NO_SLOT, and why. */
enum no_slot {
	SLOT_NAMED,	 /* no: it has the slot that its call names */
	SLOT_OF_REPEAT,	 /* an earlier push of the micro-batch is counted, void or parked, and this one is not read */
	SLOT_NOT_MAPPED, /* what is in the session's slots is not its own */
	SLOT_FILLED	 /* by a stream, or a piece of the parameters */
};

/* A Push call that the engine has to answer. */
struct parked_push {
	bool used;
	bool sent;   /* the engine has it */
	bool resent; /* an engine that has died had it: it may be counted */
	enum no_slot no_slot;
	uint64_t command_id;
	uint64_t window;
	uint32_t micro, slot;
	double weight, loss, loss_scale, lr;
	uint64_t data_key;
	bool zero_after;
	unsigned char *present;
	uint32_t n_present;
	int64_t since_ns, unix_ns;
	uint64_t call;
	bool gone; /* the call's client: nobody is answered */
};

/* docs/protocol.md, "Inline stream". */
enum stream_state {
	STREAM_NONE,
	STREAM_FILLING, /* its chunks are copied into its slot */
	/* the engine takes a piece of the parameters from the slot: nothing is copied before it has answered */
	STREAM_TAKEN
};

struct stream {
	enum stream_state state;
	bool is_put; /* PutParametersInline; else PushInline */
	uint64_t call;
	uint32_t rank;	 /* the job's number */
	uint64_t sgen;	 /* of the session that it belongs to */
	uint64_t window; /* of a push, with micro: a repeat ends the earlier try */
	uint32_t micro;
	struct coverage came; /* bytes of the slot, or of the parameters */
};

struct rank {
	uint32_t index;	 /* in the part: that of rank[], of the mirror and of the engine */
	uint32_t global; /* the job's number: that of texts, events, calls and reports */
	bool has_session;
	struct session_record session; /* in force */
	uint64_t sgen;
	uint32_t n_links;	  /* lifelines that are up */
	bool lost, detached;	  /* the last lifeline broke without a detach; said good-bye */
	bool watched;		  /* while it has no lifeline, its process is looked at once a second */
	int64_t heard_ns;	  /* its last call, or the last answer to one */
	bool mapped, mapped_here; /* the session has had its slots; and from this gaccd, not perhaps an earlier one */
	/* the session has a mailbox; the engine has been told; by this command */
	bool has_box, box_sent;
	bool moved; /* scratch of job_catch_up */
	uint64_t box_command;
	/* its oldest push that waits in the engine's queue, as last looked at; 0: none */
	int64_t queued_since_ns;
	uint32_t queued_micro;
	/* an attach that the engine has not stored yet */
	bool attaching, attach_sent;
	struct session_record next;
	uint64_t next_sgen, attach_command;
	/* the process that attaches had a session before: it goes on giving parameters */
	bool next_resumes;
	/* gradients and parameters in messages, by slot of the session */
	struct stream stream[RANK_MAX_SLOTS];
	uint32_t n_puts, n_last_puts; /* of its waiters, WAIT_PUT; those with `last` */
	struct coverage given;	      /* of the parameters, by PutParameters: pieces that the engine has taken */
	/* the open window */
	struct parked_push push[RANK_MAX_PUSHES];
	bool flush_wanted, leave_wanted, flush_sent;
	bool leave_sent; /* what the FLUSH that is out says; a Detach may come while it is */
	uint64_t flush_command;
	int64_t ready_ns, last_push_unix_ns;
	int64_t lost_ns; /* when the session was seen lost */
	double weight;
	uint32_t nonfinite, first_nonfinite; /* as in struct rank_progress */
	/* job_counts.c: follow from the mirror and the session, and are kept beside them */
	uint32_t voided, first_void; /* first_void: if any */
	bool owes, left, reads;
};

enum waiter_kind { WAIT_ATTACH, WAIT_REGISTER, WAIT_READY, WAIT_FLUSH, WAIT_STEP, WAIT_DETACH, WAIT_PUT, WAIT_ACK };

/* A parked call other than a push. */
struct waiter {
	uint64_t call;
	enum waiter_kind kind;
	uint32_t rank; /* its index */
	uint64_t window;
	int64_t deadline_ns; /* 0: none */
	/* WAIT_PUT, WAIT_ACK */
	uint64_t command_id;
	bool sent;
	/* WAIT_PUT */
	uint32_t slot;
	uint64_t offset, bytes;
	bool last, streamed;
	struct layout_part part; /* WAIT_REGISTER */
};

/* A piece of the parameters, at the start of a slot of the rank's session. */
struct put_args {
	uint32_t slot;
	uint64_t offset, bytes;
	bool last;
	bool streamed; /* by PutParametersInline, which has checked that all has come */
};

struct past_window {
	struct commit commit;
	uint64_t *counted;
};

/* docs/protocol.md, "Communicator": how far this life of the engine is with one. */
enum membership {
	MEMBER_NONE,
	MEMBER_TOLD,	/* JOIN has been sent */
	MEMBER_OFFERED, /* its address is here, and goes to the coordinator until the board comes */
	MEMBER_GIVEN,	/* it has the addresses of all; GO and FILL may be sent from now on */
	MEMBER_JOINED,
	MEMBER_FAILED /* it cannot be used, and is not joined again */
};

/* Of a job of several parts. */
struct member {
	enum membership state;
	uint64_t term, k; /* the communicator; 0: none */
	uint64_t join_command, fill_command;
	int64_t again_ns;    /* JOIN is not sent before */
	unsigned char *blob; /* OFFERED: the address; it holds a key, and is shown to nobody */
	uint32_t n_blob;
	int64_t said_ns;    /* when the coordinator was last sent it */
	uint32_t n_given;   /* addresses of the board that the engine has got */
	uint64_t pieces;    /* as the engine has counted them so far */
	bool filled;	    /* the order's FILL is done */
	bool gathered;	    /* all shares of the order's COMMIT have come, and been given */
	enum status failed; /* FAILED: why */
	char why[160];
	uint64_t suspects;
};

/* The first two ranks that may lack a micro-batch index: those before them do not. */
struct missing_at {
	uint32_t first, second;
};

struct job {
	uint64_t id;
	struct part_spec part;
	const struct job_spec *spec; /* part.spec */
	uint64_t epoch;		     /* the highest of part and orders */
	uint32_t owner_uid;
	uint64_t incarnation;
	int64_t clock_ns; /* mono time of the last event that brought one */
	struct job_ports ports;
	/* tensors */
	struct tensor_set set;
	bool has_tensors, allocating;
	bool taken_over;   /* from an earlier gaccd */
	int64_t looked_ns; /* for processes that have not come back to it: when that began */
	uint32_t look_at;  /* the rank to look at next; 0: all have been looked at */
	/* engine */
	bool engine_up, engine_seen;
	struct control_state mirror; /* the control record in force, as far as answers told */
	uint64_t caught_up;	     /* seq of the record that the mirror has last been compared with */
	bool behind;		     /* the record could not be read when the mirror was to be relied on */
	uint64_t *closed_counted;    /* `counted` when the window was frozen */
	uint64_t next_command;
	uint64_t close_command, go_command, disarm_command, commit_command, init_command, ack_command,
		restore_command; /* 0: not outstanding */
	void *restore;		 /* tail of ENGINE_RESTORE; NULL: the parameters are new */
	uint32_t n_restore;
	uint64_t go_term, go_attempt, go_comm;	/* of go_command: the order may have changed before its answer */
	uint64_t commit_comm;			/* of commit_command */
	bool go_armed;				/* it waits until nobody owes anything; engine/go.h */
	uint64_t unarmed_term, unarmed_attempt; /* the engine has refused to wait for this one */
	/* what the engine has said of the open window's COMMIT, and why; ST_OK: nothing against it */
	enum status refused;
	char refusal[160];
	enum status vote_status; /* of the attempt in the order, when it failed here */
	uint64_t vote_term, vote_attempt, vote_suspects;
	char vote_text[160];
	/* of a job of several parts */
	uint64_t life; /* of the engine; 0: there is none */
	struct member member;
	/* coordinator */
	struct order order;
	bool have_order, run, ended;
	bool windows_due; /* `past` lacks the last windows until the coordinator has told them */
	enum status end_status;
	char end_reason[256];
	struct late_rank late[REPLY_MAX_MISSING];
	uint32_t n_late;
	int64_t reported_ns;
	uint64_t n_reports;
	bool report_due;
	uint32_t connected; /* of the exchange that is under way */
	uint64_t pieces;
	/* what the node has said: "" and ST_OK are nothing */
	char hindrance[REPORT_TEXT], failure[REPORT_TEXT];
	enum status failed;
	struct rank_progress *progress;
	uint32_t *missing; /* scratch of max_micro_size */
	/* job_counts.c: kept, of all ranks */
	uint32_t n_owing, n_left, n_reading;
	bool has_boxes; /* a session has, or has had, a mailbox: answers do not say all that is counted */
	struct missing_at *missing_at; /* [max_micro_size]; canonical order */
	uint64_t *visited, n_visited;  /* ranks that were looked at: visited points to n_visited */
	/* ranks and calls */
	struct rank *rank;
	struct waiter *waiter;
	uint32_t n_waiters, waiters_capacity;
	struct rank *giver; /* of the initial parameters (initial.c); NULL: none has begun */
	struct past_window past[JOB_HISTORY];
	uint32_t n_past; /* oldest first */
};

/* ---- job_base.c ---- */
/* The rank with this number in the job; NULL: it is not in this part. */
struct rank *job_rank(const struct job *, uint32_t global);
uint32_t job_micro_size(const struct job *);
/* Answers a call with an error; hint NULL: the status's own. */
void reply_error(struct job *, uint64_t call, enum status, const char *hint, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));
struct waiter *waiter_add(struct job *, uint64_t call, enum waiter_kind, uint32_t rank); /* NULL: answered NO_MEMORY */
void waiter_remove(struct job *, struct waiter *);
/* NULL: the window is not over, or no longer remembered. */
const struct past_window *past_find(const struct job *, uint64_t window);
/* It is over, and what became of it is yet to be told by the coordinator. */
bool past_is_due(const struct job *, uint64_t window);
void reply_past_due(struct job *, uint64_t call, uint64_t window); /* the caller repeats it */
/* A window that is over, behind those that are remembered; the oldest gives its place. `counted` is copied. */
void past_add(struct job *, const struct commit *, const uint64_t *counted);
bool past_final(const struct job *); /* the last window has closed, and the end is being written */
/* Micro-batches of the rank that are in this window, the open one or one before it; 0: it is no longer remembered. */
uint32_t rank_counted_in(const struct job *, const struct rank *, uint64_t window);
/* A command with the next id, which is in *out_id then, and `present` behind it. false: there is no engine to send it
 * to. */
bool job_send(struct job *, struct engine_command *, uint64_t *out_id, const void *present);
/* The rank whose parameters have begun to come and are not complete; NULL: there is none. */
struct rank *puts_giver(const struct job *);

/* The parameters after this window are lost. */
static inline bool is_lost(const struct job *j, uint64_t window)
{
	return j->mirror.r.params_nonfinite && window + 1 == j->mirror.r.window;
}

/* The record is prepared for this attempt, or for a later one. */
static inline bool prepared_at_least(const struct job *j, uint64_t term, uint64_t attempt)
{
	const struct control_record *r = &j->mirror.r;
	return r->prepared_term > term || (r->prepared_term == term && r->prepared_attempt >= attempt);
}

static inline bool has_parts(const struct job *j)
{
	return j->part.n_parts > 1;
}

static inline bool is_sharded(const struct job *j)
{
	return has_parts(j) && spec_is_sharded(j->spec);
}

/* Bits of its parts. */
static inline uint64_t part_mask(const struct job *j)
{
	return (UINT64_C(1) << j->part.n_parts) - 1;
}

/* The communicator of the order is the engine's, as far as it has come with it. */
static inline bool is_in_orders_comm(const struct job *j)
{
	const struct member *m = &j->member;
	return j->have_order && j->order.comm && m->k == j->order.comm && m->term == j->order.term;
}

/* The order's COMMIT changes parameters, of which each part updates a share: the others' come in the order's
 * communicator. */
static inline bool is_gathering(const struct job *j)
{
	return is_sharded(j) && j->have_order && j->order.want == WANT_COMMIT &&
	       j->order.commit.outcome == OUTCOME_APPLIED;
}

/* The part's parameters come, or go, over the communicator, and that is not done. */
static inline bool is_filling(const struct job *j)
{
	return j->have_order && j->order.fill_part && j->order.want != WANT_END &&
	       !(is_in_orders_comm(j) && j->member.filled);
}

/* ... and they come: what the part has of them is not what it will have. */
static inline bool takes_fill(const struct job *j)
{
	return is_filling(j) && j->order.fill_part - 1 != j->part.number;
}

#define LOOKS_AT_ONCE 64 /* for processes: each takes some microseconds, and there may be 65,536 */

/* ---- job_counts.c ---- */
/* Every loop over all ranks goes through this: what is done for each push must not. */
#define EACH_RANK(j, r) for (struct rank *r = (j)->rank; r < (j)->rank + (j)->spec->ranks && ++*(j)->visited; r++)
bool rank_counted(const struct job *, const struct rank *, uint32_t micro);
bool rank_voided(const struct job *, const struct rank *, uint32_t micro);
bool rank_settled(const struct job *, const struct rank *, uint32_t micro); /* counted or void */
uint32_t rank_progress_count(const struct job *, const struct rank *);	    /* counted + void */
/* It may still contribute to the window, and has not given all. */
bool rank_owes(const struct job *, const struct rank *);
/* Rank whose micro-batch comes before (rank, micro) in canonical order and is missing, the lowest of them; own rank:
 * none. */
uint32_t rank_blocked_by(const struct job *, const struct rank *, uint32_t micro);
/* The micro-batch is counted, or void, from now on; nothing if it was before. */
void rank_settle(struct job *, struct rank *, uint32_t micro, bool is_void);
/* To be called when the rank's session, its row in the mirror, or its bits have changed. */
void rank_changed(struct job *, struct rank *);
/* Bits of the rank have come into the mirror otherwise: its void ones are counted anew. */
void rank_recount(struct job *, struct rank *);
/* The same of all ranks: the mirror is another one, or of another window. */
void job_recount(struct job *);

/* ---- session.c ---- */
/* The rank whose session the key is of; NULL: none, and the call is answered. */
struct rank *session_check(struct job *, const struct session_key *, uint64_t call);
/* The rank, if the session is good and the job has not ended, and for call_in_window if it runs and the open window
 * will close: else NULL, and the call is answered. */
struct rank *call_allowed(struct job *, uint64_t call, const struct session_key *);
struct rank *call_in_window(struct job *, uint64_t call, const struct session_key *);
/* In constant time. */
bool session_token_is(const uint8_t *token, const uint8_t *other);
/* It was taken over from an earlier gaccd, and what its engine and its coordinator know has not arrived yet. */
bool job_is_recovering(const struct job *);
/* pid 0: it does not. */
bool session_process_lives(const struct job *, int64_t pid, uint64_t start_time);
/* Its process was on this machine and is gone, as far as that can be known. */
bool session_is_dead(const struct job *, const struct session_record *);
/* Whether its trainer lives can only be known by its calls (no memory, no lifeline, a process that cannot be looked
 * at), and there has been none for stall_warn, nor is one open. */
bool session_is_silent(const struct job *, const struct rank *);
/* First of the n consecutive slots of this rank's session. */
uint32_t session_slots(const struct job *, const struct rank *, uint32_t *n);
/* A stream or a piece of the parameters is in this slot of the rank's session; slot_in_use: or a push. Of pushes in
 * mailboxes, and of those that must not overtake one another, only the engine knows. */
bool slot_is_filled(const struct job *, const struct rank *, uint32_t slot);
bool slot_in_use(const struct job *, const struct rank *, uint32_t slot);

/* ---- streams.c ---- */
/* The rank's stream of this call, or NULL. */
struct stream *stream_of(struct rank *, uint64_t call);
/* Without an answer. */
void stream_free(struct stream *);
/* Its call is answered with this, and its slot is free. */
void stream_end(struct job *, struct stream *, enum status, const char *hint, const char *text);
/* The same for all streams of the rank's session. */
void streams_end(struct job *, struct rank *, enum status, const char *hint, const char *text);
/* To be asked before every copy: the stream of this call, if it has not ended, its session is in force, and nobody else
 * reads or writes the slot; else NULL. */
struct stream *stream_filling(struct job *, uint64_t call, uint32_t rank);
/* n bytes for this offset have come. false: the stream has ended, with an answer. */
bool stream_note(struct job *, struct stream *, uint64_t offset, uint64_t n);
/* What has come lacks a tensor of the parameters: `why` names it. */
bool params_missing(const struct job *, const struct coverage *, char *why, size_t n_why);

/* ---- mailboxes.c ---- */
/* Tells the engine of the rank's mailbox, if it has one and the engine may and does not know of it. false: it could not
 * be told now, and nothing else of the rank may be sent, because that would overtake what lies in the mailbox. */
bool mailbox_send(struct job *, struct rank *);
void mailbox_answered(struct job *, const struct engine_answer *);
/* The rank's session goes on by RPC alone. Nothing if it has no mailbox. */
void mailbox_end(struct job *, struct rank *);
/* Brings the mirror up to what has come in mailboxes: to be called before the mirror is relied on. false: the record
 * could not be read now. */
bool job_catch_up(struct job *);

/* ---- job_report.c ---- */
/* Says all that the coordinator wants to know, now; costs a look at every rank. */
void job_report(struct job *, struct now);
/* A rank's contribution has changed. The coordinator is told at once what it acts on; the rest is only shown to users
 * and waits for the tick. */
void job_report_rank(struct job *, bool at_once, struct now);
/* What the job's start waits for, as a part of a sentence; and the rank among it, or NULL. */
const struct rank *job_start_waits(const struct job *, char *text, size_t n);

/* ---- waits.c ---- */
void job_answer_ready(struct job *); /* the waiting ranks that may compute now */
void job_answer_steps(struct job *); /* those that wait for a window that is over */

/* ---- initial.c ---- */
/* Sends the engine what it needs for the initial parameters and has not got: the order to draw or to read them, or the
 * pieces that may go now. Once they are there, answers the calls that bring more. */
void initial_send(struct job *);
/* Gives a checked piece to the engine, when it is the rank's turn; answered when the engine has taken it. */
void put_begin(struct job *, uint64_t call, struct rank *, const struct put_args *, struct now);
/* The engine's answer to a piece. */
void put_answered(struct job *, const struct engine_answer *, struct now);
/* They are ready, by this answer. */
void job_params_given(struct job *, const struct engine_answer *);
void job_params_changed(struct job *, struct now); /* the start may go on */

/* ---- pushes.c ---- */
/* Sends the engine the rank's pushes that it has not got. */
void pushes_send(struct job *, struct rank *);
/* The engine's answer to a push. */
void push_answered(struct job *, const struct engine_answer *, struct now);
/* Ends a push: answers its call and frees it. */
void push_fail(struct job *, struct rank *, struct parked_push *, enum status, const char *text);
/* Answers a push whose window is over from what is known of that; false: it is not over. */
bool push_settle(struct job *, struct rank *, struct parked_push *);
/* A push was void, or counted with non-finite elements: tells people, and the coordinator with the next report. */
void push_note_void(struct job *, struct rank *, uint32_t micro, uint32_t nonfinite);
void push_note_nonfinite(struct rank *, uint32_t micro);
/* An earlier push of this micro-batch, in this window, is counted, void or parked. */
bool push_repeats(const struct job *, const struct rank *, uint64_t window, uint32_t micro);
/* The push's bitmap is not of the job's tensor set: `text` says how. */
bool present_wrong(const struct job *, const struct push_args *, char *text, size_t n);
#define PRESENT_HINT "one bit for each tensor in the order of registration"

/* ---- leaving.c ---- */
/* Sends the engine the rank's flush, if it wants one and all its pushes have been answered. */
void flush_send(struct job *, struct rank *);
void flush_answered(struct job *, const struct engine_answer *, struct now);
/* Answers the rank's Flush and Detach calls. */
void answer_flush(struct job *, struct rank *, enum status, const char *why);
/* Sends the engine a WAIT_ACK that it has not got. */
void ack_send(struct job *, struct waiter *);
/* All that take part have read the reduced gradient: tells the engine. */
void ack_last_send(struct job *);
void ack_answered(struct job *, const struct engine_answer *);

/* ---- attach.c ---- */
void attach_send(struct job *, struct rank *);
void attach_answered(struct job *, const struct engine_answer *, struct now);

/* ---- job_comm.c ---- */
/* Sends the engine, or the coordinator, what the order's communicator needs and has not got. Nothing if the job has one
 * part. */
void comm_send(struct job *, struct now);
/* The order's GO may be sent. */
bool comm_can_go(const struct job *);
/* The engine's answers to JOIN (`blob`: what lies behind it), ADDRESS and FILL, and what it says unasked. */
void comm_join_answered(struct job *, const struct engine_answer *, const void *blob, struct now);
void comm_address_answered(struct job *, const struct engine_answer *, struct now);
void comm_fill_answered(struct job *, const struct engine_answer *, struct now);
void comm_progress(struct job *, const struct engine_answer *, struct now);
/* A GO has failed in the communicator: no other one uses it. */
/* The COMMIT cannot go on in its communicator. */
void comm_commit_failed(struct job *, const struct engine_answer *, struct now);
void comm_go_failed(struct job *, const struct engine_answer *);
void comm_take_board(struct job *, const struct part_board *);
/* The engine has died, or is new. */
void comm_forget(struct job *);

/* ---- job_engine.c ---- */
/* Sends the engine what is wanted and not yet under way: for everything, or for one rank. */
void job_reconcile(struct job *, struct now);
void job_reconcile_rank(struct job *, struct rank *);

/* ---- job_answers.c ---- */
void job_window_changed(struct job *, struct now); /* the mirror shows a new window: outcomes are known */
/* A window's parameter digest is in the journal only with the next commit; the newest window's is in the engine's
 * record. */
void job_learn_digest(struct job *);

#endif
