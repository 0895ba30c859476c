/* Inside of struct job, shared by job*.c and session.c alone. */
#ifndef GACC_CONTROL_JOB_IMPL_H
#define GACC_CONTROL_JOB_IMPL_H

#include "control/job.h"

#define RANK_MAX_PUSHES 4  /* two slots, and as many repeats of counted micro-batches under judgement */
#define REPEAT UINT32_MAX  /* the slot of a push that is counted already: only its data_key is looked at */
#define PUSH_MAX_CALLS 4   /* repeats that joined a parked push */

struct parked_push {
	bool used;
	bool sent;              /* the engine has it */
	uint64_t command_id;
	uint64_t window;
	uint32_t micro, slot;
	double weight, loss;
	uint64_t data_key;
	bool zero_after;
	unsigned char *present;
	uint32_t n_present;
	int64_t since_ns, unix_ns;
	uint32_t blocked_by;    /* rank whose turn was before, when it came; own rank: nobody */
	uint64_t call[PUSH_MAX_CALLS];
	int n_calls;
};

struct rank {
	uint32_t rank;
	bool has_session;
	struct session_record session;  /* in force */
	uint64_t sgen;
	bool link, lost, detached;      /* lifeline is up; broke without a detach; said good-bye */
	/* an attach that the engine has not stored yet */
	bool attaching, attach_sent;
	struct session_record next;
	uint64_t next_sgen, attach_command;
	/* the open window */
	struct parked_push push[RANK_MAX_PUSHES];
	bool flush_wanted, leave_wanted, flush_sent;
	bool leave_sent; /* what the FLUSH that is out says; a Detach may come while it is */
	uint64_t flush_command;
	int64_t ready_ns, last_push_unix_ns;
	int64_t lost_ns;                /* when the session was seen lost */
	double weight;
};

enum waiter_kind {
	WAIT_ATTACH, WAIT_REGISTER, WAIT_READY, WAIT_FLUSH, WAIT_STEP, WAIT_DETACH, WAIT_PUT, WAIT_ACK
};

/* A parked call other than a push. */
struct waiter {
	uint64_t call;
	enum waiter_kind kind;
	uint32_t rank;
	uint64_t window;
	int64_t deadline_ns;  /* 0: none */
	/* WAIT_PUT, WAIT_ACK */
	uint64_t command_id;
	bool sent;
	/* WAIT_PUT */
	uint32_t slot;
	uint64_t offset, bytes;
	bool last;
};

struct past_window {
	struct commit commit;
	uint64_t *counted;
};

struct job {
	uint64_t id;
	const struct job_spec *spec;
	uint32_t owner_uid;
	uint64_t incarnation;
	int64_t clock_ns;            /* mono time of the last event that brought one */
	struct job_ports ports;
	/* tensors */
	struct tensor_spec *tensor;
	char *names;                 /* storage of the tensors' strings */
	uint64_t n_tensors;
	struct arena arena;
	bool has_tensors, allocating;
	bool taken_over;             /* from an earlier gaccd */
	int64_t looked_ns;           /* for processes that have not come back to it */
	/* engine */
	bool engine_up, engine_seen;
	struct control_state mirror; /* the control record in force, as far as answers told */
	uint64_t *closed_counted;    /* `counted` when the window was frozen */
	uint64_t next_command;
	uint64_t close_command, go_command, commit_command, init_command, ack_command,
		restore_command; /* 0: not outstanding */
	void *restore;               /* tail of ENGINE_RESTORE; NULL: the parameters are new */
	uint32_t n_restore;
	uint64_t go_term;            /* of go_command: the order may have changed before its answer */
	enum status vote_status;     /* of the attempt in the order, when it failed here */
	uint64_t vote_term, vote_attempt;
	/* coordinator */
	struct order order;
	bool have_order, run, ended;
	enum status end_status;
	char end_reason[256];
	struct late_rank late[REPLY_MAX_MISSING];
	uint32_t n_late;
	int64_t reported_ns;
	bool report_due;
	struct rank_progress *progress;
	uint32_t *missing;           /* scratch of max_micro_size */
	/* ranks and calls */
	struct rank *rank;
	struct waiter *waiter;
	uint32_t n_waiters, waiters_capacity;
	struct past_window past[JOB_HISTORY];
	uint32_t n_past;             /* oldest first */
};

/* session.c */
/* Answers a call with an error; hint NULL: the status's own. */
void reply_error(struct job *, uint64_t call, enum status, const char *hint, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));
/* The key is that of the rank's session: else the call is answered. */
bool session_check(struct job *, const struct session_key *, uint64_t call);
/* The engine has stored the rank's new session, or there is no engine yet: it is in force, and older calls end. */
void attach_done(struct job *, struct rank *, struct now);
/* Ends a push: answers its calls and frees it. */
void push_answer(struct job *, struct rank *, struct parked_push *, uint32_t result);
void push_fail(struct job *, struct rank *, struct parked_push *, enum status, const char *text);
/* A push of a window that is over, or whose bit is set already: answers it from what is known; false: still open. */
bool push_settle(struct job *, struct rank *, struct parked_push *);
bool rank_settled(const struct job *, const struct rank *, uint32_t micro); /* counted or void */
uint32_t rank_progress_count(const struct job *, const struct rank *); /* counted + void */
uint32_t rank_count_voided(const struct job *, const struct rank *);
uint32_t rank_first_voided(const struct job *, const struct rank *); /* lowest void micro-batch; micro_size: none */
/* It may still contribute to the window, and has not given all. */
bool rank_owes(const struct job *, const struct rank *);
/* Rank whose micro-batch comes before (rank, micro) in canonical order and is missing; own rank: none. */
uint32_t rank_blocked_by(const struct job *, const struct rank *, uint32_t micro);
/* NULL: the window is not over, or no longer remembered. */
const struct past_window *past_find(const struct job *, uint64_t window);

/* job_calls.c */
/* The session is good and the job has not ended, and for call_in_window that it runs: else the call is answered. */
bool call_allowed(struct job *, uint64_t call, const struct session_key *);
bool call_in_window(struct job *, uint64_t call, const struct session_key *);
/* Micro-batches of the rank that are in this window, the open one or one before it; 0: it is no longer remembered. */
uint32_t rank_counted_in(const struct job *, const struct rank *, uint64_t window);

/* job_engine.c */
/* Sends the engine what is wanted and not yet under way. */
void job_reconcile(struct job *, struct now);
void job_report(struct job *, struct now);
/* Answers the rank's Flush and Detach calls. */
void answer_flush(struct job *, struct rank *, enum status, const char *why);

/* job.c */
struct waiter *waiter_add(struct job *, uint64_t call, enum waiter_kind, uint32_t rank); /* NULL: answered NO_MEMORY */
void waiter_remove(struct job *, struct waiter *);
/* A window that is over, behind those that are remembered; the oldest gives its place. `counted` is copied. */
void past_add(struct job *, const struct commit *, const uint64_t *counted);
void job_window_changed(struct job *, struct now); /* the mirror shows a new window: outcomes are known */
void job_params_changed(struct job *, struct now); /* start phase may have advanced */
uint32_t job_micro_size(const struct job *);
void step_reply(struct job *, uint64_t call, const struct commit *);
bool ready_now(const struct job *); /* trainers may compute: the job runs and the parameters stand still */
void ready_reply(struct job *, const struct rank *, uint64_t call);

#endif
