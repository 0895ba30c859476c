/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/failpoint.h"

#include "support/scratch.h"
#include "support/suite.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Each test is a process of its own (Check forks), with a folder of its own. */
static char dir[SCRATCH_PATH], path[96], answer[32768];

static void setup(void)
{
	ck_assert(scratch_make(dir));
	snprintf(path, sizeof(path), "%s/failpoints", dir);
	unsetenv("GACC_FAILPOINTS_FILE");
	ck_assert_int_eq(failpoint_make(dir), ST_OK);
}

static void teardown(void)
{
	unlink(path);
	rmdir(dir);
}

static const char *say(const char *text)
{
	char line[256];
	snprintf(line, sizeof(line), "%s", text);
	failpoint_command(line, answer, sizeof(answer));
	return answer;
}

/* How often the point was passed, and how often it fired. */
static void check_hits(const char *name, unsigned passed, unsigned fired)
{
	char start[64];
	unsigned p = 0, f = 0;
	snprintf(start, sizeof(start), "%s ", name);
	const char *at = strstr(say("hits"), start);
	ck_assert_ptr_nonnull(at);
	ck_assert_int_eq(sscanf(at + strlen(start), "%u %u", &p, &f), 2);
	ck_assert_uint_eq(p, passed);
	ck_assert_uint_eq(f, fired);
}

START_TEST(without_a_file_nothing_happens)
{
	unlink(path);
	unsetenv("GACC_FAILPOINTS_FILE");
	pid_t pid = fork();
	if (pid == 0) {
		execl("/proc/self/exe", "test_failpoint", "without", NULL);
		_exit(1);
	}
	int ws = 0;
	ck_assert_int_eq(waitpid(pid, &ws, 0), pid);
	ck_assert_int_eq(ws, 0);
}
END_TEST

START_TEST(an_error_is_the_points_own_status)
{
	ck_assert_int_eq(FAILPOINT_ERROR(coord_commit_before), ST_OK);
	ck_assert_str_eq(say("arm coord_commit_before error"), "ok\n");
	ck_assert_int_eq(FAILPOINT_ERROR(coord_commit_before), ST_STORE_FAILED);
	ck_assert_int_eq(FAILPOINT_ERROR(coord_commit_before), ST_OK); /* once */
	check_hits("coord_commit_before", 2, 1);
}
END_TEST

START_TEST(skip_and_count)
{
	unsigned failed = 0;
	ck_assert_str_eq(say("arm gaccd_reply_before error skip 3 count 2"), "ok\n");
	for (unsigned i = 0; i < 8; i++)
		failed |= (FAILPOINT_ERROR(gaccd_reply_before) == ST_UNAVAILABLE) << i;
	ck_assert_uint_eq(failed, 0x18);
	check_hits("gaccd_reply_before", 8, 2);
}
END_TEST

START_TEST(what_is_armed_outlives_the_process_and_fires_once)
{
	int ws = 0;
	ck_assert_str_eq(say("arm gaccd_tick crash"), "ok\n");
	for (int life = 0; life < 2; life++) {
		pid_t pid = fork();
		if (pid == 0) {
			failpoint_make(dir); /* as the next gaccd does */
			FAILPOINT(gaccd_tick);
			_exit(5);
		}
		ck_assert_int_eq(waitpid(pid, &ws, 0), pid);
		ck_assert(life == 0 ? WIFSIGNALED(ws) && WTERMSIG(ws) == SIGKILL
				    : WIFEXITED(ws) && WEXITSTATUS(ws) == 5);
	}
	check_hits("gaccd_tick", 2, 1);
}
END_TEST

