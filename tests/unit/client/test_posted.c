/* SPDX-License-Identifier: Apache-2.0 */
/* The library's pushes through mailboxes, one after the other: fields, refusals, and when they go by RPC. */
#include "posted_rig.h"

#include "support/suite.h"

#include <string.h>

static struct gacc_job *const job = posted_rig.job;

Suite *posted_async_suite(void);
Suite *posted_kept_suite(void);
Suite *posted_ready_suite(void);

/* ---- pushes ---- */

START_TEST(both_ways_have_the_same_bits)
{
	struct real_outcome a, b;

	posted_rig_begin(true);
	posted_rig_push_window();
	ck_assert_int_eq(posted_rig.by_rpc, 0);
	a = real_close();
	posted_rig_end();
	posted_rig_begin(false);
	for (uint32_t r = 0; r < RANKS; r++)
		cells_close(&job[r].memory.cells);
	posted_rig_push_window();
	ck_assert_int_eq(posted_rig.by_rpc, RANKS * MICRO);
	b = real_close();
	posted_rig_end();
	ck_assert(a.count == RANKS * MICRO && a.sumsq > 0);
	ck_assert(a.count == b.count && a.sum_weight == b.sum_weight && a.sum_loss == b.sum_loss);
	ck_assert(a.sumsq == b.sumsq && a.digest == b.digest);
}
END_TEST

/* Whatever the engine refuses is refused by RPC, in its words. */
START_TEST(a_refusal_has_the_words_of_rpc)
{
	posted_rig_begin(true);
	posted_rig_push_window();
	posted_rig_again(0);
	ck_assert_int_eq(posted_rig_push(0, (gacc_push_opts){ .weight = 1, .data_key = 5 }, NULL), GACC_EINVAL);
	ck_assert_int_eq(posted_rig.by_rpc, 1);
	ck_assert_int_eq(job[0].failure.st, ST_DATA_KEY_MISMATCH);
	ck_assert_ptr_nonnull(strstr(gacc_last_error(&job[0]), "push of micro-batch 0 of window 0"));
	posted_rig_end();
}
END_TEST

START_TEST(what_was_counted_is_a_duplicate)
{
	gacc_push_info info;

	posted_rig_begin(true);
	posted_rig_push_window();
	posted_rig_again(0);
	ck_assert_int_eq(posted_rig_push(0, (gacc_push_opts){ .weight = 1, .data_key = 77 }, &info), GACC_OK);
	ck_assert(info.duplicate && posted_rig.by_rpc == 0);
	posted_rig_end();
}
END_TEST

/* All that a push says is in its request. */
START_TEST(every_field_arrives)
{
	const unsigned char bits[] = { 0x2d }; /* of six tensors */
	gacc_push_opts o = {
		.weight = 2.5, .loss = -0.5, .data_key = 99, .present = bits, .zero_after = 1, .lr = 0.125
	};
	struct gacc_box_request want = { .seq = 1,
					 .kind = GACC_BOX_PUSH,
					 .flags = GACC_BOX_ZERO_AFTER,
					 .window = 3,
					 .micro = 1,
					 .slot = 1,
					 .weight = 2.5,
					 .loss = -0.5,
					 .data_key = 99,
					 .loss_scale = 64,
					 .n_present = 1,
					 .lr = 0.125 };
	const struct gacc_box *mem;

	posted_rig_begin(false);
	mem = job[0].memory.cells.mem;
	window_begin(&job[0].window, 3, 3, MICRO, 64);
	window_pushed(&job[0].window, 0);
	job[0].held_slot = 1;
	o.async = 1;
	ck_assert_int_eq(posted_rig_push(0, o, NULL), GACC_OK);
	want.present_check = mem->request[0].present_check; /* checks: test_cells.c */
	want.check = mem->request[0].check;
	ck_assert_mem_eq(&mem->request[0], &want, sizeof(want));
	ck_assert_uint_eq(((const unsigned char *)mem)[gacc_box_present_at(real_tensors(), 0)], bits[0]);
	posted_rig_end();
}
END_TEST

/* The engine has not got the mailbox: RPC after a while, and at once from then on, until the cell is answered. */
START_TEST(nobody_reads_the_mailbox)
{
	gacc_push_info info;

	posted_rig_begin(false);
	job[0].memory.cells.patience_ms = 50;
	ck_assert_int_eq(posted_rig_push(0, (gacc_push_opts){ .weight = 1 }, &info), GACC_OK);
	ck_assert(posted_rig.by_rpc == 1 && info.count == 1 && !info.duplicate);
	job[0].memory.cells.patience_ms = 1000000;
	cells_close(&job[1].memory.cells);
	ck_assert_int_eq(posted_rig_push(1, (gacc_push_opts){ .weight = 1 }, &info), GACC_OK);
	ck_assert_int_eq(posted_rig_push(0, (gacc_push_opts){ .weight = 1 }, &info), GACC_OK);
	ck_assert(posted_rig.by_rpc == 3 && info.count == 2);
	real_give(0);
	posted_rig_await_answers(0);
	posted_rig_again(0);
	ck_assert_int_eq(posted_rig_push(0, (gacc_push_opts){ .weight = 1 }, &info), GACC_OK);
	ck_assert(posted_rig.by_rpc == 3 && info.duplicate); /* by its cell */
	ck_assert_uint_eq(real_count(), 3);		     /* each once */
	posted_rig_end();
}
END_TEST

/* A mailbox of a session that is to be replaced, or was, is dead. */
START_TEST(an_older_sessions_mailbox_is_left)
{
	posted_rig_begin(true);
	job[0].generation = _i == 0 ? 2 : 1;
	job[0].lost = _i == 1;
	ck_assert_int_eq(posted_rig_push(0, (gacc_push_opts){ .weight = 1 }, NULL), GACC_OK);
	ck_assert_int_eq(posted_rig.by_rpc, 1);
	ck_assert_uint_eq(job[0].memory.cells.mem->request[0].seq, 0);
	posted_rig_end();
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client posted");
	TCase *tc = tcase_create("pushes");

	tcase_set_timeout(tc, 30);
	tcase_add_test(tc, both_ways_have_the_same_bits);
	tcase_add_test(tc, a_refusal_has_the_words_of_rpc);
	tcase_add_test(tc, what_was_counted_is_a_duplicate);
	tcase_add_test(tc, every_field_arrives);
	tcase_add_test(tc, nobody_reads_the_mailbox);
	tcase_add_loop_test(tc, an_older_sessions_mailbox_is_left, 0, 2);
	suite_add_tcase(suite, tc);
	return suite_run(suite, posted_async_suite(), posted_kept_suite(), posted_ready_suite());
}
