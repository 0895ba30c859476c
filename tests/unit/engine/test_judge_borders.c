/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of a push: the borders of the rows of judge.h's table. */
#include "engine/commit.h"
#include "engine/refusal.h"
#include "judge_rig.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <string.h>

Suite *judge_borders_suite(void);

START_TEST(numbers_at_their_borders)
{
	RULED(judged.good.weight = DBL_MIN, PUSH_QUEUES);
	RULED(judged.good.weight = DBL_MAX, PUSH_QUEUES);
	RULED(judged.good.weight = DBL_MIN / 2, PUSH_BAD_WEIGHT);
	RULED(judged.good.weight = INFINITY, PUSH_BAD_WEIGHT);
	RULED(judged.good.weight = NAN, PUSH_BAD_WEIGHT);
	RULED(judged.good.weight = -1, PUSH_BAD_WEIGHT);
	RULED(judged.good.rank = JUDGED_RANKS - 1, PUSH_OUT_OF_ORDER);
	RULED((judged.good.rank = JUDGED_RANKS - 1, judged.good.micro = 0), PUSH_QUEUES);
	RULED(judged.good.rank = UINT32_MAX, PUSH_NO_RANK);
	RULED(judged.good.sgen = 0, PUSH_FENCED);
	RULED(judged.good.sgen = UINT64_MAX, PUSH_UNKNOWN);
	RULED(judged.good.window = UINT64_MAX, PUSH_EARLY);
	RULED(judged.good.window = 0, PUSH_FORGOTTEN);
	RULED(judged.good.micro = JUDGED_SIZE - 1, PUSH_OUT_OF_ORDER);
	RULED(judged.good.micro = UINT32_MAX, PUSH_PAST_END);
	RULED(judged.good.slot = JUDGED_SLOTS - 1, PUSH_QUEUES);
	RULED(judged.good.slot = UINT32_MAX, PUSH_NO_SLOT);
	RULED(judged.good.loss = NAN, PUSH_QUEUES);
	judged.state.r.count = 0; /* nobody has given the window a learning rate */
	RULED(judged.good.lr = 0, PUSH_QUEUES);
	RULED(judged.good.lr = COMMIT_MAX, PUSH_QUEUES);
	RULED(judged.good.lr = nextafter(COMMIT_MAX, INFINITY), PUSH_BAD_LR);
	RULED(judged.good.lr = NAN, PUSH_BAD_LR);
	RULED(judged.good.loss_scale = 0, PUSH_LOSS_SCALE);
	RULED(judged.good.loss_scale = NAN, PUSH_LOSS_SCALE);
	judged.state.r.loss_scale = 1;
	RULED(judged.good.loss_scale = 0, PUSH_QUEUES);
	RULED(judged.good.loss_scale = 1, PUSH_QUEUES);
}
END_TEST

START_TEST(bitmaps_of_any_size)
{
	unsigned char all[3] = { 0xff, 0xff, 0xff };
	judged.good.present = all;
	RULED(judged.good.n_present = 2, PUSH_BITMAP_END);
	all[1] = 0x07;
	RULED(judged.good.n_present = 2, PUSH_QUEUES);
	RULED(judged.good.n_present = 3, PUSH_BITMAP_SIZE);
	all[1] = 0x80;
	RULED(judged.good.n_present = 2, PUSH_BITMAP_END);
	judged.plan.plan.n_tensors = 16; /* no bits are left over */
	RULED(judged.good.n_present = 2, PUSH_QUEUES);
	judged.plan.plan.n_tensors = 17;
	all[2] = 1;
	RULED(judged.good.n_present = 3, PUSH_QUEUES);
	all[2] = 2;
	RULED(judged.good.n_present = 3, PUSH_BITMAP_END);
}
END_TEST

