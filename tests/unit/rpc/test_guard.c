/* SPDX-License-Identifier: Apache-2.0 */
/* Connections that are watched, with the sockets' other ends here. */
#include "rpc/guard.h"
#include "rpc/connect_rate.h"
#include "rpc/frames.h"
#include "support/suite.h"

#include <check.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HEADERS = 1, RST_STREAM = 3, SETTINGS = 4, PING = 6, GOAWAY = 7 };
enum { ACK = 1, END_HEADERS = 4 };
#define STREAMS 10
#define SETTINGS_BYTES 1800 /* 300 of them */
#define CALLS 25	    /* that fit into max_call_bytes */

static struct rpc_guards guards;
static int ours, theirs;

static void send_bytes(const void *data, size_t n)
{
	ck_assert_int_eq(write(theirs, data, n), n);
}

static void send_frame(unsigned kind, unsigned flags, uint32_t id, size_t length)
{
	uint8_t frame[9 + SETTINGS_BYTES] = { 0,
					      (uint8_t)(length >> 8),
					      (uint8_t)length,
					      (uint8_t)kind,
					      (uint8_t)flags,
					      [7] = (uint8_t)(id >> 8),
					      (uint8_t)id };
	send_bytes(frame, 9 + length);
}

/* As gRPC reads. */
static ssize_t take(void)
{
	char first[5], rest[65536];
	struct iovec iov[] = { { first, sizeof(first) }, { rest, sizeof(rest) } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };
	return recvmsg(ours, &msg, 0);
}

static void answer(unsigned kind, unsigned flags, uint32_t id)
{
	uint8_t frame[9] = { [3] = (uint8_t)kind, (uint8_t)flags, [7] = (uint8_t)(id >> 8), (uint8_t)id };
	struct iovec iov[] = { { frame, 4 }, { frame + 4, 5 } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };
	ck_assert_int_eq(sendmsg(ours, &msg, 0), 9);
}

