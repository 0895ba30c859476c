/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's side of a mailbox's memory (proto/mailbox.h): what a look at a cell finds, how it is answered,
 * and the bell that tells the trainer.
 *
 * Pure over memory that another process may change at any moment and in any way: nothing is read twice, no value of it
 * is an index or a length before it is judged, and what was taken is noted here, not there. One thread.
 *
 * A cell, by r = request.seq, a = answer.seq and the numbers kept here, `seen` and `open`:
 *
 *     free      r == seen                      nothing to do
 *     offered   r != seen, the check is right  box_look judges a copy; taken: seen = open = r
 *     taken     open != 0                      until box_answer; then a = open, and open = 0
 *
 * After an engine's death `seen` is a: what was offered or taken is offered again, and the record says what counted.
 */
#ifndef GACC_ENGINE_MAILBOX_CELLS_H
#define GACC_ENGINE_MAILBOX_CELLS_H

#include "proto/mailbox.h"
#include "proto/status.h"

#include <stdbool.h>

struct box_cells {
	struct gacc_box *mem; /* gacc_box_bytes(n_tensors), mapped writable; not owned */
	uint64_t n_tensors;
	uint32_t slots;		       /* of the session */
	uint64_t seen[GACC_BOX_CELLS]; /* of the newest request that was taken or refused */
	uint64_t open[GACC_BOX_CELLS]; /* of the one that the caller has not answered; 0: none */
	bool bell_due;		       /* the trainer has not been told of something that was written */
};

enum box_look {
	BOX_NOTHING, /* seen before, or not there yet: its bell will come */
	BOX_TAKEN,   /* *out is a request; the caller owes an answer, and owns out->present */
	BOX_UNREADY, /* a push whose ready word has not its value: stays as it is; out->q is its request */
	BOX_REFUSED  /* the request was wrong, and is answered */
};

/* A copy of a request. Its kind, flags, zero fields, slot, weight, learning rate and bitmap are in order; whether
 * window, micro-batch and loss scale fit is for the caller. */
struct box_request {
	struct gacc_box_request q;
	uint32_t cell;
	unsigned char *present; /* gacc_box_present_bytes, malloc'ed; NULL: all tensors */
};

/* Takes over `mem`, perhaps from an engine that died: this is the only time that the answers are read. A bell is due,
 * since the predecessor may have died before its own. */
void box_take_over(struct box_cells *out, struct gacc_box *mem, uint64_t n_tensors, uint32_t slots);

/* Looks at one cell, which takes the time of one copy whatever is in there. A request that comes while another one of
 * its cell is open is refused with ST_SLOT_BUSY. */
enum box_look box_look(struct box_cells *, uint32_t cell, struct box_request *out);

/* A turn: looks at each cell once, in the order of the requests' numbers, and fills `out` with those that are taken, in
 * this order: what a trainer published before another request is taken before it, whatever cells they are in. Pushes
 * behind one that is not ready stay where they are. What is published meanwhile is left to the next turn, for which its
 * bell comes. Returns how many were taken. *unready: a bit for each cell that waits for its ready word without
 * GACC_BOX_RINGS, and must be looked at again without a bell; none in a mailbox that is closed, where only bells, and
 * commands that must not overtake what lies there, make it worth a look. */
uint32_t box_look_all(struct box_cells *, struct box_request out[GACC_BOX_CELLS], uint32_t *unready);

/* Answers request `seq` of this cell, which must be open. seq, reserved fields and check of `a` are filled in. Nothing
 * is written if the trainer has rewritten the cell: it has SLOT_BUSY as its answer, and waits for no other. */
void box_answer(struct box_cells *, uint32_t cell, uint64_t seq, const struct gacc_box_answer *a);

/* Before the answer to a WAIT for this window. Reserved fields and check are filled in. */
void box_write_step(struct box_cells *, const struct gacc_box_step *);

/* Rings the trainer's bell, an eventfd that cannot block, if something was written since the last time. At the end of
 * each turn. */
void box_ring(struct box_cells *, int bell);

/* Tells the trainer that nothing is read here any more. */
void box_set_closed(struct box_cells *);

#endif
