/* SPDX-License-Identifier: Apache-2.0 */
/* The messages between gaccd and an engine, over a SOCK_SEQPACKET socketpair; one packet (base/packet.h) is one
 * message.
 *
 * Both ends are the same binary, so messages are plain structs; the version in HELLO guards against an old engine
 * after an upgrade. Commands are idempotent: after an engine's death gaccd reads the control segment and
 * repeats what is missing there. The engine answers every command exactly once, in any order, unless it dies.
 */
#ifndef GACC_ENGINE_CHANNEL_H
#define GACC_ENGINE_CHANNEL_H

#include "proto/segment_layout.h"
#include "proto/status.h"

#include <stdint.h>

#define ENGINE_CHANNEL_VERSION 19
#define ENGINE_CHANNEL_FD 3 /* the engine's end, inherited */
#define ENGINE_MAX_FDS 64   /* in one packet */
/* bytes of present bitmap that a packet can carry: 2^20 tensors */
#define ENGINE_MAX_PRESENT 131072
#define ENGINE_MAX_TAIL 65536 /* bytes behind an answer */

enum engine_op {
	/* the first command, with the descriptors: the plan, then plan_segments() in order, as far as they are on the
	   host; of a job on a device n_device more, which an ALLOCATE has given. What one packet cannot carry follows
	   in further STARTs; the last is answered, by HELLO */
	ENGINE_START = 1,
	/* rank, sgen, session: store it, refuse pushes of older sessions from now on; clears "left" from the next
	   window on */
	ENGINE_ATTACH,
	/* a push: rank, sgen, window, micro, slot (the plan's number), ...; present bitmap behind the struct. accum.h
	   says what becomes of it. A refusal brings `text` and `hint` as the trainer is to read them; no text: the
	   status says all */
	ENGINE_ADD,
	/* rank, sgen, window, leave. leave: also of all later windows, until it attaches again; accepted in a frozen
	   window too, where it holds from the next one on */
	ENGINE_FLUSH,
	ENGINE_CLOSE, /* window: freeze; queued ADDs are answered WINDOW_CLOSED */
	/* window, term, attempt, close, armed, want_norms: reduce and vote. close: CLOSE first, if it is open. armed:
	   the same, as soon as the window is complete; answered then, or when it is taken back (engine/go.h).
	   want_norms: answered OK, the rows of control_page_norms are those of this vote */
	ENGINE_GO,
	/* window, term, attempt, outcome, scalars: update and open window+1. Answered before the trainers that wait
	   for it in mailboxes: what one of them sends next comes after the answer. Of a sharded job comm and comm_term,
	   too: engine/apply.h says when it is answered, and `result` is the phase when it is not OK */
	ENGINE_COMMIT,
	ENGINE_PUT_PARAMS,  /* rank, sgen, slot, offset, bytes, last */
	ENGINE_INIT_PARAMS, /* draw the initial parameters from the plan's rules */
	/* rank, sgen, window: optimizer CLIENT, this rank has read its reduced gradient; with `last` instead of a rank:
	   all have, half P[1-x] is free again */
	ENGINE_ACK_STEP,
	ENGINE_STOP, /* leave cleanly */
	ENGINE_PING, /* answered when its turn comes: the engine lives and moves; unasked twice a second in long work */
	/* inside_window; behind the struct, the path of a directory to make. The files hold the state as the command
	   found it: parameters and optimizer state, and inside_window the sum and who is in it. Answered when they are
	   on the disk, or not going to be; one at a time */
	ENGINE_CHECKPOINT,
	/* behind the struct, struct engine_restore and the path of a checkpoint: instead of PUT_PARAMS or INIT_PARAMS.
	   Answered when the parameters are ready, as of the checkpoint's window */
	ENGINE_RESTORE,
	/* rank, sgen, epoch; with the descriptors of the session's mailbox: memory, submit, answer. When the job runs,
	   and again after HELLO, before anything is repeated. What lies in it is taken before the answer */
	ENGINE_MAILBOX,
	/* rank, sgen, slot; with descriptors: other memory for the session's slots, the first of which is `slot`. The
	   session has pushed nothing from them yet. NOT_READY: one of them is the sum of the window (accumulate:
	   none), whose end is to be awaited */
	ENGINE_SLOTS,
	/* no command: what the engine says unasked (id 0), because gaccd does not see what comes in mailboxes. window,
	   and `result` says what has happened in it */
	ENGINE_PROGRESS,
	/* window: takes back an armed GO. `result` is the phase that the window is in then (enum window_phase) */
	ENGINE_DISARM,