START_TEST(windows_that_are_over)
{
	judged.good.window = 6;
	control_set_bit(judged.state.last_counted, JUDGED_MICRO, 1, 0);
	RULED(judged.good.micro = 0, PUSH_IS_COMMITTED);
	RULED(judged.good.micro = 1, PUSH_LATE);
	RULED((judged.good.micro = 0, judged.good.rank = 2), PUSH_LATE);
	RULED(judged.good.micro = JUDGED_MICRO, PUSH_LATE); /* bit 0 of rank 2 is behind rank 1's last */
	control_set_bit(judged.state.last_counted, JUDGED_MICRO, 2, 0);
	RULED(judged.good.micro = JUDGED_MICRO, PUSH_LATE);
	RULED(judged.good.micro = UINT32_MAX, PUSH_LATE);
	RULED((judged.good.micro = 0, judged.good.weight = 0), PUSH_IS_COMMITTED); /* its numbers no longer matter */
	judged.state.r.commit_window = 5;					   /* this memory began with window 7 */
	RULED(judged.good.micro = 0, PUSH_FORGOTTEN);
	judged.state.r.window = 1;
	judged.state.r.commit_window = judged.state.r.commit_outcome =
		0; /* with window 1: zeros are no commit of window 0 */
	RULED((judged.good.window = 0, judged.good.micro = 0), PUSH_FORGOTTEN);
	judged.state.r.commit_outcome = 3;
	RULED((judged.good.window = 0, judged.good.micro = 0), PUSH_IS_COMMITTED);
}
END_TEST

/* The last window is that of this memory, and the job's. */
START_TEST(a_last_window_is_known_by_its_commit)
{
	judged.state.r.commit_result.final = 1;
	RULED(judged.good.micro = 1, PUSH_ENDED);
	RULED(judged.good.micro = UINT32_MAX, PUSH_ENDED);
	RULED(judged.good.window = 8, PUSH_EARLY);
	RULED(judged.good.window = 6, PUSH_LATE);
	judged.state.r.commit_window = 5;
	RULED(judged.good.micro = 1, PUSH_QUEUES);
	judged.state.r.commit_window = 6;
	judged.state.r.commit_outcome = 0;
	RULED(judged.good.micro = 1, PUSH_QUEUES);
}
END_TEST

START_TEST(keys_of_repeats)
{
	control_set_bit(judged.state.counted, JUDGED_MICRO, 1, 1);
	RULED(judged.good.data_key = 0, PUSH_IS_COUNTED);
	judged.ledger[1 * JUDGED_MICRO + 1].data_key = JUDGED_KEY;
	RULED(judged.good.data_key = 0, PUSH_IS_COUNTED);
	RULED(judged.good.data_key = JUDGED_KEY, PUSH_IS_COUNTED);
	RULED(judged.good.data_key = JUDGED_KEY + 1, PUSH_OTHER_KEY);
	judged.state.r.phase = WINDOW_PREPARED;
	judged.state.rank[1].flushed = RANK_LEFT;
	RULED(judged.good.data_key = JUDGED_KEY, PUSH_IS_COUNTED);
	RULED(judged.good.slot = 99, PUSH_IS_COUNTED);
}
END_TEST

START_TEST(repeats_of_what_is_queued)
{
	struct accum_entry *e = judged_queue(1, 1, 3);
	ck_assert_uint_eq(judged_good().entry, 0);
	RULED(judged.good.data_key = 0, PUSH_QUEUED_KEY);
	e->data_key = 0;
	RULED(judged.good.data_key = 0, PUSH_JOINS);
	RULED(judged.good.data_key = JUDGED_KEY, PUSH_QUEUED_KEY);
	e->data_key = JUDGED_KEY;
	for (e->n_askers = 1; e->n_askers < ACCUM_MAX_ASKERS; e->n_askers++)
		ck_assert_int_eq(judged_good().ruling, PUSH_JOINS);
	ck_assert_int_eq(judged_good().ruling, PUSH_QUEUED_ASKERS);
	judged_queue(2, 0, 4);
	accum_remove(&judged.queue, accum_find(&judged.queue, 1, 1));
	judged_queue(1, 1, 3);
	ck_assert_int_eq(judged_good().ruling, PUSH_JOINS);
	ck_assert_uint_eq(judged_good().entry, 1);
}
END_TEST

