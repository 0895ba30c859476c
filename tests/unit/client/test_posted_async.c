/* SPDX-License-Identifier: Apache-2.0 */
/* The library's asynchronous pushes, which lie in cells of mailboxes: slots, order, refusals, outages. */
#include "posted_rig.h"

#include "gacc/v1/gradient.pb-c.h"
#include "support/suite.h"

#include <pthread.h>
#include <string.h>

static struct gacc_job *const job = posted_rig.job;

Suite *posted_async_suite(void);

/* ---- asynchronous ---- */

static void post(uint32_t rank, gacc_push_opts o)
{
	o.async = 1;
	ck_assert_int_eq(posted_rig_push(rank, o, NULL), GACC_OK);
}

static gacc_push_opts weighs(double weight)
{
	return (gacc_push_opts){ .weight = weight };
}

START_TEST(pushes_need_no_thread)
{
	struct real_outcome a, b;

	posted_rig_begin(true);
	for (uint32_t r = RANKS; r-- > 0;) /* rank 1 waits for rank 0 */
		for (uint32_t m = 0; m < MICRO; m++) {
			gacc_push_opts o = { .weight = 1 + 2 * m + r, .loss = 0.25 + m, .data_key = 77 + m };

			post(r, o);
			ck_assert_uint_eq(job[r].posted.n, m + 1);
		}
	for (uint32_t r = 0; r < RANKS; r++) {
		ck_assert_uint_eq(posted_rig_next(r), MICRO); /* what is posted is no longer owed */
		ck_assert_int_eq(async_settle(&job[r]), GACC_OK);
		ck_assert(job[r].posted.n == 0 && !job[r].sender);
	}
	ck_assert_int_eq(posted_rig.by_rpc, 0);
	a = real_close();
	posted_rig_end();
	posted_rig_begin(true);
	posted_rig_push_window();
	b = real_close();
	posted_rig_end();
	ck_assert(a.count == b.count && a.digest == b.digest && a.sum_loss == b.sum_loss);
}
END_TEST

/* A slot is handed out again when the answer to its push is there. */
START_TEST(slots_are_not_shared)
{
	void *first, *second, *third;

	posted_rig_begin(false);
	job[0].memory.cells.patience_ms = 50;
	ck_assert_int_eq(gacc_grad_buffer(&job[0], &first, NULL), GACC_OK);
	post(0, weighs(1));
	ck_assert_int_eq(gacc_grad_buffer(&job[0], &second, NULL), GACC_OK);
	ck_assert(first == posted_rig.slot[0] && second == posted_rig.slot[1] && posted_rig.by_rpc == 0);
	post(0, weighs(1));
	real_send(&(struct real_push){ .rank = 1, .weight = 1 }); /* or micro-batch 1 would wait for it */
	ck_assert_int_eq(gacc_grad_buffer(&job[0], &third, NULL), GACC_OK);
	ck_assert(third == posted_rig.slot[0] && posted_rig.by_rpc == 1 && job[0].posted.n == 1);
	posted_rig_end();
}
END_TEST

/* Nothing is accepted: each goes by RPC after the one before. */
START_TEST(repeats_go_in_order)
{
	posted_rig_begin(false);
	job[0].memory.cells.patience_ms = 50;
	real_send(&(struct real_push){ .rank = 1, .weight = 1 });
	post(0, weighs(1));
	post(0, weighs(1));
	ck_assert_int_eq(async_settle(&job[0]), GACC_OK);
	ck_assert(posted_rig.by_rpc == 2 && posted_rig.order[0] == 0 && posted_rig.order[1] == 1);
	ck_assert_uint_eq(real_count(), 3);
	posted_rig_end();
}
END_TEST

/* What lies behind a refused push is out of order, in its cell and by RPC. The first one's words are told. */
START_TEST(a_refused_push_takes_those_behind_it_along)
{
	posted_rig_begin(true);
	ck_assert_int_eq(posted_rig_push(0, (gacc_push_opts){ .lr = 0.5 }, NULL), GACC_OK);
	post(1, (gacc_push_opts){ .lr = 0.25 });
	post(1, (gacc_push_opts){ .lr = 0.5 });
	ck_assert_int_eq(async_settle(&job[1]), GACC_EINVAL);
	ck_assert_int_eq(job[1].failure.st, ST_LR_MISMATCH);
	ck_assert_ptr_nonnull(strstr(gacc_last_error(&job[1]), "push of micro-batch 0 of window 0"));
	ck_assert(posted_rig.by_rpc == 2 && posted_rig.order[0] == 0 && posted_rig.order[1] == 1);
	ck_assert(job[1].lost && job[1].posted.n == 0); /* only a new session knows what is owed */
	ck_assert_uint_eq(real_count(), 1);
	posted_rig_end();
}
END_TEST

