/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators at the coordinator while the job runs: which attempt uses which, and what becomes of one that breaks.
 */
#include "coord_comm_rig.h"

#include "engine/control_page.h"

#include <check.h>
#include <string.h>

Suite *comm_go_suite(void);

START_TEST(a_communicator_is_used_again_and_again)
{
	run();
	for (uint64_t window = 0; window < 3; window++) {
		complete();
		ck_assert(order[0].want == WANT_GO && order[0].comm == 1);
		ck_assert_uint_eq(order[0].attempt, 2 + window);
		vote_all();
		ck_assert_uint_eq(stored.window, window);
		ck_assert(order[0].comm == 1);
		apply();
	}
	ck_assert(n_boards[0] == 1 && !*last_event);
}
END_TEST

/* 0: its engine is another one; 1: it has died, and there is none yet; 2: it says that it is not in it any more.
 * 3: it is gone, and claims to be in it. */
START_TEST(go_forms_another_where_one_has_left)
{
	run();
	const uint64_t life[] = { 202, 0, 102, 0 };
	node[2].life = life[_i];
	node[2].comm = _i == 3;
	tell(2);
	ck_assert_uint_eq(order[0].comm, _i == 0 ? 0 : 1); /* the others leave it */
	if (_i == 0)
		ck_assert(order[0].run && order[0].want == WANT_NOTHING && order[0].number == order[1].number);
	complete();
	ck_assert(order[0].want == WANT_GO && order[0].attempt == 2 && order[0].comm == 2);
	node[2].life = 302;
	tell(2);
	say_all();
	ck_assert(board.comm == 2 && lives[2] == 302 && n_boards[0] == 2);
	join_all();
	vote_all();
	ck_assert_uint_eq(stored.attempt, 2);
	ck_assert_str_eq(last_event, "");
	apply();
	complete();
	ck_assert(order[0].attempt == 3 && order[0].comm == 2);
}
END_TEST

START_TEST(closing_and_committing_go_on_without_an_engine)
{
	uint64_t window;
	run();
	ck_assert_int_eq(coord_flush(coord, &window, now), ST_OK);
	ck_assert(order[0].want == WANT_CLOSE && order[0].comm == 1);
	restart(1);
	ck_assert(order[0].want == WANT_CLOSE && order[0].comm == 0);
	complete();
	freeze();
	ck_assert(order[0].want == WANT_GO && order[0].comm == 2);
	say_all();
	join_all();
	vote(0), vote(1), vote(2);
	ck_assert_int_eq(coord_phase(coord), COORD_PERSIST);
	restart(2); /* nothing is lost: all have voted */
	ck_assert_int_eq(coord_phase(coord), COORD_PERSIST);
	ck_assert_uint_eq(order[0].comm, 2);
	persisted();
	ck_assert(order[0].want == WANT_COMMIT && order[0].comm == 0);
	apply();
	complete();
	ck_assert(order[0].comm == 3 && order[0].attempt == 3);
	ck_assert_str_eq(last_event, "");
}
END_TEST

/* All micro-batches are there, and a trainer of part 1 never says that it has read its reduced gradient. */
START_TEST(a_reader_that_says_nothing_stalls_the_job)
{
	spec.stall_warn_ns = 5 * SECOND;
	spec.stall_abort_ns = 60 * SECOND;
	run();
	complete_but(1, "the step acknowledgement of rank 1");
	tick(SECOND);
	for (int i = 0; i < 4; i++)
		tick(SECOND);
	const char *reason;
	int64_t since;
	ck_assert_int_eq(coord_state(coord, &reason, &since), JOB_RUNNING);
	tick(2 * SECOND);
	ck_assert_int_eq(coord_state(coord, &reason, &since), JOB_STALLED);
	ck_assert_str_eq(last_event, "WindowStuck");
	ck_assert_str_eq(last_text, "window 0 waits for the step acknowledgement of rank 1");
	if (_i) { /* late, but it comes */
		node[1].start_waits[0] = '\0';
		node[1].complete = true;
		tell(1);
		ck_assert(order[0].want == WANT_GO || order[0].want == WANT_CLOSE);
		return;
	}
	tick(60 * SECOND);
	ck_assert(strstr(end_reason, "the step acknowledgement of rank 1"));
}
END_TEST

