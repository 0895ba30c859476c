/* SPDX-License-Identifier: Apache-2.0 */
/* A whole node in one process: the real state machines of daemon/control, with a fake clock, engine, store and
 * trainers.
 *
 * Everything random comes from one seed, so that a failure is reproduced by its number. Between coordinator and job,
 * and between trainers and job, messages are lost, repeated, delayed and overtaken; the engine, gaccd, trainers and the
 * coordinator die or are superseded at any event. After every event sim_check.c looks at the invariants of
 * docs/protocol.md.
 */
#ifndef GACC_TESTS_SIM_H
#define GACC_TESTS_SIM_H

#include "control/coordinator.h"
#include "control/job.h"
#include "engine/accum.h"
#include "engine/go.h"
#include "engine/mailbox_cells.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define SIM_MAX_RANKS 3
#define SIM_MAX_MICRO 4
#define SIM_MAX_WINDOWS 64
#define SIM_MAX_PROCS 64 /* trainer processes, dead ones included */
#define SIM_MAX_COORDS 8
#define SIM_MAX_UPDATES 64
#define SIM_STREAMS 256
#define SIM_SENT 256
#define SIM_WORDS ((SIM_MAX_RANKS * 64 + 63) / 64)
#define SIM_PUT 255 /* the last byte of a call that gives parameters */
#define MS INT64_C(1000000)
#define TICK_NS (100 * MS)

/* Whose micro-batch it is, written by which process. */
struct tag {
	uint64_t window;
	uint32_t rank, micro, proc, written; /* written: 1, so that memory which nobody has written is nobody's */
};

/* What a slot holds, and what a contribution was. Whole if all pieces are the same. */
#define SIM_PIECES 4
struct sim_slot {
	struct tag piece[SIM_PIECES];
};

/* A session's mailbox. The memory stays as long as the run: who is fenced may write into it at any time. */
struct sim_box {
	struct sim_box *next;
	struct gacc_box *mem;
	uint32_t rank, proc;
	uint64_t sgen;
	int64_t stale_since; /* another session is in force; 0: no */
};

/* As the engine has it. */
struct sim_open_box {
	struct sim_box *of; /* NULL: it has none of the rank */
	struct box_cells cells;
	struct engine_command flush; /* that waits for what is queued; id 0: none does */
	uint32_t waits;		     /* bits of cells: WAITs of the open window */
};

/* Where an engine is reached in a communicator, as its own words: bytes to everybody else. */
struct sim_address {
	uint64_t life, part, term, comm;
};

/* ---- events ---- */
enum event_type {
	EV_ENGINE_COMMAND,
	EV_ENGINE_ANSWER,
	EV_ENGINE_UP,
	EV_PASS,
	EV_PASSED,   /* what it recorded is answered */
	EV_BOX_BELL, /* of a trainer, to the engine; proc: the rank */
	EV_BOX_RING, /* of the engine, to a trainer; proc: the rank */
	EV_REPORT,
	EV_ORDER,
	EV_PERSISTED,
	EV_ENDED,
	EV_UPDATED,
	EV_HELD,
	EV_REQUEST,
	EV_CHUNK,
	EV_REPLY,
	EV_PROC,
	EV_TICK,
	EV_FAULT,
	EV_GACCD_UP,
	EV_START_PROC
};

struct event {
	int64_t at;
	uint64_t n; /* tie-break: order of creation */
	enum event_type type;
	uint64_t life; /* of gaccd or engine it belongs to; stale ones are dropped */
	uint32_t proc, coord;
	uint64_t call;
	struct engine_command command;
	struct engine_answer answer;
	struct report report;
	struct rank_progress progress[SIM_MAX_RANKS];
	uint64_t counted[SIM_WORDS];
	struct order order;
	struct reply reply;
	uint32_t missing[SIM_MAX_MICRO * 16];
	struct commit commit;
	enum status status;
	struct update update;
	bool hold;		    /* EV_HELD: paused, or resumed */
	struct sim_address address; /* behind ADDRESS, and behind the answer to JOIN */
	struct sim_box *box;	    /* that goes with a MAILBOX; NULL: none */
};

