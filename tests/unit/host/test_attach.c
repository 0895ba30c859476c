/* SPDX-License-Identifier: Apache-2.0 */
/* The attach socket: what it hands over, and what it refuses. */
#include "attach_rig.h"

#include "base/log.h"
#include "base/packet.h"
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

START_TEST(memory_is_handed_over)
{
	int mem[2], fds[2], c = asking_client();
	char text[16], got[4] = "";
	ck_assert_str_eq(story, "r1");
	ck_assert_uint_eq(n_request, 3);
	ck_assert_mem_eq(request, "map", 3);
	ck_assert_int_eq(requester.pid, getpid());
	for (int i = 0; i < 2; i++) {
		mem[i] = memfd_create("m", MFD_CLOEXEC);
		ck_assert_int_eq(pwrite(mem[i], i ? "two" : "one", 3, 0), 3);
	}
	ck_assert_int_eq(attach_reply(server, 1, "here", 4, mem, 2), ST_OK);
	ck_assert_uint_eq(receive(c, text, sizeof(text), fds, 2), 2);
	ck_assert_str_eq(text, "here");
	ck_assert_int_eq(pread(fds[1], got, 3, 0), 3);
	ck_assert_str_eq(got, "two");
	spin();
	ck_assert(!is_over(c)); /* stays open */
	close(c);
	spin();
	ck_assert_str_eq(story, "r1 c1");
	ck_assert_int_eq(attach_reply(server, 1, "x", 1, NULL, 0), ST_SESSION_UNKNOWN);
	for (int i = 0; i < 2; i++) {
		close(mem[i]);
		close(fds[i]);
	}
}
END_TEST

START_TEST(as_many_descriptors_as_a_message_carries)
{
	int mem[PACKET_MAX_FDS + 1], fds[PACKET_MAX_FDS], c = asking_client();
	char text[16];
	for (int i = 0; i <= PACKET_MAX_FDS; i++)
		mem[i] = 0;
	ck_assert_int_eq(attach_reply(server, 1, "x", 1, mem, PACKET_MAX_FDS + 1), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(attach_reply(server, 1, "x", 1, mem, PACKET_MAX_FDS), ST_OK);
	ck_assert_uint_eq(receive(c, text, sizeof(text), fds, PACKET_MAX_FDS), PACKET_MAX_FDS);
	close(c);
}
END_TEST

START_TEST(descriptors_of_a_client_are_not_taken)
{
	int before = open_fds(), c = client(), fd = 0;
	char control[CMSG_SPACE(sizeof(fd))] = { 0 };
	struct iovec iov = { (void *)(uintptr_t) "map", 3 };
	struct msghdr m = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)
	};
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);
	h->cmsg_level = SOL_SOCKET;
	h->cmsg_type = SCM_RIGHTS;
	h->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(h), &fd, sizeof(fd));
	ck_assert_int_eq(sendmsg(c, &m, 0), 3);
	spin();
	ck_assert(is_over(c));
	ck_assert_str_eq(story, "x1");
	ck_assert_str_eq(refusal, "a packet of 3 bytes with ancillary data: send the MapRequest alone");
	close(c);
	spin();
	ck_assert_int_eq(open_fds(), before);
}
END_TEST

START_TEST(a_long_packet_ends_the_connection)
{
	static char big[ATTACH_MAX_REQUEST + 1];
	int c = client();
	ck_assert_int_eq(send(c, big, sizeof(big) - 1, 0), (ssize_t)sizeof(big) - 1);
	spin();
	ck_assert_uint_eq(n_request, ATTACH_MAX_REQUEST);
	ck_assert(!is_over(c));
	ck_assert_int_eq(send(c, big, sizeof(big), 0), (ssize_t)sizeof(big));
	spin();
	char text[8];
	ck_assert_int_eq(recv(c, text, sizeof(text), MSG_DONTWAIT), 2); /* the answer arrives before the end */
	ck_assert(is_over(c));
	ck_assert_str_eq(story, "r1 x1 c1");
	ck_assert_str_eq(refusal, "a packet of 4097 bytes, at most 4096 are allowed: send one MapRequest");
	close(c);
}
END_TEST

