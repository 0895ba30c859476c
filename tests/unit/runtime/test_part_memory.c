/* SPDX-License-Identifier: Apache-2.0 */
/* A part's memory: refused, given back, kept by the service manager, adopted by the next gaccd. */
#include "part_rig.h"

#include "gacc/v1/common.pb-c.h"
#include "runtime/stored.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

Suite *memory_suite(void);

/* ---- parts by their jobs ---- */

START_TEST(parts_are_found_by_their_jobs)
{
	static const uint64_t id[] = { 40, 7, UINT64_MAX, 1, 41, 8 };
	struct part *p[6];
	ck_assert_ptr_null(part_find(&node, 7, 0));
	for (int i = 0; i < 6; i++) {
		p[i] = rig_part(id[i]);
		for (int k = 0; k < 6; k++)
			ck_assert_ptr_eq(part_find(&node, id[k], 0), k <= i ? p[k] : NULL);
	}
	for (uint32_t i = 1; i < node.n_parts; i++)
		ck_assert_uint_lt(node.part[i - 1]->id, node.part[i]->id);
	part_free(p[0]);
	part_free(p[2]);
	part_free(p[3]);
	for (int k = 0; k < 6; k++)
		ck_assert_ptr_eq(part_find(&node, id[k], 0), k == 0 || k == 2 || k == 3 ? NULL : p[k]);
	ck_assert_ptr_null(part_find(&node, 0, 0));
	ck_assert_uint_eq(node.n_parts, 3);
	part_free(NULL);
}
END_TEST

START_TEST(part_and_coordinator_share_a_specification)
{
	struct part *p = rig_part(RIG_JOB);
	ck_assert_uint_eq(p->text->holders, 1);
	struct specification *mine = specification_hold(p->text);
	part_free(p);
	ck_assert_uint_eq(mine->holders, 1);
	ck_assert_str_eq(mine->spec.name, "rig");
	specification_drop(mine);
}
END_TEST

/* ---- what ends a beginning ---- */

static void expect_no_beginning(const struct part *p, enum status st, const char *why)
{
	ck_assert_uint_eq(said.placed, 1);
	ck_assert_int_eq(said.placed_status, st);
	ck_assert_str_eq(said.placed_why, why);
	ck_assert_str_eq(said.event, "AllocationFailed");
	ck_assert_str_eq(said.event_text, why);
	ck_assert_uint_eq(node.host_bytes, 0);
	ck_assert(!p->mem.allocating);
	ck_assert_int_eq(p->mem.n, 0);
	ck_assert_uint_eq(p->engine.starts, 0);
}

START_TEST(a_part_that_does_not_fit)
{
	answers.fits = ST_RESOURCE_EXHAUSTED;
	struct part *p = rig_part(RIG_JOB);
	job_allocate(p->job);
	expect_no_beginning(p, ST_RESOURCE_EXHAUSTED, "no room on this node");
	ck_assert_uint_eq(said.asked_keep, 0);
	answers.fits = ST_OK; /* somebody else has ended */
	job_allocate(p->job);
	UNTIL(said.report.start == START_PARAMS);
	ck_assert_int_eq(said.placed_status, ST_OK);
}
END_TEST

START_TEST(a_set_that_cannot_be_given_to_the_journal)
{
	answers.keep = ST_NO_MEMORY;
	struct part *p = rig_part(RIG_JOB);
	job_allocate(p->job);
	expect_no_beginning(p, ST_NO_MEMORY, "out of memory");
	ck_assert(!p->tensors.durable);
}
END_TEST

START_TEST(a_set_that_the_journal_does_not_take)
{
	answers.kept = ST_IO_ERROR;
	struct part *p = rig_part(RIG_JOB);
	job_allocate(p->job);
	ck_assert_uint_eq(said.placed, 0);
	UNTIL(said.placed);
	expect_no_beginning(p, ST_IO_ERROR, "the tensor set cannot be written to the journal");
	ck_assert(!p->tensors.durable);
}
END_TEST

/* There is such a job, so its submitter is told of no error; its state says how it ended. */
START_TEST(a_job_that_was_cancelled_meanwhile)
{
	answers.kept = ST_JOB_ENDED;
	struct part *p = rig_part(RIG_JOB);
	job_allocate(p->job);
	UNTIL(said.placed);
	expect_no_beginning(p, ST_OK, status_info(ST_JOB_ENDED)->text);
}
END_TEST

