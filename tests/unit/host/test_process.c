/* SPDX-License-Identifier: Apache-2.0 */
/* When a process is over, as gaccd asks it of an engine that another gaccd has started. */
#include "host/process.h"
#include "support/suite.h"

#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t child(void (*run)(void))
{
	const pid_t pid = fork();
	ck_assert_int_ge(pid, 0);
	if (!pid) {
		run();
		_exit(0);
	}
	return pid;
}

static void wait_for_end(void)
{
	for (;;)
		pause();
}

static void end(void)
{
}

static void *wait_long(void *unused)
{
	wait_for_end();
	return NULL;
}

/* The first thread ends, another one does not. */
static void leave_a_thread(void)
{
	pthread_t thread;
	pthread_create(&thread, NULL, wait_long, NULL);
	usleep(200000); /* until the other process has seen it */
	pthread_exit(NULL);
}

static void await_zombie(pid_t pid)
{
	struct process_info p;
	for (int i = 0; i < 2000 && process_look(pid, &p); i++)
		usleep(5000);
	ck_assert(!process_look(pid, &p));
}

START_TEST(a_process_is_over_when_it_has_ended)
{
	const pid_t pid = child(wait_for_end);
	const uint64_t start = process_start_time(pid);
	ck_assert_uint_ne(start, 0);
	ck_assert(!process_is_over(pid, start));
	ck_assert_int_eq(kill(pid, SIGSTOP), 0);
	ck_assert(!process_is_over(pid, start));
	ck_assert_int_eq(kill(pid, SIGKILL), 0);
	await_zombie(pid);
	/* some tools give it a second thread, which may end a little later */
	for (int i = 0; i < 2000 && !process_is_over(pid, start); i++)
		usleep(5000);
	ck_assert_msg(process_is_over(pid, start), "a zombie has given back all that it had");
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	ck_assert(process_is_over(pid, start));
}
END_TEST

START_TEST(another_process_of_that_number_is_not_the_one)
{
	const pid_t pid = child(wait_for_end);
	ck_assert(process_is_over(pid, process_start_time(pid) + 1));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}
END_TEST

/* Its leader is a zombie, and the memory is still in use. */
START_TEST(a_process_is_not_over_while_a_thread_runs)
{
	const pid_t pid = child(leave_a_thread);
	const uint64_t start = process_start_time(pid);
	await_zombie(pid);
	ck_assert(!process_is_over(pid, start));
	kill(pid, SIGKILL);
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	ck_assert(process_is_over(pid, start));
}
END_TEST

START_TEST(what_is_not_known_is_not_over)
{
	ck_assert(!process_is_over(0, 0));
	ck_assert(!process_is_over(-1, 1));
	const pid_t pid = child(end);
	waitpid(pid, NULL, 0);
	ck_assert(process_is_over(pid, 1));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("process");
	TCase *t = tcase_create("over");
	tcase_add_test(t, a_process_is_over_when_it_has_ended);
	tcase_add_test(t, another_process_of_that_number_is_not_the_one);
	tcase_add_test(t, a_process_is_not_over_while_a_thread_runs);
	tcase_add_test(t, what_is_not_known_is_not_over);
	suite_add_tcase(s, t);
	return suite_run(s);
}
