/* SPDX-License-Identifier: Apache-2.0 */
/* The mailbox: pushes and waits of one session through shared memory instead of RPC. Layout of version 1, for authors
 * of trainers in any language; complete in itself, C11 and C++11, installed as <gacc/mailbox.h>.
 *
 * A mailbox is a sealed memfd that trainer and engine map, both writable, from offset 0. It is a fast path and nothing
 * else: whatever is rare, late, refused or in need of words goes by RPC. The mapping itself is the permission: there is
 * no token and no rank in a request. Integers and doubles are in the machine's byte order, without padding.
 *
 *     offset  bytes          what                                                    written by
 *     0       128            struct gacc_box_header                                  gaccd; from 40 on the engine too
 *     128     8 x 128        struct gacc_box_request, cells 0 to 7                   trainer
 *     1152    8 x 64         struct gacc_box_answer, cells 0 to 7                    engine
 *     1664    192            struct gacc_box_step                                    engine
 *     1856    2240           zero
 *     4096    8 x 64         struct gacc_box_ready, words 1 to 8                     trainer, or its GPU
 *     4608    3584           zero
 *     8192    8 x stride     present bitmaps, one for each cell; stride is           trainer
 *                            gacc_box_stride(n_tensors)
 *
 * CHECKS. Requests, answers, step block and bitmaps are checked by CRC-32 as zlib's crc32() computes it (Python:
 * zlib.crc32; polynomial 0xEDB88320, which is that of Ethernet and gzip). A check covers all bytes of its struct before
 * itself. Where a check is wrong, the writer is not done or has died: what the struct says is not there yet. The order
 * in which bytes are stored therefore never matters for what is true, only for when it is seen.
 *
 * PUBLISHING A REQUEST (trainer). A cell is free when request.seq == answer.seq and the trainer has read the answer;
 * any free cell will do.
 *   1. The bitmap of this cell, if the push has one.
 *   2. The fields from `kind` to the reserved ones, and `check` over the 124 bytes that the request will have,
 *      `seq` among them.
 *   3. `seq`: 1, 2, 3 .. over all cells of the mailbox, never 0 and never used again.
 *   4. The bell: the 8 bytes of a uint64_t 1, written to the submit eventfd by one write(2).
 * With atomics, store `seq` by a store with release order. Without, store all in any order (Python: two slices of an
 * mmap): the bell's write(2) is a release, and the engine, which it wakes, sees all that was stored before. What the
 * engine sees earlier, because another bell woke it, is caught by the check. A trainer may die between any two stores.
 * Pushes of a window are published in ascending order of `micro`; the engine takes requests in the order of `seq`,
 * whatever cells they are in. After step 3 the cell belongs to the engine until it is answered: leave fields, bitmap
 * and, of a push, the gradient alone. If a cell is rewritten meanwhile, the first request may still count and the new
 * one is refused.
 *
 * READING AN ANSWER (trainer). Load answer.seq (with acquire order, where there are atomics), copy the 64 bytes once,
 * and use the copy if its `seq` is that of the request and its check is right; else go on waiting. One event may
 * stand for several answers: look at all cells that are open.
 *
 * BELLS. To the engine: the submit eventfd; nobody reads it, so never wait on it, and never make it blocking. To the
 * trainer: an epoll descriptor, from which an event with data 1 comes after answers (edge-triggered: one event for one
 * or more answers). A trainer adds its attach socket to it, with other data: when that hangs up, the mailbox is dead
 * and a new session is needed (Attach). Always look at the cells first and wait then.
 *
 * NOT OK MEANS RPC. `status` of an answer is 0 for OK. Any other number says only that this request was not accepted
 * here; numbers may change between versions. Repeat the push (Push) or the wait (WaitStep) by RPC, and report what that
 * says: both may be repeated, and a micro-batch counts once however often and whichever way it is pushed. The same
 * after `closed`, and when the trainer's own time limit is over: there is none in a mailbox.
 *
 * A WAIT is answered when its window is over, that is when the parameters are those after its step; then the step block
 * holds that window's result, if its check is right and its `window` is the one asked for. Else ask WaitStep. A block
 * that is read too late may be the next window's. A WAIT that is not OK stands for a window that is not the open one or
 * the one before, for a step that has ruined the parameters, or for the job's end: WaitStep says which.
 *
 * The engine trusts nothing of this: it copies a request once and judges the copy, keeps its own notes of what it has
 * taken, and reads `answer` only once, when it takes the mailbox over. A lie harms the session that tells it.
 */
