/* SPDX-License-Identifier: Apache-2.0 */
/* Steps a second and waiting time over the last steps. */
#include "runtime/rate.h"

#include "support/suite.h"

#include <check.h>

#define S INT64_C(1000000000)

START_TEST(two_steps_make_a_rate)
{
	struct rate r = { .n = 0 };
	ck_assert(rate_wait(&r) == 0 && rate_per_s(&r) == 0);
	rate_add(&r, 10 * S, 0.5);
	ck_assert(rate_wait(&r) == 0.5 && rate_per_s(&r) == 0);
	rate_add(&r, 12 * S, 0.25);
	ck_assert_double_eq_tol(rate_wait(&r), 0.375, 1e-12);
	ck_assert_double_eq_tol(rate_per_s(&r), 0.5, 1e-12);
	rate_add(&r, 12 * S, 1); /* the same step, told again */
	ck_assert_uint_eq(r.n, 2);
	ck_assert_double_eq_tol(rate_wait(&r), 0.375, 1e-12);
}
END_TEST

START_TEST(only_the_last_steps_count)
{
	struct rate r = { .n = 0 };
	for (int i = 0; i < 100; i++) /* slow ones that waited, then as many fast ones as count */
		rate_add(&r, i * 10 * S, 1);
	for (int i = 0; i < RATE_STEPS; i++)
		rate_add(&r, 2000 * S + i * S / 4, 0.25);
	ck_assert_double_eq_tol(rate_per_s(&r), 4, 1e-9);
	ck_assert_double_eq_tol(rate_wait(&r), 0.25, 1e-12);
}
END_TEST

START_TEST(a_clock_that_was_set_back_gives_no_rate)
{
	struct rate r = { .n = 0 };
	rate_add(&r, 20 * S, 0);
	rate_add(&r, 10 * S, 0);
	ck_assert(rate_per_s(&r) == 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("rate");
	TCase *c = tcase_create("rate");
	suite_add_tcase(s, c);
	tcase_add_test(c, two_steps_make_a_rate);
	tcase_add_test(c, only_the_last_steps_count);
	tcase_add_test(c, a_clock_that_was_set_back_gives_no_rate);
	return suite_run(s);
}