START_TEST(an_engine_restarted_in_commit_is_told_to_leave)
{
	run();
	complete();
	vote_all();
	ck_assert(order[0].want == WANT_COMMIT && order[0].comm == 1);
	tell(0); /* the same engine */
	ck_assert(order[0].comm == 1);
	restart(0);
	ck_assert(order[0].want == WANT_COMMIT && order[0].comm == 0);
}
END_TEST

/* Its vote stands, so the communicator stays; who asks for the board now would look for the dead one in vain. */
START_TEST(a_board_with_an_engine_that_is_gone_is_not_sent_again)
{
	run();
	complete();
	vote(0), vote(1);
	memset(n_boards, 0, sizeof(n_boards));
	ck_assert_int_eq(say(2), ST_OK);
	ck_assert_uint_eq(n_boards[2], 1);
	restart(1);
	ck_assert_int_eq(say(2), ST_NOT_READY);
	ck_assert_uint_eq(n_boards[2], 1);
	vote(2);
	persisted();
	apply();
}
END_TEST

/* 0: it has not voted, 1: it has, and its vote stands; 2: it has voted that its engine is down. */
START_TEST(an_engine_restarted_in_an_attempt)
{
	run();
	complete();
	uint64_t number = order[0].number;
	vote(0);
	if (_i == 1)
		vote(1);
	if (_i == 2) {
		node[1].vote_term = 5, node[1].vote_attempt = 2, node[1].vote_status = ST_ENGINE_DOWN;
		node[1].phase = WINDOW_CLOSED;
	}
	restart(1);
	if (_i == 1) {
		ck_assert_int_eq(say(1), ST_ALREADY_EXISTS); /* it was told of it by the order */
		vote(2);
		ck_assert_uint_eq(stored.attempt, 2);
		persisted();
		ck_assert_uint_eq(order[0].comm, 0);
		return;
	}
	ck_assert_str_eq(last_event, "AttemptFailed");
	ck_assert_msg(strstr(last_text, _i ? "attempt 2 of window 0 failed: part 1: the job's engine"
					   : "attempt 2 of window 0 failed: the engine of part 1 was restarted"),
		      "%s", last_text);
	ck_assert_uint_eq(order[0].number, number); /* not before the pause is over */
	tick(SECOND / 10);
	ck_assert(order[0].want == WANT_GO && order[0].attempt == 3 && order[0].comm == 3);
	say_all();
	join_all();
	vote(2); /* of attempt 3; those of 2 do not count */
	ck_assert_int_eq(coord_phase(coord), COORD_GO);
	vote(0), vote(1);
	ck_assert_uint_eq(stored.attempt, 3);
}
END_TEST

START_TEST(a_failed_attempt_names_the_part_and_those_it_suspects)
{
	static const struct {
		uint64_t suspects;
		const char *said, *text;
	} cases[] = { { 0, "", "failed: part 1: the connection" },
		      { 1, "nothing came", "failed: part 1 cannot reach part 0: nothing came" },
		      { 7, "nothing came", "failed: part 1 cannot reach parts 0, 2: nothing came" } };
	run();
	complete();
	fail_vote(1, 2, ST_UNAVAILABLE, cases[_i].suspects, cases[_i].said);
	if (_i == 0)
		ck_assert_msg(strstr(last_text, status_info(ST_UNAVAILABLE)->text), "%s", last_text);
	else
		ck_assert_msg(strstr(last_text, cases[_i].text), "%s", last_text);
	ck_assert_int_eq(say(1), ST_STALE_ATTEMPT); /* of the communicator that is broken */
	fail_vote(0, 2, ST_UNAVAILABLE, 2, "");	    /* of the attempt that is over; it tells the same of part 1 */
	tick(SECOND / 10);
	ck_assert(order[1].want == WANT_GO && order[1].attempt == 3 && order[1].comm == 3);
	ck_assert_int_eq(say(1), ST_OK);
	const uint64_t others = cases[_i].suspects & ~UINT64_C(2);
	ck_assert(coord_part_unreachable(coord, 0) == 2 && !coord_part_unreachable(coord, 2));
	ck_assert_uint_eq(coord_part_unreachable(coord, 1), others);
	say_all();
	join_all();
	ck_assert_uint_eq(coord_part_unreachable(coord, 1), others);
	vote_all();
	ck_assert(!coord_part_unreachable(coord, 0) && !coord_part_unreachable(coord, 1));
}
END_TEST

