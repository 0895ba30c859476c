/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the engine process, shared by engine.c (life), push.c (pushes), boxes.c (mailboxes), window.c
 * (sessions, flushes, the end of a window), step.c (votes and commits), step_parts.c (votes of several parts),
 * apply_parts.c (commits of sharded jobs), saving.c (checkpoints), joining.c (communicators) and answers.c (what is
 * told to others). Main thread only.
 *
 * `state` equals the record in force; it is changed only right before control_page_publish.
 */
#ifndef GACC_ENGINE_PROCESS_H
#define GACC_ENGINE_PROCESS_H

#include "engine/accum.h"
#include "engine/apply.h"
#include "engine/arith.h"
#include "engine/boxes.h"
#include "engine/channel.h"
#include "engine/comm.h"
#include "engine/engine.h"
#include "engine/go.h"
#include "engine/memory.h"
#include "engine/on_device.h"
#include "engine/snapshot.h"
#include "engine/touched.h"
#include "engine/workers.h"

/* Data of what `epoll` watches besides the bells, whose data is their rank. */
#define WATCH_CHANNEL UINT64_MAX
#define WATCH_SNAPSHOT (UINT64_MAX - 1)
#define WATCH_COMM (UINT64_MAX - 2)

/* What the communication thread does for a GO. */
struct sum_task {
	struct arith *arith;
	uint32_t dst, src; /* halves */
	bool filled;
	struct arith_norm *norm; /* of a sharded job: found with the sum, */
	bool norms;		 /* and those of its tensors, too */
	const struct touched *touched;
	unsigned char *sets; /* [n_parts] of what each part has touched; NULL: the job steps all tensors */
};

/* What it does for a COMMIT of a sharded job. */
struct gather_task {
	struct arith *arith;
	bool whole;
	struct arith_share table[PLAN_MAX_PARTS];
};
struct apply {
	struct apply_at_hand at_hand;
	bool serves;			/* its window is over here; other parts get this one's share */
	struct apply_gathered gathered; /* the communicator in which all has come that was to come */
	bool has_share;			/* its digests are of the update of `share_window`, or that is about to run */
	uint64_t share_window;
	struct gather_task task; /* of the communication thread until comm_is_working says no */
};

/* A FILL: `command` waits until all parts are connected, or its bytes move; or it was the last one, and is done. */
enum fill_stage { FILL_NONE, FILL_CONNECTS, FILL_COPIES };
struct fill_task {
	struct arith *arith;
	uint32_t root;
};
struct fill {
	enum fill_stage stage; /* FILL_NONE: none is at hand */
	struct engine_command command;
	bool done;
	struct fill_task task; /* of the communication thread until comm_is_working says no */
};

struct engine {
	int epoll; /* of channel, snapshots, the communicator and the bells of mailboxes */
	int fd;
	struct memory mem;
	struct control_state state;
	struct accum accum;
	struct touched touched;
	struct boxes boxes;
	struct workers *workers;
	struct arith *arith;
	const char *plugin;	    /* path of the arithmetic of devices; NULL: none */
	struct on_device on_device; /* of a job on one */
	bool norm_known;	    /* `norm` is that of P[x] */
	struct arith_norm norm;
	struct snapshot *snapshot;
	struct engine_answer saved; /* to the CHECKPOINT under way */
	uint32_t owing;		    /* ranks that owe the open window something */
	struct go_armed armed;
	/* For jobs of several parts. */
	const struct engine_net *program_net;
	struct coll_net *net; /* made by the first JOIN, as `comm` is; NULL before */
	struct comm *comm;
	uint64_t life; /* 0: the job has one part */
	int64_t stall_ns;
	char coll_address[sizeof(((struct engine_command *)0)->coll_address)];
	unsigned char *touched_sets; /* as sum_task */
	struct go_sum sum;
	struct sum_task sum_task;   /* the communication thread's, until comm_is_working says no */
	struct arith_norm sum_norm; /* as sum_task */
	struct fill fill;
	struct apply apply; /* sharded: */
	int64_t said_ns;    /* when gaccd was told last that this engine is at work; at first, its beginning */
	bool running;	    /* HELLO was sent */
	bool ended;
	int exit_code;
};

