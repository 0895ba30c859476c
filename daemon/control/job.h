/* SPDX-License-Identifier: Apache-2.0 */
/* A part of a job on this node: its trainers' sessions, its window, its engine.
 *
 * Pure state machine; one thread; time is an argument. It derives what to send to the engine from state ("what is
 * wanted" against "what the control record says"), so that a restarted engine or gaccd simply continues. Calls that
 * cannot be answered yet are parked under their call id and answered exactly once through ports.reply, or forgotten by
 * job_on_call_gone. State tables: docs/protocol.md.
 */
#ifndef GACC_CONTROL_JOB_H
#define GACC_CONTROL_JOB_H

#include "control/part.h"
#include "control/ports.h"
#include "control/tensor_set.h"
#include "engine/control_page.h"
#include "engine/plan.h"

#define JOB_HISTORY 16 /* windows whose outcome and bitmap are kept */
#define REPLY_MAX_MISSING ORDER_MAX_LATE

struct job;

/* A trainer's words for one call: which session it claims to be. */
struct session_key {
	uint32_t rank;
	uint8_t token[16];
	uint32_t uid;
	int64_t pid; /* of the caller, if it is on this machine; 0: not known */
};

struct attach_args {
	uint32_t rank, world_size;
	uint32_t uid;
	int64_t pid;	     /* 0: not on this machine (inline only) */
	int64_t shown_pid;   /* what such a process says of itself */
	uint64_t start_time; /* of the process, to tell it from a later one with its pid */
	uint8_t nonce[16];
	bool shared_memory;
	uint64_t resume_generation;
};

struct push_args {
	uint64_t window;
	uint32_t micro, slot;
	double weight, loss, loss_scale;
	double lr; /* of the window; 0: the schedule's */
	uint64_t data_key;
	const void *present;
	uint32_t n_present;
	bool zero_after;
	bool streamed; /* the slot was filled by an inline stream (job_stream_push sets it) */
};

/* Which tensors' layout a RegisterTensors wants to hear. */
struct layout_part {
	uint64_t first, limit; /* limit 0: all from first on */
};

enum reply_kind {
	REPLY_EMPTY,
	REPLY_ATTACH,
	REPLY_REGISTER,
	REPLY_PUT,
	REPLY_READY,
	REPLY_PUSH,
	REPLY_FLUSH,
	REPLY_STEP
};

struct reply {
	enum reply_kind kind; /* what the union holds when status is ST_OK */
	enum status status;
	char text[320], hint[200];
	const char *field;				/* static storage, or NULL */
	uint32_t missing[REPLY_MAX_MISSING], n_missing; /* ranks that are waited for */
	union {
		struct {
			uint8_t token[16];
			uint64_t generation, epoch;
			uint32_t rank, micro_size;
			bool tensors_known;
		} attach;
		struct {
			bool params_needed;
			uint32_t slots;
			struct layout_part part; /* that the call asked for */
		} registered;
		struct {
			bool ready;
		} put;
		struct {
			uint64_t window, applied_step;
			uint32_t micro_size, n_missing;
			const uint32_t *missing; /* borrowed for the call */
			double loss_scale;
			bool flushed, pending_apply;
			uint64_t pending_window; /* of pending_apply */
			struct commit last;	 /* outcome NONE: there is none */
		} ready;
		struct {
			uint32_t result; /* gacc.v1.PushResult */
			uint64_t window;
			uint32_t counted, micro_size, parked_for_rank;
			int64_t parked_ns;
		} push;
		struct {
			uint32_t counted;
		} flush;
		struct {
			struct commit commit;
			uint32_t micro_size, accum_half;
			bool done;
		} step;
	};
};

/* What `part` points to is borrowed: it must outlive the job. Ranks in all calls, replies, events and reports are the
 * job's numbers; in engine commands and answers, in control records and bitmaps they are the part's. ST_NO_MEMORY. */
enum status job_new(struct job **out, uint64_t id, struct part_spec part, uint32_t owner_uid, uint64_t incarnation,
		    const struct job_ports *);