/* Nothing stays in a cell behind a refused one: its slot is about to be written to. */
START_TEST(a_slot_is_not_given_out_behind_a_refusal)
{
	void *buffer;

	posted_rig_begin(true);
	ck_assert_int_eq(posted_rig_push(0, (gacc_push_opts){ .lr = 0.5 }, NULL), GACC_OK);
	post(1, (gacc_push_opts){ .lr = 0.25 });
	post(1, (gacc_push_opts){ .lr = 0.5 });
	ck_assert_int_eq(gacc_grad_buffer(&job[1], &buffer, NULL), GACC_EINVAL);
	ck_assert(job[1].posted.n == 0 && job[1].lost);
	posted_rig_end();
}
END_TEST

/* A push that waits for its answer comes after those before it, and reports them. */
START_TEST(a_push_settles_those_before_it)
{
	posted_rig_begin(true);
	ck_assert_int_eq(posted_rig_push(0, (gacc_push_opts){ .lr = 0.5 }, NULL), GACC_OK);
	post(1, (gacc_push_opts){ .lr = 0.25 });
	ck_assert_int_eq(posted_rig_push(1, (gacc_push_opts){ .lr = 0.5 }, NULL), GACC_EINVAL);
	ck_assert_int_eq(job[1].failure.st, ST_LR_MISMATCH);
	ck_assert(job[1].posted.n == 0 && posted_rig.by_rpc == 1);
	ck_assert_uint_eq(job[1].memory.cells.seq, 1);
	posted_rig_end();
}
END_TEST

/* What follows pushes on the sender's thread goes there, too: it must not overtake them. */
START_TEST(a_cell_does_not_overtake_the_sender)
{
	posted_rig_begin(true);
	cells_close(&job[0].memory.cells);
	real_send(&(struct real_push){ .rank = 1, .weight = 1 });
	posted_rig_hold(true);
	post(0, weighs(1));
	posted_rig_open_mailbox(0);
	post(0, weighs(1));
	ck_assert(job[0].posted.n == 0 && job[0].memory.cells.seq == 0);
	posted_rig_hold(false);
	ck_assert_int_eq(async_settle(&job[0]), GACC_OK);
	ck_assert(posted_rig.by_rpc == 2 && posted_rig.order[0] == 0 && posted_rig.order[1] == 1);
	posted_rig_again(0);
	post(0, weighs(1)); /* and when they are done, to a cell */
	ck_assert_uint_eq(job[0].posted.n, 1);
	ck_assert_int_eq(async_settle(&job[0]), GACC_OK);
	sender_free(job[0].sender);
	posted_rig_end();
}
END_TEST

/* An outage without end is told, and nothing is forgotten: the next call tries again. */
START_TEST(an_outage_keeps_what_is_posted)
{
	uint32_t queued[SLOTS_MAX];

	posted_rig_begin(false);
	job[0].memory.cells.patience_ms = 50;
	real_send(&(struct real_push){ .rank = 1, .weight = 1 });
	post(0, weighs(1));
	post(0, weighs(1));
	posted_rig.say = ST_UNAVAILABLE;
	ck_assert_int_eq(async_settle(&job[0]), GACC_EUNAVAIL);
	ck_assert_uint_eq(posted_queued(&job[0].posted, queued), 2);
	ck_assert(queued[0] == 0 && queued[1] == 1);
	ck_assert_int_eq(async_settle(&job[0]), GACC_OK);
	ck_assert_int_eq(posted_rig.by_rpc, 3);
	posted_rig_end();
}
END_TEST