/* answers.c */
struct engine_answer engine_answer_to(const struct engine *, const struct engine_command *, enum status);
/* The communicator that a command names. */
struct coll_id engine_comm_id(const struct engine *, const struct engine_command *);
/* The record in force is noted as told first: a successor will not go on from an older one. */
void engine_send(struct engine *, const struct engine_answer *);
/* With descriptors, which stay the caller's. */
void engine_send_fds(struct engine *, const struct engine_answer *, const int *fds, int n_fds);
/* With a->n_tail bytes behind it. */
void engine_send_with(struct engine *, const struct engine_answer *, const void *tail);
/* Answers with status only; `why` may be NULL. */
void engine_reply(struct engine *, const struct engine_command *, enum status, const char *why);
/* Answers the open request of a cell; counted and micro_size are filled in. The trainer wakes with engine_ring. */
void engine_answer_cell(struct engine *, uint32_t rank, uint32_t cell, struct gacc_box_answer);
/* Wakes the trainers that have answers: at the end of a turn. */
void engine_ring(struct engine *);
/* An answer is about to rely on the record in force; engine_send does this itself. */
void engine_note_told(struct engine *);
void engine_publish(struct engine *);
/* Brings the status page up to the record; parameters are stable from here on. */
void engine_show_status(struct engine *);
/* ST_OK, ST_WINDOW_CLOSED or ST_NOT_CURRENT_WINDOW. */
enum status engine_check_window(const struct engine *, uint64_t window);
/* Brings the rank's row of struct status_progress up to the record and the queue. */
void engine_show_rank(struct engine *, uint32_t rank);
/* Of all ranks, and counts again who owes something: when the record is not the one before with a small change. */
void engine_show_ranks(struct engine *);
/* Whether it may still contribute to the open window. */
bool engine_rank_owes(const struct engine *, uint32_t rank);
/* The record in force says for the first time that this many more ranks owe nothing. If they were the last, gaccd is
 * told, unless it has sent all pushes itself. */
void engine_note_done(struct engine *, uint32_t n_ranks);
/* Tells gaccd of what came in a cell; of what came as a command it knows. p: the push; NULL: of none. */
void engine_tell(struct engine *, enum progress_kind, const struct accum_entry *p, uint32_t nonfinite);

/* push.c */
/* A push that comes as a command. */
void push_add(struct engine *, const struct engine_command *, const unsigned char *present);
/* Takes the pushes and WAITs that one rank has published in its mailbox, whether its bell has rung or not: before a
 * command is judged that must not overtake them. Nothing if it has no mailbox. */
void push_look(struct engine *, uint32_t rank);
/* The same for those that are `unready` (boxes.h). */
void push_look_again(struct engine *);
/* One pass with the pushes whose turn it is. */
void push_pass(struct engine *);
/* push_pass would do something. */
bool push_has_work(struct engine *);
/* Answers queued pushes with this status: of this rank (UINT32_MAX: of all) and of lower session generations. */
void push_refuse(struct engine *, uint32_t rank, uint64_t below_sgen, enum status);
/* Zeroes the slots that the record in force names, and clears the list in the next record. */
void push_zero_slots(struct engine *);

/* window.c */
void window_attach(struct engine *, const struct engine_command *);
/* A rank with a mailbox may have pushes in the queue that gaccd does not know of: its flush waits for their answers. */
void window_flush(struct engine *, const struct engine_command *);
/* Carries out the flushes that no longer have to wait. */
void window_flush_waiting(struct engine *);
void window_close(struct engine *, const struct engine_command *);
/* Answers an armed GO, if there is one, with this status: it will not vote. */
void window_disarm(struct engine *, enum status);
/* Closes the window if it is open: adds what has its turn, refuses what has not. */
void window_freeze(struct engine *);

/* slots.c */
/* The command SLOTS; the descriptors are taken, whatever comes of it. */
void slots_exchange(struct engine *, const struct engine_command *, const int *fds, int n_fds);
/* The command MAKE_SLOTS. */
void slots_make(struct engine *, const struct engine_command *);

/* saving.c */
void saving_begin(struct engine *, const struct engine_command *, const unsigned char *tail);
/* Answers a CHECKPOINT whose files are complete or have failed. */
void saving_end(struct engine *);
void saving_restore(struct engine *, const struct engine_command *, const unsigned char *tail);

/* joining.c */
/* Takes what START says of it. */
enum status joining_start(struct engine *, const struct engine_command *);
void joining_join(struct engine *, const struct engine_command *);
void joining_address(struct engine *, const struct engine_command *, const unsigned char *blob);
void joining_abort(struct engine *, const struct engine_command *);
/* What has become of the communicator's calls; is_due: comm_fd is readable. */
void joining_go_on(struct engine *, bool is_due);
/* The heartbeat of long work on the main thread (workers.h): gaccd hears that this engine lives, and in the update of a
 * sharded job the other parts and the coordinator hear it, too. No other work is what other parts wait for: a call that
 * hangs must not be hidden by it. arg: the engine. */
