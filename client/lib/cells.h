/* SPDX-License-Identifier: Apache-2.0 */
/* The trainer's side of a session's mailbox (proto/mailbox.h): checks what gaccd hands out, publishes requests, and
 * waits for their answers.
 *
 * A request is named by its number alone. Its cell is used again only when its answer has been read here, also when
 * nobody waits for it any more. Whatever is not a whole answer in time means RPC, and is no error. The job's thread.
 */
#ifndef GACC_CLIENT_CELLS_H
#define GACC_CLIENT_CELLS_H

#include "proto/mailbox.h"
#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How long an answer is awaited before the same is asked by RPC, which can say what is late. */
#define CELLS_PATIENCE_MS 60000

/* Descriptors of a mailbox; -1: none. */
struct cells_fds {
	int memory;
	int submit; /* eventfd: the bell to the engine */
	int waits;  /* epoll: the bell to the trainer */
};
#define CELLS_NO_FDS ((struct cells_fds){ -1, -1, -1 })

/* What the header must say. */
struct cells_owner {
	uint64_t job, sgen;
	uint32_t rank, slots;
	uint64_t n_tensors;
};

struct cells {
	struct gacc_box *mem; /* NULL: there is no mailbox; then nothing else counts */
	size_t bytes;
	uint64_t sgen, n_tensors;
	int submit, waits;
	int timer;	  /* in `waits`: ends sleeps; -1: they have timeouts */
	int64_t rings_ms; /* when it rings, as now_ms() counts; 0: it is not set */
	int patience_ms;
	uint64_t seq;		       /* given last */
	uint64_t open[GACC_BOX_CELLS]; /* numbers of requests whose answers were not read; 0: the cell is free */
	bool late[GACC_BOX_CELLS];     /* that one was waited for in vain */
	bool closed;		       /* for good: RPC */
};

/* Takes the descriptors, whatever comes of it. `socket`, the attach socket, is borrowed: its hang-up ends waits. On
 * failure there is no mailbox, and `why` is a sentence without a full stop. */
enum status cells_open(struct cells *out, const struct cells_fds *, const struct cells_owner *, int socket, char *why,
		       size_t n_why);
/* Also of one that was never opened, but is zero. */
void cells_close(struct cells *);

/* May a request be published now? No: there is no mailbox, it is closed, all its cells are in use, or it owes an
 * answer that was waited for in vain. */
bool cells_usable(struct cells *);
/* Publishes a request into a free cell, which there must be, and rings. seq, present_check and check of `q` are filled
 * in; `present` has q.n_present bytes, NULL: none. Returns the request's number. */
uint64_t cells_publish(struct cells *, struct gacc_box_request q, const uint8_t *present);
/* Waits for the answer to request `seq`, for `ms` at most; false: by RPC then. An answer is read once. */
bool cells_await(struct cells *, uint64_t seq, int64_t ms, struct gacc_box_answer *out);
/* Is the answer to request `seq` still to be expected here? */
bool cells_owes(struct cells *, uint64_t seq);
/* The step block, if it is whole and of this window. */
bool cells_step(const struct cells *, uint64_t window, struct gacc_box_step *out);

#endif
