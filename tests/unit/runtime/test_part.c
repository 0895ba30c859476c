/* SPDX-License-Identifier: Apache-2.0 */
/* A part of a job with its engine: from memory to a step, and what becomes of it when the engine dies. */
#include "part_rig.h"
#include "support/suite.h"

#include "gacc/v1/common.pb-c.h"

#include <math.h>
#include <signal.h>
#include <string.h>

Suite *memory_suite(void);
Suite *tensors_suite(void);
Suite *place_suite(void);
Suite *several_suite(void);
Suite *mailbox_suite(void);

/* ---- from memory to a step ---- */

START_TEST(it_begins_with_what_its_rules_draw)
{
	struct part *p = rig_part(RIG_JOB);
	uint64_t need;
	ck_assert_int_eq(part_need(&node, p->spec, job_arena(p->job), &need), ST_OK);
	job_allocate(p->job);
	ck_assert_int_eq(said.placed, 0); /* the tensor set is not durable yet */
	UNTIL(said.report.start == START_PARAMS);
	ck_assert_uint_eq(said.asked_fits, 1);
	ck_assert_uint_eq(said.asked_keep, 1);
	ck_assert_uint_eq(said.fits_bytes, need);
	ck_assert_uint_eq(node.host_bytes, need);
	ck_assert(p->tensors.durable);
	ck_assert_uint_eq(said.placed, 1);
	ck_assert_int_eq(said.placed_status, ST_OK);
	ck_assert_uint_eq(said.engine_up, 1);
	ck_assert_uint_eq(p->engine.starts, 1);
	ck_assert(!p->begun);
	rig_expect_params(p, 1);
}
END_TEST

static void without_rules(Gacc__V1__JobSpec *spec)
{
	spec->n_init = 0;
}

START_TEST(it_begins_with_what_a_rank_gives)
{
	rig_change_spec(without_rules);
	struct part *p = rig_part(RIG_JOB);
	job_allocate(p->job);
	UNTIL(said.report.start == START_ALLOCATED);
	rig_attach(p, 1);
	ck_assert_uint_eq(said.report.start, START_ALLOCATED);
	uint64_t call = rig_put(p, 1, 3);
	UNTIL(said.answered[call]);
	ck_assert_msg(said.reply[call].status == ST_OK, "%s", said.reply[call].text);
	ck_assert(said.reply[call].put.ready);
	UNTIL(said.report.start == START_PARAMS);
	rig_expect_params(p, 3);
}
END_TEST

START_TEST(a_step)
{
	struct part *p = rig_running_part();
	struct control_state record;
	rig_push_all(p);
	ck_assert_uint_eq(said.report.phase, WINDOW_OPEN);
	ck_assert_uint_eq(said.rank[0].counted, 2);
	ck_assert_uint_eq(said.rank[1].counted, 2);
	ck_assert(p->begun); /* the order to run */
	rig_go(p);
	ck_assert_uint_eq(said.report.count, 4);
	ck_assert_double_eq(said.report.sum_weight, 4);
	ck_assert_double_eq(said.report.sumsq, 100.0 * RIG_ELEMENTS); /* (1 + 2 + 3 + 4)^2 each */
	rig_expect_params(p, 1);
	struct order o = rig_commit(p, 0);
	part_on_order(p, &o);
	UNTIL(said.report.window == 1);
	ck_assert_uint_eq(said.report.order, o.number);
	rig_expect_params(p, 1 - 0.5F * 2.5F);
	ck_assert_int_eq(part_read_control(p, &record), ST_OK);
	ck_assert_uint_eq(record.r.window, 1);
	ck_assert_uint_eq(record.r.applied_step, 1);
	ck_assert_uint_eq(record.r.count, 0);
	ck_assert_uint_eq(record.r.params_digest, said.report.params_digest);
	control_state_fini(&record);
}
END_TEST

