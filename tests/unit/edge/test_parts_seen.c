/* SPDX-License-Identifier: Apache-2.0 */
/* What the coordinator keeps of each of several parts, and what it shows of all: views, memory, micro-batches, the
 * tensors that their ranks register, and when the job is let go. */
#include "divided_rig.h"

#include "cluster/ledger_message.h"
#include "cluster/tensors_message.h"
#include "edge/hosted_ledger.h"
#include "edge/hosted_life.h"
#include "edge/hosted_ports.h"
#include "edge/hosted_seen.h"
#include "edge/hosted_tensors.h"
#include "edge/hosted_view.h"
#include "edge/links.h"
#include "edge/placing.h"
#include "gacc/v1/common.pb-c.h"
#include "gacc/v1/job.pb-c.h"
#include "gacc/v1/node.pb-c.h"
#include "runtime/engine_proc.h"
#include "runtime/recorder.h"
#include "support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

Suite *parts_seen_suite(void);

/* ---- views ---- */

static void take_view(struct part_view v, uint32_t part)
{
	size_t n;
	void *bytes = part_view_pack(&v, &n);
	const struct link_message m = { LINK_VIEW, DIVIDED, part, bytes, n, NULL, false, 0 };
	hosted_take_view(&d, &m);
	free(bytes);
}

static struct part_view view_of(uint32_t part)
{
	static uint64_t number;
	return (struct part_view){ .job_id = DIVIDED,
				   .epoch = 1,
				   .incarnation = 5,
				   .number = ++number,
				   .part = part,
				   .bytes = 1000 + part,
				   .ranks_known = true,
				   .engine_starts = 2 + part,
				   .engine_pid = 70 + part };
}

START_TEST(both_parts_are_seen)
{
	placing_send(job, node_now());
	UNTIL(job->part[0].ready && job->part[1].ready && hosted_ranks_known(job));
	const uint64_t bytes[] = { there_of(0)->mem.bytes, there_of(1)->mem.bytes };
	ck_assert(bytes[0] && bytes[0] < bytes[1]); /* slots of two ranks, and of three */
	ck_assert_uint_eq(job->place.need, bytes[0] + bytes[1]);
	ck_assert_uint_eq(hosted_host_bytes(job), bytes[0] + bytes[1]);
	Gacc__V1__Job *j = hosted_view(job, 0, node_now());
	ck_assert_uint_eq(j->host_bytes, bytes[0] + bytes[1]);
	ck_assert_uint_eq(j->parameters, RIG_ELEMENTS);
	ck_assert_int_eq(j->engine_pid, engine_proc_pid(there_of(0)->engine.proc));
	ck_assert_uint_eq(j->n_parts, PARTS);
	for (uint32_t i = 0; i < PARTS; i++) {
		const Gacc__V1__JobPart *p = j->parts[i];
		ck_assert(p->number == i && p->first_rank == first_rank[i] &&
			  p->n_ranks == first_rank[i + 1] - first_rank[i]);
		ck_assert_int_eq(p->engine_pid, engine_proc_pid(there_of(i)->engine.proc));
		ck_assert_uint_eq(p->host_bytes, bytes[i]);
		ck_assert_uint_eq(p->communicator, 0);
	}
	gacc__v1__job__free_unpacked(j, NULL);
	j = hosted_view(hosted_find(&d, JOB), 0, node_now());
	ck_assert_uint_eq(j->n_parts, 0); /* of one part all is said in the job itself */
	gacc__v1__job__free_unpacked(j, NULL);
}
END_TEST

START_TEST(views_are_kept_by_part)
{
	struct part_view v = view_of(1);
	take_view(v, 0);
	ck_assert(!job->part[0].seen && !job->part[1].seen);
	take_view(v, 1);
	ck_assert(!job->part[0].seen && job->part[1].seen);
	ck_assert_uint_eq(hosted_host_bytes(job), 1001);
	ck_assert(!hosted_ranks_known(job));
	take_view(view_of(0), 0);
	ck_assert(hosted_ranks_known(job));
	Gacc__V1__Job *j = hosted_view(job, 0, node_now());
	ck_assert_uint_eq(j->engine_restarts, 1 + 2);
	ck_assert_int_eq(j->engine_pid, 70);
	ck_assert_uint_eq(j->parts[1]->engine_restarts, 2);
	gacc__v1__job__free_unpacked(j, NULL);
	v = view_of(1);
	v.ranks_known = false;
	take_view(v, 1);
	ck_assert(!hosted_ranks_known(job));
}
END_TEST

