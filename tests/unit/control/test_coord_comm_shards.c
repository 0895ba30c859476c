/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators at the coordinator while the parts of a sharded job gather their shares: a durable outcome goes on in
 * another one, until all have applied it. */
#include "coord_comm_rig.h"

#include "engine/control_page.h"

#include <check.h>
#include <string.h>

Suite *comm_shards_suite(void);

static void setup_sharded(void)
{
	setup();
	spec.parts = D;
	spec.sharding = SHARDING_FULL;
}

/* The outcome of the first window is durable; nobody has applied it. */
static void commit(void)
{
	run();
	complete();
	vote_all();
	ck_assert(order[0].want == WANT_COMMIT && order[0].comm == 1);
	for (uint32_t i = 0; i < D; i++)
		node[i].phase = WINDOW_APPLYING;
}

static void expect_commit_in(uint64_t k)
{
	for (uint32_t i = 0; i < D; i++)
		ck_assert(order[i].want == WANT_COMMIT && order[i].window == 0 && order[i].comm == k);
	ck_assert(order[0].commit.attempt == 2 && order[0].commit.window == 0);
}

START_TEST(shares_are_gathered_where_the_sum_was_taken)
{
	commit();
	apply();
	complete();
	ck_assert(order[0].want == WANT_GO && order[0].comm == 1 && order[0].attempt == 3);
	ck_assert_str_eq(last_event, "");
}
END_TEST

/* 0: it is there again at once. 1: it takes a while, and is in no communicator meanwhile. */
START_TEST(another_life_gathers_in_another_one)
{
	commit();
	if (_i) {
		node[1].life = node[1].comm = 0;
		tell(1);
		ck_assert_str_eq(last_event, "AttemptFailed");
		ck_assert(strstr(last_text, "gather the parts' shares failed: part 1 has left the communicator"));
		expect_commit_in(0);
		tick(SECOND);
		expect_commit_in(0); /* there is no engine to form one with */
	}
	restart(1);
	if (_i)
		tick(SECOND);
	expect_commit_in(3);
	say_all();
	join_all();
	ck_assert_int_eq(coord_phase(coord), COORD_COMMIT);
	apply();
	ck_assert_int_eq(coord_phase(coord), COORD_COLLECT);
	complete();
	ck_assert(order[0].want == WANT_GO && order[0].comm == 3 && order[0].attempt == 4);
}
END_TEST

/* Part 0 is in the next window already, and is told of the communicator, too. */
START_TEST(a_part_that_is_ahead_is_told)
{
	commit();
	node[0].window = 1;
	node[0].phase = WINDOW_OPEN;
	node[0].params_digest = 9;
	tell(0);
	restart(2);
	expect_commit_in(3);
	ck_assert_int_eq(say(0), ST_OK);
}
END_TEST

/* 0: it could not be joined, or the gather failed; 1: it says that it has left. */
START_TEST(one_that_fails_is_followed_by_another_after_a_pause)
{
	commit();
	restart(1);
	say_all();
	if (_i) {
		join_all();
		node[2].comm = 0;
		tell(2);
		ck_assert(strstr(last_text, "part 2 has left the communicator"));
	} else {
		fail_vote(2, 3, ST_STALLED, 1 << 1, "part 1 does not answer");
		ck_assert(strstr(last_text, "part 2 cannot reach part 1: part 1 does not answer"));
	}
	ck_assert_str_eq(last_event, "AttemptFailed");
	expect_commit_in(0);
	node[2].vote_status = ST_OK;
	node[2].vote_attempt = 0;
	tick(SECOND / 10 - 1);
	expect_commit_in(0);
	tick(1);
	expect_commit_in(4);
}
END_TEST

/* Twice the stall; while parts say that they get on, no time is too long. */
START_TEST(one_that_nobody_gets_on_with_is_over)
{
	commit();
	for (int i = 0; i < 5; i++) {
		tick(STALL);
		node[1].pieces++;
		tell(1);
	}
	expect_commit_in(1);
	tick(2 * STALL);
	expect_commit_in(1);
	tick(1);
	ck_assert_str_eq(last_event, "AttemptFailed");
	expect_commit_in(0);
}
END_TEST

/* Nothing changes parameters: nobody is waited for. */
START_TEST(an_outcome_without_a_step_needs_none)
{
	run();
	complete();
	for (uint32_t i = 0; i < D; i++)
		node[i].nonfinite = 1;
	vote_all();
	ck_assert(stored.outcome == OUTCOME_SKIPPED && order[0].want == WANT_COMMIT);
	restart(1);
	ck_assert(order[0].want == WANT_COMMIT && order[0].comm == 0);
	tick(SECOND);
	ck_assert_uint_eq(order[0].comm, 0);
}
END_TEST

/* It has the commit from the journal, and forms one as soon as all engines are there. */
START_TEST(a_coordinator_that_starts_forms_one_for_the_last_commit)
{
	commit();
	const struct commit last = stored;
	reopen(6);
	coord_restore(coord, &last);
	for (uint32_t i = 0; i < D; i++) {
		ck_assert_uint_eq(order[0].comm, 0);
		node[i].incarnation = 2;
		node[i].start = START_PARAMS;
		node[i].window = i == 0; /* part 0 has applied it */
		node[i].phase = i ? WINDOW_APPLYING : WINDOW_OPEN;
		tell(i);
	}
	ck_assert(order[1].want == WANT_COMMIT && order[1].comm == 1 && order[1].term == 6);
	ck_assert(order[1].commit.term == 5 && order[1].commit.attempt == 2);
}
END_TEST

Suite *comm_shards_suite(void)
{
	Suite *s = suite_create("coord_comm_shards");
	TCase *t = tcase_create("shards");
	tcase_add_checked_fixture(t, setup_sharded, teardown);
	tcase_add_test(t, shares_are_gathered_where_the_sum_was_taken);
	tcase_add_loop_test(t, another_life_gathers_in_another_one, 0, 2);
	tcase_add_test(t, a_part_that_is_ahead_is_told);
	tcase_add_loop_test(t, one_that_fails_is_followed_by_another_after_a_pause, 0, 2);
	tcase_add_test(t, one_that_nobody_gets_on_with_is_over);
	tcase_add_test(t, an_outcome_without_a_step_needs_none);
	tcase_add_test(t, a_coordinator_that_starts_forms_one_for_the_last_commit);
	suite_add_tcase(s, t);
	return s;
}
