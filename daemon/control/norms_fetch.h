/* SPDX-License-Identifier: Apache-2.0 */
/* How a coordinator gets the norms of a window's tensors from the node of a part: portion by portion, each asked for
 * when the one before is here. Pure; one thread.
 *
 * The norms are those that the part's engine left with its vote, of which the node has kept a copy: so the windows that
 * follow do not disturb. A job has one fetch at a time. Questions and answers may be lost, repeated or late.
 *
 *   state    event                                             next     what happens
 *   IDLE     the window is decided, and norms were asked for   ASKING   ask for the first portion
 *   ASKING   the portion that is awaited, and it is not the    ASKING   keep it; ask for the next one
 *              last
 *   ASKING   the portion that is awaited, and it is the last   IDLE     keep it: done
 *   ASKING   another portion (a repetition), another fetch's   ASKING   -
 *   ASKING   a portion that says another number of tensors     ASKING   -
 *   ASKING   why there are none                                IDLE     failed
 *   ASKING   nothing for 1 s since the question                ASKING   ask again
 *   ASKING   nothing for 10 s                                  IDLE     failed: the node does not answer
 *   IDLE     any                                               IDLE     -
 */
#ifndef GACC_CONTROL_NORMS_FETCH_H
#define GACC_CONTROL_NORMS_FETCH_H

#include <stdbool.h>
#include <stdint.h>

#define NORMS_AGAIN_NS (INT64_C(1) * 1000000000)
#define NORMS_SILENT_NS (INT64_C(10) * 1000000000)
#define NORMS_LONGEST_NS (INT64_C(120) * 1000000000) /* also of a node that sends a little now and then */

struct norms_fetch { /* zero: IDLE */
	bool asking;
	uint64_t number;      /* of the question: of this coordinator and job, from 1 */
	uint64_t have, total; /* tensors; total 0: not known yet */
	int64_t begun_ns, asked_ns, heard_ns;
};

enum norms_move {
	NORMS_NOTHING, /* what has come is not used */
	NORMS_ASK,     /* after `take`: what has come is kept, too */
	NORMS_DONE,    /* the same */
	NORMS_FAILED,
};

/* The caller asks. */
void norms_fetch_begin(struct norms_fetch *, int64_t now_ns);
/* A portion of n tensors, of so many (first + n <= total); n 0: why there are none. */
enum norms_move norms_fetch_take(struct norms_fetch *, uint64_t number, uint64_t first, uint64_t n, uint64_t total,
				 int64_t now_ns);
enum norms_move norms_fetch_tick(struct norms_fetch *, int64_t now_ns);

#endif
