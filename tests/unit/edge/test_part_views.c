/* SPDX-License-Identifier: Apache-2.0 */
/* What the coordinator is told of a part elsewhere, for people to see: when it is sent, and which views count. */
#include "pair_rig.h"

#include "edge/hosted_life.h"
#include "edge/hosted_seen.h"
#include "edge/hosted_view.h"
#include "edge/part_views.h"
#include "edge/placing.h"
#include "gacc/v1/job.pb-c.h"
#include "runtime/engine_proc.h"
#include "support/suite.h"

#include <signal.h>
#include <stdlib.h>

Suite *views_suite(void);

/* ---- a part elsewhere ---- */

static void run_job(void)
{
	placing_send(job, node_now());
	UNTIL(there() && coord_phase(job->coord) == COORD_COLLECT && job->part[0].seen &&
	      job->part[0].seen->view.engine_pid);
}

static uint64_t bytes_of_buffers(const struct part_view *v)
{
	uint64_t sum = 0;
	for (uint32_t i = 0; i < v->n_buffers; i++)
		sum += v->buffer[i].bytes;
	return sum;
}

START_TEST(it_is_seen_by_its_view)
{
	ck_assert_uint_eq(hosted_host_bytes(job), 0);
	run_job();
	const struct part *p = there();
	const struct part_view *v = &job->part[0].seen->view;
	ck_assert_uint_gt(p->mem.bytes, 0);
	ck_assert_uint_eq(hosted_host_bytes(job), p->mem.bytes);
	ck_assert_uint_eq(bytes_of_buffers(v), p->mem.bytes);
	Gacc__V1__Job *j = hosted_view(job, 0, node_now());
	ck_assert_ptr_nonnull(j);
	ck_assert_int_eq(j->engine_pid, engine_proc_pid(p->engine.proc));
	ck_assert_uint_eq(j->engine_restarts, 0);
	ck_assert_uint_eq(j->host_bytes, p->mem.bytes);
	ck_assert_uint_eq(j->tensors, 1);
	ck_assert_uint_eq(j->parameters, RIG_ELEMENTS);
	gacc__v1__job__free_unpacked(j, NULL);
	ck_assert(v->ranks_known && v->has_tensors && !v->ended && !v->released);
	ck_assert_uint_eq(d.node.host_bytes, 0); /* nothing of it is here */
}
END_TEST

START_TEST(another_engine_is_seen)
{
	run_job();
	int64_t before = job->part[0].seen->view.engine_pid;
	ck_assert_int_eq(kill((pid_t)before, SIGKILL), 0);
	UNTIL(!job->part[0].seen->view.engine_pid);
	ck_assert(!job->part[0].seen->view.ranks_known); /* what trainers have told the dead one is not reported */
	UNTIL(job->part[0].seen->view.ranks_known);
	ck_assert_int_ne(job->part[0].seen->view.engine_pid, before);
	ck_assert_uint_eq(job->part[0].seen->view.engine_starts, 2);
}
END_TEST

static uint32_t told(void)
{
	return seen.n[LINK_VIEW];
}

static void turns(int n)
{
	for (int i = 0; i < n; i++)
		pair_turn(time(NULL) + 1, "");
}

START_TEST(what_is_not_new_is_sent_every_ten_seconds)
{
	run_job();
	turns(5);
	uint32_t n = told();
	turns(20);
	ck_assert_uint_eq(told(), n);
	there()->told.sent_ns -= INT64_C(9000000000);
	turns(5);
	ck_assert_uint_eq(told(), n);
	there()->told.sent_ns -= INT64_C(1100000000);
	turns(5);
	ck_assert_uint_eq(told(), n + 1);
}
END_TEST

/* Forty in a row, then one a second; the last word comes in the end. */
START_TEST(many_changes_are_few_views)
{
	run_job();
	turns(5);
	there()->told.next_ns = 0;
	uint32_t n = told();
	for (int i = 0; i < 50; i++) {
		there()->n_links++;
		part_view_send(there());
		turns(1);
	}
	ck_assert_uint_eq(told(), n + 40);
	ck_assert_uint_eq(job->part[0].seen->view.links, 40);
	there()->told.next_ns -= INT64_C(1000000000);
	turns(5);
	ck_assert_uint_eq(told(), n + 41);
	ck_assert_uint_eq(job->part[0].seen->view.links, 50);
	there()->n_links = 0;
}
END_TEST

/* ---- which views count ---- */

static struct part_view good(void)
{
	return (struct part_view){ .job_id = JOB, .epoch = 1, .incarnation = 5, .number = 3, .bytes = 1000 };
}

static uint64_t after(struct part_view v)
{
	size_t n;
	void *bytes = part_view_pack(&v, &n);
	const struct link_message m = { LINK_VIEW, JOB, 0, bytes, n, NULL, false, 0 };
	hosted_take_view(&d, &m);
	free(bytes);
	return hosted_host_bytes(job);
}

/* What is shown after a view with these bytes and this change. */
#define AFTER(says, change) (v = good(), v.bytes = (says), (change), after(v))

