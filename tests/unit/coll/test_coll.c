/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives while nothing fails: what arrives, in which order it is summed, what may go on at once. */
#include "rig.h"

#include "support/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static void check_all(const struct rig *r, const struct actor *a)
{
	for (uint32_t s = 0; s < r->n; s++) {
		ck_assert_msg(!a[s].wrong, "part %u of %u: %s", s, r->n, a[s].wrong);
		ck_assert_msg(a[s].status == ST_OK, "part %u of %u: %s", s, r->n, status_info(a[s].status)->name);
	}
}

/* ---- the data ---- */

START_TEST(order_of_parts_matters)
{
	unsigned different = 0;
	for (uint64_t i = 0; i < 1000; i++) {
		float backwards = value_of(2, i, 1) + value_of(1, i, 1) + value_of(0, i, 1);
		different += backwards != sum_in_order(3, i, 1);
	}
	ck_assert_uint_gt(different, 100);
}
END_TEST

/* ---- one operation ---- */

static const struct {
	uint32_t n;
	uint64_t elements[8]; /* of each share */
	uint64_t piece;	      /* elements */
} cases[] = {
	{ 1, { 1000 }, 64 },
	{ 1, { 0 }, 64 },
	{ 2, { 512, 512 }, 128 },
	{ 2, { 1, 999 }, 100 },
	{ 2, { 0, 700 }, 1000 },
	{ 2, { 0, 0 }, 1 },
	{ 3, { 1000, 0, 1 }, 7 },
	{ 3, { 333, 333, 334 }, 333 },
	{ 3, { 4, 5, 6 }, 1 },
	{ 8, { 0, 17, 64, 0, 1, 300, 64, 0 }, 64 },
	{ 8, { 100, 100, 100, 100, 100, 100, 100, 100 }, 33 },
};

static void fixed_shape(struct shape *shape, int i)
{
	*shape = (struct shape){ .piece = cases[i].piece * sizeof(float), .salt = (uint64_t)i };
	for (uint32_t s = 0; s < cases[i].n; s++)
		shape->bounds[s + 1] = shape->bounds[s] + cases[i].elements[s] * sizeof(float);
}

/* Shares that begin in the middle of the memory are shares, too. */
static void act_shifted(struct actor *a)
{
	struct shape shape = *(const struct shape *)a->arg;
	a->status = do_exchange(a, &shape);
	if (a->status == ST_OK)
		a->status = do_gather(a, &shape);
	shape.bounds[0] = shape.bounds[1] / 8 * 4;
	if (a->status == ST_OK)
		a->status = do_exchange(a, &shape);
}

START_TEST(shares_and_pieces)
{
	struct rig r = { 0 };
	struct actor a[8];
	struct shape shape;
	fixed_shape(&shape, _i);
	rig_open(&r, cases[_i].n);
	rig_join(&r);
	rig_run(&r, a, act_shifted, 0, &shape);
	check_all(&r, a);
	rig_close(&r);
}
END_TEST

static void act_broadcasts(struct actor *a)
{
	static const uint64_t bytes[] = { 0, 1, 4096, (2u << 20) + 5 }; /* more than one piece */
	for (size_t i = 0; i < 4; i++)
		for (uint32_t root = 0; root < a->rig->n && a->status == ST_OK; root++) {
			struct shape shape = { .salt = i + root };
			shape.bounds[a->rig->n] = bytes[i];
			a->status = do_broadcast(a, &shape, root);
		}
}

START_TEST(broadcasts)
{
	struct rig r = { 0 };
	struct actor a[3];
	rig_open(&r, (uint32_t)_i);
	rig_join(&r);
	rig_run(&r, a, act_broadcasts, 1, NULL);
	check_all(&r, a);
	rig_close(&r);
}
END_TEST

static void act_small_sums(struct actor *a)
{
	static const uint64_t bytes[] = { 0, 4, 1000, RIG_SMALL, 4, 8, RIG_SMALL - 4 };
	for (size_t i = 0; i < 7 && a->status == ST_OK; i++)
		a->status = do_sum_small(a, bytes[i], i);
}

