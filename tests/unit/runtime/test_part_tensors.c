/* SPDX-License-Identifier: Apache-2.0 */
/* A part's tensor set, from the journal: small ones at once, large ones in the pool while gaccd serves already. */
#include "part_rig.h"

#include "gacc/v1/common.pb-c.h"
#include "rpc/pool.h"
#include "store/journal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Suite *tensors_suite(void);

enum { MANY = 1500 }; /* of them, with long names: more than 64 KiB packed */

static void with_many_tensors(Gacc__V1__JobSpec *spec)
{
	static Gacc__V1__TensorSpec tensor[MANY], *list[MANY];
	static char name[MANY][64];
	static int64_t shape[] = { 3 };
	for (int i = 0; i < MANY; i++) {
		gacc__v1__tensor_spec__init(&tensor[i]);
		snprintf(name[i], sizeof(name[i]), "a.tensor.with.a.long.name.as.real.models.have.them.%d", i);
		tensor[i].name = name[i];
		tensor[i].dtype = GACC__V1__DATA_TYPE__DATA_TYPE_F32;
		tensor[i].shape = shape;
		tensor[i].n_shape = 1;
		list[i] = &tensor[i];
	}
	spec->tensors = list;
	spec->n_tensors = MANY;
}

/* The set of this part as the journal has it; for free(). */
static struct journal_bytes packed_of(struct part *p)
{
	ck_assert_int_eq(part_pack_tensors(p), ST_OK);
	struct journal_bytes b = { malloc(p->tensors.packed->n), p->tensors.packed->n };
	memcpy((void *)(uintptr_t)b.data, p->tensors.packed->data, b.n);
	return b;
}

static enum status restore(struct part *p, const struct journal_bytes *b, bool at_once, char *why, size_t n_why)
{
	void *copy = malloc(b->n);
	memcpy(copy, b->data, b->n);
	return part_restore_tensors(p, shared_new(copy, b->n), at_once, why, n_why);
}

static void drop(struct journal_bytes b)
{
	free((void *)(uintptr_t)b.data);
}

START_TEST(a_small_set_is_read_at_once)
{
	char why[200] = "";
	struct part *p = rig_part(RIG_JOB);
	struct journal_bytes b = packed_of(p);
	const void *packed = p->tensors.packed;
	ck_assert_int_eq(part_pack_tensors(p), ST_OK);
	ck_assert_ptr_eq(p->tensors.packed, packed); /* that is done once */
	struct part *q = rig_bare_part(RIG_JOB + 1);
	ck_assert(!job_has_tensors(q->job));
	ck_assert_int_eq(restore(q, &b, false, why, sizeof(why)), ST_OK);
	ck_assert(job_has_tensors(q->job));
	ck_assert(q->tensors.durable && !q->tensors.due);
	ck_assert_uint_eq(job_arena(q->job)->fingerprint, job_arena(p->job)->fingerprint);
	ck_assert_uint_eq(q->tensors.packed->n, b.n);
	ck_assert_mem_eq(q->tensors.packed->data, b.data, b.n);
	drop(b);
}
END_TEST

START_TEST(a_large_set_is_read_at_once_where_that_is_asked_for)
{
	char why[200] = "";
	rig_change_spec(with_many_tensors);
	struct journal_bytes b = packed_of(rig_part(RIG_JOB));
	ck_assert_uint_gt(b.n, 64 << 10);
	struct part *q = rig_bare_part(RIG_JOB + 1);
	ck_assert_int_eq(restore(q, &b, true, why, sizeof(why)), ST_OK);
	ck_assert(job_has_tensors(q->job) && !q->tensors.due);
	ck_assert_uint_eq(node.collected.used, 0);
	drop(b);
}
END_TEST