static void add_buffer(struct part_view *v, const char *kind, uint32_t segments)
{
	struct part_buffer *b = &v->buffer[v->n_buffers++];
	*b = (struct part_buffer){ .segments = segments, .clients = segments + 1, .bytes = 100 * segments };
	b->tensors = 3;
	snprintf(b->kind, sizeof(b->kind), "%s", kind);
}

/* Of part 1 "slots", of part 0 "control" and "slots". */
static void take_buffers(void)
{
	struct part_view v = view_of(1);
	add_buffer(&v, "slots", 6);
	take_view(v, 1);
	v = view_of(0);
	add_buffer(&v, "control", 2);
	add_buffer(&v, "slots", 4);
	take_view(v, 0);
}

START_TEST(memory_of_each_part_is_told)
{
	Gacc__V1__Buffer b[PARTS * PART_VIEW_BUFFERS];
	ck_assert_uint_eq(hosted_buffers(job, false, b), 0);
	take_buffers();
	ck_assert_uint_eq(hosted_buffers(job, false, b), 3);
	for (int i = 0; i < 3; i++) {
		ck_assert_uint_eq(b[i].job, DIVIDED);
		ck_assert_str_eq(b[i].kind, i ? "slots" : "control");
		ck_assert_str_eq(b[i].node, d.node.conf->node.name);
		ck_assert_uint_eq(b[i].part, i / 2);
		ck_assert_uint_eq(b[i].segments, 2 + 2 * i);
		ck_assert(b[i].bytes == 100 * b[i].segments && b[i].clients == b[i].segments + 1 && b[i].tensors == 3);
	}
}
END_TEST

START_TEST(memory_of_all_parts_is_told_together)
{
	Gacc__V1__Buffer b[PART_VIEW_BUFFERS];
	take_buffers();
	ck_assert_uint_eq(hosted_buffers(job, true, b), 2);
	ck_assert_str_eq(b[0].kind, "control");
	ck_assert_str_eq(b[1].kind, "slots");
	ck_assert_str_eq(b[1].node, "");
	ck_assert(b[0].segments == 2 && b[0].bytes == 200 && b[0].clients == 3);
	ck_assert(b[1].segments == 10 && b[1].bytes == 1000 && b[1].clients == 12 && b[1].tensors == 3);
}
END_TEST

static void pending_reason(const char *is)
{
	Gacc__V1__Job *j = hosted_view(job, 0, node_now());
	ck_assert_str_eq(j->reason, is);
	gacc__v1__job__free_unpacked(j, NULL);
}

START_TEST(tensors_of_any_part_are_seen)
{
	struct part_view v = view_of(1);
	take_view(view_of(0), 0);
	pending_reason("waits for a rank to register its tensors");
	v.has_tensors = true;
	take_view(v, 1);
	pending_reason("its memory is being made");
}
END_TEST

/* ---- parts here ---- */

START_TEST(a_rank_attaches_to_its_part)
{
	ck_assert_ptr_null(hosted_part_for_rank(job, 0));
	struct part *second = rig_part_of(job, 1);
	ck_assert_ptr_null(hosted_part_for_rank(job, 1)); /* its part is being placed */
	ck_assert_ptr_eq(hosted_part_for_rank(job, WORLD), second);
	struct part *first = rig_part_of(job, 0);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		ck_assert_ptr_eq(hosted_part_for_rank(job, rank), rank < first_rank[1] ? first : second);
	ck_assert_ptr_eq(hosted_part_for_rank(job, WORLD), first); /* which says that there is none */
	first->uuid[0]++;
	ck_assert_ptr_null(hosted_part_for_rank(job, 0));
	ck_assert_ptr_null(hosted_part_here(job, 0));
	ck_assert_ptr_eq(hosted_part_here(job, 1), second);
}
END_TEST

/* ---- when the job is let go ---- */

/* So many seconds later, in which both nodes have repeated their views: is it retired? */
static bool retired_after(const struct part_view *v, int seconds)
{
	static int64_t later;
	for (int i = 0; i < seconds && job->coord; i++) {
		struct now now = node_now();
		now.mono_ns += later += INT64_C(1000000000);
		for (uint32_t k = 0; k < PARTS; k++) {
			struct part_view again = view_of(k);
			again.ended = v[k].ended;
			again.released = v[k].released;
			again.links = v[k].links;
			take_view(again, k);
			job->part[k].seen->heard_ns = now.mono_ns;
		}
		rig_run();
		hosted_tick(job, now);
	}
	return !job->coord;
}