#ifndef GACC_MAILBOX_H
#define GACC_MAILBOX_H

#include <stddef.h>
#include <stdint.h>

#define GACC_BOX_MAGIC UINT64_C(0x31584f4243434147) /* the characters GACCBOX1, on little-endian machines */
#define GACC_BOX_VERSION 1
#define GACC_BOX_CELLS 8
#define GACC_BOX_WORDS 8	     /* ready words */
#define GACC_BOX_PRESENT_AT 8192     /* of the bitmap of cell 0 */
#define GACC_BOX_REQUEST_CHECKED 124 /* bytes before `check` */
#define GACC_BOX_ANSWER_CHECKED 60
#define GACC_BOX_STEP_CHECKED 188

enum gacc_box_kind {
	GACC_BOX_PUSH = 1, /* the gradient in `slot` is complete: add it */
	GACC_BOX_WAIT = 2  /* answer when `window` is over; every field but seq, kind, window and check is 0 */
};

enum gacc_box_flags {
	GACC_BOX_ZERO_AFTER = 1, /* zero the slot when the gradient is added, before the answer */
	GACC_BOX_RINGS = 2	 /* the bell comes again when the ready word has its value; only with ready_at */
};

/* gaccd writes it before anyone else has the memory. Read it to check that both sides mean the same. */
struct gacc_box_header {
	uint64_t magic;	     /* GACC_BOX_MAGIC */
	uint32_t version;    /* GACC_BOX_VERSION */
	uint32_t cells;	     /* GACC_BOX_CELLS */
	uint64_t job;	     /* number of the job */
	uint32_t rank;	     /* of the session */
	uint32_t slots;	     /* of the session: numbered from 0 */
	uint64_t sgen;	     /* the session's number among those of the rank */
	uint32_t closed;     /* 0; 1: nothing is read here any more, go to RPC. A bell comes with it */
	uint32_t engine_cpu; /* on which the engine was when it answered last; a hint, may be ignored */
	uint8_t reserved[80];
};

struct gacc_box_request {
	uint64_t seq;		/* stored last */
	uint32_t kind;		/* enum gacc_box_kind */
	uint32_t flags;		/* of enum gacc_box_flags; all other bits 0 */
	uint64_t window;	/* of the gradient; WAIT: which is awaited */
	uint32_t micro;		/* 0 to micro_size - 1 */
	uint32_t slot;		/* 0 to header.slots - 1 */
	double weight;		/* samples or tokens, 2.3e-308 to 1.7e308 */
	double loss;		/* mean of the micro-batch */
	uint64_t data_key;	/* hash of the sample ids; 0: none */
	double loss_scale;	/* that is in the gradients; 0 is 1 */
	uint32_t n_present;	/* bytes of the bitmap, (n_tensors + 7) / 8; 0: all tensors are there */
	uint32_t present_check; /* CRC-32 of these bytes; 0 without */
	uint32_t ready_at;	/* number of a ready word, 1 to 8; 0: the gradient is complete now */
	uint32_t reserved0;	/* 0 */
	uint64_t ready_value;	/* complete when (int64_t)(word - ready_value) >= 0; 0 without ready_at */
	double lr;		/* of the window, instead of the schedule's; 0: the schedule's */
	uint8_t reserved[28];	/* 0 */
	uint32_t check;		/* CRC-32 of bytes 0 to 123 */
};

struct gacc_box_answer {
	uint64_t seq;	      /* of the request that it answers; stored last */
	uint32_t status;      /* 0 OK; else see above */
	uint32_t result;      /* OK of a push: number of gacc.v1.PushResult; of a WAIT: 1 */
	uint64_t window;      /* as in the request */
	uint32_t counted;     /* micro-batches of this rank that count in the window */
	uint32_t micro_size;  /* of the open window */
	int64_t parked_ns;    /* how long the push waited for its turn */
	uint32_t waited_for;  /* rank whose push it waited for longest, when parked_ns is not 0 */
	uint32_t half;	      /* optimizer `client`: 0 or 1, where the reduced gradient is */
	uint8_t reserved[12]; /* 0 */
	uint32_t check;	      /* CRC-32 of bytes 0 to 59 */
};

