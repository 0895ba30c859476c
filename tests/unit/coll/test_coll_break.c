/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives when a member aborts, dies, leaves or cannot go on. */
#include "broken.h"

#include "support/suite.h"

#include <check.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

/* ---- abort, death, leave: of a member that the others wait for ---- */

START_TEST(abort_ends_blocked_calls)
{
	begin_but_2(&_i);
	coll_abort(r.member[0]);
	rig_wait(&r, thread);
	ck_assert_int_eq(a[0].status, ST_CANCELLED);
	ck_assert_int_eq(a[1].status, ST_UNAVAILABLE);
	ck_assert_int_lt(a[0].took_ns, SOON_NS);
	ck_assert_int_lt(a[1].took_ns, SOON_NS);
	check_failure(0, ST_CANCELLED, -1, "aborted here");
	check_failure(1, ST_UNAVAILABLE, 0, "part 0 has aborted");
	if (over_gloo && _i == JOIN)
		coll_abort(r.member[2]); /* is not connected: nobody reaches it */
	else
		check_failure(2, ST_UNAVAILABLE, 0, "part 0 has aborted"); /* was in no call */
	check_unusable();
	check_next();
}
END_TEST

START_TEST(death_ends_blocked_calls)
{
	begin_but_2(&_i);
	coll_local_die(r.member[2]);
	rig_wait(&r, thread);
	for (uint32_t s = 0; s < 2; s++) {
		ck_assert_int_lt(a[s].took_ns, SOON_NS);
		check_failure(s, ST_UNAVAILABLE, 2, "part 2 has died");
	}
	check_failure(2, ST_UNAVAILABLE, -1, "died here");
	check_unusable();
	r.life[2]++; /* the next life is welcome in the next communicator */
	check_next();
}
END_TEST

START_TEST(leaving_ends_blocked_calls)
{
	begin_but_2(&_i);
	coll_leave(r.member[2]);
	r.member[2] = NULL;
	rig_wait(&r, thread);
	for (uint32_t s = 0; s < 2; s++) {
		ck_assert_int_eq(a[s].status, ST_UNAVAILABLE);
		ck_assert_int_lt(a[s].took_ns, SOON_NS);
		check_failure(s, ST_UNAVAILABLE, 2, "part 2 has left");
	}
}
END_TEST

/* ---- abort at any moment of any operation ---- */

struct endless {
	int operation; /* the only one; N_OPERATIONS: a row of all */
	bool joined;
	atomic_uint ended;
};

static void act_endless(struct actor *me)
{
	struct endless *e = me->arg;
	uint64_t seed = 1 + (uint64_t)e->operation;
	if (e->operation == JOIN)
		dawdle(&me->seed);
	me->status = e->joined ? ST_OK : coll_join(me->c, me->rig->all);
	for (unsigned i = 0; me->status == ST_OK; i++) {
		struct shape shape;
		int operation = e->operation >= JOIN ? (int)draw(&seed, JOIN) : e->operation;
		shape_draw(&shape, me->rig->n, sizeof(float), draw(&seed, UINT64_MAX));
		if (operation == EXCHANGE)
			me->status = do_exchange(me, &shape);
		else if (operation == GATHER)
			me->status = do_gather(me, &shape);
		else if (operation == BROADCAST)
			me->status = do_broadcast(me, &shape, i % me->rig->n);
		else if (operation == SUM_SMALL)
			me->status = do_sum_small(me, 4 * (i % 1000), i);
		else
			act_barrier(me);
	}
	atomic_fetch_add(&e->ended, 1);
}

/* One of them aborts or dies, by the seed; `slowest`: until all have come out. */
static void break_at_random(int operation, uint64_t seed, int64_t *slowest)
{
	struct endless e = { .operation = operation, .joined = over_gloo && operation != JOIN };
	uint64_t s = seed;
	uint32_t n = 2 + (uint32_t)draw(&s, 3), victim = (uint32_t)draw(&s, n);
	bool dies = draw(&s, 3) == 0 && !over_gloo;
	rig_open(&r, n);
	if (e.joined)
		rig_join(&r);
	rig_start(&r, a, thread, act_endless, seed, &e);
	struct timespec t = { 0, (long)draw(&s, operation == JOIN ? 300000 : 6000000) };
	nanosleep(&t, NULL);
	int64_t begin = now_ns();
	if (dies)
		coll_local_die(r.member[victim]);
	else
		coll_abort(r.member[victim]);
	/* Over Gloo who has not connected yet hears nothing: the coordinator aborts all. */
	for (uint32_t p = 0; p < n && over_gloo && operation == JOIN; p++)
		coll_abort(r.member[p]);
	rig_wait(&r, thread);
	*slowest = now_ns() - begin > *slowest ? now_ns() - begin : *slowest;
	for (uint32_t p = 0; p < n; p++) {
		ck_assert_msg(!a[p].wrong, "seed %llu: part %u: %s", (unsigned long long)seed, p, a[p].wrong);
		if (over_gloo && operation == JOIN)
			ck_assert_int_ne(a[p].status, ST_OK);
		else if (p == victim)
			check_failure(p, dies ? ST_UNAVAILABLE : ST_CANCELLED, -1, "here");
		else
			check_failure(p, ST_UNAVAILABLE, (int)victim, dies ? "has died" : "has aborted");
	}
	rig_leave(&r);
}

START_TEST(break_at_any_moment)
{
	int64_t slowest = 0;
	for (uint64_t i = 0; i < 60; i++)
		break_at_random(_i, 1000 * (uint64_t)_i + i, &slowest);
	ck_assert_int_lt(slowest, SOON_NS);
	r.n = 3;
	check_next();
}
END_TEST

