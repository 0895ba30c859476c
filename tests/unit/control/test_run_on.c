/* SPDX-License-Identifier: Apache-2.0 */
/* A job that goes on after a restart of gaccd before its coordinator, which is in another gaccd, is heard: what
 * trainers hear of the windows that it does not know yet. */
#include "session_rig.h"

#include "support/suite.h"

#include <check.h>
#include <string.h>

Suite *run_on_suite(void);

enum { OPEN = 30, OLDEST = OPEN - JOB_HISTORY };

static struct commit window_of(uint64_t window)
{
	return (struct commit){ .job_id = 1,
				.epoch = 1,
				.window = window,
				.applied_step = window + 1,
				.outcome = OUTCOME_APPLIED,
				.micro_size = 4,
				.next_micro_size = 4,
				.params_before = 1000 + window };
}

/* Micro-batch 0 is in every window, 1 in the even ones. */
static const uint64_t *bits_of(uint64_t window)
{
	static uint64_t bits[4];
	bits[0] = window % 2 ? 1 : 3;
	return bits;
}

static void restore(uint64_t window)
{
	const struct commit k = window_of(window);
	job_restore_window(job, &k, bits_of(window), (uint32_t)record.n_words);
}

static void learn(uint64_t window)
{
	const struct commit k = window_of(window);
	job_learn_window(job, &k, bits_of(window), (uint32_t)record.n_words);
}

/* The part is made from a record of long ago, whose newest window is 4; its memory is at window 30. */
static void setup_run_on(void)
{
	setup_job();
	job_restore_window(job, &(struct commit){ .window = 99 }, bits_of(0),
			   0); /* other ranks' bits are passed over */
	restore(3);
	restore(4);
	job_run_on(job);
	job_take_over(job);
	record.r.window = OPEN;
	record.r.applied_step = OPEN;
	record.r.params_digest = 0x1234;
	record.rank[0] = (struct control_rank){ .sgen = 1, .session = { .pid = 42, .uid = 7, .token = { 9 } } };
	key = (struct session_key){ .rank = 0, .uid = 7, .pid = 42, .token = { 9 } };
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	job_on_mapped(job, 0, 1);
	n_sent = 0;
}

static void push_in(uint64_t call, uint64_t window, uint32_t micro)
{
	const struct push_args a = { .window = window, .micro = micro, .weight = 1 };
	job_push(job, call, &key, &a, now);
}

static void answer_in(uint32_t op, uint64_t window, uint64_t attempt)
{
	const struct engine_command *c = &sent[n_sent - 1];
	ck_assert_uint_eq(c->op, op);
	const struct engine_answer a = { .op = op, .id = c->id, .window = window, .attempt = attempt };
	job_on_answer(job, &a, now);
}

START_TEST(the_open_window_goes_on)
{
	push_in(0, OPEN, 0);
	ck_assert_int_eq(count_sent(ENGINE_ADD), 1);
	answer(ENGINE_ADD, PUSH_COUNTED);
	expect(0, ST_OK, PUSH_COUNTED);
	job_wait_step(job, 1, &key, OPEN, 0, now);
	job_flush(job, 2, &key, OPEN, now);
	ck_assert(!replied[1] && !replied[2]);
	ck_assert_int_eq(count_sent(ENGINE_FLUSH), 1);
}
END_TEST

/* Nothing about the windows between is answered wrongly: the callers repeat it. */
START_TEST(windows_that_are_not_known_yet)
{
	push_in(0, OPEN - 1, 0);
	expect(0, ST_ENGINE_DOWN, 0);
	push_in(1, 5, 0);
	expect(1, ST_ENGINE_DOWN, 0);
	job_wait_step(job, 2, &key, OPEN - 1, 0, now);
	expect(2, ST_ENGINE_DOWN, 0);
	job_flush(job, 3, &key, OPEN - 1, now);
	expect(3, ST_ENGINE_DOWN, 0);
	push_in(4, 4, 1);
	expect(4, ST_OK, PUSH_ALREADY_COMMITTED);
	push_in(5, 3, 1);
	expect(5, ST_WINDOW_CLOSED, 0);
	job_wait_step(job, 6, &key, 4, 0, now);
	ck_assert(replied[6] && reply_to[6].step.commit.window == 4);
	push_in(7, OPEN + 1, 0);
	expect(7, ST_NOT_CURRENT_WINDOW, 0);
}
END_TEST

