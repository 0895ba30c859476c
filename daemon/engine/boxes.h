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
struct accum_entry;

/* Of one rank. */
struct box {
	bool open, unready, ring_due;
	bool flush_waits, flush_leaves; /* a FLUSH, until what is queued of the rank is answered; its id */
	uint64_t flush_id;
	uint64_t sgen;
	struct mailbox mail;
};

/* All zero: there has been no mailbox yet. */
struct boxes {
	struct box *rank;			  /* [n] */
	uint32_t n, n_open, n_unready, n_flushes; /* ranks; those with a mailbox, `unready`, flush_waits */
	uint32_t *ring, n_ring;			  /* ranks whose trainer may have to be woken at the end of the turn */
	int epoll;				  /* of all submit bells, if `rank` is there */
};

void boxes_fini(struct boxes *);

/* Readable when a bell has rung; -1: there is none. */
static inline int boxes_fd(const struct boxes *b)
{
	return b->rank ? b->epoll : -1;
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
/* NULL: the rank has none. */
struct box *boxes_of(struct engine *, uint32_t rank);
/* For a rank of the engine, in the place of what it had; the descriptors are taken, whatever comes of it. ST_NO_MEMORY,
 * ST_IO_ERROR, ST_SEGMENT_CORRUPT, ST_INVALID_ARGUMENT, with why. */
enum status boxes_open(struct engine *, const struct engine_command *, const struct mailbox_fds *, char *why,
		       size_t n_why);
/* Gives up the rank's mailbox if it is of an older session than this: from here on nothing of it is read or written. */
void boxes_fence(struct engine *, uint32_t rank, uint64_t sgen);
/* Some request waits for a ready word whose bell will not come. */
void boxes_set_unready(struct engine *, struct box *, bool);
/* Answers the open request of a cell; counted and micro_size are filled in. */
void boxes_reply(struct engine *, uint32_t rank, uint32_t cell, struct gacc_box_answer);
/* Answers a push of a cell; nothing if the mailbox is gone. */
void boxes_answer(struct engine *, const struct accum_entry *, uint64_t asker, const struct engine_answer *);
/* The rank's trainer may have to be woken at the end of the turn; which boxes_ring does. */
void boxes_ring_later(struct engine *, uint32_t rank);
void boxes_ring(struct engine *);

/* ---- boxes_look.c ---- */
/* The command MAILBOX; the descriptors are taken, whatever comes of it. */
void boxes_take(struct engine *, const struct engine_command *, const int *fds, int n_fds);
/* Takes what one rank has published, whether its bell has rung or not: before a command is judged that must not
 * overtake it. Nothing if it has no mailbox. */
void boxes_look(struct engine *, uint32_t rank);
/* The same for all whose bell has rung, or who count up a ready word. */
void boxes_turn(struct engine *);

#endif
