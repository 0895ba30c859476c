/* SPDX-License-Identifier: Apache-2.0 */
/* A session's mailbox as descriptors: gaccd makes one, the engine maps it and watches its bell. What is in the
 * memory: proto/mailbox.h; the cells and the trainer's bell: mailbox_cells.h.
 *
 * The engine never reads or writes the submit eventfd, whose file the trainer shares: it could be made blocking. The
 * answer eventfd stays with gaccd and the engine; the trainer gets an epoll descriptor that watches it.
 */
#ifndef GACC_ENGINE_MAILBOX_H
#define GACC_ENGINE_MAILBOX_H

#include "engine/mailbox_cells.h"

#define MAILBOX_BELL 1 /* data of the trainer's epoll event */

/* All descriptors of a mailbox; -1: none. Trainers get memory, submit and waits, engines memory, submit and answer. */
struct mailbox_fds {
	int memory;
	int submit; /* eventfd: the trainer rings, the engine's epoll watches */
	int answer; /* eventfd: the engine rings */
	int waits;  /* epoll that watches `answer` */
};
#define MAILBOX_NO_FDS ((struct mailbox_fds){ -1, -1, -1, -1 })

/* What a mailbox belongs to. */
struct mailbox_owner {
	uint64_t job, sgen;
	uint32_t rank, slots; /* slots of the session */
	uint64_t n_tensors;
};

/* Makes the memory, allocated, with its header, and sealed, and the bells: all CLOEXEC. On failure (ST_NO_MEMORY,
 * ST_IO_ERROR) there is none of them, and `why` says which call failed. Any thread. */
enum status mailbox_make(struct mailbox_fds *out, const struct mailbox_owner *, char *why, size_t n_why);
/* Closes what is there. */
void mailbox_close_fds(struct mailbox_fds *);

/* ---- the engine's side; its main thread ---- */

struct mailbox {
	struct box_cells cells;
	size_t bytes;
	int submit, answer, epoll; /* epoll: which watches submit, not owned; -1: none */
};

/* Takes memory, submit and answer, whatever comes of it; `waits` stays. The memory must be sealed and of the right
 * size, or else ST_SEGMENT_CORRUPT; ST_INVALID_ARGUMENT: a bell that could block. Its header is not read: the trainer
 * may have written over it, and gaccd has said what is in there. Cells: box_take_over. */
enum status mailbox_open(struct mailbox *out, const struct mailbox_fds *, uint64_t n_tensors, uint32_t slots, char *why,
			 size_t n_why);
/* From now on `epoll` gives an event with this data when the trainer has rung: once for one or more rings, and once now
 * if it has rung before. ST_IO_ERROR. */
enum status mailbox_watch(struct mailbox *, int epoll, uint64_t data);
/* Gives the mailbox up: no event comes any more, and nothing is read or written. Open requests are the caller's to
 * forget. */
void mailbox_drop(struct mailbox *);

#endif
