/* SPDX-License-Identifier: Apache-2.0 */
/* Who is late, missing or gone, and since when that counts: a coordinator with one fake node and a clock that the test
 * moves. */
#include "coord_rig.h"

#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

Suite *late_suite(void);

/* The node reports that its engine does not come up, for this reason; "": it does. */
static void hinder(const char *why)
{
	snprintf(node.hindrance, sizeof(node.hindrance), "%s", why);
	tell();
}

/* The engine of the node does not come up: the ranks are not to blame, however long that takes. */
START_TEST(an_engine_that_does_not_come_up_stalls_the_job_and_nobody_is_late)
{
	const char *reason;
	rank[0].counted = 2;
	rank[0].waiting_ns = rank[0].ready_ns = 1; /* it waits for rank 1 */
	tell();
	hinder("no room");
	ck_assert_int_eq(coord_state(coord, &reason, NULL), JOB_STALLED);
	ck_assert_str_eq(reason, "no room");
	ck_assert_str_eq(last_event, "EngineFailing");
	last_event[0] = '\0';
	for (int i = 0; i < 2; i++) {
		now.mono_ns += 2 * spec.stall_abort_ns;
		hinder("no room");
		coord_tick(coord, now);
	}
	ck_assert_str_eq(last_event, ""); /* once */
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_STALLED);
	hinder("no memory");
	ck_assert_str_eq(last_text, "no memory");
	coord_pause(coord, "by me", now);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_PAUSED);
	coord_resume(coord, "by me", now);
	ck_assert_int_eq(coord_state(coord, &reason, NULL), JOB_STALLED);
	ck_assert_str_eq(reason, "no memory");
	hinder("");
	ck_assert_str_eq(last_event, "EngineBack");
	coord_tick(coord, now);
	ck_assert_int_eq(coord_state(coord, &reason, NULL), JOB_RUNNING);
	ck_assert_str_eq(reason, "");
	now.mono_ns += spec.stall_warn_ns; /* from here on somebody is */
	coord_tick(coord, now);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_STALLED);
	ck_assert_str_eq(last_event, "RankLate");
}
END_TEST

START_TEST(an_attempt_does_not_time_out_without_an_engine)
{
	fill();
	ck_assert_int_eq(coord_phase(coord), COORD_GO);
	uint64_t attempt = order.attempt;
	hinder("no room");
	now.mono_ns += 3600 * SECOND;
	coord_tick(coord, now);
	ck_assert_uint_eq(order.attempt, attempt);
	hinder("");
	now.mono_ns += 59 * SECOND;
	coord_tick(coord, now);
	ck_assert_uint_eq(order.attempt, attempt);
	finish();
	ck_assert_uint_eq(coord_window(coord), 1);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_RUNNING);
}
END_TEST

START_TEST(an_engine_that_never_came_up_is_the_reason_of_starting)
{
	const char *reason;
	coord_free(coord);
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 1, 1, NULL, &ports), ST_OK);
	node.start = START_ALLOCATED;
	tell();
	hinder("no room");
	ck_assert_int_eq(coord_state(coord, &reason, NULL), JOB_STARTING);
	ck_assert_str_eq(reason, "no room");
	now.mono_ns += 2 * spec.stall_abort_ns;
	coord_tick(coord, now);
	ck_assert_int_eq(coord_phase(coord), COORD_START); /* ranks have their time afterwards */
	hinder("");
	coord_end(coord, ST_ENGINE_FAILED, "no room", now);
	coord_on_ended(coord, ST_OK, now);
	ck_assert_int_eq(coord_state(coord, &reason, NULL), JOB_NODE_FAIL);
	ck_assert_str_eq(reason, "no room");
	hinder("too late");
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_NODE_FAIL);
}
END_TEST

/* Nobody needs to come for that: PENDING is who waits for its turn, or for its tensors. */
START_TEST(a_job_with_memory_is_starting)
{
	coord_free(coord);
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 1, 1, NULL, &ports), ST_OK);
	coord_enqueue(coord, "2 jobs before it", now);
	node.start = START_DECLARED;
	tell();
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_PENDING);
	node.start = START_ALLOCATED;
	tell();
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_PENDING);
	coord_free(coord);
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 1, 1, NULL, &ports), ST_OK);
	node.start = START_DECLARED;
	tell();
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_PENDING);
	node.start = START_ALLOCATED;
	tell();
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_STARTING);
	node.start = START_PARAMS;
	tell();
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_RUNNING);
}
END_TEST

