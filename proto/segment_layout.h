/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory as bytes: what two processes, or two lives of one process, must agree on.
 *
 * Every segment is a memfd sealed SHRINK|GROW|SEAL whose first page is a `struct segment_header`; its data starts at
 * `data_offset`. All integers are in the machine's byte order: a segment never leaves its node.
 *
 * The control segment has one writer, the engine, and one occasional reader, gaccd. It survives SIGKILL of both, so
 * it needs no fsync, but a reader must tolerate a writer that died between any two stores: hence two records, each
 * with a CRC; the valid one with the higher seq counts. The status page has one writer, the engine, and any
 * number of untrusted readers, which cannot write it.
 */
#ifndef GACC_PROTO_SEGMENT_LAYOUT_H
#define GACC_PROTO_SEGMENT_LAYOUT_H

#include <stdatomic.h>
#include <stdint.h>

#define SEGMENT_MAGIC UINT64_C(0x3147455343434147) /* "GACCSEG1", little-endian */
#define SEGMENT_VERSION 7
#define SEGMENT_DATA_OFFSET 4096

enum segment_role {
	SEG_CONTROL = 1,      /* control records, ledger, undo, norms of tensors */
	SEG_STATUS = 2,	      /* struct status_page */
	SEG_ACCUM0 = 3,	      /* P[0] */
	SEG_ACCUM1 = 4,	      /* P[1] */
	SEG_PARAMS = 5,	      /* parameters in their own dtype; trainers map it read-only */
	SEG_MASTER = 6,	      /* f32 master of 16-bit parameters */
	SEG_STATE0 = 7,	      /* optimizer state: momentum buffer, or m */
	SEG_STATE1 = 8,	      /* v */
	SEG_DEVICE = 9,	      /* of a job on a device: what its engine's next life must find there */
	SEG_DEVICE_FILE = 10, /* no memory: the device's file, open, without which the driver may drop the memory */
	SEG_SLOT = 16	      /* index = slot */
};

struct segment_header {
	uint64_t magic;
	uint32_t version;
	uint32_t role;	/* enum segment_role */
	uint32_t index; /* slot number; else 0 */
	uint32_t reserved;
	uint64_t job_id;
	uint64_t generation; /* of the job's memory: grows when the coordinator allocates anew */
	uint64_t bytes;	     /* of the whole segment, header included */
	uint64_t data_offset;
	uint64_t fingerprint; /* of the tensor set and the plan: a mismatch means another layout */
	uint64_t crc;	      /* XXH3-64 of the fields above */
};
_Static_assert(sizeof(struct segment_header) == 72, "segment_header is a format");

/* Whose the memory is, right behind the header: a job's id can be given out again by another journal, its uuid cannot.
 * All zeros: written by a gaccd that did not know of it. */
struct segment_owner {
	uint8_t uuid[16];
	uint64_t crc; /* XXH3-64 of the header's crc and the uuid */
};
_Static_assert(sizeof(struct segment_owner) == 24, "segment_owner is a format");

/* Of a slot, right behind the owner: the session whose device may write to it, also after its process has died. All
 * zeros: no device does. Trainers can write this, as all of a slot, and harm only themselves. */
struct segment_device {
	uint64_t sgen;
	uint32_t rank; /* the job's number */
	uint32_t used; /* 1 */
};
_Static_assert(sizeof(struct segment_device) == 16, "segment_device is a format");

/* Phase of the window on this engine; docs/protocol.md has the state table. */
enum window_phase {
	WINDOW_OPEN = 0,     /* adds micro-batches */
	WINDOW_CLOSED = 1,   /* frozen: nothing is added any more */
	WINDOW_PREPARED = 2, /* reduced and voted, attempt in `prepared_*` */
	WINDOW_APPLYING = 3  /* COMMIT seen; chunks of the update may be done */
};

#define SEGMENT_MAX_ZERO 8 /* slots of one pass */

/* What gacc.v1.StepResult says of a window and no engine knows by itself: over all parts of the job. */
struct step_result {
	double total_weight, divisor, grad_norm, mean_loss;
	uint64_t micro_count;
	int64_t last_lag_ns;
	uint32_t last_rank;   /* the job's number */
	uint32_t skip_reason; /* gacc.v1.SkipReason */
	uint32_t final;	      /* no window follows */
	uint32_t reserved;
};
_Static_assert(sizeof(struct step_result) == 64, "step_result is a format");