/* ---- trainers ---- */
enum proc_state {
	PROC_DEAD,
	PROC_ATTACH,
	PROC_READY,
	PROC_COMPUTE,
	PROC_PUSH,
	PROC_FLUSH,
	PROC_WAIT,
	PROC_DETACH,
	PROC_DONE,
	PROC_OTHER_KEY, /* pushes a micro-batch that is counted once more, with the data key of another one */
	PROC_PAUSE,	/* Detach, not done: another process goes on in its place */
	PROC_ACK,	/* optimizer client: it has read the reduced gradient */
	PROC_BOX	/* waits for the answers in its mailbox */
};

/* A push in a cell, of which the answer has not been read. */
struct open_push {
	uint64_t seq; /* 0: none */
	uint64_t window;
	uint32_t micro;
	uint32_t at;  /* in todo; UINT32_MAX: it is not to be repeated */
	bool flushed; /* this process had flushed the window before */
	bool wait;    /* it is no push, but a WAIT */
};

struct proc {
	enum proc_state state;
	bool stopped; /* SIGSTOP */
	uint32_t rank;
	uint8_t nonce[16], token[16];
	uint64_t generation;
	uint64_t window;
	double loss_scale;			  /* of that window, as it was told */
	uint64_t ack_window;			  /* whose reduced gradient it has read */
	uint32_t todo[SIM_MAX_MICRO], n_todo, at; /* micro-batches owed */
	uint64_t call;				  /* under way */
	int64_t retry_at;
	uint64_t server_call; /* the newest copy of it that gaccd has */
	uint32_t spare;	      /* its slots */
	bool streams;	      /* it maps nothing: its gradients go in streams */
	uint32_t chunk;	      /* of the stream, the next one */
	int64_t stream_at;    /* when the newest chunk arrives */
	uint64_t stream_life; /* of the gaccd that it is connected to */
	int windows_left;     /* until it leaves */
	/* its mailbox */
	bool wants_box;
	struct sim_box *box; /* NULL: it has none */
	int64_t box_limit;   /* its own time limit; 0: it waits as long as it takes */
	int64_t box_until;   /* the limit of this wait */
	bool hung_up;	     /* gaccd has died, and with it the mailbox */
	bool bell, looks;    /* it has rung; nobody has looked at the cells since the wait began */
	uint64_t box_seq;    /* given last */
	uint32_t publishing; /* steps of a request that are done */
	uint32_t cell, cut;  /* of that request: where it goes, and how much goes first */
	struct gacc_box_request request;
	struct open_push open[GACC_BOX_CELLS];
	uint32_t again;	    /* bits of todo: to be repeated by RPC, in ascending order */
	bool repeats;	    /* that is under way */
	uint32_t resume_at; /* then it goes on with this one, and in this state */
	enum proc_state then;
	uint64_t flushed_window;   /* + 1: that it has flushed last */
	bool waits_by_rpc, waited; /* for this window; the WAIT in a cell is answered, by `step` */
	struct gacc_box_step step;
	uint64_t ahead; /* the window that it has begun because a cell said that the one before is over; 0: none */
};

struct store_window {
	struct commit commit;
	uint64_t counted[SIM_WORDS];
};