START_TEST(who_never_comes_is_named)
{
	coord_free(coord);
	spec.stall_abort_ns = 3 * SECOND / 2;
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 1, 1, NULL, &ports), ST_OK);
	node.start = START_ALLOCATED;
	rank[1].attached = _i;
	tell();
	coord_tick(coord, now);
	now.mono_ns += SECOND;
	coord_tick(coord, now);
	ck_assert_str_eq(end_reason, "");
	now.mono_ns += SECOND / 2;
	coord_tick(coord, now);
	ck_assert_str_eq(end_reason, _i ? "STALLED: did not start within 1.5 s: no rank gave the initial parameters"
					: "STALLED: did not start within 1.5 s: 1 of 2 ranks attached, rank 1 did not");
}
END_TEST

/* While it starts the reason is shown, from stall_warn on. */
START_TEST(a_start_that_takes_long_says_why)
{
	const char *reason;
	static const char *const said[] = { "it waits for rank 1's parameters",
					    "1 of 2 ranks attached, rank 1 did not" };
	char want[100];
	coord_free(coord);
	spec.stall_warn_ns = SECOND;
	spec.stall_abort_ns = 3 * SECOND;
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 1, 1, NULL, &ports), ST_OK);
	node.start = START_ALLOCATED;
	snprintf(node.start_waits, sizeof(node.start_waits), "rank 1's parameters");
	rank[1].attached = !_i;
	tell();
	coord_tick(coord, now);
	coord_state(coord, &reason, NULL);
	ck_assert_str_eq(reason, "");
	now.mono_ns += SECOND;
	coord_tick(coord, now);
	ck_assert_int_eq(coord_state(coord, &reason, NULL), JOB_STARTING);
	snprintf(want, sizeof(want), "has not started: %s", said[_i]);
	ck_assert_str_eq(reason, want);
	now.mono_ns += 2 * SECOND;
	coord_tick(coord, now);
	snprintf(want, sizeof(want), "STALLED: did not start within 3 s: %s", said[_i]);
	ck_assert_str_eq(end_reason, want);
}
END_TEST

/* A second goes by in ticks. */
static void tick_for(int64_t seconds)
{
	for (int64_t i = 0; i < seconds; i++) {
		now.mono_ns += SECOND;
		coord_tick(coord, now);
	}
}

static void set_attached(uint8_t attached)
{
	for (int i = 0; i < 2; i++) {
		rank[i].attached = attached;
		rank[i].known = 1;
		rank[i].lost = !attached;
		rank[i].lost_ns = attached ? 0 : 1;
	}
	tell();
}

/* Whether its ranks have never come (_i 0), or have gone. Neither is a straggler's case: nobody waits. */
START_TEST(a_job_without_ranks_stalls_and_is_abandoned)
{
	const char *reason;
	spec.abandoned_ns = 900 * SECOND; /* longer than stall_abort, which has no say here */
	set_attached(_i != 0);
	coord_tick(coord, now);
	if (_i)
		set_attached(0);
	tick_for(60);
	ck_assert_int_eq(coord_state(coord, &reason, NULL), _i ? JOB_RUNNING : JOB_STALLED);
	tick_for(1);
	ck_assert_int_eq(coord_state(coord, &reason, NULL), JOB_STALLED);
	ck_assert_str_eq(reason, "no rank is attached: without one the job ends after timeouts.abandoned (900 s)");
	ck_assert_str_eq(last_event, "NoRanks");
	last_event[0] = '\0';
	tick_for(838);
	ck_assert_str_eq(last_event, ""); /* once */
	ck_assert_str_eq(end_reason, "");
	tick_for(2);
	ck_assert_str_eq(end_reason, "STALLED: abandoned: no rank was attached for 900 s (timeouts.abandoned)");
	coord_on_ended(coord, ST_OK, now);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_FAILED);
}
END_TEST

/* Nothing tells whether they live but their calls, and there are none. */
START_TEST(silent_ranks_do_not_keep_a_job)
{
	set_attached(1);
	rank[0].silent = rank[1].silent = 1;
	tell();
	tick_for(61);
	ck_assert_str_eq(last_event, "NoRanks");
	rank[1].silent = 0; /* one is heard */
	tell();
	coord_tick(coord, now);
	ck_assert_str_eq(last_event, "RanksBack");
	tick_for(1000);
	ck_assert_str_eq(end_reason, "");
	rank[1].silent = 1;
	tell();
	tick_for(602);
	ck_assert_str_eq(end_reason, "STALLED: abandoned: no rank was attached for 600 s (timeouts.abandoned)");
}
END_TEST

