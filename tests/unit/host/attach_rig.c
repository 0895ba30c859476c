/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of the attach socket share: a server on a loop of its own, a record of its events, and clients. */
#include "attach_rig.h"

#include "base/log.h"
#include "base/packet.h"
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
uv_loop_t loop;
struct attach *server;

/* What the edge was told, in order: "r1 c1". */
char story[4096];
uint64_t last_conn;
char request[ATTACH_MAX_REQUEST];
size_t n_request;
struct listen_peer requester;
int answer_with = -1; /* what each request gets at once */

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

char refusal[256];
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

void spin(void)
{
	for (int i = 0; i < 5; i++)
		uv_run(&loop, UV_RUN_NOWAIT);
}

/* For what no event of the loop tells of. */
void turn(void)
{
	uv_run(&loop, UV_RUN_NOWAIT);
	poll(NULL, 0, 1);
}

void wait_for(const char *what)
{
	while (!strstr(story, what))
		uv_run(&loop, UV_RUN_ONCE);
}

void attach_setup(void)
{
	ck_assert(scratch_make(dir));
	snprintf(path, sizeof(path), "%s/sock", dir);
	snprintf(lock, sizeof(lock), "%s.lock", path);
	ck_assert_int_eq(uv_loop_init(&loop), 0);
	struct listen_opts o = { .path = path, .mode = 0600, .max_per_uid = 4 * ATTACH_IN_FLIGHT };
	ck_assert_int_eq(attach_open(&loop, &o, &events, NULL, &server), ST_OK);
}

void attach_teardown(void)
{
	attach_close(server);
	spin();
	ck_assert_int_eq(uv_loop_close(&loop), 0);
	unlink(lock);
	ck_assert_int_eq(rmdir(dir), 0);
}

int client(void)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	strcpy(at.sun_path, path);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	return fd;
}

int asking_client(void)
{
	int c = client();
	ck_assert_int_eq(send(c, "map", 3, 0), 3);
	spin();
	return c;
}

/* An answer that nobody has read may come before the end. */
bool is_over(int fd)
{
	char c;
	ssize_t n;
	while ((n = recv(fd, &c, 1, MSG_DONTWAIT)) > 0)
		;
	return n == 0 || (n < 0 && errno != EAGAIN);
}

int open_fds(void)
{
	int n = 0;
	DIR *d = opendir("/proc/self/fd");
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* Receives one answer; returns the number of descriptors in fds. */
size_t receive(int c, char *text, size_t n_text, int *fds, size_t most)
{
	static char control[CMSG_SPACE(sizeof(int) * PACKET_MAX_FDS)];
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