START_TEST(votes_that_differ_need_another_communicator)
{
	run();
	complete();
	node[2].sumsq = 5;
	vote_all();
	ck_assert_str_eq(last_event, "AttemptFailed");
	tick(SECOND / 10);
	ck_assert(order[0].attempt == 3 && order[0].comm == 3);
}
END_TEST

/* An attempt for which `limit` after its order no part has got on. */
static void expect_stuck(int64_t limit, const char *why)
{
	*last_event = '\0';
	tick(limit);
	ck_assert_str_eq(last_event, "");
	tick(1);
	ck_assert_str_eq(last_event, "AttemptFailed");
	ck_assert_msg(strstr(last_text, why), "%s", last_text);
}

START_TEST(an_attempt_that_nobody_gets_on_with_fails_after_twice_the_stall)
{
	run();
	complete();
	vote(0);
	expect_stuck(2 * STALL, "no part has got on with it for long, and part 1 has not voted");
	tick(SECOND / 10);
	ck_assert_uint_eq(order[0].join_ms, STALL / 1000000); /* it was joined */
	say(0);
	expect_stuck(2 * STALL, "the engine of part 1 has not said its address");
	tick(SECOND / 10);
	ck_assert_uint_eq(order[0].join_ms, 2 * STALL / 1000000);
	say_all();
	join(0), join(2);
	expect_stuck(3 * STALL, "the engine of part 1 has not joined");
}
END_TEST

/* Of a job with parts on several nodes. */
START_TEST(an_attempt_that_has_failed_names_the_nodes)
{
	run();
	coord_part_on(coord, 0, "a");
	coord_part_on(coord, 1, "b");
	coord_part_on(coord, 2, "c");
	complete();
	fail_vote(1, 2, ST_UNAVAILABLE, 7, "nothing came");
	const char *unreached = "failed: part 1 (node b) cannot reach parts 0 (node a), 2 (node c): nothing came";
	ck_assert_msg(strstr(last_text, unreached), "%s", last_text);
	tick(SECOND / 10);
	say(0);
	expect_stuck(2 * STALL, "the engine of part 1 (node b) has not said its address");
	tick(SECOND / 10);
	say_all();
	join(1), join(2);
	expect_stuck(3 * STALL, "the engine of part 0 (node a) has not joined");
	tick(SECOND / 5);
	say_all();
	join_all();
	vote(0), vote(1);
	expect_stuck(2 * STALL, "and part 2 (node c) has not voted");
}
END_TEST

START_TEST(joining_that_takes_too_long_gets_more_time)
{
	static const uint32_t join_s[] = { 8, 16, 32, 60, 60 };
	run();
	restart(1);
	complete();
	for (uint64_t n = 0; n < 5; n++) {
		ck_assert(order[0].comm == 2 + n && order[0].join_ms == join_s[n] * 1000);
		say_all();
		fail_vote(0, 2 + n, ST_STALLED, 2, "");
		tick(2 * SECOND);
	}
	say_all();
	join_all();
	fail_vote(0, 7, ST_STALLED, 2, ""); /* in the exchange */
	tick(5 * SECOND);
	ck_assert(order[0].comm == 8 && order[0].join_ms == 8000);
	fail_vote(0, 8, ST_UNAVAILABLE, 2, ""); /* not for want of time */
	tick(5 * SECOND);
	ck_assert(order[0].comm == 9 && order[0].join_ms == 8000);
}
END_TEST

/* The time to join, and then the time for the exchange. */
START_TEST(an_attempt_gets_on_when_all_have_joined)
{
	run();
	restart(1);
	complete();
	fail_vote(0, 2, ST_STALLED, 2, "");
	tick(SECOND);
	ck_assert_uint_eq(order[0].join_ms, 2 * STALL / 1000000);
	say_all();
	tick(3 * STALL);
	join_all();
	expect_stuck(2 * STALL, "no part has got on with it for long, and part 0 has not voted");
}
END_TEST

