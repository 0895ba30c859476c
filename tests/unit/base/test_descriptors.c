/* SPDX-License-Identifier: Apache-2.0 */
#include "base/descriptors.h"

#include "support/suite.h"

#include <check.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

static void set(rlim_t soft, rlim_t hard)
{
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ soft, hard }), 0);
}

START_TEST(all_that_there_is_is_taken_and_given_back)
{
	set(60, 200);
	ck_assert_uint_eq(descriptors_limit(), 60);
	ck_assert_uint_eq(descriptors_raise(), 60);
	ck_assert_uint_eq(descriptors_limit(), 200);
	ck_assert_uint_eq(descriptors_raise(), 200);
	ck_assert_int_eq(fcntl(2, F_DUPFD_CLOEXEC, 150), 150);
	descriptors_restore(60);
	ck_assert_uint_eq(descriptors_limit(), 60);
	ck_assert_int_eq(fcntl(2, F_DUPFD_CLOEXEC, 150), -1);
	ck_assert_int_ge(fcntl(150, F_GETFD), 0); /* what is open stays */
	ck_assert_uint_eq(descriptors_raise(), 60);
}
END_TEST

START_TEST(nothing_is_raised_when_it_is_given_back)
{
	set(60, 60);
	ck_assert_uint_eq(descriptors_raise(), 60);
	descriptors_restore(100);
	ck_assert_uint_eq(descriptors_limit(), 60);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("descriptors");
	TCase *c = tcase_create("descriptors");
	suite_add_tcase(s, c);
	tcase_add_test(c, all_that_there_is_is_taken_and_given_back);
	tcase_add_test(c, nothing_is_raised_when_it_is_given_back);
	return suite_run(s);
}
