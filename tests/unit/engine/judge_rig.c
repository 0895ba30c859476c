/* SPDX-License-Identifier: Apache-2.0 */
#include "judge_rig.h"

#include <check.h>
#include <string.h>

struct judged judged = { .window = { &judged.plan.plan, &judged.state, judged.ledger, &judged.queue } };

void judged_begin(void)
{
	judged.plan.plan = (struct plan){ .job_id = 9,
					  .ranks = JUDGED_RANKS,
					  .slots = (JUDGED_RANKS + 1) * JUDGED_SLOTS,
					  .slots_per_rank = JUDGED_SLOTS,
					  .n_tensors = JUDGED_TENSORS,
					  .numbers_offset = sizeof(struct plan) };
	memcpy(judged.plan.numbers, (uint32_t[]){ 40, 41, 42 }, sizeof(judged.plan.numbers));
	memset(judged.ledger, 0, sizeof(judged.ledger));
	memset(judged.bitmap, 0, sizeof(judged.bitmap));
	ck_assert_int_eq(control_state_init(&judged.state, JUDGED_RANKS, JUDGED_MICRO), ST_OK);
	ck_assert_int_eq(accum_init(&judged.queue, 8, JUDGED_MICRO, true), ST_OK);
	judged.state.r.window = 7;
	judged.state.r.commit_window = 6;
	judged.state.r.commit_outcome = 1;
	judged.state.r.micro_size = JUDGED_SIZE;
	judged.state.r.loss_scale = 8;
	judged.state.r.count = 1;
	judged.state.r.window_lr = 0.5;
	judged.state.r.lr_rank = 1;
	control_set_bit(judged.state.counted, JUDGED_MICRO, 1, 0);
	for (uint32_t i = 0; i < JUDGED_RANKS; i++)
		judged.state.rank[i].sgen = 2;
	judged.state.rank[1].session.pid = 123;
	judged.good = (struct push){ .rank = 1,
				     .micro = 1,
				     .sgen = 2,
				     .window = 7,
				     .data_key = JUDGED_KEY,
				     .weight = 2,
				     .lr = 0.5,
				     .loss_scale = 8 };
	judged.full = false;
}

void judged_end(void)
{
	accum_fini(&judged.queue);
	control_state_fini(&judged.state);
}

struct accum_entry *judged_queue(uint32_t rank, uint32_t micro, uint32_t slot)
{
	if (!accum_find(&judged.queue, rank, micro))
		accum_queue(&judged.queue, &(struct accum_entry){ .n_askers = 1,
								  .rank = rank,
								  .micro = micro,
								  .slot = slot,
								  .data_key = JUDGED_KEY,
								  .window_lr = judged.good.lr });
	return accum_find(&judged.queue, rank, micro);
}

struct verdict judged_good(void)
{
	uint32_t capacity = judged.queue.capacity;
	if (judged.full)
		judged.queue.capacity = judged.queue.n;
	struct verdict v = accum_judge(&judged.window, &judged.good);
	judged.queue.capacity = capacity;
	return v;
}