/* The result of a window, gacc.v1.StepResult without its words. */
struct gacc_box_step {
	uint64_t window;
	uint64_t applied_step;
	uint32_t outcome;     /* number of gacc.v1.StepOutcome */
	uint32_t skip_reason; /* number of gacc.v1.SkipReason */
	double total_weight;
	double divisor;
	double grad_norm;
	double lr;
	double mean_loss;
	uint64_t micro_count;
	uint32_t last_rank;
	uint32_t final; /* 1: the job's last step */
	int64_t last_lag_ns;
	uint64_t params_digest;
	double next_loss_scale; /* for the gradients of the next window */
	uint32_t next_micro_size;
	uint32_t half;	      /* as in the answer */
	uint8_t reserved[76]; /* 0 */
	uint32_t check;	      /* CRC-32 of bytes 0 to 187 */
};

/* A word that the trainer, or its GPU's stream, counts up; each in a line of its own. They have a page to themselves,
 * which may be registered with a device. Stored with release order, or by a device behind the gradient's writes. */
struct gacc_box_ready {
	uint64_t value;
	uint8_t reserved[56];
};

/* What comes before the bitmaps. */
struct gacc_box {
	struct gacc_box_header header;
	struct gacc_box_request request[GACC_BOX_CELLS];
	struct gacc_box_answer answer[GACC_BOX_CELLS];
	struct gacc_box_step step;
	uint8_t reserved0[2240];
	struct gacc_box_ready ready[GACC_BOX_WORDS]; /* ready_at 1 is ready[0] */
	uint8_t reserved1[3584];
};

/* Bytes of a bitmap: bit t, least significant first, is tensor t. Bits behind the last tensor are 0. */
static inline size_t gacc_box_present_bytes(uint64_t n_tensors)
{
	return (size_t)((n_tensors + 7) / 8);
}
/* From one bitmap to the next. */
static inline size_t gacc_box_stride(uint64_t n_tensors)
{
	return (gacc_box_present_bytes(n_tensors) + 63) / 64 * 64;
}
/* Of the whole mailbox; the memfd has exactly this size. */
static inline size_t gacc_box_bytes(uint64_t n_tensors)
{
	return GACC_BOX_PRESENT_AT + GACC_BOX_CELLS * gacc_box_stride(n_tensors);
}
/* Where the bitmap of a cell begins. */
static inline size_t gacc_box_present_at(uint64_t n_tensors, uint32_t cell)
{
	return GACC_BOX_PRESENT_AT + cell * gacc_box_stride(n_tensors);
}

