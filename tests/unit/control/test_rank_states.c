/* SPDX-License-Identifier: Apache-2.0 */
/* The trainers' own states: portions, limits, and which of them a checkpoint has while others are put. */
#include "control/rank_states.h"

#include "support/suite.h"

#include <check.h>
#include <string.h>

#define RANKS 4

static struct rank_states *s;
static char why[240];
static bool gone[RANKS];

static void setup(void)
{
	s = rank_states_new(RANKS, (struct rank_states_limits){ .rank = 10, .all = 24, .whose = "all ranks" });
	ck_assert_ptr_nonnull(s);
	memset(gone, 0, sizeof(gone));
}

static void teardown(void)
{
	rank_states_free(s);
}

static enum status put_part(uint32_t rank, uint64_t window, const char *text, size_t at, size_t n, uint64_t *out)
{
	const struct state_portion q = { rank, rank, window, strlen(text), at, text + at, n };
	why[0] = '\0';
	return rank_states_put(s, &q, out, why, sizeof(why));
}

static enum status put(uint32_t rank, uint64_t window, const char *text)
{
	uint64_t received = 99;
	enum status st = put_part(rank, window, text, 0, strlen(text), &received);
	if (!st)
		ck_assert_uint_eq(received, strlen(text));
	return st;
}

static void check_newest(uint32_t rank, uint64_t window, const char *text)
{
	struct rank_state is;
	ck_assert(rank_states_get(s, rank, &is));
	ck_assert_uint_eq(is.window, window);
	ck_assert_uint_eq(is.n, strlen(text));
	ck_assert_mem_eq(is.data, text, is.n);
}

static void check_captured(uint32_t rank, const char *text)
{
	struct rank_state is;
	ck_assert_int_eq(rank_states_captured(s, rank, &is), text != NULL);
	if (text) {
		ck_assert_uint_eq(is.n, strlen(text));
		ck_assert_mem_eq(is.data, text, is.n);
	}
}

static bool can_come(const void *ctx, uint32_t rank)
{
	return !gone[rank];
}

static uint32_t awaited(void)
{
	uint32_t first = 99, n = rank_states_awaited(s, can_come, NULL, &first);
	ck_assert_uint_eq(n == 0, first == 99);
	return n;
}

START_TEST(portions_make_a_state)
{
	struct rank_state is;
	uint64_t got;
	ck_assert_int_eq(put(1, 3, "old"), ST_OK);
	ck_assert_int_eq(put_part(1, 4, "abcdef", 0, 2, &got), ST_OK);
	ck_assert_uint_eq(got, 2);
	check_newest(1, 3, "old");				       /* until all of it is here */
	ck_assert_int_eq(put_part(1, 4, "abcdef", 0, 2, &got), ST_OK); /* begins anew */
	ck_assert_uint_eq(rank_states_bytes(s), 3 + 6);
	ck_assert_int_eq(put_part(1, 4, "abcdef", 2, 3, &got), ST_OK);
	ck_assert_int_eq(put_part(1, 4, "abcdef", 0 + 2, 3, &got), ST_OK); /* once more */
	ck_assert_uint_eq(got, 5);
	ck_assert_int_eq(put_part(1, 4, "abcdef", 5, 1, &got), ST_OK);
	check_newest(1, 4, "abcdef");
	ck_assert_int_eq(put_part(1, 4, "abcdef", 5, 1, &got), ST_OK); /* whose answer was lost */
	ck_assert_uint_eq(got, 6);
	ck_assert(!rank_states_get(s, 0, &is) && !rank_states_get(s, RANKS, &is));
	ck_assert_uint_eq(rank_states_bytes(s), 6);
}
END_TEST