START_TEST(it_stays_until_all_parts_have_let_go)
{
	struct part_view v[PARTS] = { { .ended = true, .released = true }, { .ended = true, .released = true } };
	take_view(view_of(0), 0);
	take_view(view_of(1), 1);
	coord_end(job->coord, ST_CANCELLED, "by ana", node_now());
	UNTIL(hosted_ended(job));
	v[_i].ended = v[_i].released = false;
	ck_assert(!retired_after(v, 70));
	ck_assert_int_eq(job->released_ns, 0); /* from which a lost answer has its time */
	v[_i].ended = true;
	ck_assert(!retired_after(v, 70)); /* it has its memory */
	v[_i].released = true;
	v[_i].links = 1;
	ck_assert(!retired_after(v, 70));
	v[_i].links = 0;
	ck_assert(retired_after(v, 70));
	ck_assert_uint_eq(job->n_parts, 0);
}
END_TEST

/* ---- micro-batches ---- */

/* The ledger of a part: one micro-batch of each rank, whose weight is 10 more than its number. `n` of them come. */
static void take_ledger(uint32_t part, uint64_t window, uint32_t n, uint32_t link_part)
{
	uint32_t rank[WORLD], micro[WORLD] = { 0 };
	double weight[WORLD], loss[WORLD] = { 0 };
	uint64_t key[WORLD] = { 0 };
	int64_t nanos[WORLD];
	for (uint32_t i = 0; i < WORLD; i++) {
		rank[i] = first_rank[part] + i;
		weight[i] = 10 + rank[i];
		nanos[i] = 1000 + rank[i];
	}
	const uint32_t total = first_rank[part + 1] - first_rank[part];
	const struct part_ledger l = { .job_id = DIVIDED,
				       .epoch = 1,
				       .incarnation = 5 + part, /* each node has its own */
				       .window = window,
				       .part = part,
				       .total = total,
				       .counted = total,
				       .n = n < total ? n : total,
				       .rank = rank,
				       .micro = micro,
				       .weight = weight,
				       .loss = loss,
				       .data_key = key,
				       .unix_nanos = nanos };
	size_t size;
	void *bytes = ledger_pack(&l, &size);
	const struct link_message m = { LINK_LEDGER, DIVIDED, link_part, bytes, size, NULL, false, 0 };
	hosted_take_ledger(&d, &m);
	free(bytes);
}

static struct history_window kept;
static struct history_micro micros[WORLD];

static enum status keep(void *arg, const struct history_window *w)
{
	kept = *w;
	ck_assert_uint_le(w->n_micros, WORLD);
	if (w->n_micros)
		memcpy(micros, w->micro, w->n_micros * sizeof(*micros));
	return ST_OK;
}

/* The window before the job's is decided, and now applied. How many micro-batches it has in the history. */
static uint64_t micros_of(uint64_t window)
{
	const struct commit k = { .window = window, .outcome = OUTCOME_APPLIED, .micro_size = 1 };
	coord_start_at(job->coord, window + 1, window + 1, &k);
	hosted_history_decided(job, &k);
	hosted_history_durable(job, window);
	hosted_history_applied(job);
	recorder_flush(d.recorder);
	rig_run();
	ck_assert_int_eq(history_each_window(d.history, DIVIDED, window + 1, 1, true, keep, NULL), ST_OK);
	ck_assert_uint_eq(kept.window, window);
	return kept.n_micros;
}

START_TEST(ledgers_of_all_parts_are_one)
{
	take_ledger(1, 0, WORLD, 1); /* in any order */
	take_ledger(0, 0, WORLD, 0);
	ck_assert_uint_eq(micros_of(0), WORLD);
	for (uint32_t i = 0; i < WORLD; i++) {
		ck_assert(micros[i].rank == i && micros[i].micro == 0 && !micros[i].voided);
		ck_assert_double_eq(micros[i].weight, 10 + i);
		ck_assert_int_eq(micros[i].lag_ns, i);
	}
	ck_assert(!job->part[0].ledger.micro && !job->part[1].ledger.micro);
}
END_TEST

