/* SPDX-License-Identifier: Apache-2.0 */
/* A part of a job on this node: its state machine (control/job.h), its memory, its engine process.
 *
 * A part knows no coordinator. What it has to say goes up through part_ports, what it is to do comes down through
 * part_on_order and the functions below. Loop thread. The pool has a part's plan, segments and tensor set while
 * mem.allocating is set, and nobody else touches them then.
 */
#ifndef GACC_RUNTIME_PART_H
#define GACC_RUNTIME_PART_H

#include "base/shared.h"
#include "cluster/part_view_message.h"
#include "control/job.h"
#include "control/part_save.h"
#include "control/restarts.h"
#include "engine/mailbox.h"
#include "engine/segment.h"
#include "runtime/node.h"
#include "runtime/specification.h"

#include <assert.h>

struct engine_proc;
struct part_restore;
struct part_states;
struct rpc_call;

/* What a part asks of the rest of gaccd. `part` is the struct part: the first three are given to its state machine as
 * they are, whose ports know only a context. */
struct part_ports {
	/* Answers a trainer's call; a call that is gone is ignored. */
	void (*reply)(void *part, uint64_t call, const struct reply *);
	/* To the coordinator. */
	void (*report)(void *part, const struct report *);
	/* The same: the address of its engine, of a job of several parts. */
	void (*blob)(void *part, const struct part_blob *);
	/* Something that an operator wants to read; rank -1: the job. */
	void (*event)(void *part, bool warning, const char *reason, int64_t rank, const char *text);
	/* Its memory is there and its engine is up: ST_OK, each time an engine comes up; or why they will not be. */
	void (*placed)(void *part, enum status, const char *why);
	/* Its tensor set is new: the coordinator makes it durable, then calls part_on_tensors_kept. ST_NO_MEMORY. */
	enum status (*keep_tensors)(void *part);
	/* May the part have so many bytes of this node? ST_RESOURCE_EXHAUSTED with why. */
	enum status (*fits)(void *part, uint64_t bytes, char *why, size_t n_why);
	/* What has become of a checkpoint that the coordinator wants. */
	void (*saved)(void *part, const struct part_saved *);
};

/* What has become of ENGINE_ALLOCATE; the next tick takes it up. */
struct part_made {
	bool is_over;
	enum status status;
	char why[200];
};

/* Segments, in the order of plan_segments. They are mapped only where gaccd reads or writes itself. */
struct part_memory {
	struct plan *plan; /* its head; the engine has the whole */
	int plan_fd;
	bool plan_due; /* there was no memory to make it */
	struct segment *segment;
	struct plan_segment *wanted;
	bool *other_name; /* [n]: it is kept under stored_other_name */
	int n;
	bool device;	    /* a device has used slots: one set more is counted in `bytes` */
	uint64_t bytes;	    /* of all segments and mailboxes on the host; counted in node->host_bytes */
	uint64_t gpu_bytes; /* of those on a device whose size the plan tells */
	bool making;	    /* the engine makes what is on a device */
	int n_made;	    /* of these segments, in their order */
	struct part_made made;
	bool allocating; /* the pool works for it */
	/* the service manager is getting the descriptors; nobody else has them yet */
	struct fdstore_request *keeping;
	int64_t keeping_since_ns; /* 0: the part was told that this takes long */
	bool kept;		  /* the service manager may have the descriptors */
	bool released;		  /* given back for good */
};

struct part_engine {
	struct engine_proc *proc; /* NULL: none runs */
	uint32_t starts;	  /* ever */
	struct restarts restarts;
	/* of a job on a device: no engine before can write there any more; that is waited for */
	bool others_are_over, awaits;
	int64_t awaits_since_ns; /* 0: never */
	/* the one that an earlier gaccd has noted; pid 0: it knew none */
	int64_t earlier_pid;
	uint64_t earlier_start_time;
	/* why the present one has not taken its memory; "": it has, or has not said */
	char refusal[192];
};

/* Of the newest session of a rank that asked for one. */
struct part_box {
	uint64_t sgen; /* 0: none yet */
	bool is_over;
	struct mailbox_fds fds; /* memory -1: it could not be made */
};

