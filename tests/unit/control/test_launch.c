/* SPDX-License-Identifier: Apache-2.0 */
#include "control/launch.h"

#include "support/suite.h"

#include <check.h>
#include <signal.h>
#include <string.h>

#define MS INT64_C(1000000)
#define GRACE (1000 * MS)
#define RANKS 3

static struct launch *l;
static struct now now;
static int64_t last_pid;
static int fail_starts;			    /* as many starts fail */
static uint32_t starts[RANKS], told[RANKS]; /* how often */
static uint32_t restarts_said[RANKS];
static int signals[RANKS]; /* the last one */
static uint32_t n_signals;

static int64_t fake_start(void *ctx, uint32_t rank, uint32_t restarts)
{
	starts[rank]++;
	restarts_said[rank] = restarts;
	return fail_starts-- > 0 ? 0 : ++last_pid;
}

static void fake_signal(void *ctx, uint32_t rank, int64_t pid, int signal)
{
	ck_assert_int_eq(launch_rank(l, rank)->state, LAUNCH_RANK_RUNNING);
	ck_assert_int_eq(launch_rank(l, rank)->pid, pid);
	signals[rank] = signal;
	n_signals++;
}

static void fake_changed(void *ctx, uint32_t rank)
{
	told[rank]++;
}

static void make(uint32_t max_restarts)
{
	struct launch_ports p = { .start = fake_start, .signal = fake_signal, .changed = fake_changed };
	now = (struct now){ 1000 * MS, 5000 };
	last_pid = 100;
	fail_starts = 0;
	n_signals = 0;
	memset(starts, 0, sizeof(starts));
	memset(told, 0, sizeof(told));
	memset(signals, 0, sizeof(signals));
	launch_free(l);
	ck_assert_int_eq(launch_new(&l, RANKS, max_restarts, GRACE, &p), ST_OK);
}

static void run(uint32_t max_restarts)
{
	make(max_restarts);
	launch_start(l, now);
}

static void wait_ms(int64_t ms)
{
	now.mono_ns += ms * MS;
	now.unix_ns += ms * MS;
	launch_tick(l, now);
}

static void ends(uint32_t rank, int32_t status)
{
	launch_on_exit(l, rank, launch_rank(l, rank)->pid, status, now);
}

static void expect(enum launch_phase phase, enum launch_result result)
{
	ck_assert_int_eq(launch_summary(l)->phase, phase);
	ck_assert_int_eq(launch_summary(l)->result, result);
}

static enum launch_rank_state state(uint32_t rank)
{
	return launch_rank(l, rank)->state;
}

static void expect_cause(uint32_t rank, int32_t status)
{
	const struct launch_cause *c = &launch_summary(l)->cause;
	ck_assert(c->known);
	ck_assert_uint_eq(c->rank, rank);
	ck_assert_int_eq(c->exit_status, status);
}

START_TEST(all_ranks_start_and_succeed)
{
	make(0);
	expect(LAUNCH_IDLE, LAUNCH_UNDECIDED);
	ck_assert_int_eq(launch_rank(l, 0)->exit_status, LAUNCH_NO_STATUS);
	launch_start(l, now);
	launch_start(l, now);
	expect(LAUNCH_RUNNING, LAUNCH_UNDECIDED);
	for (uint32_t i = 0; i < RANKS; i++) {
		ck_assert_uint_eq(starts[i], 1);
		ck_assert_int_eq(launch_rank(l, i)->pid, 101 + i);
		ck_assert_uint_eq(told[i], 1);
	}
	ends(1, 0);
	ends(0, 0);
	expect(LAUNCH_RUNNING, LAUNCH_UNDECIDED);
	ck_assert_int_eq(state(1), LAUNCH_RANK_EXITED);
	ends(2, 0);
	expect(LAUNCH_OVER, LAUNCH_SUCCEEDED);
	ck_assert(!launch_summary(l)->cause.known);
	ck_assert_uint_eq(n_signals, 0);
	ck_assert_int_eq(launch_tick(l, now), INT64_MAX);
}
END_TEST

START_TEST(the_first_failure_is_the_cause_and_stops_the_rest)
{
	run(0);
	ends(2, 3);
	expect_cause(2, 3);
	ck_assert_int_eq(launch_summary(l)->cause.pid, 103);
	ck_assert_int_eq(launch_summary(l)->cause.unix_ns, 5000);
	expect(LAUNCH_STOPPING, LAUNCH_FAILED);
	ck_assert_int_eq(signals[0], SIGTERM);
	ck_assert_int_eq(signals[1], SIGTERM);
	ck_assert_int_eq(signals[2], 0);
	ends(0, 1); /* of our signal, whatever it says */
	ends(1, 128 + SIGTERM);
	expect(LAUNCH_OVER, LAUNCH_FAILED);
	expect_cause(2, 3);
	ck_assert_int_eq(launch_rank(l, 1)->exit_status, 128 + SIGTERM);
}
END_TEST