/* The memory of a job that ends while it is made is there, and no engine. */
START_TEST(nothing_starts_for_what_is_over)
{
	struct part *p = rig_part(RIG_JOB);
	struct order end = rig_order(p, WANT_END);
	job_allocate(p->job);
	if (_i)
		node.stopping = true;
	else
		part_on_order(p, &end);
	ck_assert(p->mem.allocating); /* the journal has its tensor set */
	UNTIL(!p->mem.allocating);
	ck_assert(p->tensors.durable);
	for (int i = 0; i < 5; i++)
		rig_turn();
	ck_assert_uint_eq(p->engine.starts, 0);
	ck_assert(part_engine_is_over(p));
	ck_assert_uint_gt(node.host_bytes, 0);
	part_release(p);
	ck_assert_uint_eq(node.host_bytes, 0);
}
END_TEST

/* ---- the end ---- */

static bool is_gone(int64_t pid)
{
	return kill((pid_t)pid, 0) != 0;
}

START_TEST(released_memory_is_gone)
{
	struct part *p = rig_running_part();
	int64_t pid = rig_engine_pid(p);
	UNTIL(n_kept == p->mem.n);
	ck_assert_uint_gt(node.host_bytes, 0);
	part_release(p);
	ck_assert_uint_eq(node.host_bytes, 0);
	ck_assert(p->mem.released);
	UNTIL(n_kept == 0 && is_gone(pid));
	ck_assert(part_engine_is_over(p));
	ck_assert_uint_eq(p->engine.starts, 1);
	ck_assert_ptr_null(part_segment(p, SEG_PARAMS, 0));
	ck_assert_ptr_null(part_map(p, SEG_PARAMS, 0, false));
	part_release(p);
	ck_assert_uint_eq(node.host_bytes, 0);
}
END_TEST

START_TEST(memory_that_is_let_go_stays_with_the_manager)
{
	struct part *p = rig_running_part();
	int64_t pid = rig_engine_pid(p);
	int n = p->mem.n;
	char name[FDSTORE_MAX_NAME];
	ck_assert_int_eq(n_kept, n); /* before there was an engine */
	for (int i = 0; i < n; i++) {
		struct segment_header h;
		stored_name(RIG_JOB, 0, 1, &p->mem.wanted[i], name);
		ck_assert_str_eq(kept[i].name, name);
		ck_assert_int_eq(segment_peek(kept[i].fd, &h), ST_OK);
		ck_assert_uint_eq(h.role, p->mem.wanted[i].role);
		ck_assert_int_eq(segment_read_owner(kept[i].fd, p->uuid, &(struct segment_owner){ .crc = 0 }),
				 SEGMENT_OWN);
	}
	part_let_go(p);
	ck_assert_uint_eq(node.host_bytes, 0);
	UNTIL(is_gone(pid));
	ck_assert_int_eq(n_kept, n);
}
END_TEST

/* What its trainers are told to be safe must be: there is no engine before the manager has the memory. */
START_TEST(a_manager_that_does_not_read)
{
	struct part *p = rig_part(RIG_JOB);
	rig_manager_stops(true);
	job_allocate(p->job);
	UNTIL(p->mem.keeping);
	struct now now = node_now();
	part_memory_tick(p, now);
	ck_assert_uint_eq(said.events, 0);
	now.mono_ns += INT64_C(6000000000);
	part_memory_tick(p, now);
	part_memory_tick(p, now);
	ck_assert_uint_eq(said.events, 1); /* once */
	ck_assert_str_eq(said.event, "StoreWaits");
	ck_assert_uint_eq(p->engine.starts, 0);
	rig_manager_stops(false);
	UNTIL(said.engine_up == 1);
	ck_assert_ptr_null(p->mem.keeping);
	ck_assert_int_eq(n_kept, p->mem.n);
}
END_TEST

START_TEST(a_part_that_is_freed_while_the_manager_does_not_read)
{
	struct part *p = rig_part(RIG_JOB);
	rig_manager_stops(true);
	job_allocate(p->job);
	UNTIL(p->mem.keeping);
	part_free(p);
	ck_assert_uint_eq(node.host_bytes, 0);
	rig_manager_stops(false);
	UNTIL(n_ever_kept > 0 && n_kept == 0); /* it has got them, and then the word to drop them */
	ck_assert_uint_eq(said.engine_up, 0);
}
END_TEST

static void with_a_rule_for_nothing(Gacc__V1__JobSpec *spec)
{
	static char pattern[] = "nothing";
	static Gacc__V1__ParamGroup group, *groups[] = { &group };
	gacc__v1__param_group__init(&group);
	group.pattern = pattern;
	group.lr_scale = 1;
	spec->param_groups = groups;
	spec->n_param_groups = 1;
}

