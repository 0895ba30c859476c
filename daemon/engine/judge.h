/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of a push: one table, whichever way the push came. Pure; any thread.
 *
 * The first row that fits decides.
 *
 *   the push ...                                                          ruling                 status, or result
 *   is of no rank of this engine                                          PUSH_NO_RANK           RANK_OUT_OF_RANGE
 *   is of an older session than its rank has                              PUSH_FENCED            SESSION_FENCED
 *   is of a newer one                                                     PUSH_UNKNOWN           SESSION_UNKNOWN
 *   is of the last window, and counted there                              PUSH_IS_COMMITTED      ALREADY_COMMITTED
 *   is of the last window, and was not                                    PUSH_LATE              WINDOW_CLOSED
 *   is of an earlier window, or of the last one that this memory has
 *     not seen itself (it began with a checkpoint): gaccd may know        PUSH_FORGOTTEN         WINDOW_FORGOTTEN
 *   is of a window to come                                                PUSH_EARLY             NOT_CURRENT_WINDOW
 *   is of the window behind the job's last one, which never commits       PUSH_ENDED             JOB_ENDED
 *   has a micro-batch index that is not below the window's micro_size     PUSH_PAST_END          WINDOW_FULL
 *   has a weight that is not DBL_MIN..DBL_MAX                             PUSH_BAD_WEIGHT        BAD_WEIGHT
 *   has a learning rate that is none (commit_is_lr)                       PUSH_BAD_LR            INVALID_ARGUMENT
 *   has a bitmap, not of as many bytes as the tensors need                PUSH_BITMAP_SIZE       INVALID_ARGUMENT
 *   has a bitmap with a bit behind the last tensor's                      PUSH_BITMAP_END        INVALID_ARGUMENT
 *   carries another loss scale than the window's                          PUSH_LOSS_SCALE        LOSS_SCALE_MISMATCH
 *   has another learning rate than the window's first counted push        PUSH_OTHER_LR          LR_MISMATCH
 *   is counted or void, under another data_key (0 is like any)            PUSH_OTHER_KEY         DATA_KEY_MISMATCH
 *   is counted                                                            PUSH_IS_COUNTED        DUPLICATE
 *   is void                                                               PUSH_IS_VOID           VOID
 *   is queued, under another data_key (0 is only like 0)                  PUSH_QUEUED_KEY        DATA_KEY_MISMATCH
 *   is queued, with another learning rate                                 PUSH_QUEUED_LR         LR_MISMATCH
 *   is queued, and ACCUM_MAX_ASKERS wait for it                           PUSH_QUEUED_ASKERS     RESOURCE_EXHAUSTED
 *   is queued                                                             PUSH_JOINS             (its answer)
 *   is of a rank that has flushed or left                                 PUSH_FLUSHED           FLUSHED
 *   finds the window closed                                               PUSH_CLOSED            WINDOW_CLOSED
 *   (canonical order) comes before an earlier one of its rank             PUSH_OUT_OF_ORDER      OUT_OF_ORDER
 *   has a slot that its session has not                                   PUSH_NO_SLOT           BAD_SLOT
 *   has a slot that a queued push is in                                   PUSH_SLOT_BUSY         SLOT_BUSY
 *   finds the queue full                                                  PUSH_QUEUE_FULL        RESOURCE_EXHAUSTED
 *   (else)                                                                PUSH_QUEUES            (after its pass)
 *
 * "Comes before": a micro-batch of the rank with a lower index is neither counted, void nor queued.
 */
#ifndef GACC_ENGINE_JUDGE_H
#define GACC_ENGINE_JUDGE_H

#include "engine/accum.h"
#include "engine/channel.h"
#include "engine/plan.h"

enum ruling {
	PUSH_NO_RANK,
	PUSH_FENCED,
	PUSH_UNKNOWN,
	PUSH_IS_COMMITTED,
	PUSH_LATE,
	PUSH_FORGOTTEN,
	PUSH_EARLY,
	PUSH_ENDED,
	PUSH_PAST_END,
	PUSH_BAD_WEIGHT,
	PUSH_BAD_LR,
	PUSH_BITMAP_SIZE,
	PUSH_BITMAP_END,
	PUSH_LOSS_SCALE,
	PUSH_OTHER_LR,
	PUSH_OTHER_KEY,
	PUSH_IS_COUNTED,
	PUSH_IS_VOID,
	PUSH_QUEUED_KEY,
	PUSH_QUEUED_LR,
	PUSH_QUEUED_ASKERS,
	PUSH_JOINS,
	PUSH_FLUSHED,
	PUSH_CLOSED,
	PUSH_OUT_OF_ORDER,
	PUSH_NO_SLOT,
	PUSH_SLOT_BUSY,
	PUSH_QUEUE_FULL,
	PUSH_QUEUES,
	N_RULINGS
};

/* A push as a trainer sends it. Any bytes: nothing of it has been checked. */
struct push {
	uint32_t rank, micro;
	uint32_t slot; /* of the session, from 0 */
	uint64_t sgen, window, data_key;
	double weight, loss, lr, loss_scale; /* lr 0: the schedule's; loss_scale 0: 1 */
	const unsigned char *present;	     /* n_present bytes */
	uint32_t n_present;		     /* 0: all tensors */
};

/* All that a push is judged by; borrowed. */
struct window_state {
	const struct plan *plan;
	const struct control_state *record; /* in force */
	const struct ledger_cell *ledger;   /* [ranks * max_micro_size] */
	const struct accum *queue;
};

struct verdict {
	enum ruling ruling;
	enum status status;	 /* ST_OK: it is not refused */
	enum push_result result; /* of one that is answered at once, and not refused; else 0 */
	uint32_t entry;		 /* PUSH_JOINS, PUSH_QUEUED_*, PUSH_SLOT_BUSY: of the queue */
};

struct verdict judge_push(const struct window_state *, const struct push *);
/* The record knows the window before the open one: it was committed in this memory. */
bool judge_knows_last(const struct control_record *);
/* And it was the job's last: the open one never commits. */
bool judge_has_ended(const struct control_record *);
/* The plan's number of the session's first slot. The rank is one of the engine's. */
uint32_t judge_first_slot(const struct window_state *, uint32_t rank);

/* ---- refusal.c: why, for people ---- */

#define REFUSAL_BYTES sizeof(((struct engine_answer *)0)->text)

/* The sentence that a trainer reads about a push that is refused. Returns the hint beside it; NULL: the status's own.
 */
const char *refusal_describe(const struct window_state *, const struct push *, const struct verdict *, char *text,
			     size_t n);
/* The same of a push that was queued and is refused now, with this status. */
const char *refusal_describe_queued(const struct window_state *, const struct accum_entry *, enum status, char *text,
				    size_t n);

#endif