START_TEST(who_ignores_the_signal_is_killed_after_the_grace)
{
	run(0);
	launch_stop(l, GRACE, now);
	ck_assert_int_eq(launch_tick(l, now), now.mono_ns + GRACE);
	ends(0, 0);
	wait_ms(999);
	ck_assert_int_eq(signals[1], SIGTERM);
	wait_ms(1);
	ck_assert_int_eq(signals[0], SIGTERM); /* it was gone */
	ck_assert_int_eq(signals[1], SIGKILL);
	ck_assert_int_eq(signals[2], SIGKILL);
	wait_ms(5000);
	ck_assert_uint_eq(n_signals, RANKS + 2);
	ends(1, 137);
	ends(2, 137);
	expect(LAUNCH_OVER, LAUNCH_STOPPED);
	ck_assert(!launch_summary(l)->cause.known);
}
END_TEST

START_TEST(restarts_share_one_budget_and_wait_longer_each_time)
{
	run(2);
	ends(1, 9);
	ck_assert_int_eq(state(1), LAUNCH_RANK_WAITING);
	ck_assert_int_eq(launch_tick(l, now), now.mono_ns + 100 * MS);
	ck_assert_uint_eq(starts[1], 1);
	wait_ms(100);
	ck_assert_uint_eq(starts[1], 2);
	ck_assert_uint_eq(restarts_said[1], 1);
	ends(1, 9);
	wait_ms(199);
	ck_assert_uint_eq(starts[1], 2);
	wait_ms(1);
	ck_assert_uint_eq(starts[1], 3);
	ck_assert_uint_eq(launch_summary(l)->charged, 2);
	ends(0, 7);
	expect(LAUNCH_STOPPING, LAUNCH_FAILED);
	ck_assert_uint_eq(starts[0], 1);
	expect_cause(1, 9); /* it came first, and they never recovered */
}
END_TEST

START_TEST(a_failure_long_ago_is_not_the_cause)
{
	run(1);
	ends(1, 9);
	wait_ms(100);
	wait_ms(LAUNCH_QUIET_NS / MS);
	ends(2, 4);
	expect_cause(2, 4);
}
END_TEST

START_TEST(a_grace_can_only_become_shorter)
{
	run(0);
	launch_stop(l, GRACE, now);
	wait_ms(100);
	launch_stop(l, 5 * GRACE, now);
	ck_assert_int_eq(launch_tick(l, now), now.mono_ns + GRACE - 100 * MS);
	launch_stop(l, 50 * MS, now);
	ck_assert_uint_eq(n_signals, RANKS); /* each has had its SIGTERM */
	wait_ms(49);
	ck_assert_int_eq(signals[0], SIGTERM);
	wait_ms(1);
	ck_assert_int_eq(signals[0], SIGKILL);
	launch_stop(l, GRACE, now); /* nothing is killed twice */
	wait_ms(5000);
	ck_assert_uint_eq(n_signals, 2 * RANKS);
}
END_TEST

START_TEST(a_stop_overtakes_a_restart)
{
	run(5);
	ends(1, 9);
	launch_stop(l, GRACE, now);
	ck_assert_int_eq(state(1), LAUNCH_RANK_EXITED);
	wait_ms(10000);
	ck_assert_uint_eq(starts[1], 1);
	ends(0, 0);
	ends(2, 0);
	expect(LAUNCH_OVER, LAUNCH_STOPPED);
}
END_TEST

START_TEST(a_drained_job_restarts_nobody)
{
	run(5);
	ends(0, 1);
	launch_drain(l, now);
	expect(LAUNCH_DRAINING, LAUNCH_UNDECIDED);
	ends(1, 1);
	wait_ms(10000);
	ck_assert_uint_eq(starts[0] + starts[1], 2);
	ck_assert_uint_eq(n_signals, 0);
	launch_stop(l, GRACE, now); /* it may still be stopped */
	ck_assert_int_eq(signals[2], SIGTERM);
	ends(2, 143);
	expect(LAUNCH_OVER, LAUNCH_STOPPED);
	run(0);
	launch_drain(l, now);
	for (uint32_t i = 0; i < RANKS; i++)
		ends(i, 1);
	expect(LAUNCH_OVER, LAUNCH_SUCCEEDED);
}
END_TEST

START_TEST(what_cannot_be_started_has_failed)
{
	make(1);
	fail_starts = 1;
	launch_start(l, now);
	ck_assert_int_eq(state(0), LAUNCH_RANK_WAITING);
	ck_assert_int_eq(state(1), LAUNCH_RANK_RUNNING);
	ck_assert_int_eq(launch_rank(l, 0)->exit_status, 126);
	fail_starts = 1;
	wait_ms(100);
	expect(LAUNCH_STOPPING, LAUNCH_FAILED);
	expect_cause(0, 126);
	make(0);
	fail_starts = 1;
	launch_start(l, now);
	expect(LAUNCH_OVER, LAUNCH_FAILED);
	ck_assert_uint_eq(starts[1] + starts[2], 0);
}
END_TEST