START_TEST(a_connection_maps_once)
{
	int mem = memfd_create("m", MFD_CLOEXEC), fds[2], c = asking_client();
	char text[16];
	ck_assert_int_eq(attach_reply(server, 1, "no", 2, NULL, 0), ST_OK); /* a refusal: it may ask again */
	ck_assert_int_eq(send(c, "map", 3, 0), 3);
	spin();
	ck_assert_int_eq(attach_reply(server, 1, "yes", 3, &mem, 1), ST_OK);
	ck_assert_int_eq(send(c, "map", 3, 0), 3);
	spin();
	ck_assert_str_eq(story, "r1 r1 x1 c1");
	ck_assert_uint_eq(receive(c, text, sizeof(text), fds, 2), 0);
	ck_assert_uint_eq(receive(c, text, sizeof(text), fds, 2), 1);
	ck_assert(is_over(c));
	close(fds[0]);
	close(mem);
	close(c);
}
END_TEST

START_TEST(who_never_asked_is_never_told_of)
{
	close(client());
	spin();
	ck_assert_str_eq(story, "");
}
END_TEST

START_TEST(a_client_that_does_not_read_is_dropped)
{
	static char big[32768];
	enum status st = ST_OK;
	int c = asking_client();
	for (int i = 0; i < 1000 && st == ST_OK; i++)
		st = attach_reply(server, 1, big, sizeof(big), NULL, 0);
	ck_assert_int_eq(st, ST_UNAVAILABLE);
	ck_assert_str_eq(story, "r1"); /* not from inside the call */
	spin();
	ck_assert_str_eq(story, "r1 c1");
	close(c);
}
END_TEST

START_TEST(a_killed_process_closes_its_connection)
{
	pid_t pid = fork();
	if (pid == 0) {
		if (send(client(), "map", 3, 0) == 3)
			pause();
		_exit(1);
	}
	wait_for("r1");
	ck_assert_int_eq(requester.pid, pid);
	kill(pid, SIGKILL);
	wait_for("c1");
	waitpid(pid, NULL, 0);
}
END_TEST

/* A process may train one job after the other for as long as it likes. */
START_TEST(a_process_may_map_over_and_over)
{
	int mem = memfd_create("m", MFD_CLOEXEC), fds[1], before = open_fds();
	char text[16];
	for (int i = 0; i < 100; i++) {
		int c = asking_client();
		ck_assert_int_eq(attach_reply(server, last_conn, "x", 1, &mem, 1), ST_OK);
		if (i % 2)
			ck_assert_uint_eq(receive(c, text, sizeof(text), fds, 1), 1);
		close(c);
		spin();
		if (i % 2)
			close(fds[0]);
		ck_assert_uint_eq(last_conn, (unsigned)i + 1);
		ck_assert_int_eq(open_fds(), before);
	}
	close(mem);
}
END_TEST

int main(void)
{
	log_init("test", LOG_TEXT, 0);
	Suite *s = suite_create("attach");
	TCase *c = tcase_create("attach");
	tcase_add_checked_fixture(c, attach_setup, attach_teardown);
	tcase_set_timeout(c, 60); /* refusals come after 2 s */
	suite_add_tcase(s, c);
	tcase_add_test(c, memory_is_handed_over);
	tcase_add_test(c, as_many_descriptors_as_a_message_carries);
	tcase_add_test(c, descriptors_of_a_client_are_not_taken);
	tcase_add_test(c, a_long_packet_ends_the_connection);
	tcase_add_test(c, a_connection_maps_once);
	tcase_add_test(c, who_never_asked_is_never_told_of);
	tcase_add_test(c, a_client_that_does_not_read_is_dropped);
	tcase_add_test(c, a_killed_process_closes_its_connection);
	tcase_add_test(c, a_process_may_map_over_and_over);
	return suite_run(s);
}
