/* SPDX-License-Identifier: Apache-2.0 */
/* Slots that are the sum until their window is over, or may be: which of them the library gives out, and what a
 * repeated push says. */
#include "posted_rig.h"

#include "support/suite.h"

#include <string.h>

static struct gacc_job *const job = posted_rig.job;

Suite *posted_kept_suite(void);

/* Without accumulators a slot that was pushed is the sum, until its window is over. */
START_TEST(a_slot_that_is_the_sum_is_not_handed_out)
{
	void *first, *other;

	posted_rig_begin(true);
	job[0].layout.keeps_slot = true;
	ck_assert_int_eq(gacc_grad_buffer(&job[0], &first, NULL), GACC_OK);
	ck_assert_int_eq(gacc_push(&job[0], NULL, NULL), GACC_OK);
	ck_assert_int_eq(gacc_grad_buffer(&job[0], &other, NULL), GACC_OK);
	ck_assert(first == posted_rig.slot[0] && other == posted_rig.slot[1]);
	job[0].held_slot = -1;
	job[0].layout.slots = 1; /* as if it had no other */
	ck_assert_int_eq(gacc_grad_buffer(&job[0], &other, NULL), GACC_EINVAL);
	window_give_up(&job[0].window);
	ck_assert_int_eq(gacc_grad_buffer(&job[0], &other, NULL), GACC_EINVAL);
	ck_assert_ptr_nonnull(strstr(gacc_last_error(&job[0]), "call gacc_wait"));
	job[0].layout.slots = 2;
	job[0].kept_slots = 0; /* as in a process that has attached anew */
	ck_assert_int_eq(gacc_grad_buffer(&job[0], &other, NULL), GACC_EINVAL);
	job[0].window.number++;
	job[0].window.at = 0;
	ck_assert_int_eq(gacc_grad_buffer(&job[0], &other, NULL), GACC_OK);
	job[0].held_slot = -1;
	job[0].running = false;
	ck_assert_int_eq(gacc_grad_buffer(&job[0], &other, NULL), GACC_EINVAL);
	ck_assert_ptr_nonnull(strstr(gacc_last_error(&job[0]), "call gacc_ready"));
	posted_rig_end();
}
END_TEST

/* A push by RPC that gets no answer: whether it is counted is not known. */
static void push_in_vain(void **slot)
{
	ck_assert_int_eq(gacc_grad_buffer(&job[0], slot, NULL), GACC_OK);
	posted_rig.say = ST_UNAVAILABLE;
	ck_assert_int_eq(gacc_push(&job[0], NULL, NULL), GACC_EUNAVAIL);
}

/* Without accumulators its slot may be the sum: what is computed anew gets another one. */
START_TEST(a_slot_that_may_be_the_sum_is_not_handed_out)
{
	void *first, *second, *next;

	posted_rig_begin(true);
	job[0].layout.keeps_slot = true;
	real_set_closed(0);
	push_in_vain(&first);
	if (_i) /* it was counted */
		real_receive(real_send(&(struct real_push){ .weight = 1, .slot = 0 }));
	push_in_vain(&second);
	ck_assert(first == posted_rig.slot[0] && second == posted_rig.slot[1]);
	ck_assert_int_eq(gacc_grad_buffer(&job[0], &next, NULL), GACC_EINVAL);
	ck_assert_ptr_nonnull(strstr(gacc_last_error(&job[0]), "call gacc_push"));
	ck_assert_int_eq(gacc_push(&job[0], NULL, NULL), GACC_OK);
	ck_assert_int_eq(posted_rig.by_rpc, 3);
	window_give_up(&job[0].window);
	/* a duplicate: of which of the two is not known */
	ck_assert_int_eq(gacc_grad_buffer(&job[0], &next, NULL), _i ? GACC_EINVAL : GACC_OK);
	if (_i)
		ck_assert_ptr_nonnull(strstr(gacc_last_error(&job[0]), "call gacc_wait"));
	else
		ck_assert_ptr_eq(next, first);
	posted_rig_end();
}
END_TEST

START_TEST(a_copy_is_pushed_again_as_it_is)
{
	const void *absent[64] = { NULL };
	void *first, *next;

	posted_rig_begin(true);
	job[0].layout.keeps_slot = true;
	real_set_closed(0);
	ck_assert_uint_le(job[0].layout.n, 64);
	push_in_vain(&first);
	ck_assert_int_eq(gacc_push_copy(&job[0], absent, NULL, NULL), GACC_OK);
	ck_assert_uint_eq(posted_rig.present, 255);
	ck_assert_int_eq(gacc_grad_buffer(&job[0], &next, NULL), GACC_OK);
	ck_assert_ptr_eq(next, posted_rig.slot[1]);
	posted_rig_end();
}
END_TEST

