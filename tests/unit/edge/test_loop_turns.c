/* SPDX-License-Identifier: Apache-2.0 */
/* How long the loop was held: by work, not by waiting; and for how long that is told. */
#include "edge/turns.h"

#include "support/suite.h"

#include <check.h>
#include <string.h>

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)

static uv_loop_t loop;
static struct turns turns;
static uv_timer_t timer;

static void setup(void)
{
	memset(&turns, 0, sizeof(turns));
	ck_assert_int_eq(uv_loop_init(&loop), 0);
	turns_start(&turns, &loop);
	uv_timer_init(&loop, &timer);
}

static void teardown(void)
{
	uv_close((uv_handle_t *)&timer, NULL);
	uv_close((uv_handle_t *)&turns.prepare, NULL);
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(uv_loop_close(&loop), 0);
}

/* Holds the loop for so long. */
static void work(uv_timer_t *t)
{
	const uint64_t *ns = t->data, until = uv_hrtime() + *ns;
	while (uv_hrtime() < until)
		;
}

static void run(uint64_t wait_ms, uint64_t work_ns)
{
	timer.data = &work_ns;
	uv_timer_start(&timer, work, wait_ms, 0);
	uv_run(&loop, UV_RUN_DEFAULT); /* until the timer has run */
	uv_timer_start(&timer, work, 0, 0);
	work_ns = 0;
	uv_run(&loop, UV_RUN_DEFAULT); /* a turn ends with the wait of the next one */
}

/* As if the bucket in use had begun so long ago. */
static void begun_before(uint64_t ns)
{
	turns.bucket_began_ns = uv_hrtime() - ns;
}

START_TEST(work_makes_a_long_turn)
{
	run(1, 60 * MS);
	ck_assert_uint_ge(turns.longest_ns, 60 * MS);
	ck_assert_uint_eq(turns_recent_ns(&turns), turns.longest_ns);
	uint64_t longest = turns.longest_ns;
	run(1, 1 * MS); /* a shorter one changes nothing */
	ck_assert_uint_eq(turns.longest_ns, longest);
	ck_assert_uint_eq(turns_recent_ns(&turns), longest);
}
END_TEST

START_TEST(waiting_is_no_turn)
{
	run(800, 0);
	ck_assert_uint_gt(turns.longest_ns, 0);
	ck_assert_uint_lt(turns.longest_ns, 700 * MS); /* a busy machine may hold us, too */
}
END_TEST

START_TEST(a_long_turn_is_told_for_a_second_or_two)
{
	turns.bucket_ns[0] = 5 * MS;
	turns.bucket_ns[1] = 9 * MS;
	begun_before(SECOND / 2);
	ck_assert_uint_eq(turns_recent_ns(&turns), 9 * MS);
	begun_before(SECOND * 3 / 2);
	ck_assert_uint_eq(turns_recent_ns(&turns), 5 * MS);
	begun_before(SECOND * 5 / 2);
	ck_assert_uint_eq(turns_recent_ns(&turns), 0);
}
END_TEST

/* The next turn begins a new bucket, and the one before it is kept. */
START_TEST(buckets_follow_each_other)
{
	turns.bucket_ns[0] = 5 * SECOND;
	turns.bucket_ns[1] = 9 * SECOND;
	begun_before(SECOND / 2);
	run(0, 0);
	ck_assert_uint_eq(turns.bucket_ns[0], 5 * SECOND);
	ck_assert_uint_eq(turns.bucket_ns[1], 9 * SECOND);
	begun_before(SECOND * 3 / 2);
	run(0, 0);
	ck_assert_uint_lt(turns.bucket_ns[0], 5 * SECOND);
	ck_assert_uint_eq(turns.bucket_ns[1], 5 * SECOND);
	ck_assert_uint_eq(turns_recent_ns(&turns), 5 * SECOND);
	begun_before(SECOND * 5 / 2);
	run(0, 0);
	ck_assert_uint_eq(turns.bucket_ns[1], 0);
	ck_assert_uint_lt(turns_recent_ns(&turns), 5 * SECOND);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("loop turns");
	TCase *t = tcase_create("loop turns");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, work_makes_a_long_turn);
	tcase_add_test(t, waiting_is_no_turn);
	tcase_add_test(t, a_long_turn_is_told_for_a_second_or_two);
	tcase_add_test(t, buckets_follow_each_other);
	return suite_run(s);
}
