/* SPDX-License-Identifier: Apache-2.0 */
/* A node's records of parts: their end, those that cannot be read, and placements that are refused before a record is
 * written. */
#include "record_rig.h"

#include "cluster/order_message.h"
#include "edge/hosted_life.h"
#include "edge/links.h"
#include "edge/node_facts.h"
#include "edge/part_ports.h"
#include "edge/part_record.h"
#include "edge/parts.h"
#include "edge/placing.h"
#include "gacc/v1/common.pb-c.h"
#include "support/suite.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

Suite *part_records_end_suite(void);

/* ---- the end ---- */

static void end(void)
{
	coord_end(job->coord, ST_CANCELLED, "by ana", node_now());
	while (!hosted_ended(job) || !there()->mem.released) {
		ck_assert(!there()->mem.released || !recorded().n);
		pair_turn(time(NULL) + PATIENCE_S, "the end");
	}
}

START_TEST(the_record_goes_before_the_memory)
{
	placing_send(job, node_now());
	UNTIL(there() && coord_phase(job->coord) == COORD_COLLECT);
	end();
	ck_assert_uint_eq(recorded().n, 0);
	hosted_drop_machines(job);
	UNTIL(!there());
	pair_restart();
	ck_assert_uint_eq(other.node.n_parts, 0);
}
END_TEST

/* The coordinator drops a part that runs; its memory is not left with the manager. */
START_TEST(a_part_that_is_dropped)
{
	const struct drop drop = { .job_id = JOB, .epoch = 1 };
	size_t n;
	run_job();
	void *bytes = drop_pack(&drop, &n);
	links_send(&d, LINK_DROP, JOB, 0, bytes, n);
	UNTIL(there()->mem.released);
	ck_assert_uint_eq(recorded().n, 0);
	ck_assert_uint_eq(other.node.host_bytes, 0);
	UNTIL(!there());
}
END_TEST

/* Its memory belongs to nobody, and to no other journal. */
START_TEST(death_between_the_records_end_and_the_memorys)
{
	struct pair_kept k;
	run_job();
	pair_stop(&k);
	write_record((struct journal_record){ .kind = JOURNAL_PART_GONE, .part_gone = { JOB, 0 } });
	ck_assert_uint_gt(k.n, 0);
	pair_start(&k);
	ck_assert_uint_eq(pair_left(), 0);
	ck_assert_uint_eq(other.node.n_parts, 0);
}
END_TEST

static void take(enum link_kind kind, void *bytes, size_t n)
{
	const struct link_message m = { kind, JOB, 0, bytes, n, NULL, true, 0 };
	(kind == LINK_DROP ? parts_take_drop : parts_take_placement)(&other, &m);
	free(bytes);
}

static void take_placement(void)
{
	size_t n;
	void *bytes = placing_pack(job, 0, &n);
	take(LINK_PLACEMENT, bytes, n);
}

static void take_drop(void)
{
	const struct drop drop = { .job_id = JOB, .epoch = 1 };
	size_t n;
	void *bytes = drop_pack(&drop, &n);
	take(LINK_DROP, bytes, n);
}

/* This node has had another coordinator before, whose job has the same id: its part stays, with all that it has
 * counted, and takes no orders from here. */
START_TEST(another_coordinators_part_of_the_same_id)
{
	struct drop drop = { .job_id = JOB, .epoch = 1, .uuid_high = 1 };
	struct order over = { .job_id = JOB,
			      .epoch = 1,
			      .term = d.term + 1,
			      .uuid_low = 1,
			      .number = 1000,
			      .want = WANT_END,
			      .end_reason = "it is over" };
	size_t n;
	run_job();
	void *bytes = order_pack(&over, &n);
	const struct link_message order = { LINK_ORDER, JOB, 0, bytes, n, NULL, true, 0 };
	part_take_order(&other, &order);
	free(bytes);
	bytes = drop_pack(&drop, &n);
	take(LINK_DROP, bytes, n);
	turns(3);
	ck_assert(there() && !there()->dropped && !job_ended(there()->job));
	ck_assert_uint_le(job_term(there()->job), d.term);
	node_uuid_halves(job->uuid, &drop.uuid_high, &drop.uuid_low);
	bytes = drop_pack(&drop, &n);
	take(LINK_DROP, bytes, n);
	UNTIL(!there());
}
END_TEST