/* Fixed part of one control record. The per-rank part and the bitmaps follow it (control_page.h has the offsets). */
struct control_record {
	uint64_t seq;
	uint64_t job_id;
	uint64_t epoch;
	uint64_t term;	      /* highest seen */
	uint64_t incarnation; /* of the gaccd that started the writing engine */
	uint64_t window;
	uint64_t applied_step;
	uint32_t phase; /* enum window_phase */
	uint32_t x;	/* P[x] is the accumulator */
	/* 1: P[x] holds a sum; 0: contributes zeros. Of a job without accumulators 1 + the slot that is the sum */
	uint32_t filled;
	uint32_t ranks;
	uint32_t micro_size; /* of this window */
	uint32_t max_micro_size;
	uint32_t params_ready;
	uint32_t client_pending; /* optimizer CLIENT: half P[1-x] is still being read by trainers */
	uint64_t client_window;	 /* the window whose reduced gradient they read */
	double sum_weight;	 /* sum of w over counted micro-batches, added in canonical order */
	uint64_t count;
	double sum_loss; /* sum of w * loss, same order */
	double loss_scale;
	uint64_t prepared_term; /* the attempt that was voted for */
	uint64_t prepared_attempt;
	double prepared_sumsq; /* of P[x], before divisor and loss scale */
	uint64_t prepared_nonfinite;
	uint64_t prepared_digest;
	uint64_t params_digest;	 /* after the last applied step */
	uint32_t prepared_norms; /* 1: struct tensor_norm[] is of the prepared vote */
	/* count > 0: rank whose push was counted first in this window, which gave it window_lr */
	uint32_t lr_rank;
	uint32_t last_rank; /* of the micro-batch counted last; UINT32_MAX: none */
	/* slots of the last pass that must be zeroed before their pushes are answered: written with the flip, cleared
	 * with the next record, so that a slot is never zeroed before its gradient counts nor after it was answered */
	uint32_t n_zero;
	uint32_t zero_slot[SEGMENT_MAX_ZERO];
	uint64_t ranges_hash; /* of the plan's ranges: undo chunks are numbered by them */
	/* the COMMIT being applied, so that an engine can finish alone what it has begun */
	uint64_t commit_window;
	uint64_t commit_term, commit_attempt;
	uint64_t commit_applied_step; /* t of this step: Adam's exponent, >= 1 */
	uint32_t commit_outcome;      /* gacc.v1.StepOutcome */
	uint32_t commit_micro_size;   /* of the next window */
	double commit_scale;	      /* multiplies the sum: clip / (divisor * loss scale) */
	double commit_clip_value;     /* 0 = off */
	double commit_lr;
	double commit_next_loss_scale;
	struct step_result commit_result; /* for trainers that wait in mailboxes */
	double window_lr;		  /* of the open window, given by its first counted push; 0: the schedule's */
	/* what the last update has left of the parameters and their state: see engine/finite.h */
	uint64_t params_nonfinite; /* elements that are inf or NaN; 0: all is well */
	uint64_t nonfinite_tensor; /* index of the tensor that the first of them is in */
	/* with verify_params: digest of what trainers see since the last step; 1: they have been found to be other ones
	 */
	uint64_t seen_digest, params_altered;
};

/* A rank's session as it must survive gaccd: the engine stores it, only gaccd reads it. */
struct session_record {
	uint8_t token[16], nonce[16];
	uint8_t previous_token[16]; /* of the session fenced last: it gets SESSION_FENCED, not "unknown" */
	uint8_t previous_nonce[16]; /* of its Attach: a late copy of it begins no new session */
	int64_t pid;		    /* process of this session, which maps its slots unless no_memory; 0: not known */
	uint64_t start_time;	    /* 0: the process is on another machine, pid is only shown */
	int64_t other_pid;	    /* process that may still map the set it does not use; 0: none */
	uint64_t other_start_time;
	uint32_t uid;
	uint32_t spare;	    /* 1: it has the engine's spare slots, not the rank's own */
	uint32_t no_memory; /* 1: it sends gradients in messages and maps nothing */
	/* optimizer CLIENT: the rank, in whatever session, has read client_window's gradient */
	uint32_t step_acked;
};