struct part_tensors {
	struct shared *packed; /* as in the journal's TENSORS; NULL: not yet, or they came with the specification */
	bool durable;	       /* in the journal, with the specification or after it */
	bool due;	       /* they are in `packed`, and not read yet */
	int64_t asked_ns;      /* when the coordinator was asked to keep them, and has not answered; 0: it was not */
	char *wrong;	       /* why they cannot be read */
	bool told;	       /* that was told in an event of the node */
	bool refused;	       /* another part has others: they go when nobody looks at them any more */
	size_t bytes;	       /* of memory of a set that came in portions, of node->collected */
};

/* What the coordinator was told of the part last (edge/part_views.c). */
struct part_told {
	struct part_view view; /* number 0: nothing yet */
	int64_t sent_ns;
	int64_t next_ns; /* from when on the next one is in its time; each takes a second */
	uint64_t ledger; /* 1 + the window whose ledger was sent last (edge/part_ledgers.c); 0: none */
};

/* rpc_data of a trainer's call points to one of these: to the part itself (unary calls), or to a stream. */
struct part_caller {
	/* Takes an answer of control; false: it is answered like that of a unary call. NULL: a unary call. */
	bool (*take_reply)(struct rpc_call *, const struct reply *);
};

/* The norms of the tensors that the engine has left with a vote (edge/part_norms.c). */
struct part_norms_kept {
	uint64_t window, term, attempt; /* the vote */
	int64_t wanted_ns;		/* when it was made, or asked for last */
	uint64_t n;			/* tensors */
	double *grad, *param;		/* [n], in the same block; an alias has its target's */
};

struct collecting;

/* What is being written of a part whose job another gaccd coordinates (edge/part_record.c). */
struct part_noted {
	bool writing; /* that it has begun */
	bool going, gone;
};

struct fresh_slots;

struct part {
	struct part_caller caller;
	struct node *node;
	uint64_t id;	  /* of the job */
	uint64_t term;	  /* of the coordinator that has placed it last, as far as records tell */
	uint32_t number;  /* in its job, from 0 */
	uint32_t n_parts; /* of the job */
	uint32_t uid;
	uint8_t uuid[16];	     /* of the job */
	char *user;		     /* the job's owner, as people read it */
	struct specification *text;  /* held; the whole job's */
	struct job_spec own;	     /* of `text`, but its ranks are those of the part; the memory behind it is lent */
	const struct job_spec *spec; /* own */
	uint32_t *rank;		     /* [spec->ranks]: their numbers in the job, ascending; NULL: it has all ranks */
	struct part_ports ports;
	struct job *job;
	bool begun; /* its parameters are durable: what it has counted must not be lost */
	bool away;  /* another gaccd coordinates its job, and the journal here has a record of it */
	struct part_noted noted;
	bool placed;	    /* it has said that nothing of it is missing */
	char *restore_path; /* of the checkpoint that its placement told it to begin with; NULL: of none */
	struct part_memory mem;
	struct fresh_slots *fresh; /* memory on its way to a set of slots (part_slots.c); NULL: none */
	uint64_t slot_commands;	   /* of ENGINE_SLOTS so far */
	struct part_engine engine;
	struct part_tensors tensors;
	struct part_save *save;	     /* NULL: no checkpoint was wanted yet */
	struct part_states *states;  /* NULL: no trainer has put or asked for a state (runtime/part_states.h) */
	struct part_box *box;	     /* [ranks], by their indices in the part; NULL: nobody has asked */
	uint32_t n_boxes;	     /* of them that have descriptors */
	struct control_state record; /* as last read for job_ports.record; image NULL: never */
	struct part_told told;
	struct part_norms_kept *norms; /* NULL: none; for free() */
	struct collecting *collecting; /* portions of the tensor set (edge/registering.c); NULL: none */
	int64_t ended_ns;	       /* when it was seen that its job has ended; 0: not yet */
	bool hurried;		       /* it is not kept for late trainers: its user has ended many since */
	bool dropped;		       /* the coordinator wants it no longer here */
	uint32_t n_links;	       /* trainers' connections on the attach socket */
	uint32_t n_holders;	       /* calls and messages under way that point here */
};