/* Of other gradients, and with others absent: a tensor whose gradient was never copied is not pushed with old bytes. */
START_TEST(a_copy_is_pushed_again_with_what_it_has)
{
	const float was = 1, is = 2;
	const void *first[64] = { &was }, *other[64] = { NULL, &is };
	struct tensor tensors[64] = { { .count = 1, .grad_dtype = GACC_F32 },
				      { .count = 1, .grad_dtype = GACC_F32, .slot_offset = sizeof(float) } };
	gacc_push_opts o = { .struct_size = sizeof(o), .data_key = 5 };
	void *slot;

	posted_rig_begin(true);
	job[0].layout.keeps_slot = true;
	job[0].layout.tensors = tensors;
	real_set_closed(0);
	for (int i = 0; i < 3; i++) {
		posted_rig.say = i < 2 ? ST_UNAVAILABLE : ST_OK;
		ck_assert_int_eq(gacc_push_copy(&job[0], i ? other : first, &o, NULL), i < 2 ? GACC_EUNAVAIL : GACC_OK);
		ck_assert_uint_eq(posted_rig.present, 1);
		ck_assert(!memcmp(posted_rig.slot[0], &was, sizeof(was)));
	}
	ck_assert_int_eq(posted_rig.by_rpc, 3);
	posted_rig_again(0); /* a window later, in the same slots */
	job[0].kept_window = 99;
	posted_rig.say = ST_UNAVAILABLE;
	ck_assert_int_eq(gacc_push_copy(&job[0], other, &o, NULL), GACC_EUNAVAIL);
	ck_assert(posted_rig.present == 2 && !memcmp(posted_rig.slot[0] + sizeof(is), &is, sizeof(is)));
	o.data_key = 6; /* other data go to another slot, which a repetition does not look for */
	ck_assert_int_eq(gacc_push_copy(&job[0], first, &o, NULL), GACC_EINVAL);
	ck_assert_ptr_nonnull(strstr(gacc_last_error(&job[0]), "data_key"));
	ck_assert_int_eq(posted_rig.by_rpc, 4);
	ck_assert_int_eq(gacc_grad_buffer(&job[0], &slot, NULL), GACC_OK);
	ck_assert_ptr_eq(slot, posted_rig.slot[1]);
	posted_rig.say = ST_UNAVAILABLE;
	ck_assert_int_eq(gacc_push_copy(&job[0], first, &o, NULL), GACC_EUNAVAIL);
	ck_assert(posted_rig.present == 1 && !memcmp(slot, &was, sizeof(was)));
	posted_rig_end();
}
END_TEST

/* Nobody reads what was refused. */
START_TEST(a_slot_that_was_refused_is_handed_out)
{
	void *first, *next;

	posted_rig_begin(true);
	job[0].layout.keeps_slot = true;
	real_set_closed(0);
	ck_assert_int_eq(gacc_grad_buffer(&job[0], &first, NULL), GACC_OK);
	posted_rig.say = ST_BAD_WEIGHT;
	ck_assert_int_eq(gacc_push(&job[0], NULL, NULL), GACC_EINVAL);
	ck_assert_int_eq(gacc_grad_buffer(&job[0], &next, NULL), GACC_OK);
	ck_assert_ptr_eq(next, first);
	posted_rig_end();
}
END_TEST

/* A repetition that is refused says nothing of the attempt before it, which may be counted. */
START_TEST(a_slot_whose_repetition_was_refused_is_kept)
{
	void *first, *next;

	posted_rig_begin(true);
	job[0].layout.keeps_slot = true;
	real_set_closed(0);
	push_in_vain(&first);
	posted_rig.say = ST_BAD_WEIGHT;
	ck_assert_int_eq(gacc_push(&job[0], NULL, NULL), GACC_EINVAL);
	ck_assert_int_eq(gacc_grad_buffer(&job[0], &next, NULL), GACC_OK);
	ck_assert(first == posted_rig.slot[0] && next == posted_rig.slot[1]);
	posted_rig_end();
}
END_TEST

Suite *posted_kept_suite(void)
{
	Suite *suite = suite_create("client posted kept");
	TCase *t = tcase_create("kept");

	tcase_set_timeout(t, 30);
	tcase_add_test(t, a_slot_that_is_the_sum_is_not_handed_out);
	tcase_add_loop_test(t, a_slot_that_may_be_the_sum_is_not_handed_out, 0, 2);
	tcase_add_test(t, a_copy_is_pushed_again_as_it_is);
	tcase_add_test(t, a_copy_is_pushed_again_with_what_it_has);
	tcase_add_test(t, a_slot_that_was_refused_is_handed_out);
	tcase_add_test(t, a_slot_whose_repetition_was_refused_is_kept);
	suite_add_tcase(suite, t);
	return suite;
}
