/* SPDX-License-Identifier: Apache-2.0 */
#include "boxes_rig.h"

#include <check.h>

struct rig boxes_rig;
struct mailbox_fds boxes_fds[BOXES_RANKS];
struct box_trainer boxes_trainer[BOXES_RANKS];

void boxes_make(uint32_t rank, uint64_t sgen)
{
	char why[160] = "";
	struct mailbox_owner o = { .job = RIG_JOB,
				   .sgen = sgen,
				   .rank = rank,
				   .slots = boxes_rig.plan->slots_per_rank,
				   .n_tensors = boxes_rig.plan->n_tensors };
	ck_assert_msg(mailbox_make(&boxes_fds[rank], &o, why, sizeof(why)) == ST_OK, "%s", why);
	box_trainer_open(&boxes_trainer[rank], &boxes_fds[rank], boxes_rig.plan->n_tensors);
}

void boxes_unmake(uint32_t rank)
{
	box_trainer_close(&boxes_trainer[rank]);
	mailbox_close_fds(&boxes_fds[rank]);
}

uint64_t boxes_send_mailbox(struct engine_command c, const int *passed, int n)
{
	c.op = ENGINE_MAILBOX;
	c.id = ++boxes_rig.next_id;
	ck_assert_int_eq(packet_send(boxes_rig.fd, &c, sizeof(c), NULL, 0, passed, n), 0);
	return c.id;
}

struct engine_answer boxes_give_as(struct engine_command c, int n)
{
	struct engine_answer a;
	const int passed[] = { boxes_fds[c.rank % BOXES_RANKS].memory, boxes_fds[c.rank % BOXES_RANKS].submit,
			       boxes_fds[c.rank % BOXES_RANKS].answer };
	uint64_t id = boxes_send_mailbox(c, passed, n);
	ck_assert(rig_receive(&boxes_rig, &a));
	ck_assert(a.op == ENGINE_MAILBOX && a.id == id);
	return a;
}

void boxes_give(uint32_t rank, uint64_t sgen)
{
	struct engine_answer a =
		boxes_give_as((struct engine_command){ .rank = rank, .sgen = sgen, .epoch = 1 }, BOXES_FDS);
	ck_assert_msg(a.status == ST_OK, "%u %s", a.status, a.text);
}

void boxes_begin(struct rig_config c)
{
	rig_begin(&boxes_rig, c);
	rig_fill_all(&boxes_rig, 1, true);
	rig_zero_params(&boxes_rig);
	for (uint32_t i = 0; i < BOXES_RANKS; i++)
		boxes_make(i, 1);
}

void boxes_begin_with_mailboxes(struct rig_config c)
{
	boxes_begin(c);
	for (uint32_t i = 0; i < BOXES_RANKS; i++)
		boxes_give(i, 1);
}

void boxes_end(void)
{
	for (uint32_t i = 0; i < BOXES_RANKS; i++)
		boxes_unmake(i);
	rig_close(&boxes_rig);
}

/* The push of rig_add_command. */
struct gacc_box_request boxes_request(uint32_t micro, double weight)
{
	return (struct gacc_box_request){ .kind = GACC_BOX_PUSH,
					  .window = boxes_rig.window,
					  .micro = micro,
					  .slot = micro,
					  .weight = weight,
					  .loss = 1.5 };
}

uint64_t boxes_publish(uint32_t rank, uint32_t cell, struct gacc_box_request q)
{
	uint64_t seq = box_publish(&boxes_trainer[rank], cell, q, NULL);
	box_bell(&boxes_trainer[rank]);
	return seq;
}

struct gacc_box_answer boxes_await(uint32_t rank, uint32_t cell, uint64_t seq)
{
	struct gacc_box_answer a;
	ck_assert_msg(box_await(&boxes_trainer[rank], cell, seq, &a, BOXES_SOON_MS), "rank %u: cell %u is not answered",
		      rank, cell);
	return a;
}

bool boxes_is_open(uint32_t rank, uint32_t cell, uint64_t seq)
{
	struct gacc_box_answer a;
	return !box_await(&boxes_trainer[rank], cell, seq, &a, 50);
}

struct gacc_box_answer boxes_push(uint32_t rank, uint32_t cell, struct gacc_box_request q)
{
	return boxes_await(rank, cell, boxes_publish(rank, cell, q));
}

/* The engine has taken all that was published before. */
void boxes_settle(void)
{
	ck_assert_uint_eq(rig_call(&boxes_rig, (struct engine_command){ .op = ENGINE_PING }).status, ST_OK);
}