void job_free(struct job *); /* parked calls are not answered: end the job first */
/* A committed window from the journal, oldest first, before anything else. `counted` has the bits of this part
 * (part_pick_bits). */
void job_restore_window(struct job *, const struct commit *, const uint64_t *counted, uint32_t n_words);
/* The tensor set of a job that has none; *set is emptied. (job_register does that itself.) */
void job_take_tensors(struct job *, struct tensor_set *set);
/* The set of a job that only has to be freed is *out's, to be freed elsewhere: that takes long. */
void job_give_tensors(struct job *, struct tensor_set *out);
/* job_take_tensors for one that is yet to be built; linear in n. ST_INVALID_ARGUMENT with why. */
enum status job_set_tensors(struct job *, const struct tensor_spec *, uint64_t n, char *why, size_t n_why);

/* Asks the edge for memory and an engine, unless that has happened: for a job whose tensors came with its spec. */
void job_allocate(struct job *);
/* The same for a job of an earlier gaccd that has its tensors. Its sessions are in the control record: until the engine
 * has told them and the coordinator has seen that the job runs, trainers are answered ENGINE_DOWN, which they repeat.
 */
void job_take_over(struct job *);
/* Before job_take_over, of a job that runs and whose coordinator is in another gaccd: trainers go on in the open window
 * without it. Which windows came before is not known yet: calls about them are answered ENGINE_DOWN, and WaitReady
 * waits, until job_windows_known. */
void job_run_on(struct job *);
/* One of the last windows, from a coordinator that places the part again; those that the job has already, and older
 * ones than it keeps, are passed over. `counted` as in job_restore_window. */
void job_learn_window(struct job *, const struct commit *, const uint64_t *counted, uint32_t n_words);
/* Those were all. */
void job_windows_known(struct job *, struct now);

/* The parameters and the first window come from a checkpoint: tail (malloc'ed, taken) is ENGINE_RESTORE's. */
void job_begin_with(struct job *, void *tail, uint32_t n);
/* That has been done; `state` is the control record, copied. */
void job_on_restored(struct job *, const struct control_state *state, struct now);

/* ---- from trainers: each is answered through ports.reply(call), at once or later ---- */
void job_attach(struct job *, uint64_t call, const struct attach_args *, struct now);
/* set: of this job's specification, emptied here, also on an error; NULL: the caller only asks for the layout. */
void job_register(struct job *, uint64_t call, const struct session_key *, struct tensor_set *set, struct layout_part,
		  struct now);
/* the hint for LAYOUT_MISMATCH */
#define JOB_SAME_TENSORS "all ranks must register the same tensors in the same order"
void job_put_params(struct job *, uint64_t call, const struct session_key *, uint32_t slot, uint64_t offset,
		    uint64_t bytes, bool last, struct now);
void job_wait_ready(struct job *, uint64_t call, const struct session_key *, int64_t timeout_ns, struct now);
void job_push(struct job *, uint64_t call, const struct session_key *, const struct push_args *, struct now);
void job_flush(struct job *, uint64_t call, const struct session_key *, uint64_t window, struct now);
void job_wait_step(struct job *, uint64_t call, const struct session_key *, uint64_t window, int64_t timeout_ns,
		   struct now);
void job_ack_step(struct job *, uint64_t call, const struct session_key *, uint64_t window, struct now);
void job_detach(struct job *, uint64_t call, const struct session_key *, bool done, struct now);
/* The client of a call for this rank is gone: it will get no answer. What it asked for still happens. */
void job_on_call_gone(struct job *, uint64_t call, uint32_t rank);

/* ---- inline streams: docs/protocol.md, "Inline stream" ----
 * A stream is known by its call and its rank. It belongs to the session that opened it and may be ended at any time, by
 * a successor's attach for example: its call is answered then. So whatever is copied is asked for first, each time. */
/* The first message; `push` NULL: parameters. The stream has a slot of the session: *out_slot is the engine's number of
 * it. false: the call has been answered, or will be without the stream's bytes (a repeat of a push that is counted or
 * parked). */
bool job_stream_open(struct job *, uint64_t call, const struct session_key *, const struct push_args *push,
		     uint32_t *out_slot, struct now);
