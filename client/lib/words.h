/* SPDX-License-Identifier: Apache-2.0 */
/* Ready words (gacc_ready_word): memory at one address for as long as the job is attached, beneath which lies the page
 * of the session's mailbox, if it has one; and a bell, one descriptor for as long.
 *
 * Other threads store words and ring at any moment, also while a session is replaced: nothing that they store is lost,
 * since words only go up, and whichever page a value reached, the higher one counts. All functions are the job's
 * thread's, words_reached and words_await also the sender's (sender.c).
 */
#ifndef GACC_CLIENT_WORDS_H
#define GACC_CLIENT_WORDS_H

#include "lib/cells.h"

/* Sessions that the words follow. Behind them they stay where they are, and late pushes go by RPC: a page that was once
 * there must be kept, and with it the memory of its mailbox. */
#define WORDS_EARLIER_MAX 64

struct words {
	struct gacc_box_ready *at; /* page that the trainer knows; NULL: it has not asked for one */
	/* pages that were there before, in which a device may still store; mapped until words_close */
	struct gacc_box_ready *earlier[WORDS_EARLIER_MAX];
	uint32_t n_earlier; /* grows behind its page: other threads read it */
	uint64_t page;	    /* how many pages have been there */
	uint64_t told; /* which the trainer has heard of, to have it registered with a device; 0: it has not asked */
	uint64_t sgen; /* session whose mailbox the page belongs to; 0: none */
	int bell;      /* eventfd */
};

/* Makes page and bell, and follows `cells`. NO_MEMORY, RESOURCE_EXHAUSTED. */
enum status words_open(struct words *, const struct cells *);
/* Puts the page and the bell of this mailbox in place of those before; if that cannot be, the words are of no session.
 * Does nothing before words_open, or if there is no mailbox. */
void words_follow(struct words *, const struct cells *);
/* Also of one that is zero. */
void words_close(struct words *);

/* Do all stores from now on reach the page that is there? Not those of a device for which an earlier one is registered:
 * that one only words_reached looks at. */
static inline bool words_are_current(const struct words *w)
{
	return !w->told || w->told == w->page;
}

/* Stores `value` in word `at` unless a later one is there. Any thread, between words_open and words_close. */
void words_raise(struct words *, uint32_t at, uint64_t value);
/* Has word `at`, 1 to GACC_BOX_WORDS, this value or a later one? */
bool words_reached(const struct words *, uint32_t at, uint64_t value);
/* Waits for it, for `ms` at most. */
bool words_await(const struct words *, uint32_t at, uint64_t value, int64_t ms);

#endif
