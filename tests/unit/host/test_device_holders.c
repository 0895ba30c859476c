/* SPDX-License-Identifier: Apache-2.0 */
#include "host/device_holders.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/suite.h"

START_TEST(processes_that_have_a_file_open_are_named)
{
	char path[] = "/tmp/gacc-holders-XXXXXX", want[32], got[64];
	int fd = mkstemp(path);
	ck_assert_int_ge(fd, 0);
	snprintf(want, sizeof(want), "pid %d", (int)getpid());
	device_holders(path, got, sizeof(got));
	ck_assert_str_eq(got, want);
	/* the beginning of a path suffices, as /dev/nvidia is that of all nodes */
	device_holders("/tmp/gacc-holders-", got, sizeof(got));
	ck_assert_ptr_nonnull(strstr(got, want + 4));
	device_holders(path, got, 4);
	ck_assert_str_eq(got, "");
	close(fd);
	device_holders(path, got, sizeof(got));
	ck_assert_str_eq(got, "");
	unlink(path);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("device_holders");
	TCase *c = tcase_create("device_holders");
	tcase_add_test(c, processes_that_have_a_file_open_are_named);
	suite_add_tcase(s, c);
	return suite_run(s);
}
