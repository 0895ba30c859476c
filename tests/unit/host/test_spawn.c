/* SPDX-License-Identifier: Apache-2.0 */
/* Children of the loop: what they are given, how their end is told, and that no fork makes them. */
#include "host/spawn.h"

#include "support/suite.h"

#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

static uv_loop_t loop;
static int ends, forks;
static int64_t status;
static int term_signal;

static void on_exit_of(void *arg, int64_t s, int signal)
{
	ends++;
	status = s;
	term_signal = signal;
}

static void setup(void)
{
	ck_assert_int_eq(uv_loop_init(&loop), 0);
}

static void teardown(void)
{
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(uv_loop_close(&loop), 0);
}

/* Runs a line of the shell, whose descriptor 3 is the one end of a pair. The other end. */
static int run(const char *line, bool detached, struct spawned **out)
{
	int fds[2];
	char sh[] = "sh", flag[] = "-c", word[] = "WORD=given";
	char *const args[] = { sh, flag, (char *)line, NULL }, *const env[] = { word, NULL };
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	struct spawn_opts o = {
		.file = "/bin/sh", .args = args, .env = env, .fd = fds[1], .detached = detached, .exited = on_exit_of
	};
	ck_assert_int_eq(spawn_child(&loop, &o, out), 0);
	close(fds[1]);
	return fds[0];
}

static void expect_words(int fd, const char *expected)
{
	char text[512];
	size_t n = 0;
	for (ssize_t r; n < sizeof(text) - 1 && (r = read(fd, text + n, sizeof(text) - 1 - n)) > 0;)
		n += (size_t)r;
	text[n] = '\0';
	ck_assert_str_eq(text, expected);
	close(fd);
}

START_TEST(a_child_has_its_descriptor_and_its_environment)
{
	struct spawned *s;
	char expected[64];
	int fd = run("read x; echo \"$x $WORD $$\" >&3; echo lost; exit 3", false, &s);
	snprintf(expected, sizeof(expected), " given %lld\n", (long long)spawned_pid(s)); /* /dev/null has no word */
	expect_words(fd, expected);
	uv_run(&loop, UV_RUN_DEFAULT); /* which waits for it */
	ck_assert_int_eq(ends, 1);
	ck_assert_int_eq(status, 3);
	ck_assert_int_eq(term_signal, 0);
}
END_TEST

START_TEST(a_signal_is_told)
{
	struct spawned *s;
	close(run("kill -9 $$", false, &s));
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(term_signal, SIGKILL);
	ck_assert_int_eq(status, 0);
}
END_TEST

START_TEST(what_this_process_ignores_and_blocks_the_child_does_not)
{
	struct spawned *s;
	sigset_t blocked;
	signal(SIGUSR1, SIG_IGN);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR2);
	sigprocmask(SIG_BLOCK, &blocked, NULL);
	close(run("kill -USR1 $$; exit 0", false, &s));
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(term_signal, SIGUSR1);
	close(run("kill -USR2 $$; exit 0", false, &s));
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(term_signal, SIGUSR2);
}
END_TEST

static pid_t session_of(const struct spawned *s)
{
	pid_t sid = getsid((pid_t)spawned_pid(s));
	ck_assert_int_ge(sid, 0);
	return sid;
}

START_TEST(a_detached_child_has_its_own_session_and_holds_no_loop)
{
	struct spawned *s;
	int fd = run("read x <&3", true, &s);
	ck_assert_int_eq(session_of(s), spawned_pid(s));
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(ends, 0);
	spawned_let_go(s);
	close(fd);
	struct spawned *other;
	fd = run("read x <&3", false, &other);
	ck_assert_int_ne(session_of(other), spawned_pid(other));
	close(fd);
}
END_TEST

START_TEST(each_hears_of_its_own_child)
{
	struct spawned *first, *second;
	int fd = run("read x <&3; exit 1", false, &first);
	close(run("exit 2", false, &second));
	while (!ends)
		uv_run(&loop, UV_RUN_ONCE);
	ck_assert_int_eq(status, 2);
	close(fd);
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(ends, 2);
	ck_assert_int_eq(status, 1);
}
END_TEST

START_TEST(what_cannot_be_executed_is_told_at_once)
{
	struct spawned *s = NULL;
	char *const args[] = { NULL }, *const env[] = { NULL };
	struct spawn_opts o = { .file = "", .args = args, .env = env, .fd = 2, .exited = on_exit_of };
	ck_assert_int_eq(spawn_child(&loop, &o, &s), -ENOENT);
	ck_assert_ptr_null(s);
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(ends, 0);
}
END_TEST

static void on_fork(void)
{
	forks++;
}

/* What a fork costs grows with the memory of this process. */
START_TEST(page_tables_are_not_copied)
{
	struct spawned *s;
	pthread_atfork(on_fork, NULL, NULL);
	close(run("exit 0", false, &s));
	ck_assert_int_eq(forks, 0);
	uv_run(&loop, UV_RUN_DEFAULT);
	ck_assert_int_eq(ends, 1);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("spawn");
	TCase *t = tcase_create("spawn");
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, a_child_has_its_descriptor_and_its_environment);
	tcase_add_test(t, a_signal_is_told);
	tcase_add_test(t, what_this_process_ignores_and_blocks_the_child_does_not);
	tcase_add_test(t, a_detached_child_has_its_own_session_and_holds_no_loop);
	tcase_add_test(t, each_hears_of_its_own_child);
	tcase_add_test(t, what_cannot_be_executed_is_told_at_once);
	tcase_add_test(t, page_tables_are_not_copied);
	suite_add_tcase(s, t);
	return suite_run(s);
}