	/* Jobs of several parts alone. A communicator is named by term and comm; engine/comm.h has the table. */

	/* term, comm, join_ns: becomes a member of it, instead of an older one. Behind the answer, its address for the
	   board */
	ENGINE_JOIN,
	/* term, comm, slot (a part), part_life; behind the struct, that part's address. It joins when it has all of
	   them, and PROGRESS tells the end of that */
	ENGINE_ADDRESS,
	/* term, comm: leaves it; a call that runs in it ends, and whoever waits for that is answered CANCELLED */
	ENGINE_ABORT,
	/* term, comm, slot (a part): takes the parameters and masters of that part, which has some. Answered when they
	   are ready, as PUT_PARAMS */
	ENGINE_FILL,

	/* Jobs on a device alone. In the place of START, when the job has no memory there yet, and with the same
	   descriptors: makes it. The answer has n_device descriptors, in as many packets as they need. They are the
	   memory, which gaccd keeps before it goes on with a START that brings nothing any more */
	ENGINE_ALLOCATE,
	/* rank, sgen, slot, as SLOTS: makes other memory for the session's slots on the device. The answer has n_device
	   descriptors in its packet; they are all that there is of it, and gaccd gives them to SLOTS */
	ENGINE_MAKE_SLOTS
};

/* Of a PROGRESS, about pushes that came in cells. After the record that has it, and its `told`. */
enum progress_kind {
	PROGRESS_COMPLETE = 1, /* no rank owes the window anything any more: once for a pass or flush that made it so */
	PROGRESS_VOID = 2,     /* rank, micro, nonfinite_count: a push was refused as void */
	PROGRESS_NONFINITE = 3, /* the same: one was counted, and has non-finite elements */
	/* comm, news, connected, pieces: of its communicator, in any window; status, suspects and text if it is LOST.
	   At most two MOVES a second, also while the engine's main thread is in an update */
	PROGRESS_COMM = 4
};

/* Of a PROGRESS_COMM. */
enum comm_news {
	COMM_JOINED = 1, /* all parts are connected: operations may come */
	COMM_LOST = 2,	 /* they could not be connected */
	COMM_MOVES = 3	 /* it gets on, by `connected` or `pieces` */
};

/* Of an ADD. Numbers are those of gacc.v1.PushResult. */
/* Of gacc.v1's StepOutcome, the one that the engine treats otherwise than all others. */
enum { STEP_APPLIED = 1 };

enum push_result { PUSH_COUNTED = 1, PUSH_DUPLICATE = 2, PUSH_ALREADY_COMMITTED = 3, PUSH_VOID = 4 };

#define ENGINE_FILES 4	 /* of a checkpoint; store/manifest.h says which */
#define ENGINE_SHARES 16 /* that an optimizer state may be saved in: one for each part of a job */

/* A file of a checkpoint; bytes 0: there is none. */
struct engine_file {
	uint64_t bytes;
	uint8_t sha256[32];
};

/* The directory of a checkpoint, as the file system knows it. */
struct engine_dir {
	uint64_t dev, ino;
};

/* What RESTORE takes from the manifest. The sum is for this job's ranks and micro_size when `carry`; the digest is of
 * this job's ranges when `same_ranges`. */
struct engine_restore {
	uint64_t window, applied_step, count, params_digest;
	double loss_scale, sum_weight, sum_loss;
	double window_lr;
	uint32_t micro_size, last_rank, carry, owner; /* owner: uid of the files */
	uint32_t same_ranges, lr_rank;
	uint32_t n_shares; /* files that the optimizer state is in; 0: one of the whole, in `file` */
	uint32_t reserved;
	struct engine_file file[ENGINE_FILES], share[ENGINE_SHARES];
};