/* That of one part has not come, or not all of it, or that of another window has. */
START_TEST(half_a_ledger_is_none)
{
	const uint32_t part = _i % 2;
	take_ledger(1 - part, 0, WORLD, 1 - part);
	ck_assert_uint_eq(micros_of(0), 0);
	take_ledger(1 - part, 1, WORLD, 1 - part);
	take_ledger(part, 1, 1, part);
	ck_assert_uint_eq(micros_of(1), 0);
	take_ledger(1 - part, 2, WORLD, 1 - part);
	take_ledger(part, 1, WORLD, part);
	ck_assert_uint_eq(micros_of(2), 0);
	take_ledger(part, 2, WORLD, 1 - part);
	ck_assert_uint_eq(micros_of(2), 0);
	take_ledger(part, 3, WORLD, part);
	take_ledger(1 - part, 3, WORLD, 1 - part);
	ck_assert_uint_eq(micros_of(3), WORLD);
}
END_TEST

/* ---- tensors ---- */

static void without_tensors(Gacc__V1__JobSpec *spec)
{
	with_two_parts(spec);
	spec->n_tensors = 0;
}

static void declare(uint32_t part, const char *name)
{
	const struct tensor_spec w = { .name = name, .dtype = DTYPE_F32, .n_dims = 1, .shape = { RIG_ELEMENTS } };
	char why[200];
	struct part *p = part_find(&other.node, job->id, part);
	ck_assert_int_eq(job_set_tensors(p->job, &w, 1, why, sizeof(why)), ST_OK);
	job_allocate(p->job);
}

static struct part *of_job(uint32_t part)
{
	return part_find(&other.node, job->id, part);
}

static void place_without_tensors(void)
{
	job = rig_job(DIVIDED + 1, getuid(), "ana", without_tensors);
	placing_send(job, node_now());
	UNTIL(job->part[0].answered && job->part[1].answered && of_job(0) && of_job(1));
}

/* At the same moment, or one behind the other. */
START_TEST(each_part_hears_that_the_tensors_are_durable)
{
	place_without_tensors();
	declare(1, "w");
	if (_i)
		UNTIL(of_job(1)->tensors.durable);
	declare(0, "w");
	UNTIL(of_job(0)->tensors.durable && of_job(1)->tensors.durable);
	ck_assert(job->tensors_durable);
	ck_assert_uint_eq(seen.n[LINK_TENSORS], 2); /* nobody has asked twice */
	ck_assert_uint_eq(seen.n[LINK_KEPT], 2);
}
END_TEST

START_TEST(parts_with_other_tensors_are_refused)
{
	place_without_tensors();
	declare(0, "w");
	if (_i)
		UNTIL(of_job(0)->tensors.durable);
	declare(1, "v");
	UNTIL(hosted_history_when(job, "AllocationFailed"));
	const struct event *e = events_at(&job->events, job->events.n - 1);
	for (uint64_t i = events_first(&job->events); strcmp(e->reason, "AllocationFailed"); i++)
		e = events_at(&job->events, i);
	ck_assert_msg(strstr(e->message, "part 1: ") == e->message, "%s", e->message);
	ck_assert_msg(strstr(e->message, "another part of the job has registered other tensors") != NULL, "%s",
		      e->message);
	UNTIL(of_job(0)->tensors.durable);
	ck_assert(!of_job(1)->tensors.durable);
}
END_TEST

Suite *parts_seen_suite(void)
{
	Suite *s = suite_create("parts_seen");
	TCase *t = tcase_create("parts_seen");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, divided_open, pair_close);
	tcase_set_timeout(t, 90);
	tcase_add_test(t, both_parts_are_seen);
	tcase_add_test(t, views_are_kept_by_part);
	tcase_add_test(t, memory_of_each_part_is_told);
	tcase_add_test(t, memory_of_all_parts_is_told_together);
	tcase_add_test(t, tensors_of_any_part_are_seen);
	tcase_add_test(t, a_rank_attaches_to_its_part);
	tcase_add_loop_test(t, it_stays_until_all_parts_have_let_go, 0, PARTS);
	tcase_add_test(t, ledgers_of_all_parts_are_one);
	tcase_add_loop_test(t, half_a_ledger_is_none, 0, 2);
	tcase_add_loop_test(t, each_part_hears_that_the_tensors_are_durable, 0, 2);
	tcase_add_loop_test(t, parts_with_other_tensors_are_refused, 0, 2);
	return s;
}