/* What a part is made of. */
struct part_origin {
	uint64_t job, epoch;	/* epoch: in which the part was placed here, from 1 */
	uint32_t part, n_parts; /* its number, of so many */
	const uint32_t *rank;	/* the job's numbers of its ranks, ascending; of the only part: all */
	uint32_t n_ranks;
	uint32_t uid;
	const char *user;
	uint8_t uuid[16];
	struct specification *text;
};

/* The specification is held, the rest is copied. ST_NO_MEMORY. */
enum status part_new(struct node *, const struct part_origin *, const struct part_ports *, struct part **out);
/* Lets go of the engine; memory stays with the service manager. No longer found. Takes NULL. */
void part_free(struct part *);
/* From here on part_find knows it; there is no other of its job and number. ST_NO_MEMORY. */
enum status part_publish(struct part *);
/* This part of the job on this node; NULL: it is not here. */
struct part *part_find(const struct node *, uint64_t job, uint32_t number);
/* The part of the job on this node that has the lowest number; the next one after it. NULL: there is none. */
struct part *part_first(const struct node *, uint64_t job);
struct part *part_next(const struct part *);
/* The part on this node that has this rank of the job; NULL: none has. */
struct part *part_of_rank(const struct node *, uint64_t job, uint32_t rank);
/* The part to be asked for this rank: where no part here has it, the job's first one, which refuses the rank. */
struct part *part_for_rank(const struct node *, uint64_t job, uint32_t rank);
/* Whoever keeps a pointer across the end of a handler holds the part meanwhile. */
static inline void part_hold(struct part *p)
{
	p->n_holders++;
}

static inline void part_drop(struct part *p)
{
	assert(p->n_holders);
	p->n_holders--;
}

void part_on_order(struct part *, const struct order *);
void part_on_board(struct part *, const struct part_board *);
/* Starts an engine that is due, ends one that hangs, tries again what had no memory. */
void part_tick(struct part *, struct now);
void part_random16(void *ctx, uint8_t out[16]); /* job_ports.random16 */

/* ---- part_plan.c ---- */
/* The head of the part's plan, and what segments it has; the whole plan is made in the pool. ST_NO_MEMORY. */
enum status part_plan_head(struct part *);
/* Where the part lies, for plan_head and plan_build. Any thread while the part is there. */
struct plan_place part_plan_place(const struct part *, uint32_t threads);
/* What all of it takes, of the host and of a GPU, into part.mem. */
void part_plan_bytes(struct part *);
/* A sealed memfd with the whole plan; -1: logged. Any thread. */
int part_plan_fd(const struct plan *);
/* Bytes of shared memory that a part of a job with this specification and these tensors will have. ST_NO_MEMORY. */
enum status part_need(const struct node *, const struct job_spec *, const struct arena *, uint64_t *out);

/* ---- part_memory.c ---- */
/* Adopts or makes the segments, then starts the engine. job_ports.allocate. */
void part_allocate(struct part *);
void part_on_tensors_kept(struct part *, enum status);
/* It is not there yet, or not safe yet. */
static inline bool part_memory_is_due(const struct part *p)
{
	return p->mem.allocating || p->mem.making || p->mem.keeping;
}
void part_memory_tick(struct part *, struct now);
/* The part cannot begin, for this reason; `event` says of what kind it is. */
void part_fail_beginning(struct part *, const char *event, enum status, const char *why);
/* Lets go of the engine, and of the segments here; the service manager keeps them. */
void part_let_go(struct part *);
/* Ends the engine and gives the memory back. */
void part_release(struct part *);

