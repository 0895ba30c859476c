/* SPDX-License-Identifier: Apache-2.0 */
/* What a launcher does with what its ranks have left behind. Real processes; kill() may be told to fail (-Wl,--wrap).
 */
#include "launch/orphans.h"

#include "support/suite.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

int __wrap_kill(pid_t pid, int sig);
int __real_kill(pid_t pid, int sig);

static bool refused; /* they are another user's, or hang in the kernel */

int __wrap_kill(pid_t pid, int sig)
{
	if (!refused)
		return __real_kill(pid, sig);
	errno = EPERM;
	return -1;
}

/* A child with a child that survives it: this process becomes its parent. */
static void leave_one_behind(void)
{
	int end[2];
	char byte;
	ck_assert_int_eq(pipe(end), 0);
	pid_t pid = fork();
	if (!pid) {
		if (!fork()) {
			setsid();
			if (write(end[1], "", 1) == 1)
				pause();
			_exit(0);
		}
		_exit(0);
	}
	ck_assert_int_eq(read(end[0], &byte, 1), 1);
	close(end[0]);
	close(end[1]);
}

START_TEST(what_is_left_behind_ends)
{
	ck_assert(orphans_adopt());
	ck_assert(orphans_end()); /* none */
	leave_one_behind();
	leave_one_behind();
	ck_assert(orphans_end());
	ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
}
END_TEST

START_TEST(what_cannot_be_killed_is_told)
{
	ck_assert(orphans_adopt());
	leave_one_behind();
	refused = true;
	ck_assert(!orphans_end());
	refused = false;
	ck_assert(orphans_end());
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("orphans");
	TCase *tc = tcase_create("end");
	tcase_add_test(tc, what_is_left_behind_ends);
	tcase_add_test(tc, what_cannot_be_killed_is_told);
	tcase_set_timeout(tc, 60);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
