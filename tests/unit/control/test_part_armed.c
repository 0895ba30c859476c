/* SPDX-License-Identifier: Apache-2.0 */
/* The armed GO at a part: when it is sent to the engine, taken back and replaced, and what is reported of it. */
#include "session_rig.h"

#include "support/suite.h"

Suite *part_armed_suite(void);

static struct order ordered(enum want want, uint64_t number, uint64_t armed)
{
	return (struct order){
		.job_id = 1, .epoch = 1, .term = 1, .run = true, .number = number, .want = want, .armed = armed
	};
}

static void order(enum want want, uint64_t number, uint64_t armed)
{
	struct order o = ordered(want, number, armed);
	job_on_order(job, &o, now);
}

static struct engine_command newest(uint32_t op)
{
	ck_assert_int_gt(n_sent, 0);
	ck_assert_uint_eq(sent[n_sent - 1].op, op);
	return sent[n_sent - 1];
}

static void answer_go(const struct engine_command *go, enum status st)
{
	const struct engine_answer a = {
		.op = ENGINE_GO, .id = go->id, .window = go->window, .attempt = go->attempt, .status = st, .sumsq = 9
	};
	job_on_answer(job, &a, now);
}

START_TEST(it_is_sent_once_and_reported)
{
	order(WANT_NOTHING, 1, 5);
	struct engine_command go = newest(ENGINE_GO);
	ck_assert(go.armed && !go.close && go.window == 0 && go.term == 1 && go.attempt == 5);
	job_tick(job, now);
	order(WANT_NOTHING, 1, 5);
	ck_assert_int_eq(count_sent(ENGINE_GO), 1);
	job_tick(job, now);
	ck_assert_uint_eq(reported.armed, 5);
	answer_go(&go, ST_OK);
	ck_assert(reported.phase == WINDOW_PREPARED && reported.vote_attempt == 5 && reported.vote_term == 1);
	ck_assert(reported.sumsq == 9 && !reported.vote_status && !reported.armed);
	job_tick(job, now);
	ck_assert_int_eq(count_sent(ENGINE_GO), 1);
}
END_TEST

/* With the COMMIT comes the attempt of the window that it opens. */
START_TEST(the_next_window_is_armed_as_it_opens)
{
	order(WANT_NOTHING, 1, 5);
	struct engine_command go = newest(ENGINE_GO);
	answer_go(&go, ST_OK);
	struct order o = ordered(WANT_COMMIT, 2, 6);
	o.commit = (struct commit){ .term = 1, .attempt = 5, .micro_size = 4, .next_micro_size = 4 };
	job_on_order(job, &o, now);
	newest(ENGINE_COMMIT);
	ck_assert_int_eq(count_sent(ENGINE_GO), 1);
	answer(ENGINE_COMMIT, 0);
	go = newest(ENGINE_GO);
	ck_assert(go.armed && go.window == 1 && go.attempt == 6);
	o.number = 3; /* paused before the coordinator knows that it is open */
	o.armed = 0;
	job_on_order(job, &o, now);
	ck_assert_uint_eq(newest(ENGINE_DISARM).window, 1);
}
END_TEST

START_TEST(it_is_taken_back_once)
{
	order(WANT_NOTHING, 1, 5);
	struct engine_command go = newest(ENGINE_GO);
	order(WANT_NOTHING, 2, 0);
	struct engine_command disarm = newest(ENGINE_DISARM);
	ck_assert_uint_eq(disarm.window, 0);
	job_tick(job, now);
	ck_assert_int_eq(count_sent(ENGINE_DISARM), 1);
	order(WANT_NOTHING, 3, 5); /* and wanted again before the engine has answered */
	ck_assert_int_eq(count_sent(ENGINE_GO), 1);
	answer_go(&go, ST_CANCELLED);
	ck_assert_int_eq(count_sent(ENGINE_GO), 2);
	ck_assert_uint_eq(reported.armed, 5);
	ck_assert_int_eq(reported.vote_status, ST_OK);
	struct engine_answer done = { .op = ENGINE_DISARM, .id = disarm.id };
	job_on_answer(job, &done, now);
	order(WANT_NOTHING, 4, 0);
	ck_assert_int_eq(count_sent(ENGINE_DISARM), 2);
}
END_TEST

