#include "host/attach.h"

#include "base/log.h"
#include "proto/failpoint.h"

#include <uv.h>

#include <errno.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

#define ABANDONED_PER_CONNECTION 4 /* of those below, per connection that a user may have */

struct conn {
	struct attach *attach;
	struct conn *next;
	uint64_t id;
	struct listen_peer peer;
	int fd;
	bool requested;     /* the edge knows it */
	bool mapped;        /* the peer got descriptors */
	uv_poll_t socket;
};

/* A connection that has ended with descriptors in it that the peer has not taken. They stay in flight for as long as the peer keeps its end
 * open, which nobody can see: at the latest until its process ends. */
struct abandoned {
	struct attach *attach;
	struct abandoned *next;
	uid_t uid;
	int pidfd;
	uv_poll_t process;
};

struct attach {
	uv_loop_t *loop;
	struct listener *listener;
	struct attach_events events;
	void *arg;
	uint64_t last_id;
	uint32_t max_per_uid;
	struct conn *conns;
	struct abandoned *abandoned;
};

/* ---- what was sent and never taken ---- */

static void on_abandoned_closed(uv_handle_t *h)
{
	struct abandoned *b = h->data;
	close(b->pidfd);
	free(b);
}

static void forget_abandoned(struct abandoned *b)
{
	struct abandoned **at = &b->attach->abandoned;
	while (*at != b)
		at = &(*at)->next;
	*at = b->next;
	uv_close((uv_handle_t *)&b->process, on_abandoned_closed);
}

static void on_death(uv_poll_t *h, int status, int events)
{
	forget_abandoned(h->data);
}

/* The kernel's own reference to the peer where it has one; else by number, which may have been used again if the peer died
 * after connecting. */
static int open_pidfd(int fd, pid_t pid)
{
	int pidfd = -1;
	socklen_t n = sizeof pidfd;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &n) == 0)
		return pidfd;
	return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

/* Of a connection that is about to be closed. Nothing is left of it to watch if its process is gone. */
static void note_abandoned(struct conn *c)
{
	int unread = 0;
	if (!c->mapped || ioctl(c->fd, SIOCOUTQ, &unread) || !unread)
		return;
	int pidfd = open_pidfd(c->fd, c->peer.pid);
	struct abandoned *b = pidfd >= 0 ? calloc(1, sizeof *b) : NULL;
	if (!b || uv_poll_init(c->attach->loop, &b->process, pidfd)) {
		if (pidfd >= 0)
			close(pidfd);
		free(b);
		return;
	}
	b->attach = c->attach;
	b->uid = c->peer.uid;
	b->pidfd = pidfd;
	b->process.data = b;
	b->next = c->attach->abandoned;
	c->attach->abandoned = b;
	uv_poll_start(&b->process, UV_READABLE, on_death);
}

static uint32_t abandoned_of(const struct attach *a, uid_t uid)
{
	uint32_t n = 0;
	for (const struct abandoned *b = a->abandoned; b; b = b->next)
		n += b->uid == uid;
	return n;
}

/* ---- connections ---- */

static void on_socket_closed(uv_handle_t *h)
{
	struct conn *c = h->data;
	shutdown(c->fd, SHUT_RDWR); /* the listener counts it by a duplicate */
	close(c->fd);
	free(c);
}

/* Its memory lives until its handle is closed. */
static void forget(struct conn *c)
{
	struct conn **at = &c->attach->conns;
	while (*at != c)
		at = &(*at)->next;
	*at = c->next;
	uv_close((uv_handle_t *)&c->socket, on_socket_closed);
}

static void end_conn(struct conn *c)
{
	struct attach *a = c->attach;
	uint64_t id = c->id;
	bool known = c->requested;
	note_abandoned(c);
	forget(c);
	if (known)
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
	end_conn(c);
}

static void on_conn(void *arg, int fd, const struct listen_peer *peer)
{
	struct attach *a = arg;
	struct conn *c = calloc(1, sizeof *c);
	if (!c)
		goto refuse;
	if (abandoned_of(a, peer->uid) >= a->max_per_uid * ABANDONED_PER_CONNECTION) {
		log_warn("attach socket: live processes of uid %u have not taken what %u earlier connections sent: refused",
			 (unsigned)peer->uid, a->max_per_uid * ABANDONED_PER_CONNECTION);
		goto refuse;
	}
	if (uv_poll_init(a->loop, &c->socket, fd))
		goto refuse;
	c->attach = a;
	c->id = ++a->last_id;
	c->fd = fd;
	c->peer = *peer;
	c->socket.data = c;
	uv_poll_start(&c->socket, UV_READABLE | UV_DISCONNECT, on_readable);
	c->next = a->conns;
	a->conns = c;
	return;
refuse:
	free(c);
	shutdown(fd, SHUT_RDWR);
	close(fd);
}

static struct conn *find(const struct attach *a, uint64_t id)
{
	struct conn *c = a->conns;
	while (c && c->id != id)
		c = c->next;
	return c;
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
	if (!c)
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
	while (a->abandoned)
		forget_abandoned(a->abandoned);
	free(a);
}