struct sim {
	uint64_t rng, seed;
	int64_t now;
	bool faults;	       /* the faulty part of the run */
	bool deserted;	       /* when the faults end, all trainers die for good */
	bool extreme;	       /* the spec's numbers and the weights are as large and as small as they may be */
	bool operators;	       /* who pause and change values */
	bool restless;	       /* trainers leave, flush and repeat themselves at any point of a window */
	uint64_t level_window; /* from here on norms are 50 times as high */
	bool verbose;
	char failure[512]; /* "" while all invariants hold */
	struct job_spec spec;
	struct part_spec part;	/* of a job of several parts this is one, with a spec of its own */
	struct sim *whole;	/* has chance, time and events; NULL: this one */
	bool lost;		/* its memory is gone for good */
	bool puts;		/* parameters come from ranks, not from the rules of init */
	uint64_t drawn, n_puts; /* digest of those that the rules draw; sets that ranks have given */
	struct spec_init init_rule;
	/* event heap */
	struct event **heap;
	uint32_t n_events, events_capacity;
	uint64_t n_created, n_handled;
	/* gaccd */
	bool gaccd_up;
	uint64_t gaccd_life;
	struct job *job;
	struct coord *coord[SIM_MAX_COORDS]; /* the last one is in force, the others are zombies */
	uint32_t n_coords;
	/* engine: volatile part */
	bool engine_up, engine_starting, pass_scheduled;
	uint64_t engine_life;
	struct accum accum;
	int64_t command_at; /* the channel keeps order */
	int64_t answer_at;
	/* what lies in gaccd's socket: in the order of sending; before n_sure an answer in a cell relied on it */
	struct event *sent[SIM_SENT];
	uint32_t n_sent, n_sure;
	struct accum_entry passed[2]; /* recorded, and not answered yet */
	uint32_t n_passed, passed_owing;
	bool had_box; /* the engine has, or has had, a mailbox */
	struct go_armed armed;
	struct sim_open_box box[SIM_MAX_RANKS];
	/* mailboxes: all of the run; those of gaccd */
	struct sim_box *boxes, *given[SIM_MAX_RANKS];
	bool runs; /* gaccd has had the order to run, in this life */
	/* seq of the newest record that an answer relied on; of the one that the job has last caught up with */
	uint64_t told, looked;
	/* the window is complete since then; + 1: the job has said so of this one */
	int64_t complete_since;
	int64_t unread_until; /* the record could not be read; then there has been another try */
	uint64_t complete_said;
	/* engine: durable part (the control segment and the accumulator) */
	bool durable;
	struct control_state d;
	struct ledger_cell ledger[SIM_MAX_RANKS * 64];
	struct status_rank row[SIM_MAX_RANKS];
	struct sim_slot acc[SIM_MAX_RANKS * SIM_MAX_MICRO];
	uint32_t n_acc;
	struct sim_slot slot[(SIM_MAX_RANKS + 1) * 2];
	uint64_t lost_window; /* whose update leaves parameters that are not finite; UINT64_MAX: none does */
	uint64_t n_void;      /* micro-batches refused in windows that are over */
	/* store */
	uint64_t term;
	struct store_window window[SIM_MAX_WINDOWS];
	uint32_t n_windows;
	int64_t store_at; /* the journal keeps order */
	struct update update[SIM_MAX_UPDATES];
	uint32_t n_updates;
	bool held;
	uint64_t held_bound; /* the last window that may still commit; UINT64_MAX: none */
	int64_t hold_until;  /* then the operator resumes */
	bool ended;
	enum status end_status;
	/* what the log must say next: a serial reading of it */
	struct {
		double scale, sum, weight;
		uint32_t good, allowance, refused;
		uint64_t rejected, steps;
	} serial;
	/* what has been applied to the parameters */
	struct commit applied[SIM_MAX_WINDOWS];
	uint32_t n_applied;
	/* what trainers were told */
	struct {
		uint64_t window;
		uint32_t rank, micro, result; /* PushResult, or 100: not counted */
	} told_push[4096];
	uint32_t n_told, n_settled; /* settled: of windows that are in the log, and looked at since */
	struct sim_stream {
		uint64_t call;
		uint32_t slot;
	} stream[SIM_STREAMS]; /* those that gaccd has let in, by call */
	struct proc proc[SIM_MAX_PROCS];
	uint32_t n_procs;
	uint64_t last_call;
	/* high-water marks of I7 */
	uint64_t max_window, max_sgen[SIM_MAX_RANKS];
	uint32_t n_kills;
};

/* sim.c */
bool sim_run(uint64_t seed, struct sim *s, char *why, size_t n_why); /* true: all invariants held and the job ended */