START_TEST(that_it_is_taken_back_is_reported)
{
	order(WANT_NOTHING, 1, 5);
	struct engine_command go = newest(ENGINE_GO);
	order(WANT_NOTHING, 2, 0);
	ck_assert_uint_eq(reported.armed, 0); /* not yet told */
	int before = n_reports;
	answer_go(&go, ST_CANCELLED);
	ck_assert_int_gt(n_reports, before);
	ck_assert(!reported.armed && !reported.vote_attempt && reported.phase == WINDOW_OPEN);
}
END_TEST

/* Also for the same attempt: the coordinator has waited for its vote. */
START_TEST(an_ordered_go_replaces_it)
{
	order(WANT_NOTHING, 1, 5);
	struct engine_command go = newest(ENGINE_GO);
	struct order o = ordered(WANT_GO, 2, 0);
	o.attempt = 5 + (uint64_t)_i;
	job_on_order(job, &o, now);
	struct engine_command plain = newest(ENGINE_GO);
	ck_assert(!plain.armed && plain.close && plain.attempt == o.attempt);
	ck_assert_int_eq(count_sent(ENGINE_DISARM), 0);
	answer_go(&go, ST_CANCELLED);
	ck_assert_int_eq(count_sent(ENGINE_GO), 2);
	answer_go(&plain, ST_OK);
	ck_assert_uint_eq(reported.vote_attempt, o.attempt);
}
END_TEST

START_TEST(an_ordered_go_that_could_not_be_sent_is_sent_later)
{
	order(WANT_NOTHING, 1, 5);
	struct order o = ordered(WANT_GO, 2, 0);
	o.attempt = 6;
	unsendable = ENGINE_GO;
	job_on_order(job, &o, now);
	unsendable = 0;
	job_tick(job, now);
	struct engine_command go = newest(ENGINE_GO);
	ck_assert(go.attempt == 6 && go.close && !go.armed);
}
END_TEST

/* It would not be taken the next time, either; a refusal is no vote against the attempt. */
START_TEST(what_the_engine_refuses_is_not_sent_again)
{
	order(WANT_NOTHING, 1, 5);
	struct engine_command go = newest(ENGINE_GO);
	answer_go(&go, ST_STALE_ATTEMPT);
	ck_assert(!reported.armed && !reported.vote_status && !reported.vote_attempt);
	job_tick(job, now);
	ck_assert_int_eq(count_sent(ENGINE_GO), 1);
	order(WANT_NOTHING, 2, 6);
	ck_assert_int_eq(count_sent(ENGINE_GO), 2);
}
END_TEST

START_TEST(the_next_engine_gets_it_again)
{
	order(WANT_NOTHING, 1, 5);
	job_on_engine_down(job, now);
	job_tick(job, now);
	ck_assert_uint_eq(reported.armed, 0);
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	ck_assert_int_eq(count_sent(ENGINE_GO), 2);
	ck_assert(newest(ENGINE_GO).armed);
}
END_TEST

/* Of a window that it does not have open. */
START_TEST(an_order_of_another_window_arms_nothing)
{
	struct order o = ordered(WANT_NOTHING, 1, 5);
	o.window = 1;
	job_on_order(job, &o, now);
	o = ordered(WANT_COMMIT, 2, 5);
	o.window = o.commit.window = 1;
	job_on_order(job, &o, now);
	ck_assert_int_eq(count_sent(ENGINE_GO), 0);
}
END_TEST

Suite *part_armed_suite(void)
{
	Suite *s = suite_create("armed part");
	TCase *t = tcase_create("armed part");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, setup_mailbox, teardown);
	tcase_add_test(t, it_is_sent_once_and_reported);
	tcase_add_test(t, the_next_window_is_armed_as_it_opens);
	tcase_add_test(t, it_is_taken_back_once);
	tcase_add_test(t, that_it_is_taken_back_is_reported);
	tcase_add_loop_test(t, an_ordered_go_replaces_it, 0, 2);
	tcase_add_test(t, an_ordered_go_that_could_not_be_sent_is_sent_later);
	tcase_add_test(t, what_the_engine_refuses_is_not_sent_again);
	tcase_add_test(t, the_next_engine_gets_it_again);
	tcase_add_test(t, an_order_of_another_window_arms_nothing);
	return s;
}