/* ---- part_device.c: what is on a device ---- */
/* How many segments; 0: the part has none there. */
uint32_t part_device_segments(const struct part *);
/* Its engine has to make them: ENGINE_ALLOCATE comes before START. */
bool part_device_missing(const struct part *);
/* engine_events.descriptors of `part` */
void part_device_take(void *part, const int *fds, int n);
void part_device_on_answer(struct part *, const struct engine_answer *); /* of ENGINE_ALLOCATE */
void part_device_on_engine_lost(struct part *);
/* The present one has the memory: it has seen that none before it writes there. */
void part_device_on_engine_up(struct part *);
/* An engine of an earlier gaccd may still be there: the next one is not started yet. Not for ever, and then START does
 * not say that the others are over. */
bool part_device_waits(struct part *, struct now);
/* The engine's process, which a later gaccd will find in the status segment; 0: it is not known, from before it gets
 * the memory until after, as gaccd may die meanwhile. */
void part_device_note(struct part *, int64_t pid);
#define PART_GPU_BYTES (STATUS_GPU_BYTES + 1)
/* The whole name of the device that has the memory; "": it is not there yet. */
void part_device_gpu(struct part *, char out[PART_GPU_BYTES]);

/* ---- part_slot_notes.c: which session's device uses a slot ---- */
/* They are the memory of a device: nothing here can read or write them. */
bool part_slots_on_device(const struct part *);
/* Which segment a slot is. */
int part_slot_index(const struct part *, uint32_t slot);
/* Bytes that are counted besides what the part has, for the other memory that one set of slots may need; 0: no device
 * has used any. */
uint64_t part_slots_reserve(const struct part *);
/* Has another session's device one of the slots from `first` on, which this rank's session has now? */
bool part_slots_foreign(struct part *, uint32_t rank, uint32_t first, uint32_t n);
/* The session's device will write to its slots, which are ready. ST_IO_ERROR. */
enum status part_slots_device(struct part *, uint32_t rank);
/* It does so no more. */
void part_slots_quiet(struct part *, uint32_t rank);
/* Segments were adopted: some of them may be such slots. */
void part_slots_adopted(struct part *);
/* Of two descriptors that an earlier life has kept of segment i, a slot: is it the second one that counts? */
bool part_slots_second(struct part *, int i, int first, int second);
/* A slot has other memory, which no device uses. Before the old memory is given up. */
void part_slots_exchanged(struct part *, uint32_t slot);
/* How often a slot on a device has got other memory. */
uint64_t part_slots_exchanges(struct part *, uint32_t slot);

/* ---- part_slots.c: slots to which the device of a dead process may still write ---- */
/* May the session of this rank, by the job's number, have its slots? ST_NO_SLOT: they have been another session's, and
 * its device may write to them. Other memory is made meanwhile, and the caller asks again; `why` says so, or what is in
 * the way. */
enum status part_slots_ready(struct part *, uint32_t rank, char *why, size_t n_why);
/* Descriptors that come before the answer to ENGINE_MAKE_SLOTS; false: it is not awaited, they stay the caller's. */
bool part_slots_take_fds(struct part *, const int *fds, int n);
void part_slots_on_answer(struct part *, const struct engine_answer *); /* of ENGINE_SLOTS, ENGINE_MAKE_SLOTS */
void part_slots_on_engine_lost(struct part *);
void part_slots_tick(struct part *);
/* What is on its way is given up. */
void part_slots_drop(struct part *);

/* ---- part_maps.c ---- */
/* A copy of the control record in force; free it with control_state_fini. ST_NO_MEMORY, ST_SEGMENT_CORRUPT. */
enum status part_read_control(struct part *, struct control_state *out);
/* The name under which the service manager keeps segment i. */
void part_kept_name(const struct part *, int i, char out[FDSTORE_MAX_NAME]);
/* NULL: there is none. */
struct segment *part_segment(struct part *, uint32_t role, uint32_t index);
/* View on the control segment; false: it is not there. */
bool part_control_page(struct part *, struct control_page *out);
/* Mapping of a segment's data for gaccd's own reading or writing (inline clients); NULL when it cannot be had. */
void *part_map(struct part *, uint32_t role, uint32_t index, bool writable);

/* ---- part_mailbox.c ---- */
/* Bytes that the mailboxes of all ranks take; 0: such a job's sessions get none. */
uint64_t part_mailboxes_need(const struct job_spec *, uint64_t n_tensors);
/* The mailbox of this rank's session, by the job's number: made now, or the one that it has. The descriptors are lent.
 * NULL: it gets none, or it is over; its pushes go by RPC. */