/* While its record is written; and the coordinator wants it again at once. */
START_TEST(a_part_that_is_dropped_before_it_is_made)
{
	take_placement();
	ck_assert_ptr_nonnull(other.arriving);
	take_placement(); /* it is sent again, and not written twice */
	take_drop();
	if (_i)
		take_placement();
	UNTIL(!other.arriving);
	turns(5);
	ck_assert_int_eq(there() != NULL, _i);
	ck_assert_int_eq((int)recorded().n, _i);
}
END_TEST

/* ---- set aside ---- */

static struct pair_kept kept_of_aside;

/* The record is no placement, and the memory is there. */
static void start_aside(void)
{
	struct journal_record r = { .kind = JOURNAL_PART, .part = { .job = JOB, .placement = { "\xff\xff", 2 } } };
	run_job();
	whole_window();
	memcpy(r.part.uuid, there()->uuid, sizeof(r.part.uuid));
	silence(true);
	pair_stop(&kept_of_aside);
	write_record(r);
	pair_start(&kept_of_aside);
	ck_assert_ptr_null(there());
	ck_assert_ptr_nonnull(part_record_find(&other, JOB, 0));
	ck_assert_uint_eq(pair_left(), kept_of_aside.n);
	ck_assert_uint_gt(other.node.host_bytes, 0);
}

/* The coordinator sends the placement again, by which the node can read what it has. */
START_TEST(a_record_that_cannot_be_read)
{
	start_aside();
	turns(3);
	job->params_durable = true;
	silence(false);
	placing_linked(job, 0);
	UNTIL(is_up(there()));
	ck_assert_ptr_null(other.record);
	ck_assert_uint_eq(pair_left(), 0);
	ck_assert_uint_eq(other.node.host_bytes, there()->mem.bytes);
	ck_assert_uint_eq(job_window(there()->job), 1);
	ck_assert_uint_eq(there()->begun, true);
	whole_window();
	ck_assert_uint_eq(recorded().n, 1);
}
END_TEST

START_TEST(a_part_that_is_aside_is_dropped)
{
	start_aside();
	take_drop();
	take_drop();
	UNTIL(!other.record);
	ck_assert_uint_eq(pair_left(), 0);
	ck_assert_uint_eq(other.node.host_bytes, 0);
	ck_assert_uint_eq(recorded().n, 0);
}
END_TEST

/* It is still there at the start after, and a part beside it is not concerned. */
START_TEST(others_start_beside_it)
{
	start_aside();
	job = rig_job(JOB + 1, getuid(), "ana", NULL);
	silence(false);
	placing_send(job, node_now());
	UNTIL(there() && coord_phase(job->coord) == COORD_COLLECT);
	size_t left = pair_left();
	silence(true);
	pair_restart();
	UNTIL(is_up(there()));
	ck_assert_uint_eq(pair_left(), left);
	ck_assert(other.record && other.record->job == JOB && !other.record->next);
}
END_TEST

/* ---- refused ---- */

static void expect_refused(enum status st, const char *text)
{
	seen.placed = (struct placed){ .job_id = 0 };
	UNTIL(seen.placed.refused);
	ck_assert_int_eq(seen.placed.status, st);
	ck_assert_msg(strstr(seen.placed.text, text) != NULL, "%s, not: %s", seen.placed.text, text);
	ck_assert(!other.arriving);
}

/* ---- a tensor set that cannot be read ---- */

static char junk[80 << 10]; /* so large that it is read when the node serves */

static void without_tensors(Gacc__V1__JobSpec *spec)
{
	spec->n_tensors = 0;
}

static bool is_told(const char *reason)
{
	const struct events *e = &job->events;
	for (uint64_t i = events_first(e); i < e->n; i++)
		if (!strcmp(events_at(e, i)->reason, reason))
			return true;
	return false;
}