START_TEST(a_large_set_is_read_in_the_pool)
{
	char why[200] = "";
	uint64_t window, n;
	rig_change_spec(with_many_tensors);
	struct part *p = rig_running_part();
	struct journal_bytes b = packed_of(p);
	rig_push_all(p);
	rig_go(p);
	struct order o = rig_commit(p, 0);
	part_on_order(p, &o);
	UNTIL(said.report.window == 1);
	rig_restart();
	p = rig_bare_part(RIG_JOB);
	p->begun = true;
	ck_assert_int_eq(restore(p, &b, false, why, sizeof(why)), ST_OK);
	ck_assert(p->tensors.due && p->tensors.durable);
	ck_assert(!job_has_tensors(p->job));
	ck_assert(part_stored_window(p, &window));
	ck_assert_uint_eq(window, 1);
	job_take_over(p->job);
	ck_assert(p->mem.allocating);
	ck_assert(rpc_pool_busy(node.pool));
	UNTIL(said.engine_up == 1);
	ck_assert(!p->tensors.due);
	job_tensors(p->job, &n);
	ck_assert_uint_eq(n, MANY);
	ck_assert_uint_eq(job_window(p->job), 1);
	ck_assert_uint_gt(node.collected.used, b.n); /* its user is charged for it */
	part_tensors_gone(p);
	ck_assert_uint_eq(node.collected.used, 0);
	part_tensors_gone(p);
	ck_assert_uint_eq(node.collected.used, 0);
	drop(b);
}
END_TEST

START_TEST(without_stored_memory_there_is_no_window)
{
	char why[200] = "";
	uint64_t window;
	rig_change_spec(with_many_tensors);
	struct part *p = rig_part(RIG_JOB);
	struct journal_bytes b = packed_of(p);
	rig_restart();
	p = rig_bare_part(RIG_JOB);
	ck_assert_int_eq(restore(p, &b, false, why, sizeof(why)), ST_OK);
	ck_assert(!part_stored_window(p, &window));
	p->begun = true;
	job_take_over(p->job);
	UNTIL(said.report.failed.status); /* and no memory to adopt */
	ck_assert_int_eq(said.report.failed.status, ST_SEGMENT_CORRUPT);
	drop(b);
}
END_TEST

/* Released while it is due: what the manager keeps was never taken. */
START_TEST(memory_of_a_job_whose_set_is_due_is_released)
{
	char why[200] = "";
	rig_change_spec(with_many_tensors);
	struct part *p = rig_running_part();
	struct journal_bytes b = packed_of(p);
	rig_restart();
	p = rig_bare_part(RIG_JOB);
	ck_assert_int_eq(restore(p, &b, false, why, sizeof(why)), ST_OK);
	ck_assert_int_gt(n_kept, 0);
	part_release(p);
	UNTIL(n_kept == 0);
	drop(b);
}
END_TEST

START_TEST(a_set_that_cannot_be_read)
{
	char why[200] = "", garbage[100000];
	memset(garbage, 0xff, sizeof(garbage));
	struct part *p = rig_bare_part(RIG_JOB);
	ck_assert_int_eq(restore(p, &(struct journal_bytes){ garbage, 30 }, false, why, sizeof(why)), ST_MALFORMED);
	ck_assert_str_eq(why, "it is no tensor set");
	ck_assert(!p->tensors.durable && !job_has_tensors(p->job));
	struct part *q = rig_bare_part(RIG_JOB + 1);
	ck_assert_int_eq(restore(q, &(struct journal_bytes){ garbage, sizeof(garbage) }, false, why, sizeof(why)),
			 ST_OK); /* that is seen later */
	job_take_over(q->job);
	UNTIL(q->tensors.wrong);
	ck_assert_str_eq(q->tensors.wrong, "it is no tensor set");
	ck_assert(!q->mem.allocating);
	ck_assert(!job_has_tensors(q->job));
	ck_assert_uint_eq(node.collected.used, 0);
}
END_TEST

Suite *tensors_suite(void)
{
	Suite *s = suite_create("tensors");
	TCase *t = tcase_create("tensors");
	suite_add_tcase(s, t);
	tcase_set_timeout(t, 150);
	tcase_add_checked_fixture(t, rig_open_managed, rig_close);
	tcase_add_test(t, a_small_set_is_read_at_once);
	tcase_add_test(t, a_large_set_is_read_at_once_where_that_is_asked_for);
	tcase_add_test(t, a_large_set_is_read_in_the_pool);
	tcase_add_test(t, without_stored_memory_there_is_no_window);
	tcase_add_test(t, memory_of_a_job_whose_set_is_due_is_released);
	tcase_add_test(t, a_set_that_cannot_be_read);
	return s;
}