/* The window before may have been the last one. */
START_TEST(ready_is_answered_when_they_are_known)
{
	job_wait_ready(job, 0, &key, 0, now);
	ck_assert(!replied[0]);
	learn(OPEN - 1);
	ck_assert(!replied[0]);
	job_windows_known(job, now);
	ck_assert(replied[0] && reply_to[0].ready.window == OPEN && reply_to[0].ready.last.window == OPEN - 1);
	job_wait_ready(job, 1, &key, 0, now);
	ck_assert(replied[1]);
}
END_TEST

START_TEST(the_coordinator_tells_them)
{
	for (uint64_t window = OLDEST; window < OPEN; window++)
		learn(window);
	job_windows_known(job, now);
	for (uint64_t window = OLDEST; window < OPEN; window++) {
		job_wait_step(job, 0, &key, window, 0, now);
		ck_assert(replied[0] && !reply_to[0].status);
		const struct commit *k = &reply_to[0].step.commit;
		ck_assert_uint_eq(k->window, window);
		ck_assert_uint_eq(k->params_digest, window + 1 == OPEN ? 0x1234 : 1001 + window);
		replied[0] = false;
		push_in(1, window, 1);
		expect(1, window % 2 ? ST_WINDOW_CLOSED : ST_OK, PUSH_ALREADY_COMMITTED);
		replied[1] = false;
	}
	push_in(2, OLDEST - 1, 0);
	expect(2, ST_WINDOW_FORGOTTEN, 0);
	job_wait_step(job, 3, &key, OLDEST - 1, 0, now);
	expect(3, ST_NOT_CURRENT_WINDOW, 0);
}
END_TEST

/* In any order, twice, and beside those that are there. */
START_TEST(they_are_kept_in_order)
{
	for (uint64_t window = OPEN; --window > OLDEST;)
		learn(window);
	learn(OLDEST + 3);
	learn(OLDEST - 2);
	learn(OLDEST);
	learn(3);
	job_windows_known(job, now);
	push_in(0, OLDEST, 0);
	expect(0, ST_OK, PUSH_ALREADY_COMMITTED);
	push_in(1, OLDEST - 2, 0);
	expect(1, ST_WINDOW_FORGOTTEN, 0);
	job_wait_ready(job, 2, &key, 0, now);
	ck_assert_uint_eq(reply_to[2].ready.last.window, OPEN - 1);
}
END_TEST

/* A coordinator whose orders come before its placement. */
START_TEST(a_window_that_is_decided_meanwhile)
{
	const struct commit k = window_of(OPEN);
	struct order o = { .job_id = 1,
			   .epoch = 1,
			   .term = 2,
			   .number = 1,
			   .run = true,
			   .window = OPEN,
			   .want = WANT_GO,
			   .attempt = 1 };
	job_on_order(job, &o, now);
	answer_in(ENGINE_GO, OPEN, 1);
	o.number = 2;
	o.want = WANT_COMMIT;
	o.commit = k;
	o.commit.term = 2;
	o.commit.attempt = 1;
	job_on_order(job, &o, now);
	answer_in(ENGINE_COMMIT, OPEN, 1);
	job_wait_step(job, 0, &key, OPEN, 0, now);
	ck_assert(replied[0] && !reply_to[0].status);
	job_wait_step(job, 1, &key, OPEN - 1, 0, now);
	expect(1, ST_ENGINE_DOWN, 0);
	learn(OPEN);
	learn(OPEN - 1);
	job_windows_known(job, now);
	job_wait_step(job, 2, &key, OPEN - 1, 0, now);
	ck_assert(replied[2] && !reply_to[2].status);
	job_wait_ready(job, 3, &key, 0, now);
	ck_assert_uint_eq(reply_to[3].ready.last.window, OPEN);
}
END_TEST

Suite *run_on_suite(void)
{
	Suite *s = suite_create("run_on");
	TCase *t = tcase_create("run_on");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, setup_run_on, teardown);
	tcase_add_test(t, the_open_window_goes_on);
	tcase_add_test(t, windows_that_are_not_known_yet);
	tcase_add_test(t, ready_is_answered_when_they_are_known);
	tcase_add_test(t, the_coordinator_tells_them);
	tcase_add_test(t, they_are_kept_in_order);
	tcase_add_test(t, a_window_that_is_decided_meanwhile);
	return s;
}
