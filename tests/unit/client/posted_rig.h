/* SPDX-License-Identifier: Apache-2.0 */
/* Two ranks that push by the library through mailboxes of a real engine. What goes by RPC instead (push_attempt is
 * replaced, see -Wl,--wrap) becomes the command that gaccd would send to the same engine. Functions fail the test on
 * errors. */
#ifndef GACC_TEST_CLIENT_POSTED_RIG_H
#define GACC_TEST_CLIENT_POSTED_RIG_H

#include "lib/internal.h"

#include "real_engine.h"

#define RANKS REAL_RANKS
#define MICRO REAL_MICRO

struct posted_rig {
	struct gacc_job job[RANKS];
	int line[RANKS][2]; /* attach sockets: the trainer's end and gaccd's */
	unsigned char slot[REAL_SLOTS][64];
	int by_rpc;	       /* attempts */
	uint32_t order[64];    /* their micro-batches */
	unsigned char present; /* of the last attempt, its first byte; 255: it had all */
	enum status say;       /* the next attempt says this, and the engine is not asked; ST_OK: it is */
};
extern struct posted_rig posted_rig;

/* The engine has the mailboxes, or not. The window 0 is open, and nothing is pushed. */
void posted_rig_begin(bool given);
void posted_rig_end(void);
/* A mailbox of session 1 for this rank; the one before must be closed. */
void posted_rig_open_mailbox(uint32_t rank);
/* Returns when the engine has answered each of the rank's cells. */
void posted_rig_await_answers(uint32_t rank);
/* The rank begins the window once more. */
void posted_rig_again(uint32_t rank);
/* Attempts by RPC wait. */
void posted_rig_hold(bool);
/* In a free slot. */
gacc_status posted_rig_push(uint32_t rank, gacc_push_opts, gacc_push_info *);
/* A window of pushes that are counted, in the order in which the engine adds them. */
void posted_rig_push_window(void);
/* The window's next micro-batch; MICRO: none is owed. */
uint32_t posted_rig_next(uint32_t rank);

#endif
