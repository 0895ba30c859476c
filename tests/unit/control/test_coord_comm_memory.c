/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators at a coordinator without memory: each allocation fails once, no attempt begins without a board, and all
 * goes on as soon as there is memory again. */
#include "coord_comm_rig.h"

#include "support/nth.h"

#include <check.h>
#include <string.h>

static void arm(unsigned n)
{
	unchecked = true;
	nth_alloc_arm(n, true);
}

/* How many allocations there were. */
static unsigned disarm(void)
{
	unsigned n = nth_alloc_disarm();
	unchecked = false;
	return n;
}

START_TEST(collectives_need_a_board)
{
	collectives = false;
	open_coord();
	arm(1);
	enum status st = coord_set_collectives(coord, STALL);
	ck_assert_uint_eq(disarm(), 1);
	ck_assert_int_eq(st, ST_NO_MEMORY);
	ck_assert_int_eq(coord_set_collectives(coord, STALL), ST_OK);
}
END_TEST

START_TEST(the_start_is_tried_again)
{
	open_coord();
	arm(1 + (unsigned)_i);
	start_all();
	ck_assert_uint_gt(disarm(), (unsigned)_i);
	ck_assert_uint_eq(order[0].comm, 0);
	tick(SECOND / 10);
	ck_assert_uint_eq(order[0].comm, 2);
	say_all();
}
END_TEST

/* The window is closed meanwhile, and nobody votes. */
START_TEST(an_attempt_waits_for_its_board)
{
	run();
	restart(1);
	arm(1);
	complete();
	disarm();
	ck_assert(order[0].want == WANT_CLOSE && order[0].comm == 0);
	uint64_t number = order[0].number;
	tick(SECOND);
	ck_assert(order[0].want == WANT_GO && order[0].attempt == 2 && order[0].comm == 2);
	ck_assert_uint_gt(order[0].number, number); /* all get it, also who has the one before */
	say_all();
	join_all();
	vote_all();
	ck_assert_uint_eq(stored.attempt, 2);
	ck_assert_str_eq(last_event, "");
}
END_TEST

START_TEST(an_attempt_after_a_failed_one_waits_for_its_board)
{
	run();
	complete();
	arm(1);
	fail_vote(1, 2, ST_UNAVAILABLE, 0, "");
	disarm();
	tick(SECOND / 10);
	ck_assert(order[0].want == WANT_GO && order[0].attempt == 3 && order[0].comm == 3);
}
END_TEST

START_TEST(an_address_without_memory_comes_again)
{
	form();
	arm(1);
	enum status st = say(0);
	disarm();
	ck_assert_int_eq(st, ST_NO_MEMORY);
	say(1), say(2);
	ck_assert_uint_eq(n_boards[0], 0);
	say(0);
	ck_assert_uint_eq(n_boards[0], 1);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("coord_comm_memory");
	TCase *t = tcase_create("coord_comm_memory");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, collectives_need_a_board);
	tcase_add_loop_test(t, the_start_is_tried_again, 0, 2);
	tcase_add_test(t, an_attempt_waits_for_its_board);
	tcase_add_test(t, an_attempt_after_a_failed_one_waits_for_its_board);
	tcase_add_test(t, an_address_without_memory_comes_again);
	return suite_run(s);
}
