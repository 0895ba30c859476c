/* SPDX-License-Identifier: Apache-2.0 */
/* What a job of several parts asks of each besides: parameters that are equal (FILL), and reduced gradients that nobody
 * reads any more. */
#include "part_comm_rig.h"

#include <check.h>
#include <string.h>

Suite *part_fill_suite(void);

/* ---- FILL ---- */

static void order_fill(uint32_t source)
{
	order.fill_part = source + 1;
	give_order();
}

START_TEST(a_part_takes_the_parameters_of_another)
{
	reach_joined(4);
	ck_assert_uint_eq(said.start, START_PARAMS);
	order_fill(0);
	const struct engine_command *c = last(ENGINE_FILL);
	ck_assert(c->comm == 4 && c->term == 2 && c->slot == 0);
	job_tick(job, now);
	ck_assert_uint_eq(said.start, START_ALLOCATED); /* its own do not count any more */
	ck_assert_str_eq(said.start_waits, "the parameters of another part");
	struct engine_answer a = to(c, ST_OK);
	a.digest = 0xdef;
	job_on_answer(job, &a, now);
	ck_assert_uint_eq(said.start, START_PARAMS);
	ck_assert_uint_eq(said.params_digest, 0xdef);
	give_order();
	job_tick(job, now);
	ck_assert_int_eq(count(ENGINE_FILL), 1);
}
END_TEST

START_TEST(the_source_keeps_its_own)
{
	reach_joined(4);
	order_fill(1);
	ck_assert_uint_eq(last(ENGINE_FILL)->slot, 1);
	job_tick(job, now);
	ck_assert_uint_eq(said.start, START_PARAMS);
	struct engine_answer a = to(last(ENGINE_FILL), ST_OK);
	a.digest = 0xabc;
	job_on_answer(job, &a, now);
	ck_assert_uint_eq(said.params_digest, 0xabc);
}
END_TEST

static const enum status no_votes[] = { ST_NOT_READY, ST_CANCELLED };

START_TEST(a_fill_that_cannot_begin_is_sent_again)
{
	reach_joined(4);
	order_fill(0);
	answer(ENGINE_FILL, no_votes[_i]);
	ck_assert_int_eq(said.vote_status, ST_OK);
	job_tick(job, now);
	ck_assert_int_eq(count(ENGINE_FILL), 2);
}
END_TEST

START_TEST(a_fill_that_fails_is_a_vote_and_leaves_no_parameters)
{
	reach_joined(4);
	order_fill(0);
	answer(ENGINE_FILL, ST_UNAVAILABLE);
	expect_vote(4, ST_UNAVAILABLE);
	ck_assert_uint_eq(said.start, START_ALLOCATED);
	ck_assert_uint_eq(said.comm, 0);
	order.comm = order.fill_part = 0;
	give_order();
	job_tick(job, now);
	ck_assert_uint_eq(said.start, START_ALLOCATED); /* a half of them is another part's */
	order.fill_part = 1;
	order_comm(7);
	answer_join(ST_OK, "mine");
	give_board(2, 7, LIFE, "mine");
	ck_assert_uint_eq(last(ENGINE_FILL)->comm, 7);
	answer(ENGINE_FILL, ST_OK);
	ck_assert_uint_eq(said.start, START_PARAMS);
}
END_TEST

START_TEST(parameters_are_not_read_before_the_job_runs)
{
	ck_assert(!job_params_ready(job));
	order.run = true;
	give_order();
	ck_assert(job_params_ready(job));
}
END_TEST

static void setup_without_params(void)
{
	make_job(1, OPTIM_SGD);
	up(LIFE);
	n_sent = 0;
}

/* What ranks bring meanwhile is not mixed into it. */
START_TEST(pieces_wait_for_a_fill)
{
	struct session_key k = attach(1, 0);
	reach_joined(4);
	order_fill(0);
	job_put_params(job, 1, &k, 0, 0, 16, true, now);
	job_tick(job, now);
	ck_assert(!replied[1] && !count(ENGINE_PUT_PARAMS));
	answer(ENGINE_FILL, ST_OK);
	ck_assert(replied[1] && reply_to[1].put.ready);
	ck_assert_int_eq(count(ENGINE_PUT_PARAMS), 0);
}
END_TEST

START_TEST(a_part_that_has_parameters_waits_too)
{
	struct session_key k = attach(1, 0);
	reach_joined(4);
	order_fill(1);
	job_put_params(job, 1, &k, 0, 0, 16, true, now);
	ck_assert(!replied[1]);
	answer(ENGINE_FILL, ST_OK);
	ck_assert(replied[1] && reply_to[1].put.ready);
}
END_TEST