struct engine_command {
	uint32_t op; /* enum engine_op */
	uint32_t rank;
	uint64_t id; /* echoed in the answer */
	uint64_t sgen;
	uint64_t window;
	uint64_t term, attempt;
	/* JOIN, ADDRESS, ABORT, FILL: the communicator. GO of several parts: the one to sum in; COMMIT of a sharded
	 * job: the one to gather in. The term that it is named with is that of the command; of a COMMIT comm_term, as
	 * an earlier coordinator may have decided it */
	uint64_t comm, comm_term;
	uint32_t micro;
	uint32_t slot;
	double loss_scale; /* ADD: that the gradients carry; 0 = 1 */
	double weight;
	double loss;
	double window_lr; /* ADD: of the window, 0 = the schedule's; LR_MISMATCH if a counted push gave another */
	uint64_t data_key;
	int64_t unix_nanos; /* when it was pushed */
	uint32_t zero_after;
	uint32_t leave;			   /* FLUSH: this rank has left for good */
	uint32_t n_present;		   /* bytes behind this struct. ADD: bitmap, 0 = all tensors. ADDRESS: of it */
	uint32_t last;			   /* PUT_PARAMS, ACK_STEP */
	uint32_t want_norms, close, armed; /* GO */
	uint32_t inside_window;		   /* CHECKPOINT */
	uint32_t own_only;		   /* CHECKPOINT: without what all parts have alike */
	uint64_t offset, bytes;
	/* COMMIT */
	uint64_t applied_step; /* after this step */
	uint32_t outcome;      /* gacc.v1.StepOutcome: STEP_APPLIED or another */
	uint32_t next_micro_size;
	double scale, clip_value, lr, next_loss_scale;
	struct step_result result;
	struct session_record session; /* ATTACH: stored with sgen in the control record */
	/* START */
	uint64_t job_id, epoch, generation, incarnation;
	uint32_t log_level, log_format; /* base/log.h */
	char kernels[16];		/* table to use (math/kernels.h); "" = the best of this CPU */
	char coll_address[48];		/* START of several parts: where the others reach it */
	int64_t stall_ns;		/* START of several parts: without progress of the others */
	/* START of a job on a device. n_device: 0, if this engine has been told to ALLOCATE. others_are_over: the
	 * processes of all earlier engines have been waited for */
	uint32_t n_device, others_are_over;
	int64_t join_ns;    /* JOIN: for all of it */
	uint64_t part_life; /* ADDRESS */
};

/* Followed by n_tail bytes: the answer to JOIN alone has some. Those to ALLOCATE and MAKE_SLOTS alone have descriptors.
 */
struct engine_answer {
	uint32_t op;	 /* of the command; ENGINE_START: this is the HELLO */
	uint32_t status; /* enum status */
	uint64_t id;
	uint64_t window;
	uint32_t rank;
	/* ADD: enum push_result; DISARM, PROGRESS: above; GO of several parts that is not OK: the phase, as DISARM */
	uint32_t result;
	uint64_t attempt;
	/* CLOSE and GO: what the frozen window holds; COMMIT: the params digest, and nonfinite is the record's
	 * params_nonfinite */
	uint64_t count;
	double sum_weight, sum_loss, sumsq;
	double window_lr;
	uint64_t nonfinite, digest;
	uint64_t nonfinite_tensor; /* COMMIT: as in the record */
	uint32_t lr_rank;
	uint32_t last_rank;
	uint32_t x;		  /* HELLO, COMMIT: P[x] is the accumulator; CLIENT reads its gradient in P[1-x] */
	uint32_t version;	  /* HELLO */
	uint32_t nonfinite_count; /* ADD, counted or void: non-finite elements; NaN counts */
	/* ADD: counted micro-batches of the rank in `window`; and of a push that was queued, how long, and the rank
	 * whose turn was before when it came (its own: nobody's) */
	uint32_t rank_counted, blocked_by;
	int64_t parked_ns;
	/* CHECKPOINT: of the state that was saved, as are window, count, sums, last_rank and digest above */
	uint64_t applied_step;
	double loss_scale;
	uint32_t micro_size;
	uint32_t micro; /* PROGRESS */
	uint64_t life;	/* HELLO of several parts: random, not 0. A communicator has one life of each engine */
	/* JOIN, GO of several parts, FILL, PROGRESS_COMM: its communicator */
	uint64_t comm, pieces, suspects; /* pieces: received or produced; suspects: bit s, part s */
	uint32_t connected, news;	 /* other parts that have joined; enum comm_news */
	uint32_t n_tail;
	uint32_t n_device; /* ALLOCATE, MAKE_SLOTS: descriptors in all */
	struct engine_dir dir;
	struct engine_file file[ENGINE_FILES];
	char text[160]; /* why, when status is not OK */
	char hint[80];	/* ADD refused: what to do about it; "": the status's own hint */
};

#endif
