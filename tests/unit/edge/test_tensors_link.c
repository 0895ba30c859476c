/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor set that the ranks of a part register, on its way to a coordinator elsewhere and back. */
#include "pair_rig.h"

#include "cluster/tensors_message.h"
#include "edge/links.h"
#include "edge/parts.h"
#include "edge/placing.h"
#include "gacc/v1/common.pb-c.h"
#include "store/journal.h"
#include "support/suite.h"

#include <stdlib.h>
#include <unistd.h>

Suite *tensors_suite(void);

static void without_tensors(Gacc__V1__JobSpec *spec)
{
	spec->n_tensors = 0;
}

/* A job without tensors whose part is at the node; then they are declared there. */
static struct part *declared(void)
{
	const struct tensor_spec w = { .name = "w", .dtype = DTYPE_F32, .n_dims = 1, .shape = { RIG_ELEMENTS } };
	char why[200];
	job = rig_job(JOB + 1, getuid(), "ana", without_tensors);
	placing_send(job, node_now());
	UNTIL(there() && job->part[0].answered);
	ck_assert_int_eq(job_set_tensors(there()->job, &w, 1, why, sizeof(why)), ST_OK);
	ck_assert(!there()->mem.allocating);
	job_allocate(there()->job);
	return there();
}

static size_t journaled;

static enum status look(void *arg, const struct journal_job *j)
{
	if (j->id == JOB + 1)
		journaled = j->tensors.n;
	return ST_OK;
}

START_TEST(a_set_is_durable_before_there_is_memory)
{
	struct part *p = declared();
	ck_assert(p->tensors.asked_ns && !p->tensors.durable);
	ck_assert_ptr_null(p->mem.segment->data);
	UNTIL(p->tensors.durable);
	ck_assert(job->tensors_durable);
	ck_assert_int_eq(journal_each_job(d.journal, true, look, NULL), ST_OK);
	ck_assert_uint_eq(journaled, p->tensors.packed->n);
	UNTIL(coord_phase(job->coord) == COORD_COLLECT);
	ck_assert_uint_eq(seen.n[LINK_TENSORS], 1);
	ck_assert_uint_eq(seen.n[LINK_KEPT], 1);
	ck_assert_int_eq(p->tensors.asked_ns, 0);
}
END_TEST

/* The set is lost on its way, or the answer is. */
START_TEST(it_is_sent_again_until_it_is_answered)
{
	const enum link_kind lost = _i ? LINK_KEPT : LINK_TENSORS;
	seen.lost[lost] = true;
	struct part *p = declared();
	UNTIL(seen.n[lost] == 1);
	seen.lost[lost] = false;
	for (int i = 0; i < 20; i++)
		pair_turn(time(NULL) + 1, "");
	ck_assert_uint_eq(seen.n[LINK_TENSORS], 1); /* the journal may wait for a disk */
	p->tensors.asked_ns -= INT64_C(6000000000);
	UNTIL(p->tensors.durable);
	ck_assert_uint_eq(seen.n[LINK_TENSORS], 2);
	UNTIL(coord_phase(job->coord) == COORD_COLLECT);
}
END_TEST

static void answer(uint64_t of, uint64_t epoch, enum status st)
{
	const struct tensors_kept k = { of, epoch, 0, st };
	size_t n;
	void *bytes = tensors_kept_pack(&k, &n);
	links_send_down(&d, 0, LINK_KEPT, JOB + 1, 0, bytes, n, NULL);
	for (int i = 0; i < 5; i++)
		pair_turn(time(NULL) + 1, "");
}

START_TEST(answers_that_nobody_waits_for_are_dropped)
{
	seen.lost[LINK_TENSORS] = true;
	struct part *p = declared();
	answer(JOB + 1, 2, ST_OK);
	answer(JOB, 1, ST_OK);
	ck_assert(p->tensors.asked_ns && !p->tensors.durable);
	answer(JOB + 1, 1, ST_STORE_FAILED);
	ck_assert(!p->tensors.asked_ns && !p->tensors.durable && !p->mem.allocating);
	UNTIL(hosted_history_when(job, "AllocationFailed"));
	answer(JOB + 1, 1, ST_OK);
	ck_assert(!p->tensors.durable);
}
END_TEST

START_TEST(wrong_sets_are_dropped)
{
	struct part_tensor_set t = { .job_id = JOB, .epoch = 2 };
	struct shared *set = shared_new(strdup("set"), 3);
	for (int i = 0; i < 2; i++) {
		size_t n;
		void *bytes = tensor_set_pack(&t, set, &n);
		links_send_shared(&other, LINK_TENSORS, JOB, 0, bytes, n, set);
		t = (struct part_tensor_set){ .job_id = JOB + 1, .epoch = 1 };
	}
	links_send(&other, LINK_TENSORS, JOB, 0, strdup("x"), 1);
	shared_drop(set);
	UNTIL(seen.n[LINK_TENSORS] == 3);
	ck_assert(!job->tensors_noted && !job->tensors_durable);
	ck_assert_uint_eq(seen.n[LINK_KEPT], 0);
}
END_TEST

Suite *tensors_suite(void)
{
	Suite *s = suite_create("tensors");
	TCase *t = tcase_create("tensors");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, pair_open, pair_close);
	tcase_set_timeout(t, 90);
	tcase_add_test(t, a_set_is_durable_before_there_is_memory);
	tcase_add_loop_test(t, it_is_sent_again_until_it_is_answered, 0, 2);
	tcase_add_test(t, answers_that_nobody_waits_for_are_dropped);
	tcase_add_test(t, wrong_sets_are_dropped);
	return s;
}