START_TEST(small_sums)
{
	struct rig r = { 0 };
	struct actor a[8];
	rig_open(&r, (uint32_t)_i);
	rig_join(&r);
	rig_run(&r, a, act_small_sums, 4, NULL);
	check_all(&r, a);
	rig_close(&r);
}
END_TEST

/* Whoever has summed may go: the others have all that they need of it. Over Gloo that depends on an order of calls,
 * which test_coll_order.c looks at. */
static void act_leave_after_small_sum(struct actor *a)
{
	a->status = do_sum_small(a, 400, 1);
	if (a->part != 0)
		return;
	coll_leave(a->c);
	a->rig->member[a->part] = NULL;
}

START_TEST(leaving_after_a_small_sum_is_not_noticed)
{
	struct rig r = { 0 };
	struct actor a[4];
	for (unsigned i = 0; i < 20; i++) {
		rig_open(&r, 4);
		rig_join(&r);
		rig_run(&r, a, act_leave_after_small_sum, i, NULL);
		check_all(&r, a);
		rig_leave(&r);
	}
	rig_close(&r);
}
END_TEST

/* Nobody leaves a barrier before all have come. */
static atomic_uint come;

static void act_barriers(struct actor *a)
{
	for (unsigned i = 1; i <= 50 && a->status == ST_OK; i++) {
		dawdle(&a->seed);
		atomic_fetch_add(&come, 1);
		a->status = coll_barrier(a->c);
		if (atomic_load(&come) < i * a->rig->n)
			a->wrong = "the barrier was left before all had come";
	}
}

START_TEST(barriers)
{
	struct rig r = { 0 };
	struct actor a[8];
	rig_open(&r, (uint32_t)_i);
	rig_join(&r);
	rig_run(&r, a, act_barriers, 3, NULL);
	check_all(&r, a);
	rig_close(&r);
}
END_TEST

/* ---- many operations, random shapes and delays ---- */

static void act_random(struct actor *a)
{
	uint64_t seed = *(const uint64_t *)a->arg; /* the same for all: they call the same */
	unsigned n = 1 + (unsigned)draw(&seed, 8);
	for (unsigned i = 0; i < n && a->status == ST_OK; i++) {
		struct shape shape;
		uint64_t what = draw(&seed, 6);
		shape_draw(&shape, a->rig->n, what == 0 ? sizeof(float) : 1, draw(&seed, UINT64_MAX));
		if (what == 0)
			a->status = do_exchange(a, &shape);
		else if (what == 1)
			a->status = do_gather(a, &shape);
		else if (what == 2)
			a->status = do_broadcast(a, &shape, (uint32_t)draw(&seed, a->rig->n));
		else if (what < 5)
			a->status = do_sum_small(a, 4 * draw(&seed, RIG_SMALL / 4 + 1), seed);
		else
			a->status = coll_barrier(a->c);
	}
}

START_TEST(random_rows)
{
	static const uint32_t parts[] = { 1, 2, 3, 4, 8 };
	struct rig r = { 0 };
	struct actor a[8];
	for (uint64_t seed = 1; seed <= 60; seed++) {
		rig_open(&r, parts[seed % 5]);
		rig_join(&r);
		rig_run(&r, a, act_random, seed, &seed);
		check_all(&r, a);
		rig_leave(&r);
	}
	rig_close(&r);
}
END_TEST

START_TEST(the_most_parts)
{
	struct rig r = { 0 };
	struct actor a[COLL_MAX_PARTS];
	uint64_t seed = 5;
	rig_open(&r, over_gloo ? 12 : COLL_MAX_PARTS); /* a process has not descriptors enough for all */
	rig_join(&r);
	rig_run(&r, a, act_random, seed, &seed);
	check_all(&r, a);
	rig_close(&r);
}
END_TEST

/* ---- gather: who has all of it ---- */