static void open_pair(void)
{
	int fd[2];
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
	ours = fd[0];
	theirs = fd[1];
	ck_assert_int_eq(rpc_guard_watch(&guards, ours, 7, 8), ST_OK);
	send_bytes("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
	ck_assert_int_eq(take(), 24);
}

static void close_pair(void)
{
	ck_assert_int_eq(close(ours), 0);
	ck_assert_int_eq(close(theirs), 0);
}

static void setup(void)
{
	guards = (struct rpc_guards){ .max_streams = STREAMS, .max_call_bytes = CALLS * FRAMES_CALL_BYTES };
	open_pair();
}

static void teardown(void)
{
	close_pair();
	rpc_guards_fini(&guards);
}

static void call(uint32_t id)
{
	send_frame(HEADERS, END_HEADERS, id, 0);
	ck_assert_int_eq(take(), 9);
}

/* GOAWAY says why, then the end; both sides of it. */
static void expect_goaway(const char *why)
{
	uint8_t sent[1024], *frame = sent;
	ssize_t n = read(theirs, sent, sizeof(sent));
	for (; n >= 9 && frame[3] != GOAWAY; n -= 9) /* answers */
		frame += 9;
	ck_assert_int_gt(n, 17);
	ck_assert(frame[2] == n - 9 && frame[16] == 11);
	ck_assert_ptr_nonnull(memmem(frame + 17, (size_t)n - 17, why, strlen(why)));
	ck_assert_int_eq(read(theirs, sent, sizeof(sent)), 0);
}

static void expect_cut(const char *why)
{
	ck_assert_int_eq(take(), -1);
	ck_assert_int_eq(errno, ECONNRESET);
	expect_goaway(why);
}

START_TEST(streams_of_a_connection)
{
	for (uint32_t i = 0; i < STREAMS; i++)
		call(2 * i + 1);
	answer(HEADERS, 1, 3);
	call(101);
	send_frame(HEADERS, END_HEADERS, 103, 0);
	expect_cut("more calls");
	ck_assert_int_eq(send(theirs, "x", 1, MSG_NOSIGNAL), -1);
}
END_TEST

static void calls(uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		call(first + 2 * i);
}

/* They count for the user until they end, or their connection. */
START_TEST(calls_of_a_user)
{
	int pair[4][2];
	for (int i = 0; i < 4; i++) {
		if (i > 0)
			open_pair();
		pair[i][0] = ours;
		pair[i][1] = theirs;
		calls(1, i < 2 ? STREAMS : i == 2 ? CALLS - 2 * STREAMS : 0);
	}
#define USE(i) (ours = pair[i][0], theirs = pair[i][1])
	USE(2);
	answer(HEADERS, 1, 1);
	calls(101, 1);
	USE(0);
	close_pair();
	USE(3);
	calls(1, STREAMS);
	USE(1);
	send_frame(RST_STREAM, 0, 1, 4);
	ck_assert_int_eq(take(), 13);
	calls(101, 1);
	USE(2);
	send_frame(HEADERS, END_HEADERS, 103, 0);
	expect_cut("memory");
	close_pair();
	USE(3);
	close_pair();
	USE(1);
}
END_TEST

START_TEST(frames_that_nobody_needs)
{
	int cut_after = 0;
	for (; cut_after < 100000; cut_after++) {
		send_frame(PING, ACK, 0, 8);
		if (take() < 0)
			break;
	}
	ck_assert_int_ge(cut_after, 1000);
	ck_assert_int_lt(cut_after, 100000);
	expect_goaway("too many frames");
}
END_TEST

/* Who comes back has used up what it had. */
START_TEST(a_user_comes_back)
{
	for (int round = 0; round < 3; round++) {
		int frames = 0;
		do {
			send_frame(PING, ACK, 0, 8);
			frames++;
		} while (take() > 0);
		ck_assert_int_lt(frames, round ? 1000 : 100000);
		close_pair();
		open_pair();
	}
}
END_TEST

/* Too often: then new connections have to wait, those that are there not. */
START_TEST(a_user_comes_back_again_and_again)
{
	int n = 0, old[] = { ours, theirs }, pair[2];
	enum status st = ST_OK;
	for (; n < 100 && st == ST_OK; n++) {
		ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
		ours = pair[0];
		theirs = pair[1];
		st = rpc_guard_watch(&guards, ours, 7, 8);
		if (st == ST_OK) {
			send_bytes("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
			for (uint32_t i = 0; i <= STREAMS; i++)
				send_frame(HEADERS, END_HEADERS, 2 * i + 1, 0);
			expect_cut("more calls");
		}
		close_pair();
	}
	ck_assert_int_eq(st, ST_RESOURCE_EXHAUSTED);
	ck_assert(n > 5 && n < 100);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair), 0);
	ours = pair[0];
	theirs = pair[1];
	ck_assert_int_eq(rpc_guard_watch(&guards, ours, 9, 8), ST_OK); /* another user */
	close_pair();
	ours = old[0];
	theirs = old[1];
	calls(1, STREAMS);
}
END_TEST

/* A connection that always has more to read: others have their turn, and its event comes again. */
START_TEST(one_gives_way_to_others)
{
	static uint8_t data[1 << 16];
	struct epoll_event event = { .events = EPOLLIN | EPOLLET, .data.u32 = 77 };
	int epoll = epoll_create1(0), turns = 0;
	ck_assert_int_eq(epoll_ctl(epoll, EPOLL_CTL_ADD, ours, &event), 0);
	for (size_t length = sizeof(data) - 9, taken = 0; taken < 256 * sizeof(data);) {
		uint8_t head[9] = { (uint8_t)(length >> 16), (uint8_t)(length >> 8), (uint8_t)length, 0, 0, [8] = 1 };
		memcpy(data, head, sizeof(head));
		if (taken % sizeof(data) == 0)
			send_bytes(data, sizeof(data));
		ssize_t n = take();
		if (n > 0) {
			taken += (size_t)n;
			continue;
		}
		ck_assert_int_eq(errno, EAGAIN);
		ck_assert_int_eq(epoll_wait(epoll, &event, 1, 0), 1);
		ck_assert(event.data.u32 == 77 && event.events & EPOLLIN);
		turns++;
	}
	ck_assert_int_ge(turns, 2);
	close(epoll);
}
END_TEST

