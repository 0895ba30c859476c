/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of a push, whichever way it came; the pushes that wait in an engine, and which of them to add next.
 * Pure, no memory of tensors, no clock. One thread.
 *
 * Canonical order is micro-major, rank-minor: (0,0) (1,0) .. (R-1,0) (0,1) ..; a pair is passed over when it is
 * counted, void, or its rank has flushed. With canonical order off, ready pushes are taken as they came.
 *
 * A push is judged by one table. The first row that fits decides.
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
#ifndef GACC_ENGINE_ACCUM_H
#define GACC_ENGINE_ACCUM_H

#include "engine/channel.h"
#include "engine/control_page.h"
#include "engine/plan.h"

#include <stdbool.h>
#include <stdint.h>

#define ACCUM_MAX_ASKERS 4

/* A push that waits in the engine. */
struct accum_entry {
	/* who is answered when it is added or refused: ids of the commands. The first brought it, the others repeated
	 * it */
	uint64_t asker[ACCUM_MAX_ASKERS];
	uint32_t n_askers;
	uint64_t sgen;
	uint32_t rank, micro, slot; /* slot: the plan's number */
	uint32_t blocked_by;	    /* the rank whose turn was before, when it came; its own: nobody's */
	int64_t since_ns;	    /* when it came, CLOCK_BOOTTIME */
	double coefficient, weight, loss, window_lr;
	uint64_t data_key;
	int64_t unix_nanos;
	bool zero_after;
	unsigned char *present; /* NULL: all tensors; owned by the entry */
};

/* The first two ranks that may lack a micro-batch index: those before them do not. */
struct accum_lacking {
	uint64_t window; /* else: of another window, so nothing is known */
	uint32_t first, second;
};

struct accum {
	struct accum_entry *entry; /* [capacity], in order of arrival */
	uint32_t n, capacity;
	bool canonical;
	/* Of `window`, all pairs before this one are done: within a window pairs only become done, so nobody has to
	 * look at them again. */
	uint64_t window; /* UINT64_MAX: of none yet */
	uint32_t first_micro, first_rank;
	struct accum_lacking *lacking; /* [n_lacking]: of each micro-batch index */
	uint32_t n_lacking;
	uint64_t visited; /* pairs that were looked at; for tests */
};

/* ---- the queue ---- */

/* ST_NO_MEMORY. */
enum status accum_init(struct accum *, uint32_t capacity, uint32_t max_micro_size, bool canonical);
void accum_fini(struct accum *);

/* Takes an entry that accum_judge wants queued, and its `present`. */
void accum_queue(struct accum *, const struct accum_entry *);
/* One more asker of a queued entry, which accum_judge found to have room. */
void accum_join(struct accum_entry *, uint64_t asker);
/* The rank whose micro-batch comes before (rank, micro) in canonical order and is missing, the lowest of them; `rank`
 * itself: none. Amortized: in a window, each rank is looked at twice for each micro-batch index. */
uint32_t accum_blocked_by(struct accum *, const struct control_state *, uint32_t rank, uint32_t micro);
/* The next entries that may be added in one pass, at most max, in order, all with one learning rate; returns how many.
 * They stay queued until accum_remove. */
uint32_t accum_next(struct accum *, const struct control_state *, struct accum_entry **out, uint32_t max);
/* The queued entry of this pair, or NULL. */
struct accum_entry *accum_find(const struct accum *, uint32_t rank, uint32_t micro);
void accum_remove(struct accum *, struct accum_entry *); /* frees `present`; invalidates entry pointers */
/* First queued entry with a lower sgen, of this rank or of anyone when rank is UINT32_MAX; NULL: none. */
struct accum_entry *accum_find_stale(struct accum *, uint32_t rank, uint64_t sgen);
/* First queued entry of this rank, the one that came first; NULL: none. */
const struct accum_entry *accum_oldest(const struct accum *, uint32_t rank);
/* First queued entry with a learning rate that is not the window's; NULL: none, or nothing is counted yet. */
struct accum_entry *accum_find_other_lr(const struct accum *, const struct control_state *);
/* True when adding exactly these queued entries completes the window: nothing else is missing then, as all other pairs
 * are counted, void or of a flushed rank. The pass may then compute the norm as it goes. */
bool accum_completes(struct accum *, const struct control_state *, struct accum_entry *const *e, uint32_t n);
/* The state is another one than before, not what follows from it: a checkpoint was read. */
void accum_restart(struct accum *);

/* ---- what becomes of a push ---- */

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

struct verdict accum_judge(const struct window_state *, const struct push *);
/* The record knows the window before the open one: it was committed in this memory. */
bool accum_knows_last(const struct control_record *);
/* And it was the job's last: the open one never commits. */
bool accum_has_ended(const struct control_record *);
/* The plan's number of the session's first slot. The rank is one of the engine's. */
uint32_t accum_first_slot(const struct window_state *, uint32_t rank);

#endif