static void act_whole(struct actor *a)
{
	static const uint64_t bounds[] = { 0, 100, 200, 300 };
	unsigned char buffer[300];
	memset(buffer, a->part == 1 ? 0xee : 0, sizeof(buffer));
	memset(buffer + bounds[a->part], (int)a->part + 1, 100);
	struct coll_gather g = { .buffer = buffer, .bounds = bounds, .piece = 7, .whole = a->part == 1 };
	a->status = coll_gather(a->c, &g);
	for (uint32_t i = 0; i < 300; i++)
		if (buffer[i] != (a->part == 1 && i / 100 != 1 ? 0xee : i / 100 + 1))
			a->wrong = "the buffer of a part that has all was written, or another was not";
}

START_TEST(who_has_all_only_gives)
{
	struct rig r = { 0 };
	struct actor a[3];
	rig_open(&r, 3);
	rig_join(&r);
	rig_run(&r, a, act_whole, 0, NULL);
	check_all(&r, a);
	rig_close(&r);
}
END_TEST

/* ---- elements ---- */

static enum status count_bytes(void *arg, const struct coll_piece *p, const void *const *source, uint32_t n)
{
	*(uint64_t *)arg += p->n;
	return ST_OK;
}

START_TEST(elements_of_every_size)
{
	struct rig r = { 0 };
	rig_open(&r, 1);
	rig_join(&r);
	ck_assert(coll_is_ordered(r.member[0]));
	for (uint32_t element = 2; element <= 8; element *= 2) {
		uint64_t bounds[] = { element, 11 * element }, counted = 0;
		char in[88] = { 0 };
		struct coll_exchange x = { in, bounds, 3 * element, element, count_bytes, &counted, NULL };
		ck_assert_int_eq(coll_exchange(r.member[0], &x), ST_OK);
		ck_assert_uint_eq(counted, 10 * element);
	}
	rig_close(&r);
}
END_TEST

/* ---- poll ---- */

struct polled {
	struct actor *a;
	struct coll_state at[3]; /* in the callback, for each piece */
	unsigned n;
};

static enum status poll_in_sum(void *arg, const struct coll_piece *p, const void *const *source, uint32_t n)
{
	struct polled *t = arg;
	coll_poll(t->a->c, &t->at[t->n++]);
	return ST_OK;
}

static void act_polled(struct actor *a)
{
	static const uint64_t bounds[] = { 0, 24, 48 };
	struct polled t = { .a = a };
	char in[48] = { 0 };
	struct coll_exchange x = { in, bounds, 8, 4, poll_in_sum, &t, NULL };
	a->status = coll_exchange(a->c, &x);
	for (unsigned i = 0; i < 3; i++)
		if (t.at[i].pieces != i + 1 || t.at[i].phase != COLL_READY || t.at[i].connected != 1)
			a->wrong = "poll in a callback";
}

START_TEST(poll_tells_progress)
{
	struct rig r = { 0 };
	struct actor a[2];
	struct coll_state state;
	rig_open(&r, 2);
	coll_poll(r.member[1], &state);
	ck_assert_int_eq(state.phase, COLL_OPENED);
	ck_assert_uint_eq(state.connected, 0);
	rig_join(&r);
	rig_run(&r, a, act_polled, 0, NULL);
	check_all(&r, a);
	coll_poll(r.member[1], &state);
	ck_assert_uint_eq(state.pieces, 3);
	ck_assert_int_eq(state.failure.status, ST_OK);
	rig_close(&r);
}
END_TEST

/* ---- how it waits and ends ---- */

static void act_leave_after_barrier(struct actor *a)
{
	a->status = coll_barrier(a->c);
	coll_leave(a->c);
	a->rig->member[a->part] = NULL;
}

START_TEST(leaving_after_a_barrier_is_not_noticed)
{
	struct rig r = { 0 };
	struct actor a[8];
	for (unsigned i = 0; i < 100; i++) {
		rig_open(&r, 8);
		rig_join(&r);
		rig_run(&r, a, act_leave_after_barrier, i, NULL);
		check_all(&r, a);
	}
	rig_close(&r);
}
END_TEST

