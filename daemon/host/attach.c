/* SPDX-License-Identifier: Apache-2.0 */
/* The attach socket: receives requests for memory from trainers, sends them descriptors, and counts those that the
 * trainers have not received yet. Loop thread. */
#include "host/attach.h"

#include "base/array.h"
#include "base/descriptors.h"
#include "base/log.h"
#include "base/packet.h"
#include "proto/failpoint.h"

#include <uv.h>
#include <errno.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define HOLD_MS 2000 /* so long a request waits for room before it is refused */
#define HELD_LOOK_MS 2
#define WARN_MS 60000
#define LINGER_LOOK_MS 100

struct conn {
	struct attach *attach;
	uint64_t id;
	struct listen_peer peer;
	int fd;
	bool requested;		/* the edge knows it */
	bool mapped;		/* the peer was sent descriptors */
	bool held;		/* its request waits in the socket */
	uint64_t held_since_ms; /* 0: it has not been held */
	bool noted;
	struct attach_note note;
	struct charge *charge;
	uv_poll_t socket;
};

/* Descriptors that were sent and not received. They are in flight until the peer has taken them or the last reference
 * to its socket is gone, whichever process has that, or none: a socket can be in flight itself. Only our end knows:
 * SIOCOUTQ counts what is unread. */
struct charge {
	struct charge *next;
	struct conn *conn; /* NULL: it has ended, and fd is ours */
	uid_t uid;
	uint32_t n;
	int fd;
};

struct attach {
	uv_loop_t *loop;
	struct listener *listener;
	struct attach_events events;
	void *arg;
	uint64_t last_id;
	uint32_t in_flight_limit;
	bool warned;
	uint64_t warned_ms;
	struct conn **conn; /* ascending by id: one that ends costs no walk over all others */
	size_t n_conns;
	uint32_t conns_capacity;
	struct charge *charges;
	uv_timer_t timer; /* runs while there is something that no event tells of */
};

/* ---- what was sent and not received ---- */

static void end_charge(struct charge **at)
{
	struct charge *g = *at;
	*at = g->next;
	if (g->conn)
		g->conn->charge = NULL;
	else
		close(g->fd);
	free(g);
}

static void settle(struct attach *a)
{
	for (struct charge **at = &a->charges; *at;) {
		int unread = 0;
		if (!ioctl((*at)->fd, SIOCOUTQ, &unread) && unread)
			at = &(*at)->next;
		else
			end_charge(at);
	}
}

static uint32_t charged(const struct attach *a, uid_t uid)
{
	uint32_t n = 0;
	for (const struct charge *g = a->charges; g; g = g->next)
		n += g->uid == uid ? g->n : 0;
	return n;
}

/* A user may have half of what others leave, so that something is left for the next user. */
static uint32_t share_of(struct attach *a, uid_t uid)
{
	uint32_t all = 0;
	settle(a);
	for (const struct charge *g = a->charges; g; g = g->next)
		all += g->uid == uid ? 0 : g->n;
	return all < a->in_flight_limit ? (a->in_flight_limit - all) / 2 : 0;
}

static bool has_room(struct attach *a, uid_t uid)
{
	uint32_t share = share_of(a, uid);
	return charged(a, uid) + ATTACH_FDS_PER_MAP <= share;
}

static bool add_charge(struct conn *c, uint32_t n)
{
	struct charge *g = c->charge ? c->charge : calloc(1, sizeof(*g));
	if (!g)
		return false;
	if (!c->charge) {
		*g = (struct charge){ .next = c->attach->charges, .conn = c, .uid = c->peer.uid, .fd = c->fd };
		c->attach->charges = c->charge = g;
	}
	g->n += n;
	return true;
}

static void on_time(uv_timer_t *t);

static void look_in(struct attach *a, uint64_t ms)
{
	if (!uv_is_active((uv_handle_t *)&a->timer) || uv_timer_get_due_in(&a->timer) > ms)
		uv_timer_start(&a->timer, on_time, ms, 0);
}

/* ---- connections ---- */

static void on_socket_closed(uv_handle_t *h)
{
	struct conn *c = h->data;
	shutdown(c->fd, SHUT_RDWR); /* the listener counts it by a duplicate */
	if (c->charge)
		settle(c->attach);
	if (c->charge) {
		c->charge->conn = NULL; /* which closes it when its descriptors are no longer in flight */
		look_in(c->attach, LINGER_LOOK_MS);
	} else {
		close(c->fd);
	}
	free(c);
}

