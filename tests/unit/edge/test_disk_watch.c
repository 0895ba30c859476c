/* SPDX-License-Identifier: Apache-2.0 */
/* When the disk counts as full, what is refused then, and when the journal's reserve is filled. The disk is the real
 * one: it gets full and has room again because a larger reserve is wanted on it, and a smaller one. */
#include "edge/disk_watch.h"
#include "edge_rig.h"

#include "support/suite.h"

#include <check.h>
#include <string.h>
#include <time.h>

#define MIB (UINT64_C(1) << 20)
#define SECOND INT64_C(1000000000)

static char why[400];

static struct disk_state state(void)
{
	return disk_watch_state(&d);
}

/* The next look, so many seconds from now. */
static void look(int64_t after_s)
{
	struct now now = daemon_now(&d);
	now.mono_ns += after_s * SECOND;
	disk_watch_tick(&d, now);
	rig_run();
}

/* Full below this many bytes. */
static void set_low_mark(uint64_t bytes)
{
	conf->limits.journal_reserve = 4 * bytes;
}

/* ---- what is known ---- */

START_TEST(a_disk_with_room)
{
	struct disk_state is = state();
	ck_assert(!is.full);
	ck_assert_uint_gt(is.free, 8 * MIB); /* else the machine has no room for these tests */
	ck_assert_uint_ge(is.total, is.free);
	ck_assert_uint_eq(is.wanted, MIB);
	ck_assert_int_eq(disk_watch_admit(&d, "a new job", is.free, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(disk_watch_admit(&d, "a new job", is.free + 1, why, sizeof(why)), ST_RESOURCE_EXHAUSTED);
	ck_assert_msg(!strncmp(why, "no room for a new job: ", 23) && strstr(why, DISK_WATCH_FULL), "%s", why);
	ck_assert_msg(strstr(why, rig_state) != NULL, "%s", why);
}
END_TEST

START_TEST(a_full_disk_takes_nothing)
{
	set_low_mark(16 * state().free);
	look(2);
	ck_assert(state().full);
	ck_assert_int_eq(disk_watch_admit(&d, "a checkpoint", 0, why, sizeof(why)), ST_RESOURCE_EXHAUSTED);
	ck_assert_msg(strstr(why, "no room for a checkpoint") != NULL, "%s", why);
}
END_TEST

/* Full below the mark, with room again only from twice the mark on: it does not go to and fro. */
START_TEST(a_disk_does_not_go_to_and_fro)
{
	uint64_t left = state().free;
	uint32_t n = d.n_events;
	set_low_mark(left / 4 * 3);
	look(2);
	ck_assert(!state().full);
	ck_assert_uint_eq(d.n_events, n);
	set_low_mark(2 * left);
	look(4);
	look(6);
	ck_assert(state().full);
	ck_assert_uint_eq(d.n_events, n + 1); /* said once */
	set_low_mark(left / 4 * 3);
	look(8);
	ck_assert(state().full);
	ck_assert_uint_eq(d.n_events, n + 1);
	set_low_mark(left / 4);
	look(10);
	ck_assert(!state().full);
	ck_assert_uint_eq(d.n_events, n + 2);
	ck_assert_int_eq(disk_watch_admit(&d, "a checkpoint", 1, why, sizeof(why)), ST_OK);
}
END_TEST

START_TEST(the_mark_is_a_mebibyte_at_least)
{
	set_low_mark(16 * state().free);
	look(2);
	conf->limits.journal_reserve = 0;
	ck_assert_int_eq(disk_watch_admit(&d, "a job", 0, why, sizeof(why)), ST_RESOURCE_EXHAUSTED);
	ck_assert_msg(strstr(why, ", 2.0 MiB are needed") != NULL, "%s", why);
}
END_TEST

/* ---- looking ---- */

START_TEST(it_looks_once_a_second)
{
	struct now begun = daemon_now(&d);
	disk_watch_tick(&d, begun);
	rig_run();
	set_low_mark(16 * state().free);
	begun.mono_ns += SECOND / 2;
	disk_watch_tick(&d, begun);
	rig_run();
	ck_assert(!state().full);
	look(2);
	ck_assert(state().full);
}
END_TEST

START_TEST(it_asks_nobody_while_it_is_asking)
{
	set_low_mark(16 * state().free); /* before the pool reads it */
	disk_watch_tick(&d, daemon_now(&d));
	struct now later = daemon_now(&d);
	later.mono_ns += 5 * SECOND;
	disk_watch_tick(&d, later); /* one struct persist_read is queued once, or it would be in a circle */
	rig_run();
	ck_assert(state().full);
}
END_TEST

/* ---- the reserve ---- */

START_TEST(the_reserve_is_filled_where_there_is_room)
{
	ck_assert_uint_eq(state().reserve, 0);
	look(2);
	ck_assert_uint_eq(state().reserve, MIB);
	look(4);
	ck_assert_uint_eq(state().reserve, MIB); /* it is whole */
}
END_TEST

START_TEST(a_full_disk_keeps_its_room)
{
	set_low_mark(16 * state().free); /* the look finds it full, and fills nothing */
	look(2);
	look(4);
	ck_assert_uint_eq(state().reserve, 0);
	set_low_mark(0);
	look(6);
	look(8);
	ck_assert_uint_eq(state().reserve, MIB);
}
END_TEST

/* ---- a gaccd that cannot start ---- */

START_TEST(nobody_waits_for_room_that_is_there)
{
	time_t begun = time(NULL);
	disk_watch_wait(rig_state);
	disk_watch_wait("/nonexistent/state");
	ck_assert_int_lt(time(NULL) - begun, 2);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("disk_watch");
	TCase *t = tcase_create("disk_watch");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, rig_open, rig_close);
	tcase_add_test(t, a_disk_with_room);
	tcase_add_test(t, a_full_disk_takes_nothing);
	tcase_add_test(t, a_disk_does_not_go_to_and_fro);
	tcase_add_test(t, the_mark_is_a_mebibyte_at_least);
	tcase_add_test(t, it_looks_once_a_second);
	tcase_add_test(t, it_asks_nobody_while_it_is_asking);
	tcase_add_test(t, the_reserve_is_filled_where_there_is_room);
	tcase_add_test(t, a_full_disk_keeps_its_room);
	tcase_add_test(t, nobody_waits_for_room_that_is_there);
	return suite_run(s);
}
