/* SPDX-License-Identifier: Apache-2.0 */
/* GO of a part of several: when it is sent, what its answers are to the coordinator; and how a membership ends. */
#include "part_comm_rig.h"

#include <check.h>
#include <string.h>

Suite *part_go_suite(void);

/* ---- GO ---- */

START_TEST(go_waits_for_the_addresses)
{
	order_go(4, 4);
	ck_assert_int_eq(count(ENGINE_GO), 0);
	answer_join(ST_OK, "mine");
	job_tick(job, now);
	ck_assert_int_eq(count(ENGINE_GO), 0);
	give_board(2, 4, LIFE, "mine");
	const struct engine_command *c = last(ENGINE_GO);
	ck_assert(c->comm == 4 && c->attempt == 4 && c->term == 2);
}
END_TEST

START_TEST(go_goes_into_a_warm_communicator)
{
	order.run = true;
	reach_joined(4);
	order_go(9, 4);
	ck_assert(last(ENGINE_GO)->comm == 4 && last(ENGINE_GO)->attempt == 9);
	ck_assert_int_eq(count(ENGINE_JOIN), 1);
}
END_TEST

static const enum status no_votes[] = { ST_NOT_READY, ST_CANCELLED };

START_TEST(these_answers_are_no_votes)
{
	order.run = true;
	reach_joined(4);
	order_go(9, 4);
	answer(ENGINE_GO, no_votes[_i]);
	ck_assert_int_eq(said.vote_status, ST_OK);
	ck_assert_int_eq(count(ENGINE_GO), 1);
	job_tick(job, now);
	ck_assert_int_eq(count(ENGINE_GO), 2);
	ck_assert_int_eq(said.vote_status, ST_OK);
	ck_assert_uint_eq(said.comm, 4);
}
END_TEST

START_TEST(a_go_that_fails_is_a_vote_and_breaks_the_communicator)
{
	order.run = true;
	reach_joined(4);
	order_go(9, 4);
	struct engine_answer a = to(newest(ENGINE_GO), ST_STALLED);
	a.suspects = 1;
	a.result = WINDOW_CLOSED;
	a.count = 0;
	a.lr_rank = 1;
	job_on_answer(job, &a, now);
	expect_vote(9, ST_STALLED);
	ck_assert_str_eq(said.vote_text, "part 0 has died");
	ck_assert_uint_eq(said.vote_suspects, 1);
	ck_assert_uint_eq(said.comm, 0);
	ck_assert_uint_eq(said.phase, WINDOW_CLOSED); /* the engine has frozen it for this attempt */
	order_go(10, 10);
	ck_assert_uint_eq(last(ENGINE_JOIN)->comm, 10);
	answer_join(ST_OK, "mine");
	give_board(2, 10, LIFE, "mine");
	ck_assert(last(ENGINE_GO)->attempt == 10 && !last(ENGINE_GO)->close);
}
END_TEST

/* The engine answers the GO of the attempt before when it leaves that communicator. */
START_TEST(the_end_of_an_earlier_go_does_not_fail_the_next)
{
	order.run = true;
	reach_joined(4);
	order_go(9, 4);
	struct engine_answer old = to(newest(ENGINE_GO), _i ? ST_UNAVAILABLE : ST_CANCELLED);
	order_go(10, 10);
	last(ENGINE_JOIN);
	if (!_i)
		job_on_answer(job, &old, now);
	answer_join(ST_OK, "mine");
	if (_i)
		job_on_answer(job, &old, now);
	ck_assert(said.vote_attempt != 10);
	give_board(2, 10, LIFE, "mine");
	ck_assert_uint_eq(last(ENGINE_GO)->attempt, 10);
}
END_TEST

/* ---- it ends ---- */

START_TEST(without_a_communicator_the_engine_leaves)
{
	reach_joined(4);
	unsendable = ENGINE_ABORT;
	unsendable_from = 0;
	order_comm(0);
	ck_assert_int_eq(count(ENGINE_ABORT), 0);
	unsendable = 0;
	job_tick(job, now);
	const struct engine_command *c = last(ENGINE_ABORT);
	ck_assert(c->term == 2 && c->comm == 4);
	job_tick(job, now);
	ck_assert_int_eq(count(ENGINE_ABORT), 1);
	now.mono_ns += SECOND;
	job_tick(job, now);
	ck_assert_uint_eq(said.comm, 0);
}
END_TEST