void joining_at_work(void *arg);
/* Leaves. Before the memory goes: if a call hangs that may use it, the process ends here. */
void joining_fini(struct engine *);

/* step.c */
/* Of a job of one part. */
void step_go(struct engine *, const struct engine_command *);
/* Votes, if an armed GO waits for no more than this. After whatever may have completed the window. */
void step_vote_if_due(struct engine *);
/* Votes with the norm that is known, or gives the same vote again. For step_parts.c. */
void step_vote(struct engine *, const struct engine_command *go);
void step_disarm(struct engine *, const struct engine_command *);
void step_commit(struct engine *, const struct engine_command *);
void step_ack(struct engine *, const struct engine_command *);
void step_put_params(struct engine *, const struct engine_command *);
void step_init_params(struct engine *, const struct engine_command *);
/* A fill writes, or may still write, to parameters that are not ready: the command, which would, too, is answered
 * NOT_READY. */
bool step_is_being_filled(struct engine *, const struct engine_command *);
/* Before the first parameter changes, by an update or by another part's share that comes. */
void step_begin_update(struct engine *);
/* The update of the record in APPLYING, or what is left of it: of a sharded job this part's share. */
void step_update(struct engine *, struct arith_params *out);
/* All of it is here: opens the next window. p: what the parameters are; NULL: the step has not changed them. */
void step_open(struct engine *, const struct arith_params *p);
void step_answer_commit(struct engine *, const struct engine_command *);
/* A COMMIT that is new comes into the record. false: it is refused, and answered. */
bool step_record(struct engine *, const struct engine_command *);
/* Does what the record in APPLYING says, or what is left of it, and opens the next window. */
void step_finish(struct engine *);
/* The parameters are whole, and what inspect_params said of them: record, and trainers may see them. ST_NONFINITE with
 * why: some are inf or NaN, and nothing has changed. */
enum status step_params_ready(struct engine *, const struct arith_params *, char *why, size_t n_why);

/* verify.c */
/* The parameters are those that trainers shall see from now on; params_digest is theirs. Publishes nothing. */
void verify_note(struct engine *);
/* ST_PARAMS_ALTERED, with why and in the record: something else has written to them. ST_OK, too, if the job does not
 * ask for it, or has no parameters yet. */
enum status verify_params(struct engine *, char *why, size_t n_why);

/* fill.c */
void fill_begin(struct engine *, const struct engine_command *);
/* Answers the FILL at hand with this status; the caller ends its communicator. */
void fill_drop(struct engine *, enum status);
/* The communicator is connected; could not be connected; has come back from a fill. */
void fill_on_connected(struct engine *);
void fill_on_lost(struct engine *, const struct comm_event *why);
void fill_on_done(struct engine *, const struct comm_event *done);

/* apply_parts.c: COMMITs of a sharded job that change parameters */
bool apply_is_wanted(const struct engine *, uint32_t outcome);
/* By the table of apply.h: the share is updated and meanwhile given to the other parts, and theirs are awaited. */
void apply_commit(struct engine *, const struct engine_command *);
/* What a predecessor has left of the share. The window stays in APPLYING until a COMMIT names a communicator. */
void apply_resume(struct engine *);
/* Answers the COMMIT at hand with this status; the caller ends its communicator. */
void apply_drop(struct engine *, enum status);
/* The communicator is connected; could not be connected; has come back from a gather. */
void apply_on_connected(struct engine *);
void apply_on_lost(struct engine *, const struct comm_event *why);
void apply_on_done(struct engine *, const struct comm_event *done);

/* step_parts.c */
/* How the communicator that a command names stands with this engine. */
enum go_comm step_standing(const struct engine *, const struct engine_command *);
void step_go_parts(struct engine *, const struct engine_command *);
/* Answers the GO at hand with this status; if its sum is being taken, its communicator is over. */
void step_drop_sum(struct engine *, enum status);
/* The communicator is connected; could not be connected; has come back from a sum. */
void step_on_connected(struct engine *);
void step_on_lost(struct engine *, const struct comm_event *why);
void step_on_sum(struct engine *, const struct comm_event *done);

#endif
