/* SPDX-License-Identifier: Apache-2.0 */
/* A job of two ranks with mailboxes at a real engine (rig.h), and trainers that use them (support/box.h). Functions
 * fail the test on errors. */
#ifndef GACC_TEST_ENGINE_BOXES_RIG_H
#define GACC_TEST_ENGINE_BOXES_RIG_H

#include "rig.h"

#include "engine/boxes.h"
#include "support/box.h"

#define BOXES_RANKS 2
#define BOXES_SOON_MS 5000 /* an answer that does not come */

extern struct rig boxes_rig;
extern struct mailbox_fds boxes_fds[BOXES_RANKS];
extern struct box_trainer boxes_trainer[BOXES_RANKS];

/* A mailbox of this session of the rank, with its trainer; the engine does not know of it. */
void boxes_make(uint32_t rank, uint64_t sgen);
void boxes_unmake(uint32_t rank);
/* MAILBOX with these descriptors; returns its id. */
uint64_t boxes_send_mailbox(struct engine_command, const int *passed, int n);
/* MAILBOX with the first n descriptors of the command's rank, and its answer. */
struct engine_answer boxes_give_as(struct engine_command, int n);
void boxes_give(uint32_t rank, uint64_t sgen);
/* A running job, all slots filled, with mailboxes that the engine does not have, or has. */
void boxes_begin(struct rig_config);
void boxes_begin_with_mailboxes(struct rig_config);
void boxes_end(void);
/* What rig_add_command pushes. */
struct gacc_box_request boxes_request(uint32_t micro, double weight);
/* With the bell. Returns seq. */
uint64_t boxes_publish(uint32_t rank, uint32_t cell, struct gacc_box_request);
struct gacc_box_answer boxes_await(uint32_t rank, uint32_t cell, uint64_t seq);
/* There is no answer, nor does one come soon. */
bool boxes_is_open(uint32_t rank, uint32_t cell, uint64_t seq);
struct gacc_box_answer boxes_push(uint32_t rank, uint32_t cell, struct gacc_box_request);
/* The engine has taken all that was published before. */
void boxes_settle(void);

#endif