START_TEST(overtaken_views_are_dropped)
{
	struct part_view v;
	ck_assert_uint_eq(AFTER(1000, v.number = 3), 1000);
	ck_assert_uint_eq(AFTER(2000, v.number = 3), 1000); /* it is repeated */
	ck_assert_uint_eq(AFTER(2000, v.number = 2), 1000);
	ck_assert_uint_eq(AFTER(2000, (v.incarnation = 4, v.number = 9)), 1000);
	ck_assert_uint_eq(AFTER(3000, v.number = 4), 3000);
	ck_assert_uint_eq(AFTER(4000, (v.incarnation = 6, v.number = 1)), 4000); /* of a gaccd that has started anew */
	ck_assert_uint_eq(AFTER(5000, v.number = 100), 4000);
	ck_assert_int_le(node_now().mono_ns - job->part[0].seen->heard_ns, INT64_C(1000000000));
}
END_TEST

/* They are told of another view once, and not of a repeated one. */
START_TEST(watchers_hear_of_another_view)
{
	struct part_view v = good();
	job->changed = false;
	after(v);
	ck_assert(job->changed);
	job->changed = false;
	v.number++;
	after(v);
	ck_assert(!job->changed);
	v.number++;
	v.engine_pid = 77;
	after(v);
	ck_assert(job->changed);
}
END_TEST

START_TEST(views_of_others_are_dropped)
{
	struct part_view v;
	ck_assert_uint_eq(AFTER(2000, v.epoch = 2), 0);
	ck_assert_uint_eq(AFTER(2000, v.job_id = JOB + 1), 0);
	ck_assert_uint_eq(AFTER(2000, v.part = 1), 0);
	ck_assert_ptr_null(job->part[0].seen);
	ck_assert_uint_eq(AFTER(1000, (void)0), 1000);
}
END_TEST

START_TEST(a_view_that_cannot_be_read_changes_nothing)
{
	ck_assert_uint_eq(after(good()), 1000);
	const struct link_message m = { LINK_VIEW, JOB, 0, "\xff", 1, NULL, false, 0 };
	hosted_take_view(&d, &m);
	ck_assert_uint_eq(hosted_host_bytes(job), 1000);
	hosted_drop_machines(job); /* it is over, and its part is no longer its own */
	ck_assert_uint_eq(after(good()), 0);
}
END_TEST

/* ---- what is decided by them ---- */

static void end_here(void)
{
	job->part[0].wanted = false; /* nobody has it: what is said of it comes from the test alone */
	coord_end(job->coord, ST_CANCELLED, "by ana", node_now());
	UNTIL(hosted_ended(job));
}

/* Ticks as if so much time had passed, in which the node has repeated its view; was the job retired? */
static bool retired_after(struct part_view v, int seconds, bool heard)
{
	struct now now = node_now();
	for (int i = 0; i < seconds && job->coord; i++) {
		now.mono_ns += INT64_C(1000000000);
		v.number++;
		if (heard) {
			after(v);
			job->part[0].seen->heard_ns = now.mono_ns;
		}
		rig_run();
		hosted_tick(job, now);
	}
	return !job->coord;
}

START_TEST(a_job_stays_until_its_part_has_let_go)
{
	struct part_view v = good();
	end_here();
	ck_assert(!retired_after(v, 90, true)); /* the node has not heard that the job has ended */
	v.ended = v.allocating = true;
	v.number += 100;
	ck_assert(!retired_after(v, 90, true));
	v.allocating = false;
	v.number += 100;
	ck_assert(!retired_after(v, 90, true)); /* its trainers have the memory still */
	v.released = true;
	v.links = 1;
	v.number += 100;
	ck_assert(!retired_after(v, 90, true));
	v.links = 0;
	v.number += 100;
	ck_assert(retired_after(v, 90, true));
	ck_assert_uint_eq(job->n_parts, 0);
}
END_TEST

START_TEST(a_part_that_nobody_hears_of_holds_no_job)
{
	end_here();
	after(good());
	ck_assert(!retired_after(good(), 50, false));
	ck_assert(retired_after(good(), 60, false));
}
END_TEST

Suite *views_suite(void)
{
	Suite *s = suite_create("views");
	TCase *t = tcase_create("views");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, pair_open, pair_close);
	tcase_set_timeout(t, 90);
	tcase_add_test(t, it_is_seen_by_its_view);
	tcase_add_test(t, another_engine_is_seen);
	tcase_add_test(t, what_is_not_new_is_sent_every_ten_seconds);
	tcase_add_test(t, many_changes_are_few_views);
	tcase_add_test(t, overtaken_views_are_dropped);
	tcase_add_test(t, watchers_hear_of_another_view);
	tcase_add_test(t, views_of_others_are_dropped);
	tcase_add_test(t, a_view_that_cannot_be_read_changes_nothing);
	tcase_add_test(t, a_job_stays_until_its_part_has_let_go);
	tcase_add_test(t, a_part_that_nobody_hears_of_holds_no_job);
	return s;
}