static int listen_tcp(int *out_port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	ck_assert(!bind(fd, (struct sockaddr *)&at, n) && !listen(fd, 10) &&
		  !getsockname(fd, (struct sockaddr *)&at, &n));
	*out_port = ntohs(at.sin_port);
	return fd;
}

/* As gRPC accepts. */
static void connect_to(int listener, int port)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
				  .sin_port = htons((uint16_t)port) };
	theirs = socket(AF_INET, SOCK_STREAM, 0);
	ck_assert_int_eq(connect(theirs, (struct sockaddr *)&at, sizeof(at)), 0);
	ours = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
	ck_assert_int_ge(ours, 0);
	send_bytes("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
	ck_assert_int_eq(take(), 24);
}

START_TEST(callers_over_tcp)
{
	int port, other_port, listener = listen_tcp(&port), other = listen_tcp(&other_port);
	ck_assert_int_eq(accept4(listener, NULL, NULL, 0), -1);
	ck_assert_int_eq(errno, EAGAIN);
	close_pair();
	connect_to(other, other_port);
	calls(1, 3 * STREAMS); /* no one's */
	close_pair();
	ck_assert_int_eq(rpc_guard_listen(&guards, port, true), ST_OK);
	connect_to(other, other_port);
	calls(1, 3 * STREAMS);
	close_pair();
	connect_to(listener, port);
	calls(1, STREAMS);
	send_frame(HEADERS, END_HEADERS, 101, 0);
	expect_cut("more calls");
	close_pair();
	ck_assert_int_eq(rpc_guard_listen(&guards, port, false), ST_OK);
	connect_to(listener, port);
	calls(1, 3 * STREAMS); /* TLS: who knows what that is */
	close(listener);
	close(other);
}
END_TEST

/* From this address of loopback; false: closed before gRPC sees it. */
static bool comes_in(int listener, int port, uint32_t host)
{
	struct sockaddr_in from = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(host) }, at = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)
	};
	int caller = socket(AF_INET, SOCK_STREAM, 0);
	ck_assert_int_eq(bind(caller, (struct sockaddr *)&from, sizeof(from)), 0);
	ck_assert_int_eq(connect(caller, (struct sockaddr *)&at, sizeof(at)), 0);
	int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
	if (fd < 0)
		ck_assert_int_eq(errno, EINTR); /* so that gRPC goes on to the next */
	else
		close(fd);
	close(caller);
	return fd >= 0;
}

START_TEST(connections_that_come_too_fast)
{
	int port, listener = listen_tcp(&port), n = 0;
	ck_assert_int_eq(rpc_guard_listen(&guards, port, false), ST_OK);
	while (n < 3 * CONNECT_AT_ONCE && comes_in(listener, port, INADDR_LOOPBACK))
		n++;
	ck_assert(n >= CONNECT_AT_ONCE && n < 2 * CONNECT_AT_ONCE);
	ck_assert(comes_in(listener, port, INADDR_LOOPBACK + 1));
	/* with the token, on loopback, a connection costs little */
	ck_assert_int_eq(rpc_guard_listen(&guards, port, true), ST_OK);
	for (int i = 0; i < 2 * CONNECT_AT_ONCE; i++)
		ck_assert(comes_in(listener, port, INADDR_LOOPBACK));
	close(listener);
}
END_TEST

