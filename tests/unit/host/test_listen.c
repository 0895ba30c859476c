/* SPDX-License-Identifier: Apache-2.0 */
#include "host/listen.h"

#include "base/log.h"
#include "host/process.h"
#include "support/scratch.h"
#include "support/suite.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

static char dir[SCRATCH_PATH], path[80], lock[90];
static uv_loop_t loop;
static struct listener *listener;
static struct {
	int fd[64];
	struct listen_peer peer[64];
	int n;
} got;

static void on_accept(void *arg, int fd, const struct listen_peer *peer)
{
	ck_assert_ptr_eq(arg, &got);
	ck_assert_int_lt(got.n, 64);
	got.fd[got.n] = fd;
	got.peer[got.n++] = *peer;
}

static void setup(void)
{
	ck_assert(scratch_make(dir));
	snprintf(path, sizeof(path), "%s/sock", dir);
	snprintf(lock, sizeof(lock), "%s.lock", path);
	ck_assert_int_eq(uv_loop_init(&loop), 0);
}

/* What is ready is handled; nothing is waited for. */
static void spin(void)
{
	for (int i = 0; i < 5; i++)
		uv_run(&loop, UV_RUN_NOWAIT);
}

static void finish(int i)
{
	shutdown(got.fd[i], SHUT_RDWR);
	close(got.fd[i]);
}

static void teardown(void)
{
	listener_close(listener);
	spin();
	ck_assert_int_eq(uv_loop_close(&loop), 0); /* nothing is left in it */
	unlink(lock);
	ck_assert_int_eq(rmdir(dir), 0);
}

static struct listen_opts opts(void)
{
	return (struct listen_opts){ .path = path, .mode = 0600, .max_per_uid = 3 };
}

static void open_listener(void)
{
	struct listen_opts o = opts();
	ck_assert_int_eq(listener_open(&loop, &o, on_accept, &got, &listener), ST_OK);
}

static int connect_with(int fd)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	strcpy(at.sun_path, path);
	return connect(fd, (struct sockaddr *)&at, sizeof(at));
}

static int client(void)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(connect_with(fd), 0);
	return fd;
}

static bool is_over(int fd)
{
	char c;
	ssize_t n = recv(fd, &c, 1, MSG_DONTWAIT);
	return n == 0 || (n < 0 && errno != EAGAIN);
}

START_TEST(the_caller_is_known)
{
	open_listener();
	int c = client();
	spin();
	ck_assert_int_eq(got.n, 1);
	ck_assert_uint_eq(got.peer[0].uid, getuid());
	ck_assert_uint_eq(got.peer[0].gid, getgid());
	ck_assert_uint_ne(got.peer[0].start_time, 0);
	ck_assert_uint_eq(got.peer[0].start_time, process_start_time(getpid()));
	ck_assert_int_eq(got.peer[0].pid, getpid());
	ck_assert_int_eq(fcntl(got.fd[0], F_GETFD), FD_CLOEXEC);
	ck_assert(fcntl(got.fd[0], F_GETFL) & O_NONBLOCK);
	ck_assert_int_eq(write(c, "x", 1), 1);
	ck_assert(!is_over(c));
	finish(0);
	close(c);
}
END_TEST

