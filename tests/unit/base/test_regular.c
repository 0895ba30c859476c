/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are none: none of them is waited for. */
#include "base/regular.h"

#include "support/scratch.h"
#include "support/suite.h"

#include <check.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static char dir[SCRATCH_PATH], path[SCRATCH_PATH + 16];
static const char *why;

static void setup(void)
{
	ck_assert(scratch_make(dir));
	snprintf(path, sizeof(path), "%s/f", dir);
}

static void refused(const char *said, int error, bool is_odd)
{
	errno = 0;
	ck_assert_int_eq(regular_open_fd(path, &why), -1);
	ck_assert_int_eq(errno, error);
	ck_assert_str_eq(why, said);
	ck_assert_ptr_null(regular_open(path, &why));
	ck_assert_str_eq(why, said);
	ck_assert_int_eq(regular_is_not(path), is_odd);
}

START_TEST(a_file)
{
	char text[8];
	refused("No such file or directory", ENOENT, false);
	FILE *file = fopen(path, "we");
	ck_assert_int_ge(fputs("hello\n", file), 0);
	fclose(file);
	ck_assert_ptr_nonnull(file = regular_open(path, &why));
	ck_assert_str_eq(fgets(text, sizeof(text), file), "hello\n");
	fclose(file);
	int fd = regular_open_fd(path, &why);
	ck_assert_int_eq(read(fd, text, sizeof(text)), 6);
	close(fd);
	ck_assert(!regular_is_not(path));
}
END_TEST

START_TEST(what_is_none)
{
	ck_assert_int_eq(mkfifo(path, 0600), 0);
	refused("not a regular file", EINVAL, true);
	unlink(path);
	ck_assert_int_eq(mkdir(path, 0700), 0);
	refused("not a regular file", EINVAL, true);
	rmdir(path);
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	snprintf(at.sun_path, sizeof(at.sun_path), "%s", path);
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	ck_assert_int_eq(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	refused("not a regular file", ENXIO, true);
	close(fd);
	snprintf(path, sizeof(path), "/dev/null");
	refused("not a regular file", EINVAL, true);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("regular");
	TCase *c = tcase_create("regular");
	tcase_add_checked_fixture(c, setup, NULL);
	suite_add_tcase(s, c);
	tcase_add_test(c, a_file);
	tcase_add_test(c, what_is_none);
	return suite_run(s);
}