START_TEST(a_repeated_commit_is_no_second_step)
{
	struct part *p = rig_running_part();
	rig_push_all(p);
	rig_go(p);
	struct order o = rig_commit(p, 0);
	part_on_order(p, &o);
	part_on_order(p, &o);
	UNTIL(said.report.window == 1);
	part_on_order(p, &o);
	rig_push_all(p);
	rig_go(p);
	rig_expect_params(p, -0.25F);
	o = rig_commit(p, 1);
	part_on_order(p, &o);
	UNTIL(said.report.window == 2);
	rig_expect_params(p, -1.5F);
}
END_TEST

/* ---- engines that die ---- */

static void kill_engine(struct part *p)
{
	int64_t pid = rig_engine_pid(p);
	ck_assert_int_gt(pid, 0);
	ck_assert_int_eq(kill((pid_t)pid, SIGKILL), 0);
	UNTIL(!p->engine.proc || rig_engine_pid(p) != pid);
}

START_TEST(a_killed_engine_comes_back_with_what_was_counted)
{
	struct part *p = rig_running_part();
	uint64_t call = rig_push(p, 0, 0, 1);
	UNTIL(said.answered[call]);
	kill_engine(p);
	ck_assert_str_eq(said.event, "EngineExited");
	ck_assert_ptr_nonnull(strstr(said.event_text, "signal 9"));
	ck_assert(!part_engine_is_over(p)); /* one is due */
	UNTIL(said.engine_up == 2);
	ck_assert_uint_eq(p->engine.starts, 2);
	ck_assert_str_eq(said.report.hindrance, "");
	rig_push_all(p);
	rig_go(p);
	ck_assert_double_eq(said.report.sumsq, 100.0 * RIG_ELEMENTS);
}
END_TEST

/* The push reaches its successor. */
START_TEST(a_push_outlives_the_engine)
{
	struct part *p = rig_running_part();
	int64_t pid = rig_engine_pid(p);
	ck_assert_int_eq(kill((pid_t)pid, SIGSTOP), 0);
	uint64_t call = rig_push(p, 0, 0, 1);
	kill_engine(p);
	ck_assert(!said.answered[call]);
	UNTIL(said.answered[call]);
	ck_assert_int_eq(said.reply[call].status, ST_OK);
	ck_assert_uint_eq(said.reply[call].push.result, PUSH_COUNTED);
	ck_assert_uint_eq(said.engine_up, 2);
}
END_TEST

/* Killed with the order still to come (0); with it given and not read (1); read, perhaps begun, perhaps done (2). */
START_TEST(a_commit_is_carried_out_once)
{
	struct part *p = rig_running_part();
	rig_push_all(p);
	rig_go(p);
	struct order o = rig_commit(p, 0);
	if (_i == 0)
		kill_engine(p);
	if (_i == 1)
		kill((pid_t)rig_engine_pid(p), SIGSTOP);
	part_on_order(p, &o);
	if (_i)
		kill_engine(p);
	UNTIL(said.report.window == 1);
	UNTIL(said.engine_up == 2);
	rig_expect_params(p, -0.25F);
	part_on_order(p, &o); /* the coordinator repeats it */
	rig_push_all(p);
	rig_expect_params(p, -0.25F);
	rig_go(p);
	ck_assert_double_eq(said.report.sumsq, 100.0 * RIG_ELEMENTS);
}
END_TEST

/* ---- engines that cannot start ---- */

static char unknown[] = "unknown", any[] = "auto";
static char *kernels; /* of the configuration */

/* From here on all engines refuse to start, or none. */
static void spoil_engines(bool yes)
{
	if (!kernels)
		kernels = conf->engine.kernels;
	conf->engine.kernels = yes ? unknown : any;
}

static void mend_conf(void)
{
	if (kernels)
		conf->engine.kernels = kernels;
	rig_close();
}