/* Where the connection with this id is, or would be. */
static size_t place_of(const struct attach *a, uint64_t id)
{
	size_t lo = 0, hi = a->n_conns;
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		if (a->conn[mid]->id < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static struct conn *find(const struct attach *a, uint64_t id)
{
	size_t at = place_of(a, id);
	return at < a->n_conns && a->conn[at]->id == id ? a->conn[at] : NULL;
}

/* Its memory lives until its handle is closed. */
static void forget(struct conn *c)
{
	struct attach *a = c->attach;
	size_t at = place_of(a, c->id);
	memmove(&a->conn[at], &a->conn[at + 1], (--a->n_conns - at) * sizeof(*a->conn));
	uv_close((uv_handle_t *)&c->socket, on_socket_closed);
}

static void end_conn(struct conn *c)
{
	struct attach *a = c->attach;
	uint64_t id = c->id;
	bool known = c->requested, noted = c->noted;
	struct attach_note note = c->note;
	forget(c);
	if (known)
		a->events.closed(a->arg, id, noted ? &note : NULL);
}

/* Why a packet is not taken; false: it is. */
static bool is_refused(const struct conn *c, ssize_t n, int flags, char *why, size_t n_why)
{
	if (flags & MSG_TRUNC)
		snprintf(why, n_why, "a packet of %zd bytes, at most %d are allowed: send one MapRequest", n,
			 ATTACH_MAX_REQUEST);
	else if (flags & MSG_CTRUNC)
		snprintf(why, n_why, "a packet of %zd bytes with ancillary data: send the MapRequest alone", n);
	else if (c->mapped)
		snprintf(why, n_why,
			 "a packet behind a MapRequest that was granted: make a new connection for another");
	else
		return false;
	return true;
}

static void refuse_packet(struct conn *c, enum status st, const char *why)
{
	log_debug("attach socket: uid %u (pid %d): %s", (unsigned)c->peer.uid, (int)c->peer.pid, why);
	c->attach->events.refused(c->attach->arg, c->id, st, why);
	end_conn(c);
}

static void on_readable(uv_poll_t *h, int status, int events);

/* Once a minute, because a client that is refused can repeat as often as it likes. */
static void warn(struct attach *a, const char *why)
{
	uint64_t now = uv_now(a->loop);
	if (a->warned && now - a->warned_ms < WARN_MS)
		return;
	a->warned = true;
	a->warned_ms = now;
	log_warn("attach socket: %s", why);
}

/* The request stays in the socket until those before it have been received, which honest clients do at once. false: it
 * has waited long enough. */
static bool hold(struct conn *c)
{
	uint64_t now = uv_now(c->attach->loop);
	if (!c->held_since_ms)
		c->held_since_ms = now ? now : 1;
	if (now - c->held_since_ms >= HOLD_MS)
		return false;
	c->held = true;
	uv_poll_start(&c->socket, UV_DISCONNECT, on_readable);
	look_in(c->attach, HELD_LOOK_MS);
	return true;
}

static void release(struct conn *c)
{
	c->held = false;
	uv_poll_start(&c->socket, UV_READABLE | UV_DISCONNECT, on_readable);
}

static void read_packet(struct conn *c, bool room)
{
	char bytes[ATTACH_MAX_REQUEST], why[256];
	struct iovec iov = { bytes, sizeof(bytes) };
	/* No room for ancillary data: the kernel drops descriptors that a client sends, and says MSG_CTRUNC. */
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t n = recvmsg(c->fd, &m, MSG_DONTWAIT | MSG_TRUNC);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		end_conn(c);
	} else if (is_refused(c, n, m.msg_flags, why, sizeof(why))) {
		refuse_packet(c, ST_MALFORMED, why);
	} else if (!room) {
		snprintf(why, sizeof(why),
			 "%u descriptors that uid %u was sent have not been received, of %u that it may have now: end "
			 "the processes that have connections to the attach socket and do not read them",
			 charged(c->attach, c->peer.uid), (unsigned)c->peer.uid, share_of(c->attach, c->peer.uid));
		warn(c->attach, why);
		refuse_packet(c, ST_RESOURCE_EXHAUSTED, why);
	} else {
		c->held_since_ms = 0;
		c->requested = true;
		c->attach->events.request(c->attach->arg, c->id, &c->peer, bytes, (size_t)n);
	}
}

static void on_readable(uv_poll_t *h, int status, int events)
{
	struct conn *c = h->data;
	if (c->held) { /* only the end is watched for */
		end_conn(c);
		return;
	}
	bool room = c->mapped || has_room(c->attach, c->peer.uid);
	if (room || !hold(c))
		read_packet(c, room);
}

static void on_time(uv_timer_t *t)
{
	struct attach *a = t->data;
	bool held = false;
	settle(a);
	for (size_t i = 0; i < a->n_conns; i++) {
		struct conn *c = a->conn[i];
		held |= c->held;
		if (c->held && (has_room(a, c->peer.uid) || uv_now(a->loop) - c->held_since_ms >= HOLD_MS))
			release(c);
	}
	if (held || a->charges)
		look_in(a, held ? HELD_LOOK_MS : LINGER_LOOK_MS);
}

static void on_conn(void *arg, int fd, const struct listen_peer *peer)
{
	struct attach *a = arg;
	struct conn **all = array_grow(a->conn, a->n_conns, &a->conns_capacity, sizeof(struct conn *));
	struct conn *c = all ? calloc(1, sizeof(*c)) : NULL;
	a->conn = all ? all : a->conn;
	if (!c || uv_poll_init(a->loop, &c->socket, fd)) {
		free(c);
		shutdown(fd, SHUT_RDWR);
		close(fd);
		return;
	}
	c->attach = a;
	c->id = ++a->last_id;
	c->fd = fd;
	c->peer = *peer;
	c->socket.data = c;
	uv_poll_start(&c->socket, UV_READABLE | UV_DISCONNECT, on_readable);
	a->conn[a->n_conns++] = c;
}

enum status attach_reply(struct attach *a, uint64_t conn, const void *bytes, size_t n, const int *fds, size_t n_fds)
{
	struct conn *c = find(a, conn);
	if (!c)
		return ST_SESSION_UNKNOWN;
	if (n_fds > PACKET_MAX_FDS)
		return ST_INVALID_ARGUMENT;
	if (n_fds && !add_charge(c, (uint32_t)n_fds))
		return ST_NO_MEMORY;
	int r = FAILPOINT_ERROR(gaccd_map_before) ? -EPIPE
						  : packet_send(c->fd, bytes, (uint32_t)n, NULL, 0, fds, (int)n_fds);
	if (r) {
		/* it has died: its lease says so */
		enum log_level level = r == -EPIPE || r == -ECONNRESET ? LOG_INFO : LOG_WARN;
		log_line(level, LOG_NO_FIELDS, "attach socket: uid %u (pid %d): %s: closed", (unsigned)c->peer.uid,
			 (int)c->peer.pid, strerror(-r));
		shutdown(c->fd, SHUT_RDWR); /* closed follows from the loop, not from inside this call */
		return ST_UNAVAILABLE;
	}
	FAILPOINT(gaccd_map_after);
	c->mapped |= n_fds > 0;
	return ST_OK;
}

void attach_set_note(struct attach *a, uint64_t conn, const struct attach_note *note)
{
	struct conn *c = find(a, conn);
	if (!c)
		return;
	c->noted = true;
	c->note = *note;
}

enum status attach_open(void *loop, const struct listen_opts *o, const struct attach_events *events, void *arg,
			struct attach **out)
{
	struct attach *a = calloc(1, sizeof(*a));
	if (!a)
		return ST_NO_MEMORY;
	struct listen_opts packets = *o;
	packets.packets = true;
	a->loop = loop;
	a->events = *events;
	a->arg = arg;
	uint64_t eighth = descriptors_limit() / 8;
	a->in_flight_limit = eighth < ATTACH_IN_FLIGHT ? (uint32_t)eighth : ATTACH_IN_FLIGHT;
	enum status st = listener_open(loop, &packets, on_conn, a, &a->listener);
	if (st) {
		free(a);
		return st;
	}
	uv_timer_init(loop, &a->timer);
	a->timer.data = a;
	*out = a;
	return ST_OK;
}

void attach_heal(struct attach *a)
{
	if (a)
		listener_heal(a->listener);
}

static void on_closed(uv_handle_t *h)
{
	free(h->data);
}

void attach_close(struct attach *a)
{
	if (!a)
		return;
	listener_close(a->listener);
	while (a->charges)
		end_charge(&a->charges);
	while (a->n_conns)
		forget(a->conn[a->n_conns - 1]);
	free(a->conn);
	uv_close((uv_handle_t *)&a->timer, on_closed);
}