/* sim_base.c */
/* Draws all of a job of so many ranks. */
void sim_setup(struct sim *, uint32_t ranks);
/* What an operator may want to change while this window is open. */
void sim_draw_update(struct sim *, uint64_t window, struct update *);
/* An event, of which so many bytes are there, and the one that comes next. */
struct event *sim_event_in(struct sim *, int64_t delay, enum event_type, size_t bytes);
struct event *sim_pop(struct sim *);
uint64_t sim_random(struct sim *, uint64_t below);
bool sim_chance(struct sim *, int per_mille);
/* delay of one message, and whether it is lost or repeated, while faults are on */
int64_t sim_net_delay(struct sim *);
void sim_fail(struct sim *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
struct now sim_now(const struct sim *);
/* s->job, new, with its tensor. Its engine and its trainers are s's; `report` and `event` are ports with s as their
 * ctx.
 */
enum status sim_job_new(struct sim *s, void (*report)(void *ctx, const struct report *),
			void (*event)(void *ctx, uint64_t job, bool warning, const char *reason, int64_t rank,
				      const char *text));
/* Ports of coordinators that nobody watches. */
void sim_port_changed(void *ctx, uint64_t job);
void sim_port_norms(void *ctx, const struct commit *);

/* The job's number of the rank that it is a process of. */
static inline uint32_t sim_rank(const struct sim *s, const struct proc *p)
{
	return part_global(&s->part, p->rank);
}

/* What an attempt finds: by one part, or by all of them. */
struct sim_sums {
	double weight;
	uint64_t digest;
};

/* sim_one.c, or cluster.c */
struct event *sim_event(struct sim *, int64_t delay, enum event_type);
/* sim_one.c, or cluster_comm.c where a job has several parts: what an engine has to do with those of the others. */
void sim_comm_command(struct sim *, const struct event *);	   /* JOIN, ADDRESS, ABORT, FILL, and GO */
void sim_comm_commit(struct sim *, const struct engine_command *); /* is being applied */
/* Of a sharded job, a COMMIT that changes parameters: by engine/apply.h. false: it is new. */
bool sim_shares(const struct sim *, uint32_t outcome);
bool sim_comm_commit_again(struct sim *, const struct engine_command *);
void sim_comm_share(struct sim *, const struct engine_command *); /* it is recorded */
/* sim_engine.c: the next window; the answer to a COMMIT that was done before */
void sim_commit_open(struct sim *, const struct engine_command *);
void sim_commit_answer(struct sim *, const struct engine_command *);
void sim_comm_dies(struct sim *);
bool sim_comm_fills(const struct sim *); /* its parameters come from another part */
uint64_t sim_life(const struct sim *);
/* cluster_world.c: an address for the coordinator */
void sim_port_blob(void *ctx, const struct part_blob *);

/* sim_engine.c */
void engine_start(struct sim *);
void engine_kill(struct sim *);
bool engine_take(struct sim *, const struct engine_command *, const void *present);
void engine_event(struct sim *, const struct event *);
struct sim_sums engine_sums(const struct sim *);

void engine_dies(struct sim *); /* and is started again */
void engine_answer(struct sim *, const struct engine_answer *);
void engine_answer_with(struct sim *, const struct engine_answer *, const struct sim_address *);
struct engine_answer engine_answer_for(const struct engine_command *, enum status);
/* sim_vote.c */
void sim_vote_close(struct sim *, const struct engine_command *);
void sim_vote_go(struct sim *, const struct engine_command *);
void sim_vote_disarm(struct sim *, const struct engine_command *);
void sim_vote_freeze(struct sim *);
/* The last vote once more. */
void sim_vote_again(struct sim *, const struct engine_command *);
/* With the sum of all parts. */
void sim_vote_summed(struct sim *, const struct engine_command *go, const struct sim_sums *all);
/* An armed GO whose time has come: at the end of each turn. */
void sim_vote_if_due(struct sim *);
/* gaccd reads what its engine has sent: as it does before it hears a trainer. */
void engine_hear(struct sim *);

/* sim_push.c: pushes in the engine */
void sim_push_add(struct sim *, const struct engine_command *);
void sim_push_offer(struct sim *, const struct push *, uint64_t asker);
void sim_schedule_pass(struct sim *);
void sim_push_pass(struct sim *);
void sim_push_answer_pass(struct sim *);
/* Those of older sessions, of one rank or of all (UINT32_MAX), are answered with this. */
void sim_push_drop(struct sim *, uint32_t rank, uint64_t below_sgen, enum status);
void sim_push_progress(struct sim *, uint32_t rank);
/* Ranks that owe the open window something; gaccd is told when there are none any more. */
uint32_t sim_owing(const struct sim *);
void sim_push_owe_nothing(struct sim *, uint32_t owing_before);

/* sim_box.c: mailboxes, as gaccd and the engine have them */
void sim_box_give(struct sim *, struct proc *);
void sim_boxes_gone(struct sim *); /* gaccd has died */
void sim_boxes_free(struct sim *);
bool sim_port_record(void *ctx, uint64_t newer_than, struct record_view *);
void sim_port_mailbox_over(void *ctx, uint32_t rank);
/* What goes with this MAILBOX, when it is sent; and when it arrives. */
struct sim_box *sim_box_sent(struct sim *, const struct engine_command *);
enum status sim_box_take(struct sim *, const struct engine_command *, struct sim_box *);
void sim_box_look(struct sim *, uint32_t rank);
void sim_box_answer(struct sim *, const struct accum_entry *, const struct engine_answer *);
void sim_box_ring(struct sim *, uint32_t rank);
void sim_box_end_waits(struct sim *); /* a COMMIT has been applied, and answered */
void sim_box_fence(struct sim *, uint32_t rank, uint64_t sgen);
/* An order for the job, and a report of it. */
void sim_on_order(struct sim *, const struct order *);
void sim_note_report(struct sim *, const struct report *);

/* sim_publish.c: mailboxes, as trainers have them */
/* Its next push goes into a cell, or a wait goes on. false: all by RPC. */
bool box_act(struct sim *, struct proc *);
void box_forget(struct proc *);
/* The push of this index has an answer by RPC. */
void box_settled(struct proc *, uint64_t window, uint32_t micro);
/* A repeat by RPC has its answer. */
void box_go_on(struct sim *, struct proc *);
/* Another list of micro-batches. */
void box_new_todo(struct proc *);

/* sim_trainer.c */
double sim_weight_of(const struct sim *, uint32_t micro);
uint64_t sim_key_of(const struct proc *, uint64_t window, uint32_t micro);
void trainer_told(struct sim *, uint64_t window, uint32_t rank, uint32_t micro, uint32_t result);
void trainer_nonce(struct sim *, struct proc *);
void trainer_wake(struct sim *, struct proc *, int64_t delay);
void trainer_next(struct sim *, struct proc *, enum proc_state);
void trainer_after_wait(struct sim *, struct proc *, const struct reply *);
void trainer_after_push(struct sim *, struct proc *);
enum proc_state trainer_or_else(struct sim *, enum proc_state usual);
void trainer_dies(struct sim *, struct proc *);
double sim_lr_of(const struct sim *, uint64_t window); /* that all pushes give the window; 0: the schedule's */
void trainer_spawn(struct sim *, uint32_t rank);
void trainer_event(struct sim *, const struct event *);
void trainer_reply(struct sim *, uint64_t call, const struct reply *);
void trainer_fault(struct sim *);
void trainers_desert(struct sim *);
void trainers_kill_stopped(struct sim *); /* those that have the rank are started again */
void trainer_continue_all(struct sim *);
void trainer_request(struct sim *, const struct event *);

/* sim_stream.c */
void stream_act(struct sim *, struct proc *); /* sends the next piece of its push */
void stream_event(struct sim *, const struct event *);

/* sim_check_box.c */
void sim_check_boxes(struct sim *);
void sim_check_flush(struct sim *, const struct proc *, uint32_t counted);

/* sim_check.c */
void sim_check(struct sim *);
void sim_check_apply(struct sim *, const struct commit *);
uint64_t sim_count_void(const struct sim *); /* micro-batches of the open window that were refused */
/* Before they are in the log. */
void sim_check_commit(struct sim *, const struct commit *);
void sim_check_update(struct sim *, const struct update *);
/* A rank that has given parameters is answered with this. */
void sim_check_put(struct sim *, const struct reply *);
/* The job has ended, for this reason. */
void sim_check_end(struct sim *, enum status, const char *reason);

#endif