/* May n bytes for `offset` of the slot's layout (or the parameters') be copied into the slot now? false: answered, or
 * over. */
bool job_stream_admits(struct job *, uint64_t call, uint32_t rank, uint64_t offset, uint64_t n);
/* They have been copied; for pushes. false: answered. */
bool job_stream_took(struct job *, uint64_t call, uint32_t rank, uint64_t offset, uint64_t n);
/* The client has sent all of a push. From here on it is an ordinary one, if no byte that counts is missing. */
void job_stream_push(struct job *, uint64_t call, const struct session_key *, const struct push_args *, struct now);
/* n bytes for `offset` of the parameters lie at the start of the slot. The answer says whether the parameters are
 * ready; if not, the next piece may come, and the answer is the last thing that the job does: this may be called from
 * inside it. */
void job_stream_put(struct job *, uint64_t call, const struct session_key *, uint64_t offset, uint64_t n, bool last,
		    struct now);
/* The stream's client is gone. What the engine has been given stays with it. */
void job_stream_gone(struct job *, uint64_t call, uint32_t rank);

/* ---- sessions, for the edge ---- */
/* Checks a session's key; on failure fills *why as the reply to give. */
bool job_session_ok(struct job *, const struct session_key *, struct reply *why);
/* The same, and the session has asked for shared memory. */
bool job_may_map(struct job *, const struct session_key *, struct reply *why);
/* First of the n consecutive slots of this rank's session. */
uint32_t job_session_slots(const struct job *, uint32_t rank, uint32_t *n);
/* The session has been given its slots over the attach socket: from now on it may push what is in them. */
void job_on_mapped(struct job *, uint32_t rank, uint64_t generation);
/* Sessions of such a job may have mailboxes. Not where the engine's record is large: what has come in mailboxes is read
 * from it. */
bool job_offers_mailboxes(const struct job_spec *);
/* The session has been given a mailbox: the engine is told as soon as it may be, and again after its death, until
 * ports.mailbox_over. Nothing if the session is over. */
void job_on_mailbox(struct job *, uint32_t rank, uint64_t generation);
/* One of the session's lifelines (attach socket, watch stream) came or broke. It is lost when the last one breaks,
 * until it is heard again. */
void job_on_link(struct job *, uint32_t rank, uint64_t generation, bool up, struct now);

/* ---- from the engine and its keeper ---- */
/* Segments exist and the engine said HELLO; `state` is the control record in force, copied. life: of the engine, as
 * HELLO says it; 0 if the job has one part. SEGMENT_CORRUPT, and nothing has changed: it is of another job, or lacks
 * what an engine has told before. */
enum status job_on_engine_up(struct job *, const struct control_state *state, uint64_t life, struct now);
/* After that, what is only shown of the pushes of the rank with this index in the part: the sum of the weights that the
 * open window counts, and when the newest came. */
void job_restore_pushes(struct job *, uint32_t rank, double weight, int64_t last_unix_ns);
void job_on_engine_down(struct job *, struct now);
void job_on_allocate_failed(struct job *, enum status, const char *why, struct now);
/* The engine does not come up, for this reason; "": it does. Reported at once, and in each report until it changes: the
 * job is STALLED with that reason, and nobody counts as late. */
void job_hinder(struct job *, const char *why, struct now);
/* How far the exchange with the other parts has come: parts that are connected, pieces sent or received so far in the
 * life of this job. Each report says it; there is one a second at least. */
void job_exchange(struct job *, uint32_t connected, uint64_t pieces);
/* The part cannot go on: the coordinator is told at once, and in each report, to end the job with this status and this
 * reason. The first call counts. */
void job_fail(struct job *, enum status, const char *text, struct now);
void job_on_answer(struct job *, const struct engine_answer *, struct now);
/* The answer to a JOIN; `blob`: the n_tail bytes behind it. NULL: there are none. */
void job_on_joining(struct job *, const struct engine_answer *, const void *blob, struct now);

