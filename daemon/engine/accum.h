/* SPDX-License-Identifier: Apache-2.0 */
/* Which (rank, micro) is in, and which ready slots to add next: pure, no memory of tensors, no clock.
 *
 * Canonical order is micro-major, rank-minor: (0,0) (1,0) .. (R-1,0) (0,1) ..; a pair is passed over when it is
 * counted, void, or its rank has flushed. With canonical order off, ready pushes are taken as they came. One thread.
 */
#ifndef GACC_ENGINE_ACCUM_H
#define GACC_ENGINE_ACCUM_H

#include "engine/control_page.h"

#include <stdbool.h>
#include <stdint.h>

/* A push that waits in the engine. */
struct accum_entry {
	uint64_t command_id;
	uint64_t sgen;
	uint32_t rank, micro, slot;
	double coefficient, weight, loss, window_lr;
	uint64_t data_key;
	int64_t unix_nanos;
	bool zero_after;
	unsigned char *present; /* NULL: all tensors; owned by the entry */
};

struct accum {
	struct accum_entry *entry; /* [capacity], in order of arrival */
	uint32_t n, capacity;
	bool canonical;
	/* Of `window`, all pairs before this one are done: within a window pairs only become done, so nobody has to
	 * look at them again. */
	uint64_t window; /* UINT64_MAX: of none yet */
	uint32_t first_micro, first_rank;
	uint64_t visited; /* pairs that were looked at; for tests */
};

enum status accum_init(struct accum *, uint32_t capacity, bool canonical); /* ST_NO_MEMORY */
void accum_fini(struct accum *);

/* Takes the entry (and its `present`). Judges it by the state first: ST_OK queued; otherwise nothing is queued, nor
 * owned. In this order: ST_SESSION_FENCED (older sgen), ST_SESSION_UNKNOWN (newer), ST_DATA_KEY_MISMATCH or
 * ST_ALREADY_EXISTS (its bit is set, *voided tells which; true of a closed window and a flushed rank too),
 * ST_WINDOW_CLOSED (not open), ST_FLUSHED, ST_LR_MISMATCH (a counted push gave the window another learning rate),
 * ST_SLOT_BUSY (this micro-batch or this slot is queued already: the new
 * command replaces nothing), ST_RESOURCE_EXHAUSTED (queue full). A data_key of 0 matches any. */
enum status accum_offer(struct accum *, const struct control_state *, const struct ledger_cell *cell,
			struct accum_entry *take, bool *voided);
/* The next entries that may be added in one pass, at most max, in order, all with one learning rate; returns how many.
 * They stay queued until accum_remove. */
uint32_t accum_next(struct accum *, const struct control_state *, struct accum_entry **out, uint32_t max);
/* The queued entry of this pair, or NULL. */
struct accum_entry *accum_find(const struct accum *, uint32_t rank, uint32_t micro);
void accum_remove(struct accum *, struct accum_entry *); /* frees `present`; invalidates entry pointers */
/* First queued entry with a lower sgen, of this rank or of anyone when rank is UINT32_MAX; NULL: none. */
struct accum_entry *accum_find_stale(struct accum *, uint32_t rank, uint64_t sgen);
/* First queued entry with a learning rate that is not the window's; NULL: none, or nothing is counted yet. */
struct accum_entry *accum_find_other_lr(const struct accum *, const struct control_state *);
/* True when adding exactly these queued entries completes the window: nothing else is missing then, as all other pairs
 * are counted, void or of a flushed rank. The pass may then compute the norm as it goes. */
bool accum_completes(struct accum *, const struct control_state *, struct accum_entry *const *e, uint32_t n);
/* The state is another one than before, not what follows from it: a checkpoint was read. */
void accum_restart(struct accum *);

#endif