/* Closed under way: what lies there goes by RPC, then what comes, on the sender's thread and in order. */
START_TEST(after_closed_there_is_the_sender)
{
	posted_rig_begin(false);
	real_send(&(struct real_push){ .rank = 1, .weight = 1 });
	post(0, weighs(1));
	real_set_closed(0);
	post(0, weighs(1));
	ck_assert(!job[0].sender && job[0].posted.n == 2);
	ck_assert_int_eq(async_settle(&job[0]), GACC_OK);
	ck_assert(posted_rig.by_rpc == 2 && posted_rig.order[0] == 0 && posted_rig.order[1] == 1);
	posted_rig_again(0);
	post(0, weighs(1));
	ck_assert(job[0].sender && job[0].posted.n == 0);
	ck_assert_int_eq(async_settle(&job[0]), GACC_OK);
	ck_assert_int_eq(posted_rig.by_rpc, 3);
	sender_free(job[0].sender);
	posted_rig_end();
}
END_TEST

START_TEST(a_closed_window_is_given_up)
{
	posted_rig_begin(true);
	real_close();
	post(0, weighs(1));
	ck_assert_int_eq(async_settle(&job[0]), GACC_ESTALE);
	ck_assert_uint_eq(posted_rig_next(0), MICRO);
	ck_assert(!job[0].lost);
	ck_assert_int_eq(async_settle(&job[0]), GACC_OK);
	posted_rig_end();
}
END_TEST

START_TEST(a_void_push_is_told_once)
{
	posted_rig_begin(true);
	real_poison(0, 0);
	post(0, weighs(1));
	ck_assert_int_eq(async_settle(&job[0]), GACC_ENONFINITE);
	ck_assert_ptr_nonnull(strstr(job[0].failure.text, "micro-batch 0 of window 0"));
	ck_assert(posted_rig.by_rpc == 0 && !job[0].lost);
	ck_assert_int_eq(async_settle(&job[0]), GACC_OK);
	posted_rig_end();
}
END_TEST

START_TEST(the_engine_dies_with_pushes_in_cells)
{
	posted_rig_begin(true);
	real_kill();
	for (uint32_t r = 0; r < RANKS; r++)
		for (uint32_t m = 0; m < MICRO; m++)
			post(r, weighs(1));
	real_start();
	for (uint32_t r = 0; r < RANKS; r++)
		ck_assert_int_eq(async_settle(&job[r]), GACC_OK);
	ck_assert(posted_rig.by_rpc == 0 && real_count() == RANKS * MICRO);
	posted_rig_end();
}
END_TEST

/* A new session while pushes are posted: gacc_next does not hand them out again, and their numbers mean nothing. */
START_TEST(a_new_session_knows_what_is_posted)
{
	Gacc__V1__WaitReadyResponse ready = GACC__V1__WAIT_READY_RESPONSE__INIT;
	uint32_t missing[] = { 0, 1 };
	int64_t start = now_ms();

	posted_rig_begin(false);
	job[0].memory.cells.patience_ms = 10000;
	post(0, weighs(1));
	ready.missing = missing;
	ready.n_missing = 2;
	ready.micro_size = MICRO;
	ck_assert_int_eq(position_adopt(&job[0], &ready), ST_OK);
	ck_assert_uint_eq(posted_rig_next(0), 1);
	job[0].posted.entry[0].sgen = 0; /* the mailbox is another one, in which this number is open, too */
	ck_assert_int_eq(async_settle(&job[0]), GACC_OK);
	ck_assert_int_eq(posted_rig.by_rpc, 1);
	ck_assert_int_lt(now_ms() - start, 9000);
	posted_rig_end();
}
END_TEST

/* ---- pushes that are parked ---- */

/* They wait for another rank, which gacc_wait's limit is for, too: in cells (0), and at the sender (1). */
START_TEST(a_wait_for_parked_pushes_has_a_limit)
{
	int64_t start = now_ms();

	posted_rig_begin(true);
	if (_i) {
		cells_close(&job[1].memory.cells);
		posted_rig_hold(true);
	}
	for (uint32_t m = 0; m < MICRO; m++)
		post(1, weighs(1));
	for (int i = 0; i < 3; i++) {
		ck_assert_int_eq(gacc_wait(&job[1], 50 * i, NULL), GACC_ETIMEOUT);
		ck_assert_ptr_nonnull(strstr(gacc_last_error(&job[1]), "push of micro-batch 0 of window 0"));
	}
	ck_assert(now_ms() - start >= 150 && now_ms() - start < 10000);
	ck_assert_int_eq(posted_rig.by_rpc, 0);
	posted_rig_hold(false);
	for (uint32_t m = 0; m < MICRO; m++)
		ck_assert_int_eq(posted_rig_push(0, weighs(1), NULL), GACC_OK);
	ck_assert_int_eq(async_settle(&job[1]), GACC_OK); /* nothing is forgotten */
	ck_assert(real_count() == RANKS * MICRO && posted_rig.by_rpc == (_i ? MICRO : 0));
	sender_free(job[1].sender);
	posted_rig_end();
}
END_TEST

