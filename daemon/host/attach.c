#include "host/attach.h"

#include "base/log.h"
#include "proto/failpoint.h"

#include <uv.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LINGERING_PER_CONNECTION 4 /* dead connections of live processes, per connection that a user may have */

/* A connection, and after its end the process that still maps what it got. */
struct conn {
	struct attach *attach;
	struct conn *next;
	uint64_t id;
	struct listen_peer peer;
	int fd;             /* -1: closed */
	bool requested;     /* the edge knows it */
	bool mapped;        /* the peer got descriptors */
	bool dead;          /* the peer's process is */
	uv_poll_t socket, process;
	int n_handles;      /* open ones; the last to close frees */
};

struct attach {
	uv_loop_t *loop;
	struct listener *listener;
	struct attach_events events;
	void *arg;
	uint64_t last_id;
	uint32_t max_per_uid;
	struct conn *conns;
};

static void free_conn(struct conn *c)
{
	if (c->fd >= 0) {
		shutdown(c->fd, SHUT_RDWR); /* the listener counts it by a duplicate */
		close(c->fd);
	}
	if (c->peer.pidfd >= 0)
		close(c->peer.pidfd);
	free(c);
}

static void on_handle_closed(uv_handle_t *h)
{
	struct conn *c = h->data;
	if (--c->n_handles == 0)
		free_conn(c);
}

/* Takes it out of the list; its memory lives until its handles are closed. */
static void forget(struct conn *c)
{
	struct conn **at = &c->attach->conns;
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	if (!uv_is_closing((uv_handle_t *)&c->socket))
		uv_close((uv_handle_t *)&c->socket, on_handle_closed);
	if (c->peer.pidfd >= 0 && !uv_is_closing((uv_handle_t *)&c->process))
		uv_close((uv_handle_t *)&c->process, on_handle_closed);
}

/* Ends the socket. The record stays while a process that maps our memory is alive. */
static void end_socket(struct conn *c, bool tell)
{
	struct attach *a = c->attach;
	uint64_t id = c->id;
	bool known = c->requested;
	if (c->mapped && c->peer.pidfd >= 0 && !c->dead) {
		uv_close((uv_handle_t *)&c->socket, on_handle_closed);
		shutdown(c->fd, SHUT_RDWR);
		close(c->fd);
		c->fd = -1;
	} else {
		forget(c);
	}
	if (tell && known)
		a->events.closed(a->arg, id);
}

/* Why a packet is not taken; false: it is. Who could map over and over on one connection would fill it with descriptors in flight, of
 * which all users together may have RLIMIT_NOFILE. */
static bool is_refused(const struct conn *c, ssize_t n, int flags, char *why, size_t n_why)
{
	if (flags & MSG_TRUNC)
		snprintf(why, n_why, "a packet of %zd bytes, at most %d are allowed: send one MapRequest", n, ATTACH_MAX_REQUEST);
	else if (flags & MSG_CTRUNC)
		snprintf(why, n_why, "a packet of %zd bytes with ancillary data: send the MapRequest alone", n);
	else if (c->mapped)
		snprintf(why, n_why, "a packet behind a MapRequest that was granted: make a new connection for another");
	else
		return false;
	return true;
}

static void on_readable(uv_poll_t *h, int status, int events)
{
	struct conn *c = h->data;
	char bytes[ATTACH_MAX_REQUEST], why[128];
	struct iovec iov = { bytes, sizeof bytes };
	/* No room for ancillary data: descriptors that a client sends are dropped by the kernel and show as MSG_CTRUNC. */
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t n = recvmsg(c->fd, &m, MSG_DONTWAIT | MSG_TRUNC);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n > 0 && !is_refused(c, n, m.msg_flags, why, sizeof why)) {
		c->requested = true;
		c->attach->events.request(c->attach->arg, c->id, &c->peer, bytes, (size_t)n);
		return;
	}
	if (n > 0) {
		log_debug("attach socket: uid %u (pid %d) sent %s", (unsigned)c->peer.uid, (int)c->peer.pid, why);
		c->attach->events.refused(c->attach->arg, c->id, why);
	}
	end_socket(c, true);
}

static void on_death(uv_poll_t *h, int status, int events)
{
	struct conn *c = h->data;
	struct attach *a = c->attach;
	uint64_t id = c->id;
	bool tell = c->mapped;
	c->dead = true;
	if (c->fd < 0)
		forget(c);
	else /* the socket's end is an event of its own: a child of the process may hold it */
		uv_poll_stop(&c->process);
	if (tell)
		a->events.died(a->arg, id);
}