START_TEST(rules_without_a_tensor_are_told_once)
{
	rig_change_spec(with_a_rule_for_nothing);
	struct part *p = rig_running_part();
	ck_assert_uint_eq(said.events, 1);
	ck_assert_str_eq(said.event, "UnusedRules");
	ck_assert_ptr_nonnull(strstr(said.event_text, "nothing"));
	rig_restart();
	p = rig_adopting_part(RIG_JOB);
	job_take_over(p->job);
	UNTIL(said.engine_up == 1);
	ck_assert_uint_eq(said.events, 0);
}
END_TEST

/* ---- another gaccd ---- */

static struct part *adopt(void)
{
	struct part *p = rig_adopting_part(RIG_JOB);
	job_take_over(p->job);
	return p;
}

/* Its trainers may go on. */
static void run(struct part *p)
{
	struct order o = rig_order(p, WANT_NOTHING);
	part_on_order(p, &o);
}

START_TEST(the_next_gaccd_goes_on_in_the_same_window)
{
	struct part *p = rig_running_part();
	rig_push_all(p);
	rig_go(p);
	struct order o = rig_commit(p, 0);
	part_on_order(p, &o);
	UNTIL(said.report.window == 1);
	uint64_t call = rig_push(p, 0, 0, 1), bytes = node.host_bytes;
	UNTIL(said.answered[call]);
	rig_restart();
	conf->engine.threads = 3; /* what is there was made for two */
	p = adopt();
	UNTIL(said.engine_up == 1);
	ck_assert_uint_eq(said.asked_fits + said.asked_keep, 0);
	ck_assert_uint_eq(node.host_bytes, bytes);
	ck_assert_uint_eq(p->mem.plan->threads, 2);
	ck_assert_uint_eq(job_window(p->job), 1);
	ck_assert_uint_eq(node.n_stored, (size_t)n_kept); /* the manager keeps them all the same */
	for (size_t i = 0; i < node.n_stored; i++)
		ck_assert_int_eq(node.stored[i].fd, -1);
	rig_expect_params(p, -0.25F);
	UNTIL(said.rank[0].weight == 1); /* as the ledger says */
	ck_assert_int_gt(said.rank[0].last_push_unix_ns, 0);
	run(p);
	rig_push_all(p); /* its sessions, too: they are those of before */
	ck_assert_uint_eq(said.rank[0].counted, 2);
	rig_go(p);
	ck_assert_double_eq(said.report.sumsq, 100.0 * RIG_ELEMENTS);
	o = rig_commit(p, 1);
	part_on_order(p, &o);
	UNTIL(said.report.window == 2);
	rig_expect_params(p, -1.5F);
}
END_TEST

/* The vote is in the record: the next gaccd takes the COMMIT for it. */
START_TEST(the_next_gaccd_carries_out_what_was_voted)
{
	struct part *p = rig_running_part();
	rig_push_all(p);
	rig_go(p);
	rig_restart();
	p = adopt();
	UNTIL(said.engine_up == 1);
	UNTIL(said.report.phase == WINDOW_PREPARED);
	ck_assert_uint_eq(said.report.vote_attempt, 1);
	ck_assert_double_eq(said.report.sumsq, 100.0 * RIG_ELEMENTS);
	struct order o = rig_commit(p, 0);
	part_on_order(p, &o);
	UNTIL(said.report.window == 1);
	rig_expect_params(p, -0.25F);
}
END_TEST

/* What it has counted must not be lost, so it is not given up as one that has never run: engines may come back. */
START_TEST(an_adopted_part_is_patient)
{
	static char unknown[] = "unknown";
	char *kernels = conf->engine.kernels;
	struct part *p = rig_running_part();
	rig_push_all(p);
	rig_restart();
	conf->engine.kernels = unknown;
	p = adopt();
	UNTIL(*said.report.hindrance || said.report.failed.status);
	ck_assert_int_eq(said.report.failed.status, ST_OK);
	ck_assert_uint_eq(said.engine_up, 0);
	conf->engine.kernels = kernels;
	UNTIL(said.engine_up == 1);
	run(p);
	rig_go(p);
	UNTIL(!*said.report.hindrance);
	ck_assert_double_eq(said.report.sumsq, 100.0 * RIG_ELEMENTS);
}
END_TEST

static void lose(int i)
{
	ck_assert_int_lt(i, n_kept);
	close(kept[i].fd);
	kept[i] = kept[--n_kept];
}