START_TEST(a_rank_that_comes_back_ends_the_time_without_ranks)
{
	const char *reason;
	set_attached(0);
	tick_for(500);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_STALLED);
	set_attached(1);
	coord_tick(coord, now);
	ck_assert_int_eq(coord_state(coord, &reason, NULL), JOB_RUNNING);
	ck_assert_str_eq(reason, "");
	ck_assert_str_eq(last_event, "RanksBack");
	ck_assert_str_eq(last_text, "a rank is attached again after 499 s without any");
	set_attached(0);
	tick_for(599); /* counted anew */
	ck_assert_str_eq(end_reason, "");
}
END_TEST

/* Nobody can come while the engine is down, and nobody has to while the job is paused or waits for its turn. */
START_TEST(time_without_ranks_does_not_count_while_none_could_help)
{
	set_attached(0);
	tick_for(500);
	if (_i)
		coord_pause(coord, "by me", now);
	else
		hinder("no room");
	tick_for(1000);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), _i ? JOB_PAUSED : JOB_STALLED);
	ck_assert_str_eq(end_reason, "");
	if (_i)
		coord_resume(coord, "by me", now);
	else
		hinder("");
	tick_for(599);
	ck_assert_str_eq(end_reason, "");
	tick_for(2);
	ck_assert_str_eq(end_reason, "STALLED: abandoned: no rank was attached for 600 s (timeouts.abandoned)");
}
END_TEST

START_TEST(a_start_without_ranks_says_so_and_is_abandoned)
{
	const char *reason;
	coord_free(coord);
	spec.stall_abort_ns = 70 * SECOND; /* is for ranks that come later than others */
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 1, 1, NULL, &ports), ST_OK);
	node.start = START_ALLOCATED;
	set_attached(0);
	tick_for(61);
	ck_assert_int_eq(coord_state(coord, &reason, NULL), JOB_STARTING);
	ck_assert_str_eq(reason, "no rank is attached: without one the job ends after timeouts.abandoned (600 s)");
	tick_for(539);
	ck_assert_str_eq(end_reason, "");
	set_attached(1);
	coord_tick(coord, now);
	ck_assert_int_eq(coord_state(coord, &reason, NULL), JOB_STARTING);
	ck_assert_str_eq(reason, "");
	tick_for(69); /* it has its whole time to give the parameters */
	ck_assert_str_eq(end_reason, "");
	tick_for(2);
	ck_assert_str_eq(end_reason, "STALLED: did not start within 70 s: no rank gave the initial parameters");
}
END_TEST

/* Rank 0 has given all, rank 1 comes after 62 s; _i: only because an operator closes the window without it. */
START_TEST(a_straggler_that_is_back_is_told)
{
	rank[0].counted = 2;
	rank[0].waiting_ns = rank[0].ready_ns = 1;
	tell();
	tick_for(62);
	ck_assert_str_eq(last_event, "RankLate");
	if (_i) {
		uint64_t w;
		ck_assert_int_eq(coord_flush(coord, &w, now), ST_OK);
	} else {
		fill();
	}
	finish();
	ck_assert_uint_eq(coord_window(coord), 1);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_RUNNING);
	ck_assert_str_eq(last_event, _i ? "RankLate" : "RankBack");
	if (!_i)
		ck_assert_str_eq(last_text,
				 "nobody waits any longer for rank 1 in window 0; others had waited for 62.0 s");
}
END_TEST

START_TEST(who_is_late_is_named)
{
	static const struct {
		int64_t pid;
		uint8_t known;
		const char *node, *who;
	} cases[] = { { 77, 1, "", "pid 77" },
		      { 0, 1, "", "inline" },
		      { 0, 0, "", "never attached, pid 0" },
		      { 77, 1, "b", "node b, pid 77" },
		      { 0, 0, "b", "node b, never attached, pid 0" } };
	const char *reason;
	char want[100];
	coord_part_on(coord, 0, cases[_i].node);
	rank[0].counted = 2;
	rank[0].waiting_ns = 1;
	rank[1].pid = cases[_i].pid;
	rank[1].attached = rank[1].known = cases[_i].known;
	tell();
	now.mono_ns += 61 * SECOND;
	coord_tick(coord, now);
	ck_assert_int_eq(coord_state(coord, &reason, NULL), JOB_STALLED);
	snprintf(want, sizeof(want), "window 0: waiting for rank 1 (%s) at 0/2 for 61 s", cases[_i].who);
	ck_assert_str_eq(reason, want);
}
END_TEST