const struct mailbox_fds *part_mailbox(struct part *, uint32_t rank);
void part_mailbox_over(void *part, uint32_t index); /* job_ports.mailbox_over */
void part_mailboxes_free(struct part *);
/* The descriptors that go with an ENGINE_MAILBOX: their number, 3, or 0 if there is no such mailbox. */
int part_mailbox_fds(const struct part *, const struct engine_command *, int out[3]);
/* job_ports.record */
bool part_record(void *part, uint64_t newer_than, struct record_view *out);

/* ---- part_engine.c ---- */
/* The memory is there: for the first time in this life of gaccd. */
void part_start_engine(struct part *);
/* job_ports.engine_send of `part`, whose job it is. false: the engine is down, or going. */
bool part_engine_send(void *part, uint64_t job, const struct engine_command *, const void *present);
/* Takes what the engine has said already: a trainer may know it from its mailbox, so it comes before the trainer's
 * call. */
void part_hear_engine(struct part *);
void part_engine_tick(struct part *, struct now);
/* None runs, and none is about to be started. */
bool part_engine_is_over(const struct part *);

/* ---- part_restore.c ---- */
/* The part's engine is to begin with this checkpoint, which is copied. ST_NO_MEMORY. */
enum status part_begin_with(struct part *, const struct part_restore *);
/* The engine's answer to ENGINE_RESTORE. */
void part_on_restored(struct part *, const struct engine_answer *);

/* ---- part_saving.c ---- */
/* The coordinator wants a checkpoint, or asks again what has become of it. */
void part_on_save(struct part *, const struct save *);
/* The engine may be able to begin with one now, or never. */
void part_saving_look(struct part *);
void part_saving_on_answer(struct part *, const struct engine_answer *); /* of ENGINE_CHECKPOINT */
/* What has become of it when the trainers' states are written, too: see part_states.h. */
void part_saving_written(struct part *, uint64_t command, const struct part_saved *);
void part_saving_on_engine_lost(struct part *);
/* What a checkpoint of it takes on a disk, of a sharded job's part only its own files, and what the sum adds to that
 * inside a window; 0: it has no memory yet. */
void part_save_bytes(const struct part *, uint64_t *out_state, uint64_t *out_carry);

/* ---- part_tensors.c: the set, from the journal, and packed ---- */
/* The set as a packed JobSpec with nothing else in it: makes tensors.packed, unless that is there. ST_NO_MEMORY. */
enum status part_pack_tensors(struct part *);
/* A packed set, with the numbers of this specification. Any thread. ST_NO_MEMORY, or what makes the set unreadable,
 * with why. */
enum status part_build_tensors(const struct job_spec *, const void *packed, size_t n, struct tensor_set *out, char *why,
			       size_t n_why);
/* The set of a job that an earlier gaccd has begun, packed; it is taken, also on an error. Reads it now
 * if it is small or `at_once`, else notes that it is due: a large set takes a second for a million tensors, and is read
 * in the pool when gaccd serves already. Until then the job's trainers hear that it is being recovered, and its memory
 * waits in node->stored. ST_NO_MEMORY, or what makes the set unreadable, with why. */
enum status part_restore_tensors(struct part *, struct shared *packed, bool at_once, char *why, size_t n_why);
/* Reads the set that is due in the pool, then goes on with part_allocate. Without memory it can be called again. A set
 * that cannot be read leaves tensors.wrong. */
void part_read_tensors(struct part *);
/* Whether this set is another one than the part's, which cannot be read. NULL is none. */
bool part_is_mended_by(const struct part *, const struct shared *set);
/* It takes that one's place, and is due. The set is taken. */
void part_mend_tensors(struct part *, struct shared *set);
/* While the set is due: the window at which the stored memory is; false: it does not say. */
bool part_stored_window(const struct part *, uint64_t *out);
/* The set is no longer the part's: what its user was charged for it is given back. */
void part_tensors_gone(struct part *);

#endif