START_TEST(at_the_end_the_engine_leaves)
{
	order_comm(4);
	order.want = WANT_END;
	give_order();
	ck_assert_uint_eq(last(ENGINE_ABORT)->comm, 4);
	give_order();
	ck_assert_int_eq(count(ENGINE_ABORT), 1);
}
END_TEST

START_TEST(a_later_communicator_takes_the_place_of_one)
{
	reach_joined(4);
	order_comm(6);
	ck_assert_int_eq(count(ENGINE_ABORT), 0); /* JOIN says it */
	ck_assert_uint_eq(last(ENGINE_JOIN)->comm, 6);
	job_tick(job, now);
	now.mono_ns += SECOND;
	job_tick(job, now);
	ck_assert_uint_eq(said.comm, 0);
	order.term = 3;
	order.number = 0;
	give_order();
	ck_assert(last(ENGINE_JOIN)->term == 3 && last(ENGINE_JOIN)->comm == 6);
}
END_TEST

START_TEST(another_term_has_other_communicators)
{
	reach_joined(4);
	order.term = 3;
	order.number = 0;
	order.comm = 0;
	unsendable = ENGINE_ABORT;
	unsendable_from = 0;
	give_order();
	now.mono_ns += SECOND;
	job_tick(job, now);
	ck_assert_uint_eq(said.term, 3);
	ck_assert_uint_eq(said.comm, 0);
}
END_TEST

START_TEST(the_next_life_is_told_anew)
{
	reach_joined(4);
	job_on_engine_down(job, now);
	now.mono_ns += SECOND;
	job_tick(job, now);
	ck_assert_uint_eq(said.life, 0);
	ck_assert_uint_eq(said.comm, 0);
	ck_assert_int_eq(said.vote_status, ST_OK); /* no attempt is under way */
	n_sent = 0;
	up(78);
	ck_assert_uint_eq(said.life, 78);
	ck_assert_uint_eq(newest(ENGINE_JOIN)->comm, 4);
	answer_join(ST_OK, "next");
	ck_assert(blob.life == 78 && !memcmp(blob_bytes, "next", 4));
}
END_TEST

START_TEST(an_engine_that_dies_in_go_is_a_vote)
{
	order.run = true;
	reach_joined(4);
	order_go(9, 4);
	job_on_engine_down(job, now);
	expect_vote(9, ST_ENGINE_DOWN);
	ck_assert_str_eq(said.vote_text, "");
	ck_assert_uint_eq(said.life, 0);
}
END_TEST

START_TEST(an_engine_that_dies_before_it_has_begun_is_none)
{
	order_go(4, 4);
	answer_join(ST_OK, "mine");
	job_on_engine_down(job, now);
	now.mono_ns += SECOND;
	job_tick(job, now);
	ck_assert_int_eq(said.vote_status, ST_OK);
}
END_TEST

START_TEST(an_attempt_that_is_over_is_not_voted_on)
{
	order.run = true;
	reach_joined(4);
	order_go(9, 4);
	order_go(10, 10);
	job_on_engine_down(job, now);
	now.mono_ns += SECOND;
	job_tick(job, now);
	ck_assert_int_eq(said.vote_status, ST_OK);
}
END_TEST

Suite *part_go_suite(void)
{
	Suite *s = suite_create("GO of a part");
	TCase *c = tcase_create("GO of a part");
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, go_waits_for_the_addresses);
	tcase_add_test(c, go_goes_into_a_warm_communicator);
	tcase_add_loop_test(c, these_answers_are_no_votes, 0, 2);
	tcase_add_test(c, a_go_that_fails_is_a_vote_and_breaks_the_communicator);
	tcase_add_loop_test(c, the_end_of_an_earlier_go_does_not_fail_the_next, 0, 2);
	tcase_add_test(c, without_a_communicator_the_engine_leaves);
	tcase_add_test(c, at_the_end_the_engine_leaves);
	tcase_add_test(c, a_later_communicator_takes_the_place_of_one);
	tcase_add_test(c, another_term_has_other_communicators);
	tcase_add_test(c, the_next_life_is_told_anew);
	tcase_add_test(c, an_engine_that_dies_in_go_is_a_vote);
	tcase_add_test(c, an_engine_that_dies_before_it_has_begun_is_none);
	tcase_add_test(c, an_attempt_that_is_over_is_not_voted_on);
	suite_add_tcase(s, c);
	return s;
}
