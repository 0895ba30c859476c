/* SPDX-License-Identifier: Apache-2.0 */
/* Lets tests arm failpoints in a running gaccd, a text command per line. Part of builds with GACC_FAILPOINTS only.
 * Loop thread. */
#include "host/failpoint_socket.h"

#include "base/log.h"
#include "host/listen.h"
#include "proto/failpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#define MAX_LINE 256
#define MAX_ANSWER 32768

struct tester {
	struct tester *next;
	struct failpoint_socket *owner;
	uv_poll_t poll;
	int fd;
	char line[MAX_LINE];
	size_t n;
};

struct failpoint_socket {
	uv_loop_t *loop;
	struct listener *listener;
	struct tester *testers;
};

static void on_closed(uv_handle_t *h)
{
	struct tester *t = h->data;
	shutdown(t->fd, SHUT_RDWR); /* the listener counts it by a duplicate */
	close(t->fd);
	free(t);
}

static void drop(struct tester *t)
{
	struct tester **at = &t->owner->testers;
	while (*at != t)
		at = &(*at)->next;
	*at = t->next;
	uv_close((uv_handle_t *)&t->poll, on_closed);
}

/* Answers all whole lines; false: the answer cannot be sent. */
static bool answer_lines(struct tester *t)
{
	static char answer[MAX_ANSWER];
	char *end;
	while ((end = memchr(t->line, '\n', t->n))) {
		size_t used = (size_t)(end - t->line) + 1;
		*end = '\0';
		failpoint_command(t->line, answer, sizeof(answer));
		size_t n = strlen(answer);
		if (send(t->fd, answer, n, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)n)
			return false;
		t->n -= used;
		memmove(t->line, t->line + used, t->n);
	}
	return t->n < sizeof(t->line);
}

static void on_readable(uv_poll_t *h, int status, int events)
{
	struct tester *t = h->data;
	ssize_t n = recv(t->fd, t->line + t->n, sizeof(t->line) - t->n, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n > 0)
		t->n += (size_t)n;
	if (n <= 0 || !answer_lines(t))
		drop(t);
}

static void on_connection(void *arg, int fd, const struct listen_peer *peer)
{
	struct failpoint_socket *s = arg;
	bool allowed = peer->uid == 0 || peer->uid == geteuid();
	struct tester *t = allowed ? calloc(1, sizeof(*t)) : NULL;
	if (!allowed)
		log_warn("failpoints: uid %u (pid %d) may not arm them", (unsigned)peer->uid, (int)peer->pid);
	if (!t || uv_poll_init(s->loop, &t->poll, fd)) {
		free(t);
		shutdown(fd, SHUT_RDWR);
		close(fd);
		return;
	}
	t->owner = s;
	t->fd = fd;
	t->poll.data = t;
	t->next = s->testers;
	s->testers = t;
	uv_poll_start(&t->poll, UV_READABLE | UV_DISCONNECT, on_readable);
}

enum status failpoint_socket_open(void *loop, const char *runtime_dir, struct failpoint_socket **out)
{
	char path[4096];
	struct listen_opts o = { .path = path, .mode = 0600 };
	struct failpoint_socket *s = calloc(1, sizeof(*s));
	if (!s)
		return ST_NO_MEMORY;
	s->loop = loop;
	snprintf(path, sizeof(path), "%s/failpoints.sock", runtime_dir);
	enum status st = listener_open(loop, &o, on_connection, s, &s->listener);
	if (st) {
		free(s);
		return st;
	}
	*out = s;
	return ST_OK;
}

void failpoint_socket_close(struct failpoint_socket *s)
{
	if (!s)
		return;
	listener_close(s->listener);
	while (s->testers)
		drop(s->testers);
	free(s);
}