static enum status sum_nothing(void *arg, const struct coll_piece *p, const void *const *source, uint32_t n)
{
	return ST_OK;
}

static enum status abort_in_callback(void *arg, const struct coll_piece *p, const void *const *source, uint32_t n)
{
	struct actor *me = arg;
	if (p->from == me->part * 400 + 100)
		coll_abort(me->c);
	return p->from > me->part * 400 + 100 ? ST_INTERNAL : ST_OK; /* no piece comes after it */
}

static void act_abort_in_callback(struct actor *me)
{
	char in[1200] = { 0 };
	struct coll_exchange x = { in, small.bounds, 100, 4, abort_in_callback, me, NULL };
	me->status = coll_exchange(me->c, &x);
}

START_TEST(a_callback_may_abort)
{
	rig_open(&r, 3);
	rig_join(&r);
	rig_run(&r, a, act_abort_in_callback, 0, NULL);
	unsigned cancelled = 0;
	for (uint32_t s = 0; s < 3; s++) {
		ck_assert(a[s].status == ST_CANCELLED || a[s].status == ST_UNAVAILABLE);
		cancelled += a[s].status == ST_CANCELLED;
	}
	ck_assert_uint_ge(cancelled, 1);
	ck_assert(over_gloo || cancelled == 1);
}
END_TEST

/* ---- memory ---- */

#define BIG_PIECE (32u << 20)

/* Part 0 copies one large piece from part 1, which takes its memory away as soon as its call returns. */
static void act_big(struct actor *me)
{
	static const uint64_t bounds[] = { 0, BIG_PIECE, BIG_PIECE };
	void *in = mmap(NULL, BIG_PIECE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct coll_exchange x = { in, bounds, BIG_PIECE, 4, sum_nothing, me, NULL };
	me->status = coll_exchange(me->c, &x);
	munmap(in, BIG_PIECE);
}

START_TEST(memory_is_free_when_a_call_returns)
{
	for (int64_t delay_us = 0; delay_us < 12000; delay_us += 1000) {
		rig_open(&r, 2);
		rig_join(&r);
		rig_start(&r, a, thread, act_big, 0, NULL);
		struct timespec t = { 0, delay_us * 1000 };
		nanosleep(&t, NULL);
		coll_abort(r.member[1]);
		rig_wait(&r, thread);
		rig_leave(&r);
	}
}
END_TEST

/* ---- a callback fails ---- */

static enum status fail_in_2(void *arg, const struct coll_piece *p)
{
	struct actor *me = arg;
	return me->part == 2 && (p->from == 900 || p->n == 1000) ? ST_SEGMENT_CORRUPT : ST_OK;
}

static enum status fail_sum_in_2(void *arg, const struct coll_piece *p, const void *const *source, uint32_t n)
{
	return fail_in_2(arg, p);
}

static void act_failing_callback(struct actor *me)
{
	unsigned char memory[1200] = { 0 };
	struct coll_exchange x = { memory, small.bounds, 100, 4, fail_sum_in_2, me, NULL };
	struct coll_gather g = {
		.buffer = memory, .bounds = small.bounds, .piece = 100, .produce = fail_in_2, .arg = me
	};
	struct coll_sum_small small_sum = { memory, 1000, 4, fail_sum_in_2, me };
	switch (*(int *)me->arg) {
	case EXCHANGE:
		me->status = coll_exchange(me->c, &x);
		break;
	case GATHER:
		me->status = coll_gather(me->c, &g);
		break;
	default: /* it is complete at those whose callback has not failed */
		me->status = coll_sum_small(me->c, &small_sum);
	}
}

START_TEST(a_failed_callback_breaks_it)
{
	rig_open(&r, 3);
	rig_join(&r);
	rig_run(&r, a, act_failing_callback, 0, &_i);
	ck_assert_int_eq(a[2].status, ST_SEGMENT_CORRUPT);
	check_failure(2, ST_SEGMENT_CORRUPT, -1, "piece");
	check_failure(0, ST_UNAVAILABLE, 2, "part 2 could not go on");
	check_failure(1, ST_UNAVAILABLE, 2, "part 2 could not go on");
	check_unusable();
}
END_TEST

int main(void)
{
	Suite *s = suite_create(over_gloo ? "coll_break over Gloo" : "coll_break");
	TCase *t = tcase_create("coll_break");
	tcase_add_checked_fixture(t, broken_setup, broken_teardown);
	tcase_add_loop_test(t, abort_ends_blocked_calls, 0, N_OPERATIONS);
	if (!over_gloo) /* test_coll_processes kills processes */
		tcase_add_loop_test(t, death_ends_blocked_calls, 0, N_OPERATIONS);
	/* Over Gloo a join does not notice that somebody leaves who was not connected: it has a time limit. */
	tcase_add_loop_test(t, leaving_ends_blocked_calls, 0, over_gloo ? JOIN : N_OPERATIONS);
	tcase_add_loop_test(t, break_at_any_moment, 0, N_OPERATIONS + 1);
	tcase_add_test(t, a_callback_may_abort);
	tcase_add_test(t, memory_is_free_when_a_call_returns);
	tcase_add_loop_test(t, a_failed_callback_breaks_it, EXCHANGE, GATHER + 1);
	tcase_add_loop_test(t, a_failed_callback_breaks_it, SUM_SMALL, SUM_SMALL + 1);
	suite_add_tcase(s, t);
	return suite_run(s);
}
