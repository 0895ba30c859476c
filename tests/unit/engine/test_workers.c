/* SPDX-License-Identifier: Apache-2.0 */
/* The heartbeat of the engine's workers: when long work gets on, and only then. */
#include "engine/workers.h"

#include "base/clock.h"
#include "support/suite.h"

#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define MS INT64_C(1000000)

static struct workers *w;
static pthread_t caller;
static unsigned beats;
static int64_t first_ns, last_ns, least_gap_ns;

static void on_heartbeat(void *arg)
{
	int64_t now = clock_ns(CLOCK_MONOTONIC);
	ck_assert_ptr_eq(arg, &beats);
	ck_assert(pthread_equal(pthread_self(), caller));
	if (beats && now - last_ns < least_gap_ns)
		least_gap_ns = now - last_ns;
	if (!beats)
		first_ns = now;
	last_ns = now;
	beats++;
}

static void setup(void)
{
	caller = pthread_self();
	beats = 0;
	least_gap_ns = INT64_MAX;
	ck_assert_int_eq(workers_new(&w, 2), ST_OK);
	workers_set_heartbeat(w, on_heartbeat, &beats);
}

static void teardown(void)
{
	workers_free(w);
}

static void sleep_ms(int64_t ms)
{
	int64_t until = clock_ns(CLOCK_MONOTONIC) + ms * MS;
	for (int64_t now; (now = clock_ns(CLOCK_MONOTONIC)) < until;)
		usleep((useconds_t)((until - now) / 1000 + 1));
}

static void slow_item(void *arg, uint32_t item, uint32_t worker)
{
	sleep_ms(30);
}

/* 1.2 s of one thread, 0.6 s of two. */
START_TEST(long_work_beats)
{
	int64_t begin = clock_ns(CLOCK_MONOTONIC);
	workers_begin_turn(w);
	workers_run(w, slow_item, NULL, 40, _i);
	ck_assert_uint_ge(beats, 2);
	ck_assert_int_ge(first_ns - begin, 180 * MS);
	ck_assert_int_ge(least_gap_ns, 180 * MS);
}
END_TEST

START_TEST(short_work_does_not)
{
	for (int i = 0; i < 20; i++) { /* 0.6 s in all */
		workers_begin_turn(w);
		workers_run(w, slow_item, NULL, 1, true);
	}
	ck_assert_uint_eq(beats, 0);
}
END_TEST

static atomic_uint inside;

/* Each thread has one item; one of them hangs. */
static void one_that_hangs(void *arg, uint32_t item, uint32_t worker)
{
	inside++;
	while (inside < 2)
		sleep_ms(1);
	if (worker == *(uint32_t *)arg)
		sleep_ms(1500);
}

/* A beat for the item of the other thread, which is done at once, and one at the end. */
START_TEST(a_stuck_item_does_not)
{
	uint32_t which = (uint32_t)_i;
	inside = 0;
	workers_begin_turn(w);
	workers_run(w, one_that_hangs, &which, 2, false);
	ck_assert_uint_le(beats, 2);
}
END_TEST

static atomic_bool other_works;

/* The caller's item is short. The other thread's is long, and gets on in parts. */
static void long_item(void *arg, uint32_t item, uint32_t worker)
{
	for (int i = 0; worker && i < 30; i++) {
		sleep_ms(30);
		other_works = true;
		workers_note_step(w, worker);
	}
	while (!worker && !other_works) /* until the other has one */
		sleep_ms(1);
}

START_TEST(the_caller_beats_for_others)
{
	workers_begin_turn(w);
	workers_run(w, long_item, NULL, 2, false);
	ck_assert_uint_ge(beats, 2);
}
END_TEST

START_TEST(nothing_to_call_is_fine)
{
	workers_set_heartbeat(w, NULL, NULL);
	workers_run(w, slow_item, NULL, 20, false);
	workers_note_step(w, 0);
	ck_assert_uint_eq(beats, 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("workers");
	TCase *t = tcase_create("workers");
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_loop_test(t, long_work_beats, 0, 2);
	tcase_add_test(t, short_work_does_not);
	tcase_add_loop_test(t, a_stuck_item_does_not, 0, 2);
	tcase_add_test(t, the_caller_beats_for_others);
	tcase_add_test(t, nothing_to_call_is_fine);
	suite_add_tcase(s, t);
	return suite_run(s);
}
