/* SPDX-License-Identifier: Apache-2.0 */
/* The attach socket: descriptors that were sent and not received are few, for all users together. */
#include "attach_rig.h"

#include "base/log.h"
#include "support/suite.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* The descriptors of `n` requests that are refused or granted and never received, each from a process that hands its
 * connection on to `keeper` and dies. */
static void ask_and_die(int n, int keeper)
{
	for (int i = 0; i < n; i++) {
		pid_t pid = fork();
		if (pid)
			continue;
		int c = client();
		char first;
		struct iovec iov = { &first, 1 };
		union {
			struct cmsghdr align;
			char bytes[CMSG_SPACE(sizeof(int))];
		} control = { 0 };
		struct msghdr m = { .msg_iov = &iov,
				    .msg_iovlen = 1,
				    .msg_control = control.bytes,
				    .msg_controllen = sizeof(control.bytes) };
		if (send(c, "map", 3, 0) != 3 || recv(c, &first, 1, MSG_PEEK) != 1)
			_exit(1);
		struct cmsghdr *h = CMSG_FIRSTHDR(&m);
		h->cmsg_level = SOL_SOCKET;
		h->cmsg_type = SCM_RIGHTS;
		h->cmsg_len = CMSG_LEN(sizeof(c));
		memcpy(CMSG_DATA(h), &c, sizeof(c));
		_exit(sendmsg(keeper, &m, 0) != 1);
	}
	for (int left = n; left;) {
		left -= waitpid(-1, NULL, WNOHANG) > 0;
		turn();
	}
}

static int times(char what)
{
	int n = 0;
	for (const char *at = story; (at = strchr(at, what)); at++)
		n++;
	return n;
}

static int granted(void)
{
	return times('r');
}

/* The end of a test: returns when no more descriptors are open than `before` it. */
static void close_answers(int before)
{
	close(answer_with);
	answer_with = -1;
	while (open_fds() > before)
		turn();
}

/* Until one more request is granted; that it is refused first is an error. */
static void wait_for_grant(int before, int refused)
{
	while (granted() == before) {
		ck_assert_int_eq(times('f'), refused);
		turn();
	}
}

/* Descriptors in flight are few, for all users together: also while nobody but a socket's queue has the connection. */
START_TEST(descriptors_that_nobody_receives_are_charged)
{
	int before = open_fds(), keeper[2];
	const int most = ATTACH_IN_FLIGHT / 2 - ATTACH_FDS_PER_MAP + 1; /* of one descriptor each */
	struct rlimit limit;
	getrlimit(RLIMIT_NOFILE, &limit);
	ck_assert_uint_ge(limit.rlim_cur, 8 * ATTACH_IN_FLIGHT);
	answer_with = memfd_create("m", MFD_CLOEXEC);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, keeper), 0);
	ask_and_die(most, keeper[0]);
	ck_assert_int_eq(granted(), most);
	ask_and_die(2, keeper[0]);
	ck_assert_int_eq(granted(), most);
	ck_assert_ptr_nonnull(strchr(story, 'f'));
	ck_assert_msg(!!strstr(refusal, "descriptors that uid"), "%s", refusal);
	close(keeper[0]); /* with it all the connections that are on their way through it */
	close(keeper[1]);
	int refused = times('f'), c = asking_client(), fds[1];
	char text[8];
	wait_for_grant(most, refused);
	ck_assert_uint_eq(receive(c, text, sizeof(text), fds, 1), 1);
	close(c);
	close(fds[0]);
	close_answers(before);
}
END_TEST

/* An honest client receives: what is too much at one moment waits for that, and is not refused. */
START_TEST(a_burst_of_requests_waits_for_its_turn)
{
	pid_t pid[2 * ATTACH_IN_FLIGHT];
	answer_with = memfd_create("m", MFD_CLOEXEC);
	for (int i = 0; i < 2 * ATTACH_IN_FLIGHT; i++)
		if ((pid[i] = fork()) == 0) {
			int c = client(), fds[1];
			char text[8];
			_exit(send(c, "map", 3, 0) != 3 || receive(c, text, sizeof(text), fds, 1) != 1);
		}
	for (int i = 0; i < 2 * ATTACH_IN_FLIGHT; i++) {
		int status;
		while (!waitpid(pid[i], &status, WNOHANG))
			turn();
		ck_assert_int_eq(status, 0);
	}
	ck_assert_int_eq(granted(), 2 * ATTACH_IN_FLIGHT);
	close(answer_with);
	answer_with = -1;
}
END_TEST