/* Makes a process that waits; with this number, if that can be had. */
static pid_t process_with(pid_t wanted)
{
	for (int tries = 0; tries < 100; tries++) {
		FILE *f = fopen("/proc/sys/kernel/ns_last_pid", "we");
		if (f) {
			fprintf(f, "%d", (int)wanted - 1);
			fclose(f);
		}
		pid_t pid = fork();
		if (pid == 0) {
			pause();
			_exit(0);
		}
		if (pid == wanted || !f)
			return pid;
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	return 0;
}

/* It connects and dies, and another process has its number when the connection is taken. */
START_TEST(a_caller_that_is_gone_is_not_the_process_with_its_number)
{
	open_listener();
	pid_t pid = fork();
	if (pid == 0) {
		client();
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
	pid_t other = process_with(pid);
	spin();
	ck_assert_int_eq(got.n, 1);
	ck_assert_int_eq(got.peer[0].pid, pid);
	ck_assert_uint_eq(got.peer[0].start_time, 0);
	if (other > 0) {
		kill(other, SIGKILL);
		waitpid(other, NULL, 0);
	}
	finish(0);
}
END_TEST

START_TEST(a_user_has_so_many_connections)
{
	int c[5];
	open_listener();
	for (int i = 0; i < 4; i++)
		c[i] = client();
	spin();
	ck_assert_int_eq(got.n, 3);
	ck_assert(is_over(c[3]));
	ck_assert(!is_over(c[2]));
	close(c[0]); /* the client's end, noticed though the server's is still open */
	spin();
	c[0] = client();
	spin();
	ck_assert_int_eq(got.n, 4);
	finish(1); /* the server's end */
	spin();
	c[4] = client();
	spin();
	ck_assert_int_eq(got.n, 5);
	ck_assert(!is_over(c[4]));
	finish(0);
	for (int i = 2; i < 5; i++)
		finish(i);
	for (int i = 0; i < 5; i++)
		close(c[i]);
}
END_TEST

/* A connection of that user. */
static int client_of(uid_t uid)
{
	ck_assert_int_eq(seteuid(uid), 0);
	int fd = client();
	ck_assert_int_eq(seteuid(0), 0);
	spin();
	return fd;
}

START_TEST(each_user_has_its_own_number)
{
	uid_t user[] = { 0, 65533, 65534 };
	int c[3][4];
	if (geteuid() != 0)
		return;
	struct listen_opts o = opts();
	o.mode = 0666;
	ck_assert_int_eq(chmod(dir, 0755), 0);
	ck_assert_int_eq(listener_open(&loop, &o, on_accept, &got, &listener), ST_OK);
	for (int i = 0; i < 4; i++)
		for (int u = 0; u < 3; u++) {
			c[u][i] = client_of(user[u]);
			ck_assert(is_over(c[u][i]) == (i == 3));
		}
	for (int u = 2; u >= 0; u--) { /* in another order than they came, the one in the middle first */
		close(c[u][1]);
		spin();
		c[u][1] = client_of(user[u]);
		ck_assert(!is_over(c[u][1]));
		int more = client_of(user[u]);
		ck_assert(is_over(more));
		close(more);
	}
	for (int i = 0; i < 4; i++) /* all of one user: its number begins again */
		close(c[1][i]);
	spin();
	for (int i = 0; i < 4; i++) {
		c[1][i] = client_of(user[1]);
		ck_assert(is_over(c[1][i]) == (i == 3));
	}
	for (int u = 0; u < 3; u++)
		for (int i = 0; i < 4; i++)
			close(c[u][i]);
	spin();
	for (int i = 0; i < got.n; i++)
		finish(i);
}
END_TEST

START_TEST(running_out_of_descriptors_is_survived)
{
	static int held[1024];
	struct rlimit limit = { 128, 128 };
	int n = 0, c[3];
	open_listener();
	for (int i = 0; i < 3; i++)
		c[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	while ((held[n] = dup(c[0])) >= 0)
		n++;
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(connect_with(c[i]), 0);
	spin();
	ck_assert_int_eq(got.n, 0);
	ck_assert(is_over(c[0]) && is_over(c[1])); /* refused at once, not left hanging */
	ck_assert_int_eq(uv_run(&loop, UV_RUN_NOWAIT), 1);
	while (n > 0)
		close(held[--n]);
	ck_assert_int_eq(connect_with(c[2]), 0);
	spin();
	ck_assert_int_eq(got.n, 1);
	ck_assert(!is_over(c[2]));
	finish(0);
	for (int i = 0; i < 3; i++)
		close(c[i]);
}
END_TEST

START_TEST(a_path_is_one_daemons)
{
	struct listener *second = NULL;
	struct listen_opts o = opts();
	open_listener();
	ck_assert_int_eq(listener_open(&loop, &o, on_accept, &got, &second), ST_ALREADY_EXISTS);
	close(client()); /* the first still has it */
	listener_close(listener);
	spin();
	ck_assert_int_eq(access(path, F_OK), -1);
	open_listener();
	ck_assert_ptr_null(second);
}
END_TEST

START_TEST(the_socket_of_a_dead_daemon_is_replaced)
{
	pid_t pid = fork();
	if (pid == 0) {
		open_listener();
		kill(getpid(), SIGKILL);
	}
	waitpid(pid, NULL, 0);
	ck_assert_int_eq(access(path, F_OK), 0);
	open_listener();
	int c = client();
	spin();
	ck_assert_int_eq(got.n, 1);
	finish(0);
	close(c);
}
END_TEST

START_TEST(other_files_are_not_removed)
{
	struct listen_opts o = opts();
	struct listener *none = NULL;
	int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	close(fd);
	ck_assert_int_eq(listener_open(&loop, &o, on_accept, &got, &none), ST_ALREADY_EXISTS);
	ck_assert_int_eq(access(path, F_OK), 0);
	ck_assert_int_eq(unlink(path), 0);
	o.group = "no-such-group-here";
	ck_assert_int_eq(listener_open(&loop, &o, on_accept, &got, &none), ST_INVALID_CONFIG);
	char longer[200];
	memset(longer, 'a', sizeof(longer));
	longer[199] = 0;
	longer[0] = '/';
	o = opts();
	o.path = longer;
	ck_assert_int_eq(listener_open(&loop, &o, on_accept, &got, &none), ST_INVALID_CONFIG);
	o.path = "/nonexistent/sock";
	ck_assert_int_eq(listener_open(&loop, &o, on_accept, &got, &none), ST_IO_ERROR);
	ck_assert_ptr_null(none);
}
END_TEST

/* As another user: 0 connected, 1 refused by the file's mode. */
static int connect_as(uid_t uid)
{
	int ws;
	pid_t pid = fork();
	if (pid == 0) {
		int fd = socket(AF_UNIX, SOCK_STREAM, 0);
		if (setgid(uid) || setuid(uid))
			_exit(9);
		_exit(connect_with(fd) == 0 ? 0 : errno == EACCES ? 1 : 2);
	}
	waitpid(pid, &ws, 0);
	return WEXITSTATUS(ws);
}

/* With its lock or without: the next one connects, those connected stay. */
START_TEST(a_path_that_was_removed_is_made_again)
{
	struct stat before, after;
	struct listener *other = NULL;
	struct listen_opts o = opts();
	open_listener();
	int first = client();
	spin();
	ck_assert_int_eq(stat(path, &before), 0);
	listener_heal(listener);
	ck_assert_int_eq(stat(path, &after), 0);
	ck_assert_uint_eq(before.st_ino, after.st_ino); /* nothing was amiss */
	for (int i = 0; i < 2; i++) {
		unlink(path);
		if (_i)
			unlink(lock);
		listener_heal(listener);
		ck_assert_int_eq(stat(path, &after), 0);
		ck_assert_uint_eq(after.st_mode, before.st_mode);
		int next = client();
		spin();
		ck_assert_int_eq(got.n, 2 + i);
		ck_assert(!is_over(first));
		close(next);
		finish(1 + i);
		ck_assert_int_eq(listener_open(&loop, &o, on_accept, &got, &other), ST_ALREADY_EXISTS);
	}
	close(first);
	finish(0);
}
END_TEST

START_TEST(a_path_that_cannot_be_made_again_is_given_up)
{
	open_listener();
	unlink(path);
	unlink(lock);
	ck_assert_int_eq(rmdir(dir), 0);
	listener_heal(listener);
	ck_assert_int_eq(mkdir(dir, 0700), 0);
	listener_heal(listener); /* it stays so, and whoever has the path now keeps it */
	struct listener *other = NULL;
	struct listen_opts o = opts();
	ck_assert_int_eq(listener_open(&loop, &o, on_accept, &got, &other), ST_OK);
	listener_close(listener);
	ck_assert_int_eq(access(path, F_OK), 0);
	listener = other;
}
END_TEST

START_TEST(mode_and_group_say_who_may_connect)
{
	struct stat st;
	struct listen_opts o = opts();
	o.mode = 0660;
	o.group = getuid() == 0 ? "daemon" : NULL;
	ck_assert_int_eq(listener_open(&loop, &o, on_accept, &got, &listener), ST_OK);
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_int_eq(st.st_mode & 07777, 0660);
	if (getuid() != 0)
		return;
	ck_assert_uint_eq(st.st_gid, 1); /* Debian's static number of "daemon" */
	chmod(dir, 0755);
	ck_assert_int_eq(connect_as(65534), 1);
	chmod(path, 0666);
	ck_assert_int_eq(connect_as(65534), 0);
	spin();
	ck_assert_int_eq(got.n, 1);
	ck_assert_uint_eq(got.peer[0].uid, 65534);
	finish(0);
}
END_TEST

int main(void)
{
	log_init("test", LOG_TEXT, 0);
	Suite *s = suite_create("listen");
	TCase *c = tcase_create("listen");
	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, the_caller_is_known);
	tcase_add_test(c, a_caller_that_is_gone_is_not_the_process_with_its_number);
	tcase_add_test(c, a_user_has_so_many_connections);
	tcase_add_test(c, each_user_has_its_own_number);
	tcase_add_test(c, running_out_of_descriptors_is_survived);
	tcase_add_test(c, a_path_is_one_daemons);
	tcase_add_test(c, the_socket_of_a_dead_daemon_is_replaced);
	tcase_add_test(c, other_files_are_not_removed);
	tcase_add_loop_test(c, a_path_that_was_removed_is_made_again, 0, 2);
	tcase_add_test(c, a_path_that_cannot_be_made_again_is_given_up);
	tcase_add_test(c, mode_and_group_say_who_may_connect);
	return suite_run(s);
}