/* The ranks of a job have declared its tensors, and the node's record has something else when it starts again. */
static void start_with_junk(void)
{
	const struct tensor_spec w = { .name = "w", .dtype = DTYPE_F32, .n_dims = 1, .shape = { RIG_ELEMENTS } };
	char why[200];
	job = rig_job(JOB + 1, getuid(), "ana", without_tensors);
	placing_send(job, node_now());
	UNTIL(there() && job->part[0].answered);
	ck_assert_int_eq(job_set_tensors(there()->job, &w, 1, why, sizeof(why)), ST_OK);
	job_allocate(there()->job);
	UNTIL(is_up(there()) && coord_phase(job->coord) == COORD_COLLECT && there()->begun);
	silence(true);
	pair_stop(&kept_of_aside);
	memset(junk, 0xff, sizeof(junk));
	write_record((struct journal_record){ .kind = JOURNAL_PART_TENSORS,
					      .part_tensors = { JOB + 1, 0, { junk, sizeof(junk) } } });
	pair_start(&kept_of_aside);
	ck_assert(there() && there()->tensors.due);
	UNTIL(there()->tensors.told);
	ck_assert_str_eq(there()->tensors.wrong, "it is no tensor set");
	turns(5);
	ck_assert_uint_eq(pair_left(), kept_of_aside.n);
	ck_assert_uint_eq(recorded().tensors, sizeof(junk));
}

/* The coordinator has the set, too: its placement mends the part and the record. */
START_TEST(a_tensor_set_that_cannot_be_read_is_mended)
{
	start_with_junk();
	job->params_durable = true;
	silence(false);
	placing_linked(job, 0);
	UNTIL(is_up(there()));
	ck_assert(job_has_tensors(there()->job) && !there()->tensors.wrong && !there()->tensors.due);
	ck_assert_uint_eq(pair_left(), 0);
	UNTIL(is_told("TensorsMended"));
	ck_assert(recorded().n == 1 && !recorded().tensors); /* it is in the placement now */
	silence(true);
	pair_restart();
	UNTIL(is_up(there()));
	ck_assert(there()->begun && !there()->tensors.told);
}
END_TEST

/* What the coordinator has is no better: it hears why, which is the reason that the job says. */
START_TEST(a_tensor_set_that_nobody_can_read)
{
	char *bytes = malloc(sizeof(junk));
	start_with_junk();
	shared_drop(job->tensors);
	job->tensors = shared_new(memcpy(bytes, junk, sizeof(junk)), sizeof(junk));
	job->params_durable = true;
	silence(false);
	seen.lost[LINK_PLACED] = true;
	placing_linked(job, 0);
	expect_refused(ST_VERSION_SKEW, "Placement.tensors: it is no tensor set");
	ck_assert(there()->tensors.wrong && !is_told("TensorsMended"));
	ck_assert_uint_eq(pair_left(), kept_of_aside.n);
	ck_assert_uint_eq(recorded().tensors, sizeof(junk));
}
END_TEST

/* The same id under another coordinator, or at another time: of a part, of one that is aside, of a job of its own. */
START_TEST(another_job_of_the_same_id)
{
	if (_i == 0) {
		run_job();
	} else if (_i == 1) {
		start_aside();
		silence(false);
	} else {
		other.job = d.job;
		other.n_jobs = d.n_jobs;
	}
	seen.lost[LINK_PLACED] = true;
	job->uuid[0] = 0xab;
	uint32_t n = recorded().n;
	size_t n_bytes;
	void *bytes = placing_pack(job, 0, &n_bytes);
	job->uuid[0] = 0;
	take(LINK_PLACEMENT, bytes, n_bytes);
	expect_refused(ST_ALREADY_EXISTS, _i == 2 ? "Placement.uuid is ab000000-0000-0000-0000-000000000000, and job 7 "
						    "that is coordinated here has uuid 00000000-"
						  : "Placement.uuid is ab000000-0000-0000-0000-000000000000, and ");
	ck_assert_uint_eq(recorded().n, n);
	other.job = NULL;
	other.n_jobs = 0;
}
END_TEST

/* The journal does not take it: it has had such a job itself. */
START_TEST(a_record_that_cannot_be_written)
{
	struct pair_kept k;
	pair_stop(&k);
	write_record((struct journal_record){ .kind = JOURNAL_JOB,
					      .job = { .id = JOB, .user = "ana", .spec = { "x", 1 } } });
	pair_start(&k);
	seen.lost[LINK_PLACED] = true;
	take_placement();
	expect_refused(ST_ALREADY_EXISTS, "cannot write the part's record to its journal");
	ck_assert_ptr_null(there());
	ck_assert_uint_eq(recorded().n, 0);
}
END_TEST

