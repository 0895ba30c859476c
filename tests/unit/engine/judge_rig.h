/* SPDX-License-Identifier: Apache-2.0 */
/* A window at whose border `good` stands: rank 1 has given micro-batch 0 of 0..3 and comes with the next one, which is
 * queued. For tests that change one thing and look at the ruling. */
#ifndef GACC_TEST_ENGINE_JUDGE_RIG_H
#define GACC_TEST_ENGINE_JUDGE_RIG_H

#include "engine/accum.h"

#define JUDGED_RANKS 3
#define JUDGED_MICRO 5 /* max_micro_size */
#define JUDGED_SIZE 4  /* micro_size */
#define JUDGED_SLOTS 2
#define JUDGED_TENSORS 11
#define JUDGED_KEY 7

extern struct judged {
	struct {
		struct plan plan;
		uint32_t numbers[JUDGED_RANKS]; /* behind the plan, which knows where */
	} plan;
	struct control_state state;
	struct ledger_cell ledger[JUDGED_RANKS * JUDGED_MICRO];
	struct accum queue;
	struct push good;
	bool full; /* the queue is to be */
	struct window_state window;
	unsigned char bitmap[2];
} judged;

/* Before and after each test. */
void judged_begin(void);
void judged_end(void);
/* A push of this micro-batch waits in the queue. */
struct accum_entry *judged_queue(uint32_t rank, uint32_t micro, uint32_t slot);
/* What becomes of `good`. */
struct verdict judged_good(void);

/* After a change, which is taken back. */
#define RULED(change, want)                                                                                            \
	do {                                                                                                           \
		struct push before = judged.good;                                                                      \
		change;                                                                                                \
		ck_assert_int_eq(judged_good().ruling, want);                                                          \
		judged.good = before;                                                                                  \
	} while (0)

#endif
