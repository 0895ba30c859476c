/* SPDX-License-Identifier: Apache-2.0 */
/* A coordinator of three parts whose exchanges are limited: when it asks for its slots, and when it gives them back. */
#include "control/coord_impl.h"
#include "coord_comm_rig.h"
#include "engine/control_page.h"

#include <check.h>
#include <string.h>

#define MS INT64_C(1000000)

Suite *coord_slots_suite(void);

static void setup_limited(void)
{
	setup();
	limited = true;
}

static const char *reason(void)
{
	const char *text;
	coord_state(coord, &text, NULL);
	return text;
}

/* The job waits in its first window. */
static void wait_for_slots(void)
{
	run();
	ck_assert(!slots_wanted);
	slots_free = false;
	complete();
	ck_assert_int_eq(coord_phase(coord), COORD_CLOSE);
	ck_assert(slots_wanted && order[0].want == WANT_CLOSE);
}

static void get_slots(void)
{
	slots_held = slots_free = true;
	coord_on_exchange(coord, now);
}

START_TEST(slots_are_held_from_go_to_the_last_vote)
{
	run();
	ck_assert(!slots_wanted);
	complete();
	ck_assert(slots_held && coord_phase(coord) == COORD_GO && order[2].want == WANT_GO);
	vote(0);
	vote(1);
	ck_assert(slots_held && !n_slots_given);
	vote(2);
	ck_assert(!slots_held && n_slots_given == 1 && coord_phase(coord) == COORD_PERSIST);
	persisted();
	apply();
	ck_assert(!slots_wanted && n_slots_given == 1);
}
END_TEST

START_TEST(the_window_is_frozen_while_the_job_waits)
{
	wait_for_slots();
	freeze();
	tick(200 * MS);
	ck_assert_int_eq(coord_phase(coord), COORD_CLOSE);
	get_slots();
	ck_assert(coord_phase(coord) == COORD_GO && order[0].want == WANT_GO && order[0].attempt == 2);
	vote_all();
	apply();
}
END_TEST

/* Parts that are complete are frozen in fact. */
START_TEST(go_does_not_wait_for_the_parts_to_be_closed)
{
	wait_for_slots();
	get_slots();
	ck_assert_int_eq(coord_phase(coord), COORD_GO);
}
END_TEST

START_TEST(a_wait_of_a_second_is_told_and_no_bound_runs)
{
	wait_for_slots();
	freeze();
	tick(900 * MS);
	ck_assert_str_eq(reason(), "");
	for (int i = 0; i < 1000; i++)
		tick(SECOND);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_RUNNING);
	ck_assert_str_eq(reason(), "window 0 waits for an exchange slot on node b: job 3 exchanges");
	get_slots();
	ck_assert_str_eq(reason(), "");
	ck_assert_str_eq(last_event, "");
}
END_TEST

START_TEST(a_failed_attempt_gives_back_before_its_pause)
{
	run();
	complete();
	freeze();
	slots_free = false;
	fail_vote(1, order[1].attempt, ST_STALLED, 0, "gone");
	const uint64_t failed = order[0].attempt;
	ck_assert(n_slots_given == 1 && !slots_wanted);
	tick(50 * MS);
	ck_assert(!slots_wanted && order[0].attempt == failed);
	tick(50 * MS);
	ck_assert(slots_wanted && order[0].want != WANT_GO);
	for (int i = 0; i < 1000; i++)
		tick(SECOND);
	ck_assert_int_eq(coord_phase(coord), COORD_GO);
	ck_assert_str_eq(end_reason, "");
	ck_assert_uint_eq(coord->failed_attempts, 1);
	get_slots();
	ck_assert(order[0].want == WANT_GO && order[0].attempt == failed + 1); /* at once */
	say_all();
	join_all();
	vote_all();
	ck_assert(!slots_held && coord_phase(coord) == COORD_COMMIT);
}
END_TEST

/* 0: it waits; 1: it holds. */
START_TEST(a_job_that_ends_gives_back)
{
	if (!_i)
		wait_for_slots();
	else
		run();
	complete();
	coord_end(coord, ST_CANCELLED, "cancelled", now);
	ck_assert(!slots_wanted && n_slots_given == 1);
	coord_on_exchange(coord, now);
	ck_assert_int_eq(coord_phase(coord), COORD_ENDING);
}
END_TEST

START_TEST(one_that_is_superseded_gives_back)
{
	run();
	complete();
	node[0].term = 6;
	tell(0);
	tick(MS);
	ck_assert(!slots_wanted && n_slots_given == 1);
}
END_TEST

START_TEST(a_job_whose_node_is_away_does_not_ask)
{
	wait_for_slots();
	coord_part_away(coord, 1, "node b cannot be heard", now);
	tick(100 * MS);
	ck_assert(!slots_wanted && n_slots_given == 1);
	slots_free = true;
	tick(100 * MS);
	ck_assert(!slots_wanted);
	freeze();
	coord_part_away(coord, 1, "", now);
	tick(100 * MS);
	ck_assert(slots_held && coord_phase(coord) == COORD_GO);
}
END_TEST

/* Its turn comes in the moment in which it cannot take it. */
START_TEST(a_turn_that_is_not_taken_is_given_back)
{
	wait_for_slots();
	coord_part_away(coord, 1, "node b cannot be heard", now);
	get_slots();
	ck_assert(!slots_wanted && n_slots_given == 1 && coord_phase(coord) == COORD_CLOSE);
}
END_TEST

static void ticks(int64_t ns)
{
	for (; ns > 0; ns -= SECOND)
		tick(SECOND);
}

START_TEST(slots_are_given_up_when_a_node_stays_away)
{
	run();
	complete();
	freeze();
	const uint64_t attempt = order[0].attempt;
	coord_part_away(coord, 1, "node b cannot be heard", now);
	ticks(STALL);
	ck_assert(slots_held);
	node[0].pieces++; /* it gets on */
	tell(0);
	ticks(2 * STALL);
	ck_assert(slots_held);
	ticks(3 * SECOND);
	ck_assert(!slots_wanted && n_slots_given == 1);
	ck_assert_str_eq(last_event, "AttemptFailed");
	ticks(100 * SECOND);
	ck_assert(!slots_wanted && coord->failed_attempts == 1);
	coord_part_away(coord, 1, "", now);
	tick(100 * MS);
	ck_assert(slots_held && order[0].want == WANT_GO && order[0].attempt == attempt + 1);
}
END_TEST

Suite *coord_slots_suite(void)
{
	Suite *s = suite_create("coord_slots");
	TCase *t = tcase_create("coord_slots");
	tcase_add_checked_fixture(t, setup_limited, teardown);
	tcase_add_test(t, slots_are_held_from_go_to_the_last_vote);
	tcase_add_test(t, the_window_is_frozen_while_the_job_waits);
	tcase_add_test(t, go_does_not_wait_for_the_parts_to_be_closed);
	tcase_add_test(t, a_wait_of_a_second_is_told_and_no_bound_runs);
	tcase_add_test(t, a_failed_attempt_gives_back_before_its_pause);
	tcase_add_loop_test(t, a_job_that_ends_gives_back, 0, 2);
	tcase_add_test(t, one_that_is_superseded_gives_back);
	tcase_add_test(t, a_job_whose_node_is_away_does_not_ask);
	tcase_add_test(t, a_turn_that_is_not_taken_is_given_back);
	tcase_add_test(t, slots_are_given_up_when_a_node_stays_away);
	suite_add_tcase(s, t);
	return s;
}