/* Every micro-batch of the rank before it is counted, void or queued. */
START_TEST(the_order_of_a_rank)
{
	char text[REFUSAL_BYTES];
	RULED(judged.good.micro = 2, PUSH_OUT_OF_ORDER);
	judged_queue(1, 1, 3);
	RULED(judged.good.micro = 2, PUSH_QUEUES);
	RULED((judged.good.micro = 3, judged.good.slot = 1), PUSH_OUT_OF_ORDER);
	control_set_bit(judged.state.voided, JUDGED_MICRO, 1, 2);
	RULED(judged.good.micro = 3, PUSH_QUEUES);
	accum_remove(&judged.queue,
		     accum_find(&judged.queue, 1, 1)); /* refused: it is expected again, and a later one waits for it */
	RULED(judged.good.micro = 1, PUSH_QUEUES);
	judged.good.micro = 3;
	struct verdict v = judged_good();
	ck_assert_int_eq(v.ruling, PUSH_OUT_OF_ORDER);
	refusal_describe(&judged.window, &judged.good, &v, text, sizeof(text));
	ck_assert_str_eq(text, "micro-batch 3 of rank 41: 1 of 4 is expected next");
	judged_queue(2, 1, 5); /* another rank's */
	RULED(judged.good.micro = 3, PUSH_OUT_OF_ORDER);
	judged.queue.canonical = false;
	RULED(judged.good.micro = 3, PUSH_QUEUES);
}
END_TEST

START_TEST(slots_of_a_session)
{
	ck_assert_uint_eq(accum_first_slot(&judged.window, 1), 2);
	judged_queue(0, 0, 0);
	judged_queue(2, 0, 4);
	RULED(judged.good.slot = 0, PUSH_QUEUES); /* 2 */
	judged_queue(2, 1, 3);
	RULED(judged.good.slot = 1, PUSH_SLOT_BUSY);
	RULED(judged.good.slot = 2, PUSH_NO_SLOT); /* 4, of rank 2 */
	judged.state.rank[1].session.spare = 1;
	ck_assert_uint_eq(accum_first_slot(&judged.window, 1), 6);
	RULED(judged.good.slot = 1, PUSH_QUEUES);
	judged.plan.plan.slots = 7;
	RULED(judged.good.slot = 0, PUSH_QUEUES);
	RULED(judged.good.slot = 1, PUSH_NO_SLOT); /* the engine has not so many */
}
END_TEST

START_TEST(who_has_left_gives_nothing)
{
	judged.state.rank[1].flushed = RANK_LEFT;
	RULED(judged.good.slot = 0, PUSH_FLUSHED);
	judged.state.rank[1].flushed = RANK_OPEN;
	for (judged.state.r.phase = WINDOW_CLOSED; judged.state.r.phase <= WINDOW_APPLYING; judged.state.r.phase++)
		RULED(judged.good.slot = 0, PUSH_CLOSED);
}
END_TEST

Suite *judge_borders_suite(void)
{
	Suite *s = suite_create("judge, borders");
	TCase *t = tcase_create("borders");
	tcase_add_checked_fixture(t, judged_begin, judged_end);
	tcase_add_test(t, numbers_at_their_borders);
	tcase_add_test(t, bitmaps_of_any_size);
	tcase_add_test(t, windows_that_are_over);
	tcase_add_test(t, a_last_window_is_known_by_its_commit);
	tcase_add_test(t, keys_of_repeats);
	tcase_add_test(t, repeats_of_what_is_queued);
	tcase_add_test(t, the_order_of_a_rank);
	tcase_add_test(t, slots_of_a_session);
	tcase_add_test(t, who_has_left_gives_nothing);
	suite_add_tcase(s, t);
	return s;
}