START_TEST(a_begun_job_does_not_go_on_without_a_segment)
{
	struct part *p = rig_running_part();
	int n = p->mem.n;
	char text[120];
	lose(_i ? n - 1 : 0);
	rig_restart();
	p = adopt();
	UNTIL(said.report.failed.status);
	snprintf(text, sizeof(text), "the job's memory is gone: %d of %d segments were kept by the service manager",
		 n - 1, n);
	ck_assert_int_eq(said.report.failed.status, ST_SEGMENT_CORRUPT);
	ck_assert_str_eq(said.report.failed.text, text);
	ck_assert_uint_eq(p->engine.starts, 0);
	ck_assert(!p->mem.allocating);
	ck_assert_uint_eq(said.asked_fits, 0);
	part_release(p);
	UNTIL(n_kept == 0);
}
END_TEST

/* Of a job that had not begun, half an allocation is of no use: it is made anew. */
START_TEST(half_an_allocation_is_made_anew)
{
	struct part *p = rig_part(RIG_JOB);
	job_allocate(p->job);
	UNTIL(said.engine_up == 1);
	int n = p->mem.n;
	lose(1);
	rig_restart();
	p = rig_part(RIG_JOB);
	p->tensors.durable = true;
	job_take_over(p->job);
	UNTIL(said.report.start == START_PARAMS);
	ck_assert_uint_eq(said.asked_fits, 1);
	ck_assert_uint_eq(said.asked_keep, 0); /* the set is durable */
	ck_assert_int_eq(n_kept, n);	       /* one of each name */
	rig_expect_params(p, 1);
}
END_TEST

/* Both records of the control segment are damaged: nobody knows what the memory holds. */
START_TEST(damaged_memory_fails_the_job)
{
	struct part *p = rig_running_part();
	struct control_page page;
	uint64_t fingerprint = p->mem.plan->fingerprint;
	ck_assert(part_control_page(p, &page));
	rig_restart();
	struct segment s = SEGMENT_NONE;
	char why[200];
	for (int i = 0; i < n_kept; i++) {
		unsigned role;
		if (!stored_job(&kept[i], NULL, &role) || role != SEG_CONTROL)
			continue;
		ck_assert_int_eq(segment_adopt(&s, dup(kept[i].fd), RIG_JOB, fingerprint, SEG_CONTROL, 0, true, why,
					       sizeof(why)),
				 ST_OK);
	}
	memset(s.data, 0xee, 2 * page.record_bytes);
	segment_close(&s);
	p = adopt();
	UNTIL(said.report.failed.status);
	ck_assert_int_eq(said.report.failed.status, ST_SEGMENT_CORRUPT);
	ck_assert_int_eq(strncmp(said.report.failed.text, "the engine refuses its memory: ", 31), 0);
	ck_assert_uint_eq(said.engine_up, 0);
}
END_TEST

Suite *memory_suite(void)
{
	Suite *s = suite_create("memory");
	TCase *t = tcase_create("without a manager"), *m = tcase_create("with one");
	suite_add_tcase(s, t);
	suite_add_tcase(s, m);
	tcase_set_timeout(t, 150);
	tcase_set_timeout(m, 150);
	tcase_add_checked_fixture(t, rig_open, rig_close);
	tcase_add_checked_fixture(m, rig_open_managed, rig_close);
	tcase_add_test(t, parts_are_found_by_their_jobs);
	tcase_add_test(t, part_and_coordinator_share_a_specification);
	tcase_add_test(t, a_part_that_does_not_fit);
	tcase_add_test(t, a_set_that_cannot_be_given_to_the_journal);
	tcase_add_test(t, a_set_that_the_journal_does_not_take);
	tcase_add_test(t, a_job_that_was_cancelled_meanwhile);
	tcase_add_loop_test(t, nothing_starts_for_what_is_over, 0, 2);
	tcase_add_test(m, released_memory_is_gone);
	tcase_add_test(m, memory_that_is_let_go_stays_with_the_manager);
	tcase_add_test(m, a_manager_that_does_not_read);
	tcase_add_test(m, a_part_that_is_freed_while_the_manager_does_not_read);
	tcase_add_test(m, rules_without_a_tensor_are_told_once);
	tcase_add_test(m, the_next_gaccd_goes_on_in_the_same_window);
	tcase_add_test(m, the_next_gaccd_carries_out_what_was_voted);
	tcase_add_test(m, an_adopted_part_is_patient);
	tcase_add_loop_test(m, a_begun_job_does_not_go_on_without_a_segment, 0, 2);
	tcase_add_test(m, half_an_allocation_is_made_anew);
	tcase_add_test(m, damaged_memory_fails_the_job);
	return s;
}
