/* SPDX-License-Identifier: Apache-2.0 */
/* The pushes that wait in an engine, and which of them to add next: pure, no memory of tensors, no clock. Which pushes
 * get here, judge.h decides.
 *
 * Canonical order is micro-major, rank-minor: (0,0) (1,0) .. (R-1,0) (0,1) ..; a pair is passed over when it is
 * counted, void, or its rank has flushed. With canonical order off, ready pushes are taken as they came. One thread.
 */
#ifndef GACC_ENGINE_ACCUM_H
#define GACC_ENGINE_ACCUM_H

#include "engine/control_page.h"

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

/* ST_NO_MEMORY. */
enum status accum_init(struct accum *, uint32_t capacity, uint32_t max_micro_size, bool canonical);
void accum_fini(struct accum *);

/* Takes an entry that judge_push wants queued, and its `present`. */
void accum_queue(struct accum *, const struct accum_entry *);
/* One more asker of a queued entry, which judge_push found to have room. */
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

#endif