START_TEST(a_stop_before_the_start)
{
	make(0);
	launch_stop(l, GRACE, now);
	expect(LAUNCH_OVER, LAUNCH_STOPPED);
	launch_start(l, now);
	ck_assert_uint_eq(starts[0], 0);
}
END_TEST

START_TEST(exits_of_processes_of_the_past_are_ignored)
{
	run(1);
	int64_t old = launch_rank(l, 0)->pid;
	ends(0, 1);
	wait_ms(100);
	launch_on_exit(l, 0, old, 1, now);
	ck_assert_int_eq(state(0), LAUNCH_RANK_RUNNING);
	expect(LAUNCH_RUNNING, LAUNCH_UNDECIDED);
}
END_TEST

START_TEST(a_new_launcher_starts_again_at_no_cost)
{
	make(3);
	launch_resume(l, 0, 2, 2);
	launch_resume(l, 1, 0, 2);
	launch_start(l, now);
	ck_assert_uint_eq(restarts_said[0], 3);
	ck_assert_uint_eq(restarts_said[1], 1);
	ck_assert_uint_eq(restarts_said[2], 0);
	ck_assert_uint_eq(launch_summary(l)->charged, 2);
	ends(0, 1);
	ends(1, 1);
	expect(LAUNCH_STOPPING, LAUNCH_FAILED);
}
END_TEST

START_TEST(a_rank_waits_until_a_restart_is_allowed)
{
	make(0);
	launch_allow(l, 0, false, now);
	launch_start(l, now);
	ends(2, 9);
	ends(1, 8);
	expect(LAUNCH_RUNNING, LAUNCH_UNDECIDED);
	ck_assert_int_eq(state(1), LAUNCH_RANK_WAITING);
	ck_assert_uint_eq(launch_summary(l)->wanted, 2);
	wait_ms(100000);
	ck_assert_uint_eq(starts[1] + starts[2], 2);
	launch_allow(l, 1, false, now);
	launch_allow(l, 1, false, now); /* repeated */
	launch_allow(l, 0, false, now); /* overtaken */
	ck_assert_uint_eq(launch_summary(l)->allowed, 1);
	ck_assert_uint_eq(launch_summary(l)->wanted, 1);
	ck_assert_uint_eq(launch_summary(l)->charged, 1);
	wait_ms(99);
	ck_assert_uint_eq(starts[1], 1);
	wait_ms(1);
	ck_assert_uint_eq(starts[1], 2);
	launch_allow(l, 1, true, now);
	expect(LAUNCH_STOPPING, LAUNCH_FAILED);
	expect_cause(2, 9);
	ck_assert_uint_eq(launch_summary(l)->wanted, 0);
	ck_assert_uint_eq(starts[2], 1);
	ends(0, 0);
	ends(1, 143);
	expect(LAUNCH_OVER, LAUNCH_FAILED);
}
END_TEST

START_TEST(who_waits_for_a_restart_can_be_stopped)
{
	make(0);
	launch_allow(l, 0, false, now);
	launch_start(l, now);
	ends(0, 1);
	launch_stop(l, GRACE, now);
	ck_assert_int_eq(state(0), LAUNCH_RANK_EXITED);
	ck_assert_uint_eq(launch_summary(l)->wanted, 0);
	launch_allow(l, 5, true, now);
	wait_ms(10000);
	ck_assert_uint_eq(starts[0], 1);
	ends(1, 0);
	ends(2, 0);
	expect(LAUNCH_OVER, LAUNCH_STOPPED);
}
END_TEST

static void teardown(void)
{
	launch_free(l);
	l = NULL;
}

int main(void)
{
	Suite *s = suite_create("launch");
	TCase *c = tcase_create("launch");
	tcase_add_checked_fixture(c, NULL, teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, all_ranks_start_and_succeed);
	tcase_add_test(c, the_first_failure_is_the_cause_and_stops_the_rest);
	tcase_add_test(c, who_ignores_the_signal_is_killed_after_the_grace);
	tcase_add_test(c, restarts_share_one_budget_and_wait_longer_each_time);
	tcase_add_test(c, a_failure_long_ago_is_not_the_cause);
	tcase_add_test(c, a_grace_can_only_become_shorter);
	tcase_add_test(c, a_stop_overtakes_a_restart);
	tcase_add_test(c, a_drained_job_restarts_nobody);
	tcase_add_test(c, what_cannot_be_started_has_failed);
	tcase_add_test(c, a_stop_before_the_start);
	tcase_add_test(c, exits_of_processes_of_the_past_are_ignored);
	tcase_add_test(c, a_new_launcher_starts_again_at_no_cost);
	tcase_add_test(c, a_rank_waits_until_a_restart_is_allowed);
	tcase_add_test(c, who_waits_for_a_restart_can_be_stopped);
	return suite_run(s);
}