/* What is to be said by RPC is said also to a caller that only looks. */
START_TEST(a_look_at_refused_pushes_goes_on)
{
	posted_rig_begin(true);
	ck_assert_int_eq(posted_rig_push(0, (gacc_push_opts){ .lr = 0.5 }, NULL), GACC_OK);
	post(1, (gacc_push_opts){ .lr = 0.25 });
	post(1, (gacc_push_opts){ .lr = 0.5 });
	sleep_ms(50);
	ck_assert_int_eq(gacc_wait(&job[1], 0, NULL), GACC_EINVAL);
	ck_assert_int_eq(job[1].failure.st, ST_LR_MISMATCH);
	ck_assert(job[1].posted.n == 0 && job[1].lost);
	posted_rig_end();
}
END_TEST

/* ---- whole windows ---- */

static void *commit_soon(void *divisor)
{
	sleep_ms(20);
	real_commit(*(double *)divisor);
	return NULL;
}

/* The window is over before the ranks wait for it, or while they do. */
START_TEST(windows_without_rpc)
{
	posted_rig_begin(true);
	for (uint64_t window = 0; window < 6; window++) {
		double divisor = (double)window + 2;
		pthread_t thread;
		gacc_step s;

		for (uint32_t m = 0; m < MICRO; m++)
			for (uint32_t r = RANKS; r-- > 0;)
				post(r, weighs(1));
		for (uint32_t r = 0; r < RANKS; r++)
			ck_assert_int_eq(async_settle(&job[r]), GACC_OK);
		ck_assert_uint_eq(real_close().count, RANKS * MICRO);
		if (window % 2)
			real_commit(divisor);
		else
			pthread_create(&thread, NULL, commit_soon, &divisor);
		for (uint32_t r = 0; r < RANKS; r++) {
			ck_assert_int_eq(gacc_wait(&job[r], -1, &s), GACC_OK);
			ck_assert(s.window == window && s.applied_step == window + 1 && s.divisor == divisor);
			ck_assert(s.outcome == GACC_STEP_APPLIED && s.lr == 0.5 && s.micro_count == RANKS * MICRO);
			ck_assert(job[r].window.micro_size == MICRO && !s.job_done);
		}
		if (window % 2 == 0)
			pthread_join(thread, NULL);
	}
	ck_assert_int_eq(posted_rig.by_rpc, 0);
	posted_rig_end();
}
END_TEST

Suite *posted_async_suite(void)
{
	Suite *suite = suite_create("client posted, asynchronous");
	TCase *tc = tcase_create("all");

	tcase_set_timeout(tc, 30);
	tcase_add_test(tc, pushes_need_no_thread);
	tcase_add_test(tc, slots_are_not_shared);
	tcase_add_test(tc, repeats_go_in_order);
	tcase_add_test(tc, a_refused_push_takes_those_behind_it_along);
	tcase_add_test(tc, a_slot_is_not_given_out_behind_a_refusal);
	tcase_add_test(tc, a_push_settles_those_before_it);
	tcase_add_test(tc, a_cell_does_not_overtake_the_sender);
	tcase_add_test(tc, an_outage_keeps_what_is_posted);
	tcase_add_test(tc, after_closed_there_is_the_sender);
	tcase_add_test(tc, a_closed_window_is_given_up);
	tcase_add_test(tc, a_void_push_is_told_once);
	tcase_add_test(tc, the_engine_dies_with_pushes_in_cells);
	tcase_add_test(tc, a_new_session_knows_what_is_posted);
	tcase_add_loop_test(tc, a_wait_for_parked_pushes_has_a_limit, 0, 2);
	tcase_add_test(tc, a_look_at_refused_pushes_goes_on);
	tcase_add_test(tc, windows_without_rpc);
	suite_add_tcase(suite, tc);
	return suite;
}