START_TEST(as_many_jobs_as_may_run)
{
	run_job();
	*(_i ? &conf->limits.jobs : &conf->limits.jobs_per_user) = 1;
	struct hosted *first = job;
	job = rig_job(JOB + 1, getuid(), "ana", NULL);
	seen.lost[LINK_PLACED] = true;
	placing_send(job, node_now());
	expect_refused(ST_RESOURCE_EXHAUSTED, _i ? "has parts of 1 jobs, and limits.jobs is 1"
						 : "has parts of 1 jobs, and limits.jobs_per_user is 1");
	job->params_durable = true; /* one that runs comes back */
	placing_send(job, node_now());
	UNTIL(there());
	job = first;
	placing_linked(job, 0);
	turns(3);
	ck_assert(!seen.placed.refused || seen.placed.job_id != JOB);
}
END_TEST

/* The record of the first is still being written when the second comes. */
START_TEST(jobs_that_come_together_are_counted)
{
	*(_i ? &conf->limits.jobs : &conf->limits.jobs_per_user) = 1;
	struct hosted *second = rig_job(JOB + 1, getuid(), "ana", NULL);
	placing_send(job, node_now());
	placing_send(second, node_now());
	UNTIL(seen.placed.refused);
	ck_assert_uint_eq(seen.placed.job_id, JOB + 1);
	ck_assert_int_eq(seen.placed.status, ST_RESOURCE_EXHAUSTED);
	ck_assert_ptr_nonnull(strstr(seen.placed.text, "has parts of 1 jobs, and limits.jobs"));
	UNTIL(there());
}
END_TEST

/* ---- no records ---- */

/* As if this gaccd coordinated the job itself. */
START_TEST(a_part_at_its_coordinator_has_none)
{
	size_t n;
	void *bytes = placing_pack(job, 0, &n);
	const struct link_message m = { LINK_PLACEMENT, JOB, 0, bytes, n, NULL, false, 0 };
	job->part[0].wanted = true;
	parts_take_placement(&other, &m);
	ck_assert(there() && !there()->away && !other.arriving);
	free(bytes);
	UNTIL(coord_phase(job->coord) == COORD_COLLECT && there()->begun);
	end();
	ck_assert_uint_eq(recorded().n, 0);
	ck_assert(!there()->noted.gone && !there()->noted.going);
}
END_TEST

/* Of several parts, each has its own, and together they are one job. */
START_TEST(parts_of_one_job)
{
	struct hosted *only = job;
	conf->limits.jobs = conf->limits.jobs_per_user = 1;
	job = rig_job(DIVIDED, getuid(), "ana", with_two_parts);
	placing_send(job, node_now());
	UNTIL(is_up(there_of(0)) && is_up(there_of(1)) && there_of(0)->mem.kept && there_of(1)->mem.kept);
	ck_assert_uint_eq(recorded().n, PARTS);
	silence(true);
	pair_restart();
	for (uint32_t i = 0; i < PARTS; i++)
		ck_assert_uint_eq(there_of(i)->spec->ranks, first_rank[i + 1] - first_rank[i]);
	UNTIL(is_up(there_of(0)) && is_up(there_of(1)));
	ck_assert_uint_eq(pair_left(), 0);
	job = only;
}
END_TEST

Suite *part_records_end_suite(void)
{
	Suite *s = suite_create("part_records_end");
	TCase *t = tcase_create("part_records_end");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, pair_open, pair_close);
	tcase_set_timeout(t, 90);
	tcase_add_test(t, the_record_goes_before_the_memory);
	tcase_add_test(t, a_part_that_is_dropped);
	tcase_add_test(t, death_between_the_records_end_and_the_memorys);
	tcase_add_test(t, another_coordinators_part_of_the_same_id);
	tcase_add_loop_test(t, a_part_that_is_dropped_before_it_is_made, 0, 2);
	tcase_add_test(t, a_record_that_cannot_be_read);
	tcase_add_test(t, a_part_that_is_aside_is_dropped);
	tcase_add_test(t, others_start_beside_it);
	tcase_add_test(t, a_tensor_set_that_cannot_be_read_is_mended);
	tcase_add_test(t, a_tensor_set_that_nobody_can_read);
	tcase_add_loop_test(t, another_job_of_the_same_id, 0, 3);
	tcase_add_test(t, a_record_that_cannot_be_written);
	tcase_add_loop_test(t, as_many_jobs_as_may_run, 0, 2);
	tcase_add_loop_test(t, jobs_that_come_together_are_counted, 0, 2);
	tcase_add_test(t, a_part_at_its_coordinator_has_none);
	tcase_add_test(t, parts_of_one_job);
	return s;
}