/* Its end of a connection says nothing of what is unread in the peer's. */
START_TEST(a_connection_that_was_shut_down_is_charged)
{
	int before = open_fds(), c[ATTACH_IN_FLIGHT], n = ATTACH_IN_FLIGHT / 2 - ATTACH_FDS_PER_MAP + 1;
	answer_with = memfd_create("m", MFD_CLOEXEC);
	for (int i = 0; i < n; i++) {
		c[i] = asking_client();
		shutdown(c[i], SHUT_RDWR);
		spin();
	}
	ck_assert_int_eq(granted(), n);
	int waiting = asking_client();
	for (int i = 0; i < 200; i++) /* longer than between two looks */
		turn();
	ck_assert_int_eq(granted(), n);
	for (int i = 0; i < n; i++)
		close(c[i]);
	wait_for_grant(n, 0);
	close(waiting);
	close_answers(before);
}
END_TEST

/* One that leaves while its request waits. */
START_TEST(a_request_that_waits_ends_with_its_connection)
{
	int before = open_fds(), c[ATTACH_IN_FLIGHT], n = ATTACH_IN_FLIGHT / 2 - ATTACH_FDS_PER_MAP + 1;
	answer_with = memfd_create("m", MFD_CLOEXEC);
	for (int i = 0; i < n; i++)
		c[i] = asking_client();
	ck_assert_int_eq(granted(), n);
	close(asking_client());
	spin();
	ck_assert_int_eq(granted(), n);
	int waiting = asking_client();
	ck_assert_int_eq(granted(), n);
	close(c[0]);
	wait_for_grant(n, 0);
	for (int i = 1; i < n; i++)
		close(c[i]);
	close(waiting);
	close_answers(before);
}
END_TEST

/* A connection may ask again when it was granted nothing: how long its first request waited is forgotten. */
START_TEST(each_request_may_wait_as_long)
{
	int before = open_fds(), c[ATTACH_IN_FLIGHT], n = ATTACH_IN_FLIGHT / 2 - ATTACH_FDS_PER_MAP + 1;
	int memory = answer_with = memfd_create("m", MFD_CLOEXEC);
	for (int i = 0; i < n; i++)
		c[i] = asking_client();
	int twice = asking_client();
	uint64_t asked = uv_now(&loop);
	answer_with = -1;
	close(c[0]);
	wait_for_grant(n, 0);
	ck_assert_int_eq(attach_reply(server, last_conn, "no", 2, NULL, 0), ST_OK);
	answer_with = memory;
	c[0] = asking_client();
	ck_assert_int_eq(granted(), n + 2);
	while (uv_now(&loop) < asked + 2100)
		turn();
	ck_assert_int_eq(send(twice, "map", 3, 0), 3);
	for (int i = 0; i < 50; i++)
		turn();
	ck_assert_int_eq(times('f'), 0);
	for (int i = 0; i < n; i++)
		close(c[i]);
	wait_for_grant(n + 2, 0);
	close(twice);
	close_answers(before);
}
END_TEST

int main(void)
{
	log_init("test", LOG_TEXT, 0);
	Suite *s = suite_create("attach_charges");
	TCase *c = tcase_create("attach");
	tcase_add_checked_fixture(c, attach_setup, attach_teardown);
	tcase_set_timeout(c, 60); /* refusals come after 2 s */
	suite_add_tcase(s, c);
	tcase_add_test(c, descriptors_that_nobody_receives_are_charged);
	tcase_add_test(c, a_connection_that_was_shut_down_is_charged);
	tcase_add_test(c, a_burst_of_requests_waits_for_its_turn);
	tcase_add_test(c, a_request_that_waits_ends_with_its_connection);
	tcase_add_test(c, each_request_may_wait_as_long);
	return suite_run(s);
}