START_TEST(a_coordinator_that_starts_forms_one_with_its_first_attempt)
{
	struct commit last;
	run();
	complete();
	vote_all();
	last = stored;
	reopen(6);
	coord_restore(coord, &last);
	for (uint32_t i = 0; i < D; i++)
		tell(i);
	tick(SECOND);
	ck_assert(order[0].want == WANT_COMMIT && order[0].term == 6 && order[0].comm == 0);
	apply();
	ck_assert(order[0].comm == 0);
	struct part_blob b = blob(0);
	b.term = 5, b.comm = 1;
	ck_assert_int_eq(coord_on_blob(coord, &b, now), ST_STALE_ATTEMPT);
	complete();
	ck_assert(order[0].want == WANT_GO && order[0].attempt == 1 && order[0].comm == 1 && order[0].term == 6);
}
END_TEST

/* 0: it ends, 1: another coordinator has taken over. */
START_TEST(addresses_are_forgotten_with_the_job)
{
	run();
	ck_assert_uint_eq(boards_known(), 1);
	if (_i) {
		node[0].term = 6;
		tell(0);
	} else {
		coord_end(coord, ST_CANCELLED, "by ana", now);
		ck_assert_uint_eq(order[0].comm, 1);
		coord_on_ended(coord, ST_OK, now);
		ck_assert(order[0].want == WANT_END && order[0].comm == 0);
	}
	ck_assert_int_eq(say(0), ST_JOB_ENDED);
	tick(1);
	ck_assert_uint_eq(boards_known(), 0);
}
END_TEST

START_TEST(an_older_communicator_is_forgotten_when_the_next_is_formed)
{
	run();
	restart(1);
	complete();
	ck_assert_uint_eq(boards_known(), 1);
	ck_assert_int_eq(say(0), ST_OK);
}
END_TEST

/* Without collectives nothing is said of communicators, as with one part. */
START_TEST(jobs_without_collectives_form_none)
{
	collectives = false;
	form();
	ck_assert(order[0].comm == 0 && order[0].join_ms == 0);
	for (uint32_t i = 0; i < D; i++)
		params(i, 10 + i);
	ck_assert(order[0].run && order[0].comm == 0);
	struct part_blob b = blob(0);
	b.comm = 1;
	ck_assert_int_eq(coord_on_blob(coord, &b, now), ST_JOB_ENDED);
	restart(1);
	complete();
	ck_assert(order[0].want == WANT_GO && order[0].comm == 0 && order[0].attempt == 1);
}
END_TEST

Suite *comm_go_suite(void)
{
	Suite *s = suite_create("attempts with communicators");
	TCase *t = tcase_create("attempts with communicators");
	tcase_add_test(t, a_board_with_an_engine_that_is_gone_is_not_sent_again);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, a_communicator_is_used_again_and_again);
	tcase_add_loop_test(t, go_forms_another_where_one_has_left, 0, 4);
	tcase_add_test(t, closing_and_committing_go_on_without_an_engine);
	tcase_add_test(t, an_engine_restarted_in_commit_is_told_to_leave);
	tcase_add_loop_test(t, an_engine_restarted_in_an_attempt, 0, 3);
	tcase_add_loop_test(t, a_failed_attempt_names_the_part_and_those_it_suspects, 0, 3);
	tcase_add_test(t, votes_that_differ_need_another_communicator);
	tcase_add_test(t, an_attempt_that_nobody_gets_on_with_fails_after_twice_the_stall);
	tcase_add_test(t, an_attempt_that_has_failed_names_the_nodes);
	tcase_add_test(t, joining_that_takes_too_long_gets_more_time);
	tcase_add_loop_test(t, a_reader_that_says_nothing_stalls_the_job, 0, 2);
	tcase_add_test(t, an_attempt_gets_on_when_all_have_joined);
	tcase_add_test(t, a_coordinator_that_starts_forms_one_with_its_first_attempt);
	tcase_add_loop_test(t, addresses_are_forgotten_with_the_job, 0, 2);
	tcase_add_test(t, an_older_communicator_is_forgotten_when_the_next_is_formed);
	tcase_add_test(t, jobs_without_collectives_form_none);
	suite_add_tcase(s, t);
	return s;
}