static void act_late(struct actor *a)
{
	struct timespec t = { 0, a->part ? 0 : 400 * MS };
	nanosleep(&t, NULL);
	a->status = coll_barrier(a->c);
}

START_TEST(waiting_uses_no_cpu)
{
	struct rig r = { 0 };
	struct actor a[3];
	rig_open(&r, 3);
	rig_join(&r);
	rig_run(&r, a, act_late, 0, NULL);
	check_all(&r, a);
	for (uint32_t s = 0; s < 3; s++)
		ck_assert_int_lt(a[s].cpu_ns, 50 * MS);
	ck_assert_int_gt(a[1].took_ns, 100 * MS);
	rig_close(&r);
}
END_TEST

/* Several jobs in one net, each with its own communicator, all at the same time. */
START_TEST(many_communicators_at_once)
{
	enum { JOBS = 12 };
	struct rig r[JOBS] = { 0 };
	struct actor a[JOBS][3];
	pthread_t thread[JOBS][3];
	uint64_t seed[JOBS];
	for (int j = 0; j < JOBS; j++) {
		r[j].net = r[0].net;
		r[j].board = r[0].board;
		r[j].id.job = (uint64_t)j;
		rig_open(&r[j], 3);
		rig_join(&r[j]);
	}
	for (int j = 0; j < JOBS; j++) {
		seed[j] = 100 + (uint64_t)j;
		rig_start(&r[j], a[j], thread[j], act_random, seed[j], &seed[j]);
	}
	for (int j = 0; j < JOBS; j++) {
		rig_wait(&r[j], thread[j]);
		check_all(&r[j], a[j]);
	}
	if (!over_gloo)
		ck_assert_uint_eq(coll_local_count(r[0].net), JOBS);
	for (int j = 1; j < JOBS; j++)
		rig_leave(&r[j]);
	rig_close(&r[0]);
}
END_TEST

START_TEST(purge_forgets_what_nobody_is_in)
{
	struct rig r = { .id = { .job = 4 } };
	rig_open(&r, 2);
	struct coll *inside = r.member[0];
	coll_leave(r.member[1]);
	for (int i = 0; i < 5; i++) {
		rig_open(&r, 2);
		rig_leave(&r);
	}
	rig_open(&r, 2);
	ck_assert_uint_eq(coll_local_count(r.net), 7);
	struct coll_id other = { .job = 5, .epoch = 9 };
	coll_local_purge(r.net, &other);
	ck_assert_uint_eq(coll_local_count(r.net), 7);
	coll_local_purge(r.net, &r.id);
	ck_assert_uint_eq(coll_local_count(r.net), 2);
	coll_leave(inside);
	coll_local_purge(r.net, &r.id);
	ck_assert_uint_eq(coll_local_count(r.net), 1);
	rig_close(&r);
}
END_TEST

int main(void)
{
	Suite *s = suite_create(over_gloo ? "coll over Gloo" : "coll");
	TCase *t = tcase_create("coll");
	tcase_add_test(t, order_of_parts_matters);
	tcase_add_loop_test(t, shares_and_pieces, 0, sizeof(cases) / sizeof(*cases));
	tcase_add_loop_test(t, broadcasts, 1, 4);
	tcase_add_loop_test(t, small_sums, 1, 9);
	tcase_add_test(t, leaving_after_a_small_sum_is_not_noticed);
	tcase_add_loop_test(t, barriers, 1, 9);
	tcase_add_test(t, random_rows);
	tcase_add_test(t, the_most_parts);
	tcase_add_test(t, who_has_all_only_gives);
	tcase_add_test(t, elements_of_every_size);
	tcase_add_test(t, poll_tells_progress);
	tcase_add_test(t, leaving_after_a_barrier_is_not_noticed);
	tcase_add_test(t, waiting_uses_no_cpu);
	tcase_add_test(t, many_communicators_at_once);
	if (!over_gloo)
		tcase_add_test(t, purge_forgets_what_nobody_is_in);
	suite_add_tcase(s, t);
	return suite_run(s);
}
