/* SPDX-License-Identifier: Apache-2.0 */
/* A mailbox's memory between two pages that nobody may touch, for tests of its cells. */
#ifndef GACC_TESTS_BOX_RIG_H
#define GACC_TESTS_BOX_RIG_H

#include "engine/mailbox_cells.h"

#define RIG_TENSORS 11
#define RIG_SLOTS 2

struct box_rig {
	struct gacc_box *mem; /* its last byte is the last one before a page that nobody may touch */
	size_t bytes;
	struct box_cells cells;
	void *map;
	size_t map_bytes;
};

void box_rig_make(struct box_rig *, uint64_t n_tensors);
void box_rig_free(struct box_rig *);
/* A push that the engine may take. */
struct gacc_box_request box_rig_push(uint64_t seq);
/* Stores q in a cell with its right check. */
void box_rig_put(struct box_rig *, uint32_t cell, struct gacc_box_request q);
/* The bitmap of a cell, and what a request says of it. */
void box_rig_present(struct box_rig *, uint32_t cell, struct gacc_box_request *q, const unsigned char *bits);
/* box_look; frees a bitmap. */
enum box_look box_rig_look(struct box_rig *, uint32_t cell, struct box_request *out);
/* Is the answer of this cell whole, and of this number? *out is a copy. */
bool box_rig_answered(const struct box_rig *, uint32_t cell, uint64_t seq, struct gacc_box_answer *out);
/* The engine dies, and another one takes the mailbox. */
void box_rig_restart(struct box_rig *);

#endif