START_TEST(a_job_that_never_began_is_given_up_after_some_tries)
{
	struct part *p = rig_part(RIG_JOB);
	spoil_engines(true);
	job_allocate(p->job);
	UNTIL(said.report.failed.status);
	ck_assert_int_eq(said.report.failed.status, ST_ENGINE_FAILED);
	ck_assert_uint_eq(p->engine.starts, RESTARTS_ROW);
	ck_assert_uint_eq(said.engine_up, 0);
	ck_assert_uint_eq(said.events, 1); /* the same reason each time */
	ck_assert_str_eq(said.event, "EngineExited");
	ck_assert_ptr_nonnull(strstr(said.event_text, "unknown"));
	ck_assert_int_eq(strncmp(said.report.failed.text, "the engine cannot be started (5 tries in ", 41), 0);
	ck_assert_ptr_nonnull(strstr(said.report.failed.text, said.event_text));
	ck_assert_int_eq(said.placed_status, ST_ENGINE_FAILED);
	ck_assert_str_eq(said.placed_why, said.report.failed.text);
	ck_assert(part_engine_is_over(p));
	ck_assert_uint_gt(node.host_bytes, 0); /* until the coordinator ends it */
}
END_TEST

START_TEST(one_that_runs_is_hindered_for_as_long_as_it_is_patient)
{
	struct part *p = rig_running_part();
	rig_push_all(p);
	spoil_engines(true);
	kill_engine(p);
	UNTIL(*said.report.hindrance);
	ck_assert_int_eq(strncmp(said.report.hindrance, "the engine cannot be started: ", 30), 0);
	ck_assert_ptr_nonnull(strstr(said.report.hindrance, "unknown"));
	ck_assert_ptr_nonnull(strstr(said.report.hindrance, "; tried again for 600 s"));
	ck_assert_int_eq(said.report.failed.status, ST_OK);
	ck_assert_uint_ge(p->engine.starts, RESTARTS_ROW);
	p->own.stall_abort_ns = 1;
	UNTIL(said.report.failed.status);
	ck_assert_int_eq(said.report.failed.status, ST_ENGINE_FAILED);
	ck_assert_int_eq(strncmp(said.report.failed.text, "the engine cannot be started (", 30), 0);
	ck_assert(part_engine_is_over(p));
}
END_TEST

START_TEST(a_hindrance_goes_when_an_engine_is_of_use)
{
	struct part *p = rig_running_part();
	spoil_engines(true);
	kill_engine(p);
	UNTIL(*said.report.hindrance);
	spoil_engines(false);
	UNTIL(said.engine_up == 2);
	rig_push_all(p);
	UNTIL(!*said.report.hindrance);
	ck_assert_int_eq(said.report.failed.status, ST_OK);
	rig_go(p);
}
END_TEST

/* ---- an engine that hangs ---- */

START_TEST(a_stopped_engine_is_replaced)
{
	struct part *p = rig_running_part();
	rig_push_all(p);
	kill((pid_t)rig_engine_pid(p), SIGSTOP);
	conf->engine.timeout_ms = 1000; /* ten ticks, of which the rig makes a hundred in a second */
	UNTIL(strstr(said.event_text, "it has not answered for 1.0 s (engine.timeout)"));
	conf->engine.timeout_ms = 120000;
	UNTIL(said.engine_up == 2);
	rig_go(p);
}
END_TEST

static Suite *life_suite(void)
{
	Suite *s = suite_create("part");
	TCase *t = tcase_create("part");
	suite_add_tcase(s, t);
	tcase_set_timeout(t, 150);
	tcase_add_checked_fixture(t, rig_open, mend_conf);
	tcase_add_test(t, it_begins_with_what_its_rules_draw);
	tcase_add_test(t, it_begins_with_what_a_rank_gives);
	tcase_add_test(t, a_step);
	tcase_add_test(t, a_repeated_commit_is_no_second_step);
	tcase_add_test(t, a_killed_engine_comes_back_with_what_was_counted);
	tcase_add_test(t, a_push_outlives_the_engine);
	tcase_add_loop_test(t, a_commit_is_carried_out_once, 0, 3);
	tcase_add_test(t, a_job_that_never_began_is_given_up_after_some_tries);
	tcase_add_test(t, one_that_runs_is_hindered_for_as_long_as_it_is_patient);
	tcase_add_test(t, a_hindrance_goes_when_an_engine_is_of_use);
	tcase_add_test(t, a_stopped_engine_is_replaced);
	return s;
}

int main(int argc, char **argv)
{
	RIG_ENGINE(argc, argv);
	return suite_run(life_suite(), memory_suite(), tensors_suite(), place_suite(), several_suite(),
			 mailbox_suite());
}
