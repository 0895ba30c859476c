/* SPDX-License-Identifier: Apache-2.0 */
/* COMMIT of a part of a sharded job: in which communicator it is sent, what its answers mean, and how the part serves
 * its share once more. */
#include "part_comm_rig.h"

#include <check.h>
#include <string.h>

Suite *part_shards_suite(void);

/* Attempt 9 of window 0 was voted for; its commit is of an earlier coordinator, of term 1. */
static void setup_sharded(void)
{
	setup();
	spec.parts = 2;
	spec.sharding = SHARDING_FULL;
	order.run = true;
	reach_joined(4);
	order_go(9, 4);
	answer(ENGINE_GO, ST_OK);
}

static void order_commit(uint64_t k)
{
	order.want = WANT_COMMIT;
	order.comm = k;
	order.commit = (struct commit){ .job_id = 1,
					.epoch = 1,
					.window = 0,
					.term = 2,
					.attempt = 9,
					.applied_step = 1,
					.outcome = OUTCOME_APPLIED,
					.next_micro_size = MICRO_SIZE };
	order.commit.next.scale.scale = 1;
	give_order();
}

static void answer_commit(enum status st, uint32_t phase, uint64_t window)
{
	struct engine_answer a = to(newest(ENGINE_COMMIT), st);
	a.result = phase;
	a.window = window;
	a.suspects = 1;
	job_on_answer(job, &a, now);
}

START_TEST(a_commit_names_its_communicator)
{
	order_commit(4);
	const struct engine_command *c = newest(ENGINE_COMMIT);
	ck_assert(c->comm == 4 && c->comm_term == 2 && c->attempt == 9);
	answer_commit(ST_OK, 0, 1);
	ck_assert_uint_eq(said.window, 1);
	job_tick(job, now);
	ck_assert_int_eq(count(ENGINE_COMMIT), 1); /* all was given in this communicator */
}
END_TEST

/* It is recorded, and cannot go on: the coordinator is told, and no refusal is. */
START_TEST(one_that_breaks_goes_on_in_the_next)
{
	order_commit(4);
	answer_commit(ST_UNAVAILABLE, WINDOW_APPLYING, 0);
	ck_assert_uint_eq(said.phase, WINDOW_APPLYING);
	ck_assert(said.comm == 0 && said.refused == ST_OK && said.window == 0);
	job_tick(job, now);
	ck_assert_int_eq(count(ENGINE_COMMIT), 1);
	order_commit(10);
	answer_join(ST_OK, "mine");
	ck_assert_int_eq(count(ENGINE_COMMIT), 1);
	give_board(2, 10, LIFE, "mine");
	ck_assert(newest(ENGINE_COMMIT)->comm == 10 && count(ENGINE_COMMIT) == 2);
	answer_commit(ST_OK, 0, 1);
	ck_assert_uint_eq(said.window, 1);
}
END_TEST

static const enum status no_failures[] = { ST_NOT_READY, ST_CANCELLED };

START_TEST(these_answers_are_no_failures)
{
	order_commit(4);
	answer_commit(no_failures[_i], WINDOW_APPLYING, 0);
	ck_assert(said.comm == 4 && said.refused == ST_OK);
	job_tick(job, now);
	ck_assert_int_eq(count(ENGINE_COMMIT), 2);
}
END_TEST

START_TEST(one_that_the_engine_will_not_record_is_refused)
{
	order_commit(4);
	answer_commit(ST_INVALID_ARGUMENT, WINDOW_PREPARED, 0);
	ck_assert_int_eq(said.refused, ST_INVALID_ARGUMENT);
}
END_TEST

/* A communicator that cannot be joined is told by a vote against its own number. */
START_TEST(joining_that_fails_is_a_vote)
{
	ck_assert(job_can_checkpoint(job));
	order_commit(4);
	ck_assert(!job_can_checkpoint(job));
	answer_commit(ST_UNAVAILABLE, WINDOW_APPLYING, 0);
	ck_assert(!job_can_checkpoint(job)); /* half of it is of another step */
	order_commit(10);
	answer_join(ST_OK, "mine");
	give_board(2, 10, LIFE, "mine");
	progress(10, COMM_LOST, 0, 0);
	ck_assert(said.vote_term == 2 && said.vote_attempt == 10 && said.vote_status);
}
END_TEST

/* In the next window it serves its share, in each communicator once, and its window stays what it is. */
START_TEST(a_part_that_is_ahead_serves)
{
	order_commit(4);
	answer_commit(ST_OK, 0, 1);
	order_commit(10);
	answer_join(ST_OK, "mine");
	give_board(2, 10, LIFE, "mine");
	ck_assert(newest(ENGINE_COMMIT)->comm == 10 && count(ENGINE_COMMIT) == 2);
	if (_i) {
		answer_commit(ST_UNAVAILABLE, WINDOW_OPEN, 1);
		ck_assert(said.comm == 0 && said.window == 1 && said.phase == WINDOW_OPEN);
		ck_assert_int_eq(said.refused, ST_OK);
		return;
	}
	const int reports = n_reports;
	answer_commit(ST_OK, WINDOW_OPEN, 1);
	ck_assert(said.window == 1 && said.phase == WINDOW_OPEN);
	ck_assert_int_eq(n_reports, reports); /* no window has begun by that */
	job_tick(job, now);
	ck_assert_int_eq(count(ENGINE_COMMIT), 2);
}
END_TEST

/* Its shares are no other part's: nothing waits for a communicator. */
START_TEST(without_sharding_a_commit_names_none)
{
	spec.sharding = SHARDING_NONE;
	order_commit(0);
	const struct engine_command *c = newest(ENGINE_COMMIT);
	ck_assert(c->comm == 0 && c->comm_term == 0);
}
END_TEST

Suite *part_shards_suite(void)
{
	Suite *s = suite_create("part_shards");
	TCase *t = tcase_create("shards");
	tcase_add_checked_fixture(t, setup_sharded, teardown);
	tcase_add_test(t, a_commit_names_its_communicator);
	tcase_add_test(t, one_that_breaks_goes_on_in_the_next);
	tcase_add_loop_test(t, these_answers_are_no_failures, 0, 2);
	tcase_add_test(t, one_that_the_engine_will_not_record_is_refused);
	tcase_add_test(t, joining_that_fails_is_a_vote);
	tcase_add_loop_test(t, a_part_that_is_ahead_serves, 0, 2);
	tcase_add_test(t, without_sharding_a_commit_names_none);
	suite_add_tcase(s, t);
	return s;
}