START_TEST(a_stopped_process_goes_on_when_it_is_told_to)
{
	int ws = 0;
	ck_assert_str_eq(say("arm gaccd_tick stop"), "ok\n");
	pid_t pid = fork();
	if (pid == 0) {
		FAILPOINT(gaccd_tick);
		_exit(5);
	}
	ck_assert_int_eq(waitpid(pid, &ws, WUNTRACED), pid);
	ck_assert(WIFSTOPPED(ws));
	kill(pid, SIGCONT);
	ck_assert_int_eq(waitpid(pid, &ws, 0), pid);
	ck_assert_int_eq(WEXITSTATUS(ws), 5);
}
END_TEST

START_TEST(a_file_of_another_build_is_made_anew)
{
	FILE *f = fopen(path, "r+");
	ck_assert_ptr_nonnull(f);
	ck_assert_str_eq(say("arm gaccd_tick crash"), "ok\n");
	fputs("another_point", f);
	fclose(f);
	ck_assert_int_eq(failpoint_make(dir), ST_OK);
	FAILPOINT(gaccd_tick);
	check_hits("gaccd_tick", 1, 0);
}
END_TEST

START_TEST(the_file_is_private_and_its_path_goes_to_children)
{
	struct stat st;
	char expected[160];
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_int_eq(st.st_mode & 0777, 0600);
	snprintf(expected, sizeof(expected), "GACC_FAILPOINTS_FILE=%s", path);
	ck_assert_str_eq(failpoint_environment(), expected);
	unsetenv("GACC_FAILPOINTS_FILE");
	ck_assert_ptr_null(failpoint_environment());
}
END_TEST

START_TEST(wrong_words_are_told_apart)
{
	static const struct {
		const char *line, *answer;
	} wrong[] = {
		{ "", "error: no command \"\"" },
		{ "explode", "error: no command \"explode\"" },
		{ "arm", "error: no failpoint \"\"" },
		{ "arm tick crash", "error: no failpoint \"tick\"" },
		{ "arm gaccd_tick", "error: no action \"\"" },
		{ "arm gaccd_tick error", "error: nothing can fail at gaccd_tick" },
		{ "arm gaccd_tick crash 5", "error: unexpected \"5\"" },
		{ "arm gaccd_tick sleep skip", "error: skip needs a number, not \"\"" },
		{ "arm gaccd_tick sleep count 99999999999", "error: count needs a number" },
		{ "disarm", "error: no failpoint \"\"" },
	};
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
		ck_assert_msg(strncmp(say(wrong[i].line), wrong[i].answer, strlen(wrong[i].answer)) == 0, "%s: %s",
			      wrong[i].line, answer);
	FAILPOINT(gaccd_tick);
	check_hits("gaccd_tick", 1, 0);
}
END_TEST

START_TEST(a_short_buffer_is_not_overrun)
{
	char line[] = "list", out[65];
	memset(out, 'x', sizeof(out));
	failpoint_command(line, out, 64);
	ck_assert_uint_eq(strlen(out), 63);
	ck_assert_int_eq(out[64], 'x');
}
END_TEST

static int live_without_file(void)
{
	char line[] = "list";
	FAILPOINT(gaccd_tick);
	failpoint_command(line, answer, sizeof(answer));
	return FAILPOINT_ERROR(coord_commit_before) == ST_OK && strncmp(answer, "error: no file", 14) == 0 ? 0 : 2;
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return live_without_file();
	Suite *s = suite_create("failpoint");
	TCase *t = tcase_create("failpoint");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, without_a_file_nothing_happens);
	tcase_add_test(t, an_error_is_the_points_own_status);
	tcase_add_test(t, skip_and_count);
	tcase_add_test(t, what_is_armed_outlives_the_process_and_fires_once);
	tcase_add_test(t, a_stopped_process_goes_on_when_it_is_told_to);
	tcase_add_test(t, a_file_of_another_build_is_made_anew);
	tcase_add_test(t, the_file_is_private_and_its_path_goes_to_children);
	tcase_add_test(t, wrong_words_are_told_apart);
	tcase_add_test(t, a_short_buffer_is_not_overrun);
	return suite_run(s);
}