/* ---- from the coordinator ---- */
void job_on_order(struct job *, const struct order *, struct now);
/* The addresses of a communicator; copied. */
void job_on_board(struct job *, const struct part_board *, struct now);
/* Timeouts and repeats; every 100 ms or so. */
void job_tick(struct job *, struct now);

/* ---- looking ---- */
uint64_t job_id(const struct job *);
const struct job_spec *job_spec(const struct job *);
bool job_ended(const struct job *);
/* The coordinator's last order said that an operator holds the job. */
bool job_is_paused(const struct job *);
bool job_has_tensors(const struct job *);
/* All sessions are over: its memory may go once it has ended. */
bool job_idle(const struct job *);
const struct arena *job_arena(const struct job *);
const struct part_spec *job_part(const struct job *);
const struct tensor_spec *job_tensors(const struct job *, uint64_t *n);
/* All of it, for any thread while the job lives; NULL: it has none yet. */
struct tensor_set *job_tensor_set(struct job *);
uint64_t job_window(const struct job *);
/* The highest of a coordinator that has ordered something here, also before a restart, as far as the engine's answers
 * have told; 0: none. */
uint64_t job_term(const struct job *);
uint64_t job_epoch(const struct job *); /* in force, as far as orders told */
/* The coordinator's last order is a GO that asks for the norms of all tensors. */
bool job_norms_asked(const struct job *);
/* The control record in force, as far as the engine's answers told; NULL before the first. Valid until the next event.
 */
const struct control_state *job_record(const struct job *);
/* May they be read? Of a job of several parts they may be replaced before it runs. */
bool job_params_ready(const struct job *);
/* ENGINE_CHECKPOINT would find the parameters of the last outcome that this job knows: no COMMIT is on its way. Not if
 * they are lost. */
bool job_can_checkpoint(const struct job *);
uint64_t job_generation(const struct job *, uint32_t rank); /* of the rank's session; 0: none */
/* The session has been given its memory, by this gaccd. */
bool job_is_mapped(const struct job *, uint32_t rank);
/* The rank's session is still this one, and has not said good-bye. */
bool job_session_is(const struct job *, uint32_t rank, uint64_t generation);
/* The rank's session has not said good-bye, and is not known to be lost. */
bool job_rank_is_there(const struct job *, uint32_t rank);
/* What has come in mailboxes is known to job_rank_has_begun from here on; else from the next tick on. */
void job_look_at_mailboxes(struct job *);
/* The open window has something of this rank: a micro-batch, counted or void, or its flush. */
bool job_rank_has_begun(const struct job *, uint32_t rank);
/* Its ranks as the last report told them; *n of them, by their index in the part. */
const struct rank_progress *job_progress(const struct job *, uint32_t *n);
/* Number of slots of the engine, spare ones included. */
uint32_t job_slots(const struct job *);
/* Half of the accumulator pair that holds the reduced gradients of the last window (optimizer CLIENT). */
uint32_t job_reduced_half(const struct job *);

/* Ranks that this job has looked at so far: what a push costs must not grow with their number. */
uint64_t job_ranks_visited(const struct job *);
/* For tests: a count that is kept beside the record differs from what the record says; why names it. Looks at
 * everything. */
bool job_counts_wrong(const struct job *, char *why, size_t n);

/* plan_build.c: */
/* What a plan has of the part and its node. */
struct plan_place {
	uint64_t job_id;
	uint32_t part, n_parts;
	const uint32_t *numbers; /* the job's numbers of the part's ranks, as in part_spec; NULL: they are the same */
	uint32_t slots, threads;
	uint32_t gpu; /* 1 + the number, among those of the node, of the GPU that the part takes; 0: as the job says */
};
/* The head of the engine's plan, from which plan_segments follows; offsets and the tables behind it are not there. */
void plan_head(struct plan *p, const struct job_spec *, const struct arena *, const struct plan_place *);
/* The whole plan, for a set that is matched; malloc'ed block of (*out)->bytes. ST_NO_MEMORY. Any thread. */
enum status plan_build(const struct job_spec *, const struct tensor_set *, const struct plan_place *,
		       struct plan **out);

#endif