static bool watch_process(struct conn *c)
{
	if (c->peer.pidfd < 0)
		return false;
	if (uv_poll_init(c->attach->loop, &c->process, c->peer.pidfd)) {
		close(c->peer.pidfd);
		c->peer.pidfd = -1;
		return false;
	}
	uv_poll_start(&c->process, UV_READABLE, on_death);
	return true;
}

static uint32_t lingering_of(const struct attach *a, uid_t uid)
{
	uint32_t n = 0;
	for (const struct conn *c = a->conns; c; c = c->next)
		n += c->peer.uid == uid && c->fd < 0;
	return n;
}

static void on_conn(void *arg, int fd, const struct listen_peer *peer)
{
	struct attach *a = arg;
	struct conn *c = calloc(1, sizeof *c);
	if (!c)
		goto refuse;
	if (lingering_of(a, peer->uid) >= a->max_per_uid * LINGERING_PER_CONNECTION) {
		log_warn("attach socket: live processes of uid %u still map what %u earlier connections got: refused",
			 (unsigned)peer->uid, a->max_per_uid * LINGERING_PER_CONNECTION);
		goto refuse;
	}
	if (uv_poll_init(a->loop, &c->socket, fd))
		goto refuse;
	c->attach = a;
	c->id = ++a->last_id;
	c->fd = fd;
	c->peer = *peer;
	c->socket.data = c->process.data = c;
	c->n_handles = 1;
	if (watch_process(c))
		c->n_handles = 2;
	uv_poll_start(&c->socket, UV_READABLE | UV_DISCONNECT, on_readable);
	c->next = a->conns;
	a->conns = c;
	return;
refuse:
	free(c);
	shutdown(fd, SHUT_RDWR);
	close(fd);
	if (peer->pidfd >= 0)
		close(peer->pidfd);
}

static struct conn *find(const struct attach *a, uint64_t id)
{
	struct conn *c = a->conns;
	while (c && c->id != id)
		c = c->next;
	return c && c->fd >= 0 ? c : NULL;
}

enum status attach_reply(struct attach *a, uint64_t conn, const void *bytes, size_t n, const int *fds, size_t n_fds)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int) * ATTACH_MAX_FDS)];
	} control = { 0 };
	struct iovec iov = { (void *)(uintptr_t)bytes, n };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct conn *c = find(a, conn);
	if (!c || c->dead)
		return ST_SESSION_UNKNOWN;
	if (n_fds > ATTACH_MAX_FDS)
		return ST_INVALID_ARGUMENT;
	if (n_fds) {
		m.msg_control = control.bytes;
		m.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
		struct cmsghdr *h = CMSG_FIRSTHDR(&m);
		h->cmsg_level = SOL_SOCKET;
		h->cmsg_type = SCM_RIGHTS;
		h->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
		memcpy(CMSG_DATA(h), fds, sizeof(int) * n_fds);
	}
	ssize_t sent = -1;
	errno = EPIPE;
	if (!FAILPOINT_ERROR(gaccd_map_before))
		while ((sent = sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT)) < 0 && errno == EINTR)
			;
	if (sent < 0) {
		enum log_level level = errno == EPIPE || errno == ECONNRESET ? LOG_INFO : LOG_WARN; /* it has died: its lease says so */
		log_line(level, LOG_NO_FIELDS, "attach socket: uid %u (pid %d): %s: closed", (unsigned)c->peer.uid, (int)c->peer.pid,
			 strerror(errno));
		shutdown(c->fd, SHUT_RDWR); /* closed follows from the loop, not from inside this call */
		return ST_UNAVAILABLE;
	}
	FAILPOINT(gaccd_map_after);
	c->mapped |= n_fds > 0;
	return ST_OK;
}

void attach_drop(struct attach *a, uint64_t conn)
{
	struct conn *c = find(a, conn);
	if (c)
		end_socket(c, false);
}

enum status attach_open(void *loop, const struct listen_opts *o, const struct attach_events *events, void *arg,
			struct attach **out)
{
	struct attach *a = calloc(1, sizeof *a);
	if (!a)
		return ST_NO_MEMORY;
	struct listen_opts packets = *o;
	packets.packets = true;
	a->loop = loop;
	a->events = *events;
	a->arg = arg;
	a->max_per_uid = o->max_per_uid ? o->max_per_uid : 256;
	enum status st = listener_open(loop, &packets, on_conn, a, &a->listener);
	if (st) {
		free(a);
		return st;
	}
	*out = a;
	return ST_OK;
}

void attach_heal(struct attach *a)
{
	if (a)
		listener_heal(a->listener);
}

void attach_close(struct attach *a)
{
	if (!a)
		return;
	listener_close(a->listener);
	while (a->conns)
		forget(a->conns);
	free(a);
}