START_TEST(portions_that_do_not_follow_are_refused)
{
	uint64_t got;
	ck_assert_int_eq(put_part(1, 4, "abcdef", 2, 1, &got), ST_OUT_OF_ORDER);
	ck_assert_int_eq(put_part(1, 4, "abcdef", 0, 2, &got), ST_OK);
	ck_assert_int_eq(put_part(1, 4, "abcdef", 3, 1, &got), ST_OUT_OF_ORDER);
	ck_assert_str_eq(why, "the portion of rank 1's state at offset 3 comes before that at 2");
	ck_assert_int_eq(put_part(1, 5, "abcdef", 2, 1, &got), ST_OUT_OF_ORDER);  /* of another window */
	ck_assert_int_eq(put_part(1, 4, "abcdefg", 2, 1, &got), ST_OUT_OF_ORDER); /* of another size */
	ck_assert_int_eq(put_part(1, 4, "abcdef", 2, 0, &got), ST_INVALID_ARGUMENT);
	const struct state_portion far = { 1, 1, 4, 6, UINT64_MAX - 1, "xyz", 3 }, behind = { 1, 1, 4, 6, 4, "xyz", 3 };
	ck_assert_int_eq(rank_states_put(s, &far, &got, why, sizeof(why)), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(rank_states_put(s, &behind, &got, why, sizeof(why)), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(put(RANKS, 4, "x"), ST_RANK_OUT_OF_RANGE);
	ck_assert_int_eq(put_part(1, 4, "abcdef", 2, 4, &got), ST_OK);
	check_newest(1, 4, "abcdef");
}
END_TEST

START_TEST(limits_hold_and_what_was_there_stays)
{
	uint64_t got;
	ck_assert_int_eq(put(0, 0, "0123456789"), ST_OK);
	ck_assert_int_eq(put(0, 0, "0123456789a"), ST_RESOURCE_EXHAUSTED);
	ck_assert_str_eq(why, "the state of rank 0 has 11 bytes, and a rank's may have 10");
	ck_assert_int_eq(put_part(1, 0, "0123456789", 0, 1, &got), ST_OK); /* counts whole */
	ck_assert_int_eq(put(2, 0, "01234"), ST_RESOURCE_EXHAUSTED);
	ck_assert_str_eq(why, "the states of all ranks would have 25 bytes with the 5 of rank 2, and may have 24");
	ck_assert_int_eq(put(2, 0, "0123"), ST_OK);
	ck_assert_int_eq(put(0, 1, "9876543210"), ST_OK); /* in the place of the old one */
	ck_assert_int_eq(put(2, 1, "01234"), ST_RESOURCE_EXHAUSTED);
	check_newest(2, 0, "0123");
	ck_assert_int_eq(put(0, 1, "short"), ST_OK);
	ck_assert_int_eq(put(2, 1, "01234"), ST_OK);
	ck_assert_uint_eq(rank_states_bytes(s), 20);
}
END_TEST

START_TEST(a_state_that_is_coming_counts_whole)
{
	uint64_t got;
	ck_assert_int_eq(put_part(3, 0, "0123456789", 0, 1, &got), ST_OK); /* nothing was there before */
	ck_assert_int_eq(put(0, 0, "0123456789"), ST_OK);
	ck_assert_int_eq(put(1, 0, "01234"), ST_RESOURCE_EXHAUSTED);
	ck_assert_int_eq(put(1, 0, "0123"), ST_OK);
	ck_assert_int_eq(put(3, 0, "012345678"), ST_OK); /* in the place of what was coming */
	ck_assert_int_eq(put(1, 1, "01234"), ST_OK);
	ck_assert_uint_eq(rank_states_bytes(s), 24);
}
END_TEST

START_TEST(a_checkpoint_has_the_states_of_its_window)
{
	ck_assert_int_eq(put(0, 7, "zero 7"), ST_OK);
	ck_assert_int_eq(put(1, 6, "one 6"), ST_OK);
	rank_states_capture(s, 7);
	check_captured(0, "zero 7");
	check_captured(1, NULL);
	ck_assert_uint_eq(awaited(), 1);
	ck_assert_int_eq(put(1, 7, "one 7"), ST_OK);
	ck_assert_uint_eq(awaited(), 0);
	ck_assert_int_eq(put(0, 8, "zero 8"), ST_OK); /* training goes on */
	ck_assert_int_eq(put(2, 8, "two 8"), ST_OK);
	check_captured(0, "zero 7");
	check_captured(1, "one 7");
	check_captured(2, NULL);
	ck_assert_uint_eq(rank_states_bytes(s), 6 + 5 + 6 + 5);
	rank_states_release(s);
	ck_assert_int_eq(put(3, 7, "3"), ST_OK); /* too late */
	check_captured(3, NULL);
	check_captured(0, NULL);
	check_newest(0, 8, "zero 8");
	ck_assert_uint_eq(rank_states_bytes(s), 6 + 5 + 5 + 1);
}
END_TEST

START_TEST(who_is_waited_for)
{
	uint64_t got;
	const struct state_portion none = { .rank = 2, .window = 5 };
	for (uint32_t i = 0; i < 3; i++)
		ck_assert_int_eq(put(i, 5, "x"), ST_OK);
	ck_assert_uint_eq(awaited(), 0); /* nothing is saved */
	rank_states_capture(s, 6);
	ck_assert_uint_eq(awaited(), 3); /* rank 3 has never put one */
	gone[0] = true;
	ck_assert_uint_eq(awaited(), 2);
	ck_assert_int_eq(rank_states_put(s, &none, &got, why, sizeof(why)), ST_OK); /* it puts none any more */
	ck_assert_uint_eq(awaited(), 1);
	ck_assert_int_eq(put_part(1, 6, "ab", 0, 1, &got), ST_OK);
	ck_assert_uint_eq(awaited(), 1);
	ck_assert_int_eq(put_part(1, 6, "ab", 1, 1, &got), ST_OK);
	ck_assert_uint_eq(awaited(), 0);
}
END_TEST

START_TEST(a_restored_state_gives_way_to_a_newer_one)
{
	ck_assert_int_eq(put(0, 5, "own"), ST_OK);
	ck_assert_int_eq(rank_states_restore(s, 0, 4, "old", 3), ST_OK);
	ck_assert_int_eq(rank_states_restore(s, 1, 4, "old", 3), ST_OK);
	ck_assert_int_eq(rank_states_restore(s, RANKS, 4, "old", 3), ST_OK); /* no such rank */
	check_newest(0, 5, "own");
	check_newest(1, 4, "old");
	rank_states_capture(s, 5);
	ck_assert_uint_eq(awaited(), 0); /* rank 1 has put none */
	ck_assert_int_eq(put(1, 5, "newer"), ST_OK);
	check_newest(1, 5, "newer");
	ck_assert_uint_eq(rank_states_bytes(s), 8);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("rank_states");
	TCase *tc = tcase_create("rank_states");
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, portions_make_a_state);
	tcase_add_test(tc, portions_that_do_not_follow_are_refused);
	tcase_add_test(tc, limits_hold_and_what_was_there_stays);
	tcase_add_test(tc, a_state_that_is_coming_counts_whole);
	tcase_add_test(tc, a_checkpoint_has_the_states_of_its_window);
	tcase_add_test(tc, who_is_waited_for);
	tcase_add_test(tc, a_restored_state_gives_way_to_a_newer_one);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
