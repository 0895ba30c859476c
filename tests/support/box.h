/* SPDX-License-Identifier: Apache-2.0 */
/* Both ends of mailboxes, for tests and benchmarks: a trainer in C, and a process that serves the mailboxes of a job
 * with the engine's cells, queue and record, without tensors and without gaccd. What the processes share survives any
 * of them. A failure ends the process with a message.
 */
#ifndef GACC_TESTS_BOX_H
#define GACC_TESTS_BOX_H

#include "engine/mailbox.h"

#include <sys/types.h>

#define BOX_RANKS 4

/* ---- what outlives the server ---- */

struct box_world {
	uint32_t ranks, micro_size, slots;
	uint64_t n_tensors;
	struct mailbox_fds fds[BOX_RANKS];
	void *page; /* control segment, shared */
};
void box_world_make(struct box_world *, uint32_t ranks, uint32_t micro_size, uint64_t n_tensors);
void box_world_free(struct box_world *);

/* ---- the server ---- */

/* Serves until it is killed. The total weight in the step block is the sum over the pushes of the window. */
_Noreturn void box_serve(const struct box_world *);
/* The same in a child, which ends with this process. */
pid_t box_spawn(const struct box_world *);
void box_kill(pid_t);

/* ---- a trainer ---- */

struct box_trainer {
	struct gacc_box *mem;
	uint64_t n_tensors, seq; /* seq: given last */
	int submit, waits;
};
/* Maps the mailbox; the descriptors stay the caller's. */
void box_trainer_open(struct box_trainer *, const struct mailbox_fds *, uint64_t n_tensors);
void box_trainer_close(struct box_trainer *);
/* seq, check and, where n_present is not 0, present_check are filled in. Without the bell. Returns seq. */
uint64_t box_publish(struct box_trainer *, uint32_t cell, struct gacc_box_request q, const unsigned char *present);
void box_bell(struct box_trainer *);
/* Waits at most ms; false: there is no answer. */
bool box_await(struct box_trainer *, uint32_t cell, uint64_t seq, struct gacc_box_answer *out, int ms);
/* false: the block is not of this window. */
bool box_read_step(const struct box_trainer *, uint64_t window, struct gacc_box_step *out);
uint32_t box_crc(const void *p, size_t n);

#endif