START_TEST(nobody_is_late_while_it_is_held)
{
	rank[0].counted = 2;
	rank[0].waiting_ns = 1;
	tell();
	now.mono_ns += 30 * SECOND;
	ck_assert_int_eq(coord_rank_late_ns(coord, 1, now), 30 * SECOND + 1);
	coord_pause(coord, "x", now);
	now.mono_ns += 3600 * SECOND; /* six times stall_abort */
	coord_tick(coord, now);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_PAUSED);
	ck_assert_int_eq(coord_rank_late_ns(coord, 1, now), 0);
	coord_resume(coord, "resumed by ana", now);
	now.mono_ns += 59 * SECOND;
	coord_tick(coord, now);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_RUNNING);
	ck_assert_int_eq(coord_rank_late_ns(coord, 1, now), 59 * SECOND);
	now.mono_ns += 2 * SECOND;
	coord_tick(coord, now);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_STALLED);
}
END_TEST

static void pass(int64_t seconds)
{
	now.mono_ns += seconds * SECOND;
	now.unix_ns += seconds * SECOND;
}

START_TEST(a_pause_is_nobodys_waiting)
{
	pass(4);
	rank[0].counted = 2;
	rank[0].ready_ns = 1;
	tell();
	pass(2);
	coord_pause(coord, "x", now);
	pass(50);
	coord_pause(coord, "once more", now);
	pass(50);
	coord_resume(coord, "resumed by ana", now);
	pass(2);
	rank[1].counted = 2;
	rank[1].ready_ns = 1;
	node.complete = true;
	tell();
	finish(); /* 8 s, of which one of two ranks has waited 4 */
	ck_assert_uint_eq(n_stored, 1);
	ck_assert_double_eq_tol(stored.wait_fraction, 0.25, 1e-9);
	ck_assert_uint_eq(stored.last_rank, 1);
	ck_assert_int_eq(stored.last_lag_ns, 4 * SECOND);
}
END_TEST

START_TEST(ranks_that_get_ready_in_a_pause_wait_from_its_end)
{
	pass(1);
	coord_pause(coord, "x", now);
	pass(30);
	fill();
	pass(20);
	coord_resume(coord, "resumed by ana", now);
	pass(3); /* until the engine has closed the window */
	finish();
	ck_assert_uint_eq(n_stored, 1);
	ck_assert_double_eq(stored.wait_fraction, 0.75);
	ck_assert_int_eq(stored.last_lag_ns, 0);
}
END_TEST

START_TEST(a_restart_keeps_the_hold)
{
	fill();
	finish();
	struct commit last = stored;
	coord_free(coord);
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 2, 1, NULL, &ports), ST_OK);
	coord_restore_hold(coord, "paused by ana");
	coord_restore(coord, &last);
	node.incarnation = 2;
	tell();
	ck_assert_uint_eq(coord_window(coord), 1);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_PAUSED);
	fill();
	ck_assert_int_eq(coord_phase(coord), COORD_COLLECT);
	pass(100);
	coord_resume(coord, "resumed by ana", now);
	pass(3);
	finish();
	ck_assert_uint_eq(stored.window, 1);
	ck_assert_double_eq(stored.wait_fraction, 1); /* of the time since the resume */
}
END_TEST

Suite *late_suite(void)
{
	Suite *s = suite_create("late");
	TCase *c = tcase_create("late");
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, an_engine_that_does_not_come_up_stalls_the_job_and_nobody_is_late);
	tcase_add_test(c, an_attempt_does_not_time_out_without_an_engine);
	tcase_add_test(c, an_engine_that_never_came_up_is_the_reason_of_starting);
	tcase_add_test(c, a_job_with_memory_is_starting);
	tcase_add_loop_test(c, who_never_comes_is_named, 0, 2);
	tcase_add_loop_test(c, a_start_that_takes_long_says_why, 0, 2);
	tcase_add_loop_test(c, a_job_without_ranks_stalls_and_is_abandoned, 0, 2);
	tcase_add_test(c, silent_ranks_do_not_keep_a_job);
	tcase_add_test(c, a_rank_that_comes_back_ends_the_time_without_ranks);
	tcase_add_loop_test(c, time_without_ranks_does_not_count_while_none_could_help, 0, 2);
	tcase_add_test(c, a_start_without_ranks_says_so_and_is_abandoned);
	tcase_add_loop_test(c, a_straggler_that_is_back_is_told, 0, 2);
	tcase_add_loop_test(c, who_is_late_is_named, 0, 5);
	tcase_add_test(c, nobody_is_late_while_it_is_held);
	tcase_add_test(c, a_pause_is_nobodys_waiting);
	tcase_add_test(c, ranks_that_get_ready_in_a_pause_wait_from_its_end);
	tcase_add_test(c, a_restart_keeps_the_hold);
	suite_add_tcase(s, c);
	return s;
}
