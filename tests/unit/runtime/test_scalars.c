/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/scalars.h"

#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static struct scalars s;
static struct history_scalar taken[SCALARS_WAITING];
static size_t n_taken;

static void setup(void)
{
	memset(&s, 0, sizeof(s));
}

static void keep(void *arg, const struct history_scalar *v)
{
	taken[n_taken++] = *v;
}

static void take(void)
{
	n_taken = 0;
	scalars_take(&s, SCALARS_WAITING, keep, NULL);
}

START_TEST(the_lowest_rank_counts_and_of_it_the_last)
{
	ck_assert(scalars_put(&s, 7, 2, "accuracy", 0.2));
	ck_assert(scalars_put(&s, 7, 1, "accuracy", 0.1));
	ck_assert(scalars_put(&s, 7, 1, "accuracy", 0.15));
	ck_assert(scalars_put(&s, 7, 3, "accuracy", 0.3));
	ck_assert(scalars_put(&s, 6, 0, "accuracy", 0.6)); /* late */
	ck_assert(scalars_put(&s, 7, 5, "loss", NAN));
	ck_assert_uint_eq(s.n_names, 2);
	ck_assert_double_eq(s.newest[0].value, 0.15);
	ck_assert_uint_eq(s.newest[0].window, 7);
	ck_assert_uint_eq(s.newest[0].rank, 1);
	take();
	ck_assert_uint_eq(n_taken, 3);
	ck_assert(!strcmp(taken[0].name, "accuracy") && taken[0].window == 7 && taken[0].rank == 1);
	ck_assert_double_eq(taken[0].value, 0.15);
	ck_assert(taken[1].window == 6 && taken[1].rank == 0);
	ck_assert(!strcmp(taken[2].name, "loss") && isnan(taken[2].value));
	take();
	ck_assert_uint_eq(n_taken, 0);
	ck_assert(scalars_put(&s, 8, 9, "accuracy", 0.9)); /* a newer window, whoever's */
	ck_assert_double_eq(s.newest[0].value, 0.9);
}
END_TEST

START_TEST(names_have_bounds)
{
	char why[200], name[HISTORY_SCALAR_NAME + 1];
	static const char *const wrong[] = { "", "a\nb", "\x1b[31m", "a\xff", "\xe2\x80\xae" };
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
		ck_assert_int_eq(scalars_check(&s, wrong[i], why, sizeof(why)), ST_INVALID_ARGUMENT);
	memset(name, 'x', sizeof(name));
	name[HISTORY_SCALAR_NAME] = '\0';
	ck_assert_int_eq(scalars_check(&s, name, why, sizeof(why)), ST_INVALID_ARGUMENT);
	ck_assert_ptr_nonnull(strstr(why, "1 to 63 bytes"));
	name[HISTORY_SCALAR_NAME - 1] = '\0';
	ck_assert_int_eq(scalars_check(&s, name, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(scalars_check(&s, "val/\xc3\xa4 1", why, sizeof(why)), ST_OK);
	for (int i = 0; i < SCALARS_NAMES; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		ck_assert_int_eq(scalars_check(&s, name, why, sizeof(why)), ST_OK);
		ck_assert(scalars_put(&s, 0, 0, name, i));
	}
	ck_assert_int_eq(scalars_check(&s, "n63", why, sizeof(why)), ST_OK);
	ck_assert_int_eq(scalars_check(&s, "n64", why, sizeof(why)), ST_INVALID_ARGUMENT);
	ck_assert_ptr_nonnull(strstr(why, "\"n64\""));
}
END_TEST

START_TEST(what_does_not_fit_is_written_first)
{
	uint64_t window = 0;
	while (scalars_put(&s, window, 0, "loss", (double)window))
		window++;
	ck_assert_uint_eq(window, SCALARS_WAITING);
	ck_assert(scalars_put(&s, 3, 0, "loss", 0.5)); /* one that waits already */
	ck_assert(!scalars_takes_place(&s, 3, "loss"));
	ck_assert(scalars_takes_place(&s, window, "loss") && scalars_takes_place(&s, 3, "accuracy"));
	n_taken = 0;
	scalars_take(&s, 5, keep, NULL); /* those that came first */
	ck_assert_uint_eq(n_taken, 5);
	ck_assert_double_eq(taken[3].value, 0.5);
	ck_assert(scalars_takes_place(&s, 3, "loss") && !scalars_takes_place(&s, 5, "loss"));
	ck_assert(scalars_put(&s, window, 0, "loss", 1));
	take();
	ck_assert_uint_eq(n_taken, SCALARS_WAITING - 4);
	ck_assert(taken[0].window == 5 && taken[n_taken - 1].window == window);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("scalars");
	TCase *c = tcase_create("scalars");
	suite_add_tcase(suite, c);
	tcase_add_checked_fixture(c, setup, NULL);
	tcase_add_test(c, the_lowest_rank_counts_and_of_it_the_last);
	tcase_add_test(c, names_have_bounds);
	tcase_add_test(c, what_does_not_fit_is_written_first);
	return suite_run(suite);
}