/* gRPC would never accept again. */
START_TEST(no_descriptor_left)
{
	int port, listener = listen_tcp(&port);
	struct rlimit limit;
	ck_assert_int_eq(rpc_guard_listen(&guards, port, true), ST_OK);
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
				  .sin_port = htons((uint16_t)port) };
	int caller = socket(AF_INET, SOCK_STREAM, 0);
	ck_assert_int_eq(connect(caller, (struct sockaddr *)&at, sizeof(at)), 0);
	ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 3, limit.rlim_max }), 0);
	int fd = accept4(listener, NULL, NULL, 0), error = errno;
	ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	ck_assert_int_eq(fd, -1);
	ck_assert_int_eq(error, EAGAIN);
	fd = accept4(listener, NULL, NULL, 0);
	ck_assert_int_ge(fd, 0);
	close(fd);
	close(caller);
	close(listener);
}
END_TEST

/* A connection that sends few such frames is not cut for what others of its user do. */
START_TEST(others_of_the_same_user)
{
	int quiet[] = { ours, theirs };
	open_pair();
	while (send_frame(PING, ACK, 0, 8), take() > 0)
		;
	close_pair();
	ours = quiet[0];
	theirs = quiet[1];
	send_frame(SETTINGS, 0, 0, SETTINGS_BYTES);
	ck_assert_int_eq(take(), 9 + SETTINGS_BYTES);
}
END_TEST

/* Nor for what it had sent before: it does not owe what its user's share has paid for. */
START_TEST(a_connection_earns_from_nothing)
{
	int busy[] = { ours, theirs };
	for (int i = 0; i < 5000; i++) {
		send_frame(PING, ACK, 0, 8);
		ck_assert_int_gt(take(), 0);
	}
	nanosleep(&(struct timespec){ .tv_nsec = 800000000 }, NULL); /* for four pings */
	for (int i = 0; i < 3; i++) {
		/* one frame might be paid by what the user's share has earned since it was used up */
		open_pair();
		while (send_frame(PING, ACK, 0, 8), take() > 0)
			;
		close_pair();
		ours = busy[0];
		theirs = busy[1];
		send_frame(PING, ACK, 0, 8);
		ck_assert_int_gt(take(), 0);
	}
}
END_TEST

/* A number that is used again is not watched. */
START_TEST(the_end_is_the_descriptors)
{
	int pair[2], number = ours;
	close_pair();
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	ck_assert(pair[0] == number || pair[1] == number);
	ours = number;
	theirs = pair[0] == number ? pair[1] : pair[0];
	for (uint32_t i = 0; i < 3 * STREAMS; i++)
		call(2 * i + 1);
	ck_assert_int_eq(rpc_guard_watch(&guards, ours, 7, 8), ST_OK);
}
END_TEST

/* What all know of their user is there as long as they are. */
START_TEST(a_connection_outlives_the_server)
{
	rpc_guards_fini(&guards);
	calls(1, STREAMS);
	send_frame(HEADERS, END_HEADERS, 101, 0);
	expect_cut("more calls");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("guard");
	TCase *c = tcase_create("guard");
	tcase_add_checked_fixture(c, setup, teardown);
	suite_add_tcase(s, c);
	tcase_add_test(c, streams_of_a_connection);
	tcase_add_test(c, calls_of_a_user);
	tcase_add_test(c, frames_that_nobody_needs);
	tcase_add_test(c, a_user_comes_back);
	tcase_add_test(c, a_user_comes_back_again_and_again);
	tcase_add_test(c, one_gives_way_to_others);
	tcase_add_test(c, callers_over_tcp);
	tcase_add_test(c, connections_that_come_too_fast);
	tcase_add_test(c, no_descriptor_left);
	tcase_add_test(c, others_of_the_same_user);
	tcase_add_test(c, a_connection_earns_from_nothing);
	tcase_add_test(c, the_end_is_the_descriptors);
	tcase_add_test(c, a_connection_outlives_the_server);
	return suite_run(s);
}
