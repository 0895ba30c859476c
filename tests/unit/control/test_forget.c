/* SPDX-License-Identifier: Apache-2.0 */
#include "control/forget.h"

#include "support/suite.h"

#include <stdlib.h>

#define CHOOSE(...) choose((uint32_t[]){ __VA_ARGS__ }, sizeof((uint32_t[]){ __VA_ARGS__ }) / sizeof(uint32_t))

static size_t lead;

static size_t choose(const uint32_t *uid, size_t n)
{
	uint32_t *room = calloc(n, sizeof(*room)); /* of just that size, for the sanitizer */
	ck_assert_ptr_nonnull(room);
	size_t i = forget_choose(uid, n, room, &lead);
	free(room);
	return i;
}

START_TEST(the_oldest_of_who_has_most)
{
	ck_assert_uint_eq(CHOOSE(5), 0);
	ck_assert_uint_eq(CHOOSE(5, 5, 5), 0);
	ck_assert_uint_eq(CHOOSE(5, 7, 7), 1);
	ck_assert_uint_eq(CHOOSE(9, 5, 5, 9, 5), 1);
	ck_assert_uint_eq(CHOOSE(0, UINT32_MAX, UINT32_MAX), 1);
	ck_assert_uint_eq(CHOOSE(UINT32_MAX, 0, 0, 1, 0), 1);
}
END_TEST

START_TEST(of_two_with_as_many_it_is_the_oldest)
{
	ck_assert_uint_eq(CHOOSE(7, 5, 5, 7), 0);
	ck_assert_uint_eq(CHOOSE(1, 7, 5, 5, 7), 1);
}
END_TEST

START_TEST(how_many_of_the_same_user_may_go)
{
	CHOOSE(5);
	ck_assert_uint_eq(lead, 1);
	CHOOSE(5, 5, 5);
	ck_assert_uint_eq(lead, 3);
	CHOOSE(7, 5, 5, 7);
	ck_assert_uint_eq(lead, 1);
	CHOOSE(9, 5, 5, 9, 5, 5, 5, 3);
	ck_assert_uint_eq(lead, 3);
	CHOOSE(1, 2, 2, 3, 3, 3, 3, 3);
	ck_assert_uint_eq(lead, 3);
	CHOOSE(1, 1, 1, 1, 1, 2, 2, 3, 3, 3);
	ck_assert_uint_eq(lead, 2);
}
END_TEST

/* One user ends jobs without end: those of the others stay, and of his own the newest. */
START_TEST(nobody_is_pushed_out_by_who_has_more)
{
	uint32_t uid[21] = { 1, 2, 2, 3, 3, 3 };
	int left[4] = { 0, 1, 2, 3 };
	for (size_t n = 6; n < 20; n++)
		uid[n] = 9;
	for (int round = 0; round < 100; round++) {
		uid[20] = 9;
		size_t gone = choose(uid, 21);
		ck_assert_uint_eq(uid[gone], 9);
		ck_assert(gone == 0 || uid[gone - 1] != 9);
		for (size_t i = gone; i < 20; i++)
			uid[i] = uid[i + 1];
	}
	for (size_t i = 0; i < 20; i++)
		if (uid[i] < 4)
			left[uid[i]]--;
	ck_assert(!left[1] && !left[2] && !left[3]);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("forget");
	TCase *c = tcase_create("forget");
	tcase_add_test(c, the_oldest_of_who_has_most);
	tcase_add_test(c, how_many_of_the_same_user_may_go);
	tcase_add_test(c, of_two_with_as_many_it_is_the_oldest);
	tcase_add_test(c, nobody_is_pushed_out_by_who_has_more);
	suite_add_tcase(s, c);
	return suite_run(s);
}
