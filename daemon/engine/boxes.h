/* SPDX-License-Identifier: Apache-2.0 */
/* The mailboxes of an engine's sessions: one for each rank at most, of the session in force. Inside of the engine
 * process (process.h); its main thread.
 *
 * A push in a cell is judged, queued and added like one that came as a command. Its asker (accum.h) is
 * boxes_asker(cell) instead of a command's id: rank and session of the entry say in which mailbox that cell is. Docs:
 * protocol.md, "Mailbox".
 */
#ifndef GACC_ENGINE_BOXES_H
#define GACC_ENGINE_BOXES_H

#include "engine/channel.h"
#include "engine/mailbox.h"

#define BOXES_FDS 3	      /* of a MAILBOX: memory, submit, answer */
#define BOXES_LOOK_AGAIN_MS 1 /* at ready words whose bell will not come */

struct engine;

/* Ranks for which something is to be done, so that a turn looks at no others. */
enum box_list {
	LIST_RING,  /* the trainer may have to be woken: at the end of the turn */
	LIST_LOOK,  /* `unready` */
	LIST_FLUSH, /* flush_id */
	LIST_WAIT,  /* `waits` */
	N_BOX_LISTS
};

/* Of one rank. */
struct box {
	bool open;
	bool unready;	   /* to be looked at without a bell: a request waits for its ready word, or it is new */
	uint64_t flush_id; /* of a FLUSH that waits until what is queued of the rank is answered; 0: none */
	bool flush_leaves;
	uint32_t waits; /* a bit for each cell with a WAIT for the open window */
	bool listed[N_BOX_LISTS];
	uint64_t sgen;
	struct mailbox mail;
};

/* All zero: there has been no mailbox yet. */
struct boxes {
	struct box *rank; /* [n] */
	uint32_t n, n_open;
	uint32_t *list[N_BOX_LISTS], n_listed[N_BOX_LISTS]; /* each rank at most once */
};

void boxes_fini(struct boxes *);

/* Whoever walks a list takes those out of it for which nothing is left to do. */
static inline void boxes_list(struct boxes *b, uint32_t rank, enum box_list which)
{
	if (!b->rank[rank].listed[which])
		b->list[which][b->n_listed[which]++] = rank;
	b->rank[rank].listed[which] = true;
}

static inline uint64_t boxes_asker(uint32_t cell)
{
	return UINT64_C(1) << 63 | cell; /* ids of commands count up from 1 */
}
static inline bool boxes_is_asker(uint64_t asker)
{
	return asker >> 63;
}

/* ---- boxes.c ---- */
/* The command MAILBOX; the descriptors are taken, whatever comes of it. */
void boxes_take(struct engine *, const struct engine_command *, const int *fds, int n_fds);
/* NULL: the rank has none. */
struct box *boxes_of(struct engine *, uint32_t rank);
/* Gives up the rank's mailbox if it is of an older session than this: from here on nothing of it is read or written. */
void boxes_fence(struct engine *, uint32_t rank, uint64_t sgen);

/* ---- boxes_wait.c ---- */
/* Answers the WAIT in this cell if its window is over, or cannot be waited for here:
 *
 *   the window ...                                                      status               step block
 *   is open, and another may follow                                     (later)
 *   is open, and the one before was the job's last                      JOB_ENDED
 *   is the one before                                                   OK                   its result
 *   is the one before, and its update left parameters that are not
 *     finite: what follows is the job's end, not a step                 NONFINITE
 *   is the one before, and this memory has not seen its commit (it
 *     began with a checkpoint)                                          WINDOW_FORGOTTEN
 *   is an earlier one                                                   WINDOW_FORGOTTEN
 *   is to come                                                          NOT_CURRENT_WINDOW
 */
void boxes_wait(struct engine *, uint32_t rank, uint32_t cell, uint64_t window);
/* A window is over: answers all who wait for it, and wakes them. Costs nothing for ranks that do not wait. */
void boxes_end_waits(struct engine *);

#endif
