/* SPDX-License-Identifier: Apache-2.0 */
/* Which refused certificates are told, with a clock of the test. */
#include "rpc/refusals.h"

#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

static struct refusals told;
static bool last;

static void setup(void)
{
	memset(&told, 0, sizeof(told));
}

static bool add(const char *kind, int i, bool known, time_t now)
{
	char why[64];
	snprintf(why, sizeof(why), "certificate \"%s%d\"", kind, i);
	return refusals_add(&told, why, known, now, &last);
}

START_TEST(once_in_ten_minutes)
{
	ck_assert(add("a", 1, true, 0) && !last);
	ck_assert(!add("a", 1, true, 0) && !add("a", 1, true, 599) && add("a", 2, true, 599));
	ck_assert(add("a", 1, true, 601) && !add("a", 2, true, 1198) && add("a", 2, true, 1199));
	ck_assert(add("b", 1, false, 1) && !add("b", 1, false, 600) && add("b", 1, false, 601));
}
END_TEST

static int fill(const char *kind, bool known, time_t now)
{
	int n = 0;
	for (bool was_last = false; n < 1000 && add(kind, n, known, now); n++) {
		ck_assert(!was_last);
		was_last = last;
	}
	ck_assert(last);
	return n;
}

START_TEST(strangers_have_their_own_lines)
{
	ck_assert_int_eq(fill("x", false, 5), REFUSALS_STRANGERS);
	ck_assert(!add("y", 1, false, 600));
	ck_assert(add("x", 3, true, 5)); /* of the same text, but signed */
	ck_assert_int_eq(fill("a", true, 6), REFUSALS_KNOWN - 1);
	ck_assert_int_eq(fill("y", false, 605), REFUSALS_STRANGERS);
	ck_assert_int_eq(fill("b", true, 606), REFUSALS_KNOWN);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("refusals");
	TCase *c = tcase_create("refusals");
	tcase_add_checked_fixture(c, setup, NULL);
	suite_add_tcase(s, c);
	tcase_add_test(c, once_in_ten_minutes);
	tcase_add_test(c, strangers_have_their_own_lines);
	return suite_run(s);
}
