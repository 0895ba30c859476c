/* SPDX-License-Identifier: Apache-2.0 */
#include "host/attach.h"

#include "base/log.h"
#include "support/scratch.h"
#include "support/suite.h"

#include <check.h>
#include <dirent.h>
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
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

static char dir[SCRATCH_PATH], path[80], lock[90];
static uv_loop_t loop;
static struct attach *server;

/* What the edge was told, in order: "r1 c1". */
static char story[4096];
static uint64_t last_conn;
static char request[ATTACH_MAX_REQUEST];
static size_t n_request;
static struct listen_peer requester;
static int answer_with = -1; /* what each request gets at once */

static void told(char what, uint64_t conn)
{
	size_t n = strlen(story);
	snprintf(story + n, sizeof(story) - n, "%s%c%d", n ? " " : "", what, (int)conn);
}

static void on_request(void *arg, uint64_t conn, const struct listen_peer *peer, const void *bytes, size_t n)
{
	told('r', conn);
	last_conn = conn;
	memcpy(request, bytes, n);
	n_request = n;
	requester = *peer;
	if (answer_with >= 0)
		ck_assert_int_eq(attach_reply(server, conn, "x", 1, &answer_with, 1), ST_OK);
}

static char refusal[256];
static void on_refused(void *arg, uint64_t conn, enum status st, const char *why)
{
	told(st == ST_RESOURCE_EXHAUSTED ? 'f' : 'x', conn);
	snprintf(refusal, sizeof(refusal), "%s", why);
	ck_assert_int_eq(attach_reply(server, conn, "no", 2, NULL, 0), ST_OK);
}

static void on_closed(void *arg, uint64_t conn, const struct attach_note *note)
{
	told('c', conn);
}

static const struct attach_events events = { on_request, on_refused, on_closed };

static void spin(void)
{
	for (int i = 0; i < 5; i++)
		uv_run(&loop, UV_RUN_NOWAIT);
}

/* For what no event of the loop tells of. */
static void turn(void)
{
	uv_run(&loop, UV_RUN_NOWAIT);
	poll(NULL, 0, 1);
}

static void wait_for(const char *what)
{
	while (!strstr(story, what))
		uv_run(&loop, UV_RUN_ONCE);
}

static void setup(void)
{
	ck_assert(scratch_make(dir));
	snprintf(path, sizeof(path), "%s/sock", dir);
	snprintf(lock, sizeof(lock), "%s.lock", path);
	ck_assert_int_eq(uv_loop_init(&loop), 0);
	struct listen_opts o = { .path = path, .mode = 0600, .max_per_uid = 4 * ATTACH_IN_FLIGHT };
	ck_assert_int_eq(attach_open(&loop, &o, &events, NULL, &server), ST_OK);
}

static void teardown(void)
{
	attach_close(server);
	spin();
	ck_assert_int_eq(uv_loop_close(&loop), 0);
	unlink(lock);
	ck_assert_int_eq(rmdir(dir), 0);
}

static int client(void)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	strcpy(at.sun_path, path);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	return fd;
}

static int asking_client(void)
{
	int c = client();
	ck_assert_int_eq(send(c, "map", 3, 0), 3);
	spin();
	return c;
}

/* An answer that nobody has read may come before the end. */
static bool is_over(int fd)
{
	char c;
	ssize_t n;
	while ((n = recv(fd, &c, 1, MSG_DONTWAIT)) > 0)
		;
	return n == 0 || (n < 0 && errno != EAGAIN);
}

static int open_fds(void)
{
	int n = 0;
	DIR *d = opendir("/proc/self/fd");
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* Receives one answer; returns the number of descriptors in fds. */
static size_t receive(int c, char *text, size_t n_text, int *fds, size_t most)
{
	static char control[CMSG_SPACE(sizeof(int) * ATTACH_MAX_FDS)];
	struct iovec iov = { text, n_text - 1 };
	struct msghdr m = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)
	};
	ssize_t n = recvmsg(c, &m, MSG_CMSG_CLOEXEC);
	ck_assert_int_ge(n, 0);
	text[n] = 0;
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);
	size_t n_fds = h ? (h->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;
	ck_assert_uint_le(n_fds, most);
	if (n_fds)
		memcpy(fds, CMSG_DATA(h), n_fds * sizeof(int));
	return n_fds;
}

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
	int mem[ATTACH_MAX_FDS + 1], fds[ATTACH_MAX_FDS], c = asking_client();
	char text[16];
	for (int i = 0; i <= ATTACH_MAX_FDS; i++)
		mem[i] = 0;
	ck_assert_int_eq(attach_reply(server, 1, "x", 1, mem, ATTACH_MAX_FDS + 1), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(attach_reply(server, 1, "x", 1, mem, ATTACH_MAX_FDS), ST_OK);
	ck_assert_uint_eq(receive(c, text, sizeof(text), fds, ATTACH_MAX_FDS), ATTACH_MAX_FDS);
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
	Suite *s = suite_create("attach");
	TCase *c = tcase_create("attach");
	tcase_add_checked_fixture(c, setup, teardown);
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
	tcase_add_test(c, descriptors_that_nobody_receives_are_charged);
	tcase_add_test(c, a_connection_that_was_shut_down_is_charged);
	tcase_add_test(c, a_burst_of_requests_waits_for_its_turn);
	tcase_add_test(c, a_request_that_waits_ends_with_its_connection);
	tcase_add_test(c, each_request_may_wait_as_long);
	return suite_run(s);
}