START_TEST(a_fill_waits_for_pieces)
{
	struct session_key k = attach(1, 0);
	reach_joined(4);
	job_put_params(job, 1, &k, 0, 0, 16, true, now);
	order_fill(0);
	ck_assert_int_eq(count(ENGINE_FILL), 0);
	struct engine_answer a = to(newest(ENGINE_PUT_PARAMS), ST_OK);
	a.digest = 0x123;
	job_on_answer(job, &a, now);
	job_tick(job, now);
	ck_assert_int_eq(count(ENGINE_FILL), 1);
	ck_assert_uint_eq(said.start, START_ALLOCATED);
}
END_TEST

/* The engine has not got rid of a fill that failed. */
START_TEST(pieces_that_come_into_a_fill_are_sent_again)
{
	struct session_key k = attach(1, 0);
	reach_joined(4);
	job_put_params(job, 1, &k, 0, 0, 16, true, now);
	answer(ENGINE_PUT_PARAMS, ST_NOT_READY);
	ck_assert(!replied[1]);
	job_tick(job, now);
	ck_assert_int_eq(count(ENGINE_PUT_PARAMS), 2);
	answer(ENGINE_PUT_PARAMS, ST_OK);
	ck_assert(replied[1] && reply_to[1].put.ready);
}
END_TEST

START_TEST(parameters_that_were_given_have_a_digest)
{
	struct session_key k = attach(1, 0);
	give_order();
	job_put_params(job, 1, &k, 0, 0, 16, true, now);
	struct engine_answer a = to(newest(ENGINE_PUT_PARAMS), ST_OK);
	a.digest = 0x123;
	job_on_answer(job, &a, now);
	ck_assert_uint_eq(said.start, START_PARAMS);
	ck_assert_uint_eq(said.params_digest, 0x123);
}
END_TEST

/* ---- optimizer CLIENT ---- */

static void setup_client(void)
{
	make_job(1, OPTIM_CLIENT);
	record.r.params_ready = 1;
	record.r.window = 1;
	up(LIFE);
	order.window = 1;
	order.run = true;
	give_order();
	n_sent = 0;
}

/* GO of several parts writes the half that they read. */
START_TEST(a_window_is_complete_when_all_have_read_the_last_gradient)
{
	struct session_key k[2] = { attach(1, 0), attach(3, 1) };
	memcpy(record.rank, job_record(job)->rank, 2 * sizeof(*record.rank));
	record.r.client_pending = 1;
	job_on_engine_down(job, now);
	up(LIFE + 1);
	for (uint32_t r = 0; r < 2; r++) {
		job_flush(job, 2 + r, &k[r], 1, now);
		struct engine_answer a = to(newest(ENGINE_FLUSH), ST_OK);
		a.rank = r;
		job_on_answer(job, &a, now);
	}
	job_tick(job, now);
	ck_assert(!said.complete);
	ck_assert_str_eq(said.start_waits, "the step acknowledgement of ranks 1, 3");
	for (uint32_t r = 0; r < 2; r++) {
		job_ack_step(job, 4 + r, &k[r], 0, now);
		struct engine_answer a = to(newest(ENGINE_ACK_STEP), ST_OK);
		job_on_answer(job, &a, now);
		ck_assert(replied[4 + r]);
		if (!r)
			ck_assert_str_eq(said.start_waits, "the step acknowledgement of rank 3");
	}
	ck_assert(last(ENGINE_ACK_STEP)->last);
	ck_assert(!said.complete);
	answer(ENGINE_ACK_STEP, ST_OK);
	ck_assert(said.complete);
}
END_TEST

Suite *part_fill_suite(void)
{
	Suite *s = suite_create("FILL of a part");
	TCase *c = tcase_create("FILL"), *puts = tcase_create("puts"), *client = tcase_create("client");
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, a_part_takes_the_parameters_of_another);
	tcase_add_test(c, the_source_keeps_its_own);
	tcase_add_loop_test(c, a_fill_that_cannot_begin_is_sent_again, 0, 2);
	tcase_add_test(c, a_fill_that_fails_is_a_vote_and_leaves_no_parameters);
	tcase_add_test(c, a_part_that_has_parameters_waits_too);
	tcase_add_test(c, parameters_are_not_read_before_the_job_runs);
	tcase_add_checked_fixture(puts, setup_without_params, teardown);
	tcase_add_test(puts, pieces_wait_for_a_fill);
	tcase_add_test(puts, a_fill_waits_for_pieces);
	tcase_add_test(puts, pieces_that_come_into_a_fill_are_sent_again);
	tcase_add_test(puts, parameters_that_were_given_have_a_digest);
	tcase_add_checked_fixture(client, setup_client, teardown);
	tcase_add_test(client, a_window_is_complete_when_all_have_read_the_last_gradient);
	suite_add_tcase(s, c);
	suite_add_tcase(s, puts);
	suite_add_tcase(s, client);
	return s;
}
