/* SPDX-License-Identifier: Apache-2.0 */
/* Packets with descriptors: whole or not at all, nothing blocks, and no descriptor is left open. */
#include "base/packet.h"

#include "support/suite.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define LONG_PACKET 140000 /* longer than any of gacc's messages */

static int pair[2];

static void open_pair(void)
{
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
}

static void close_pair(void)
{
	close(pair[0]);
	close(pair[1]);
}

START_TEST(a_packet_arrives_whole_with_its_descriptors)
{
	char buf[64];
	int fds[PACKET_MAX_FDS], got[PACKET_MAX_FDS], n = PACKET_MAX_FDS;
	for (int i = 0; i < PACKET_MAX_FDS; i++)
		fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
	ck_assert_int_eq(packet_send(pair[0], "head", 4, "tail", 4, fds, PACKET_MAX_FDS), 0);
	ck_assert_int_eq(packet_recv(pair[1], buf, sizeof(buf), got, &n), 8);
	ck_assert_mem_eq(buf, "headtail", 8);
	ck_assert_int_eq(n, PACKET_MAX_FDS);
	for (int i = 0; i < n; i++) {
		ck_assert_int_eq(fcntl(got[i], F_GETFD), FD_CLOEXEC);
		close(got[i]);
		close(fds[i]);
	}
	ck_assert_int_eq(packet_send(pair[0], "x", 1, NULL, 0, fds, PACKET_MAX_FDS + 1), -EINVAL);
	n = 1;
	ck_assert_int_eq(packet_send(pair[0], "x", 1, NULL, 0, NULL, 0), 0);
	ck_assert_int_eq(packet_recv(pair[1], buf, sizeof(buf), got, &n), 1);
	ck_assert_int_eq(n, 0);
}
END_TEST

static int count_open_fds(void)
{
	int n = 0;
	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

START_TEST(what_does_not_fit_is_refused_and_closed)
{
	char buf[8];
	int fds[3], got[2], n = 2, before = count_open_fds();
	for (int i = 0; i < 3; i++)
		fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
	ck_assert_int_eq(packet_send(pair[0], "x", 1, NULL, 0, fds, 3), 0);
	ck_assert_int_eq(packet_send(pair[0], "x", 1, NULL, 0, fds, 1), 0);
	ck_assert_int_eq(packet_send(pair[0], "longer than 8", 13, NULL, 0, fds, 1), 0);
	for (int i = 0; i < 3; i++)
		close(fds[i]);
	ck_assert_int_eq(packet_recv(pair[1], buf, sizeof(buf), got, &n), -EMSGSIZE);
	ck_assert_int_eq(n, 0);
	ck_assert_int_eq(packet_recv(pair[1], buf, sizeof(buf), NULL, NULL), -EMSGSIZE);
	n = 2;
	ck_assert_int_eq(packet_recv(pair[1], buf, sizeof(buf), got, &n), -EMSGSIZE);
	ck_assert_int_eq(count_open_fds(), before);
}
END_TEST

/* Those that there is room for come, and are closed. */
START_TEST(a_process_without_descriptors_hears_that)
{
	char buf[8];
	int fds[3], got[3], n = 3, before = count_open_fds();
	struct rlimit old, tight;
	for (int i = 0; i < 3; i++)
		fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
	ck_assert_int_eq(packet_send(pair[0], "x", 1, NULL, 0, fds, 3), 0);
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
	tight = (struct rlimit){ (rlim_t)fds[2] + 2, old.rlim_max };
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &tight), 0);
	ck_assert_int_eq(packet_recv(pair[1], buf, sizeof(buf), got, &n), -EMFILE);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
	for (int i = 0; i < 3; i++)
		close(fds[i]);
	ck_assert_int_eq(count_open_fds(), before);
}
END_TEST

START_TEST(neither_call_blocks)
{
	static char big[LONG_PACKET], back[sizeof(big)];
	int rc, sent = 0;
	ck_assert_int_eq(packet_recv(pair[1], back, sizeof(back), NULL, NULL), -EAGAIN);
	while ((rc = packet_send(pair[0], big, sizeof(big), NULL, 0, NULL, 0)) == 0)
		sent++;
	ck_assert_int_eq(rc, -EAGAIN);
	ck_assert_int_ge(sent, 1); /* a long packet passes */
	ck_assert_int_eq(packet_recv(pair[1], back, sizeof(back), NULL, NULL), (int)sizeof(big));
}
END_TEST

START_TEST(a_closed_end_is_an_end_of_file_and_no_signal)
{
	char buf[8];
	close(pair[0]);
	ck_assert_int_eq(packet_recv(pair[1], buf, sizeof(buf), NULL, NULL), 0);
	ck_assert_int_eq(packet_send(pair[1], "x", 1, NULL, 0, NULL, 0), -EPIPE);
	pair[0] = -1;
}
END_TEST

int main(void)
{
	Suite *s = suite_create("packet");
	TCase *t = tcase_create("packet");
	tcase_add_checked_fixture(t, open_pair, close_pair);
	tcase_add_test(t, a_packet_arrives_whole_with_its_descriptors);
	tcase_add_test(t, what_does_not_fit_is_refused_and_closed);
	tcase_add_test(t, a_process_without_descriptors_hears_that);
	tcase_add_test(t, neither_call_blocks);
	tcase_add_test(t, a_closed_end_is_an_end_of_file_and_no_signal);
	suite_add_tcase(s, t);
	return suite_run(s);
}
