/* SPDX-License-Identifier: Apache-2.0 */
#include "real_engine.h"

#include "../engine/boxes_rig.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

void real_begin(bool given)
{
	struct rig_config c = rig_small();

	c.reject_nonfinite = true;
	ck_assert_uint_eq(c.ranks, REAL_RANKS);
	ck_assert_uint_eq(c.micro_size, REAL_MICRO);
	if (given)
		boxes_begin_with_mailboxes(c);
	else
		boxes_begin(c);
}

void real_end(void)
{
	boxes_end();
}

void real_give(uint32_t rank)
{
	boxes_give(rank, 1);
}

void real_kill(void)
{
	rig_kill(&boxes_rig);
}

void real_start(void)
{
	rig_start(&boxes_rig);
	for (uint32_t i = 0; i < REAL_RANKS; i++)
		real_give(i);
}

void real_set(uint32_t rank, uint32_t slot, double value)
{
	rig_set_gradient(&boxes_rig, rank * REAL_SLOTS + slot, 0, 0, (float)value);
}

void real_poison(uint32_t rank, uint32_t slot)
{
	real_set(rank, slot, NAN);
}

uint64_t real_tensors(void)
{
	return boxes_rig.plan->n_tensors;
}

struct cells_fds real_fds(uint32_t rank)
{
	const struct mailbox_fds *f = &boxes_fds[rank];

	return (struct cells_fds){ dup(f->memory), dup(f->submit), dup(f->waits) };
}

void real_set_closed(uint32_t rank)
{
	const uint64_t one = 1;

	__atomic_store_n(&boxes_trainer[rank].mem->header.closed, 1, __ATOMIC_RELEASE);
	ck_assert_int_eq(write(boxes_fds[rank].answer, &one, sizeof(one)), sizeof(one));
}

uint64_t real_send(const struct real_push *p)
{
	struct engine_command c = rig_add_command(&boxes_rig, p->rank, p->micro, p->weight);

	c.window = p->window;
	c.data_key = p->data_key;
	c.slot = p->rank * REAL_SLOTS + p->slot;
	c.loss = p->loss;
	c.loss_scale = p->loss_scale;
	c.window_lr = p->lr;
	return rig_send(&boxes_rig, c);
}

static struct engine_answer receive(uint64_t id)
{
	struct engine_answer a;

	do
		ck_assert_msg(rig_receive(&boxes_rig, &a), "the engine is gone");
	while (a.id != id);
	return a;
}

struct real_answer real_receive(uint64_t id)
{
	struct engine_answer a = receive(id);
	struct real_answer out = { .st = (enum status)a.status, .result = a.result, .counted = a.rank_counted };

	snprintf(out.text, sizeof(out.text), "%s", a.text);
	return out;
}

struct real_outcome real_close(void)
{
	struct engine_command close = { .op = ENGINE_CLOSE, .window = boxes_rig.window };
	struct engine_command go = { .op = ENGINE_GO, .window = boxes_rig.window, .term = 1, .attempt = 1 };
	struct engine_answer a;

	ck_assert_uint_eq(receive(rig_send(&boxes_rig, close)).status, ST_OK);
	a = receive(rig_send(&boxes_rig, go));
	ck_assert_uint_eq(a.status, ST_OK);
	return (struct real_outcome){ a.count, a.digest, a.sum_weight, a.sum_loss, a.sumsq };
}

void real_commit(double divisor)
{
	struct engine_command c = rig_commit_command(&boxes_rig, APPLIED, 1 / divisor, 0.5);

	c.result = (struct step_result){ .divisor = divisor, .micro_count = REAL_RANKS * REAL_MICRO };
	ck_assert_uint_eq(receive(rig_send(&boxes_rig, c)).status, ST_OK);
	boxes_rig.applied_step++;
	boxes_rig.window++;
}

uint64_t real_count(void)
{
	rig_read(&boxes_rig);
	return boxes_rig.state.r.count;
}
