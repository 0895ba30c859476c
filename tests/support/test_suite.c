/* SPDX-License-Identifier: Apache-2.0 */
/* What a test leaves behind is removed, even when nothing of its own could do so. */
#include "support/scratch.h"
#include "support/suite.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static char *left; /* the folder of the test below, for the test of it */

static void leave_files(void)
{
	char path[SCRATCH_PATH + 16];
	ck_assert(scratch_make(left));
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/file%d", left, i);
		FILE *f = fopen(path, "w");
		ck_assert(f && fclose(f) == 0);
	}
	snprintf(path, sizeof(path), "%s/link", left);
	ck_assert_int_eq(symlink("/nonexistent", path), 0);
}

START_TEST(dies)
{
	leave_files();
	raise(_i);
	ck_abort_msg("still there");
}
END_TEST

START_TEST(fails)
{
	leave_files();
	ck_abort_msg("on purpose");
}
END_TEST

/* A program with one test, which does not go well. */
static int program(bool dying, int signal)
{
	Suite *s = suite_create("inner");
	TCase *c = tcase_create("inner");
	suite_add_tcase(s, c);
	if (dying)
		tcase_add_loop_test(c, dies, signal, signal + 1);
	else
		tcase_add_test(c, fails);
	setenv("CK_VERBOSITY", "silent", 1);
	return suite_run(s);
}

static void check_program(bool dying, int signal)
{
	int ws = 0;
	pid_t pid = fork();
	if (pid == 0)
		_exit(program(dying, signal));
	ck_assert_int_eq(waitpid(pid, &ws, 0), pid);
	ck_assert(WIFEXITED(ws) && WEXITSTATUS(ws) == EXIT_FAILURE);
	ck_assert_str_ne(left, "");
	ck_assert_int_eq(access(left, F_OK), -1);
	*strrchr(left, '/') = '\0';
	ck_assert_int_eq(access(left, F_OK), -1);
}

START_TEST(files_of_a_test_that_dies_are_removed)
{
	static const int signals[] = { SIGABRT, SIGHUP, SIGKILL };
	check_program(true, signals[_i]);
}
END_TEST

START_TEST(files_of_a_test_that_fails_are_removed)
{
	check_program(false, 0);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("suite");
	TCase *c = tcase_create("suite");
	left = mmap(NULL, SCRATCH_PATH, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	suite_add_tcase(s, c);
	tcase_add_loop_test(c, files_of_a_test_that_dies_are_removed, 0, 3);
	tcase_add_test(c, files_of_a_test_that_fails_are_removed);
	return left == MAP_FAILED ? EXIT_FAILURE : suite_run(s);
}