/* Where a rank stands in the open window; 0: it may still contribute. docs/protocol.md, "Rank in a window". */
enum rank_flushed {
	RANK_OPEN = 0,
	RANK_FLUSHED = 1, /* gives no more to this window */
	RANK_LEFT = 2	  /* nor to any later one, until it attaches again */
};

/* Per rank, in the record. */
struct control_rank {
	struct session_record session;
	uint64_t sgen;	  /* session generation: pushes of a lower one are refused */
	uint32_t flushed; /* enum rank_flushed */
	uint32_t counted; /* bits set for this rank */
};

/* One per (rank, micro), outside the records; valid only if the micro-batch's bit is set. */
struct ledger_cell {
	double weight;
	double loss;
	uint64_t data_key;
	int64_t unix_nanos;
};

/* Progress of one share of an update, in one word that changes by one store: unit << 1 | UNDO_HELD.
 * daemon/engine/update.h says what it means. Meaningless unless the record in force is APPLYING. */
struct undo_stamp {
	_Atomic uint64_t state;
	uint64_t window; /* whose update this is */
};
enum { UNDO_HELD = 1 };

/* Norms of one tensor of a window, outside the records: written before the vote that prepared_norms marks. The row of a
 * tied parameter (alias) is not written: its target's is meant. */
struct tensor_norm {
	double grad_sumsq;  /* of its part of P[x], before divisor and loss scale; inf or NaN when that is not finite */
	double param_sumsq; /* of the parameter as this window's gradients saw it; of the master, where there is one */
};

/* The page that trainers may poll. Readers: acquire seq, read, acquire seq again; odd or changed = torn, read again. */
struct status_page {
	_Atomic uint64_t seq; /* odd while parameters are being written */
	_Atomic uint64_t window;
	_Atomic uint64_t applied_step;
	_Atomic uint64_t micro_size;
	_Atomic uint64_t counted; /* over all ranks, in the open window */
	_Atomic uint64_t engine_pid;
};

/* How far a rank is in the open window, behind the status page: engine/progress.h says how it is read and written.
 * Times are of CLOCK_BOOTTIME, or else of CLOCK_REALTIME (unix), in ns. */
struct status_rank {
	_Atomic int64_t ready_mono_ns;	   /* when it had given all that it owes the window; 0: it owes, or has left */
	_Atomic int64_t last_push_unix_ns; /* when its last push came that was queued; 0: none yet */
	_Atomic int64_t parked_since_mono_ns; /* when its oldest queued push came; 0: none is queued */
	_Atomic uint32_t parked_micro;	      /* of that push */
	_Atomic uint32_t blocked_by;	      /* the rank whose turn was before, when it came; its own: nobody's */
};
_Static_assert(sizeof(struct status_rank) == 32, "status_rank is a format");

/* In the same segment, at STATUS_PROGRESS_OFFSET: what gaccd and the engine's successor want to know. One row for each
 * rank of the engine. */
#define STATUS_GPU_BYTES 40
struct status_progress {
	/* seq of the newest control record that an answer relied on, stored before the answer is sent: an engine that
	 * finds only an older record would not know what has been promised */
	_Atomic uint64_t told;
	/* of a job on a device: the newest engine process, noted by gaccd before it gets the memory. 0: not known, or
	 * an engine before it may live still */
	_Atomic int64_t engine_pid;
	_Atomic uint64_t engine_start_time; /* clock ticks after the boot */
	/* of a job on a device: the whole name of the one that has the memory, noted by the engine that makes it;
	 * zeros behind it, and no end where all places are taken */
	char gpu[STATUS_GPU_BYTES];
	struct status_rank rank[];
};

/* Of a slot on a device, behind the rows, as no process but those that use the device can look into it: the note of
 * struct segment_device, where trainers cannot write it, and how often the slot has got other memory. Written by gaccd;
 * `used` is 0 while the others are being written. */
struct status_slot {
	_Atomic uint64_t sgen;
	_Atomic uint32_t rank, used;
	_Atomic uint64_t exchanges; /* odd: it is kept under the slot's other name */
};
_Static_assert(sizeof(struct status_slot) == 24, "status_slot is a format");
#define STATUS_PROGRESS_OFFSET 64
_Static_assert(sizeof(struct status_page) <= STATUS_PROGRESS_OFFSET && sizeof(struct status_progress) == 64, "formats");

#endif