#ifdef __cplusplus
#define GACC_BOX_IS(what) static_assert(what, "a format")
#else
#define GACC_BOX_IS(what) _Static_assert(what, "a format")
#endif
#define GACC_BOX_AT(type, field, at) GACC_BOX_IS(offsetof(struct type, field) == (at))
GACC_BOX_AT(gacc_box_header, magic, 0);
GACC_BOX_AT(gacc_box_header, version, 8);
GACC_BOX_AT(gacc_box_header, cells, 12);
GACC_BOX_AT(gacc_box_header, job, 16);
GACC_BOX_AT(gacc_box_header, rank, 24);
GACC_BOX_AT(gacc_box_header, slots, 28);
GACC_BOX_AT(gacc_box_header, sgen, 32);
GACC_BOX_AT(gacc_box_header, closed, 40);
GACC_BOX_AT(gacc_box_header, engine_cpu, 44);
GACC_BOX_AT(gacc_box_header, reserved, 48);
GACC_BOX_IS(sizeof(struct gacc_box_header) == 128);
GACC_BOX_AT(gacc_box_request, seq, 0);
GACC_BOX_AT(gacc_box_request, kind, 8);
GACC_BOX_AT(gacc_box_request, flags, 12);
GACC_BOX_AT(gacc_box_request, window, 16);
GACC_BOX_AT(gacc_box_request, micro, 24);
GACC_BOX_AT(gacc_box_request, slot, 28);
GACC_BOX_AT(gacc_box_request, weight, 32);
GACC_BOX_AT(gacc_box_request, loss, 40);
GACC_BOX_AT(gacc_box_request, data_key, 48);
GACC_BOX_AT(gacc_box_request, loss_scale, 56);
GACC_BOX_AT(gacc_box_request, n_present, 64);
GACC_BOX_AT(gacc_box_request, present_check, 68);
GACC_BOX_AT(gacc_box_request, ready_at, 72);
GACC_BOX_AT(gacc_box_request, reserved0, 76);
GACC_BOX_AT(gacc_box_request, ready_value, 80);
GACC_BOX_AT(gacc_box_request, lr, 88);
GACC_BOX_AT(gacc_box_request, reserved, 96);
GACC_BOX_AT(gacc_box_request, check, 124);
GACC_BOX_IS(sizeof(struct gacc_box_request) == 128);
GACC_BOX_AT(gacc_box_answer, seq, 0);
GACC_BOX_AT(gacc_box_answer, status, 8);
GACC_BOX_AT(gacc_box_answer, result, 12);
GACC_BOX_AT(gacc_box_answer, window, 16);
GACC_BOX_AT(gacc_box_answer, counted, 24);
GACC_BOX_AT(gacc_box_answer, micro_size, 28);
GACC_BOX_AT(gacc_box_answer, parked_ns, 32);
GACC_BOX_AT(gacc_box_answer, waited_for, 40);
GACC_BOX_AT(gacc_box_answer, half, 44);
GACC_BOX_AT(gacc_box_answer, reserved, 48);
GACC_BOX_AT(gacc_box_answer, check, 60);
GACC_BOX_IS(sizeof(struct gacc_box_answer) == 64);
GACC_BOX_AT(gacc_box_step, window, 0);
GACC_BOX_AT(gacc_box_step, applied_step, 8);
GACC_BOX_AT(gacc_box_step, outcome, 16);
GACC_BOX_AT(gacc_box_step, skip_reason, 20);
GACC_BOX_AT(gacc_box_step, total_weight, 24);
GACC_BOX_AT(gacc_box_step, divisor, 32);
GACC_BOX_AT(gacc_box_step, grad_norm, 40);
GACC_BOX_AT(gacc_box_step, lr, 48);
GACC_BOX_AT(gacc_box_step, mean_loss, 56);
GACC_BOX_AT(gacc_box_step, micro_count, 64);
GACC_BOX_AT(gacc_box_step, last_rank, 72);
GACC_BOX_AT(gacc_box_step, final, 76);
GACC_BOX_AT(gacc_box_step, last_lag_ns, 80);
GACC_BOX_AT(gacc_box_step, params_digest, 88);
GACC_BOX_AT(gacc_box_step, next_loss_scale, 96);
GACC_BOX_AT(gacc_box_step, next_micro_size, 104);
GACC_BOX_AT(gacc_box_step, half, 108);
GACC_BOX_AT(gacc_box_step, reserved, 112);
GACC_BOX_AT(gacc_box_step, check, 188);
GACC_BOX_IS(sizeof(struct gacc_box_step) == 192);
GACC_BOX_AT(gacc_box_ready, value, 0);
GACC_BOX_AT(gacc_box_ready, reserved, 8);
GACC_BOX_IS(sizeof(struct gacc_box_ready) == 64);
GACC_BOX_AT(gacc_box, header, 0);
GACC_BOX_AT(gacc_box, request, 128);
GACC_BOX_AT(gacc_box, answer, 1152);
GACC_BOX_AT(gacc_box, step, 1664);
GACC_BOX_AT(gacc_box, reserved0, 1856);
GACC_BOX_AT(gacc_box, ready, 4096);
GACC_BOX_AT(gacc_box, reserved1, 4608);
GACC_BOX_IS(sizeof(struct gacc_box) == GACC_BOX_PRESENT_AT);
GACC_BOX_IS(GACC_BOX_REQUEST_CHECKED == offsetof(struct gacc_box_request, check));
GACC_BOX_IS(GACC_BOX_ANSWER_CHECKED == offsetof(struct gacc_box_answer, check));
GACC_BOX_IS(GACC_BOX_STEP_CHECKED == offsetof(struct gacc_box_step, check));
#undef GACC_BOX_AT
#undef GACC_BOX_IS

#endif
