/* SPDX-License-Identifier: Apache-2.0 */
/* Interposes the system calls through which gRPC reads and writes its connections: inspects what each client sends,
 * counts it for its user, and closes connections that exceed the limits. gRPC's threads. */
#include "rpc/guard_impl.h"
#include "rpc/connect_rate.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* useless frames that each connection may send even when others of its user have used up the common allowance */
#define OWN_PER_S 20
#define OWN_AT_ONCE 500
#define TCP_CONNECTIONS 1024
#define TURN_BYTES (4u << 20)  /* that gRPC reads from a connection before the others get a turn */
#define CALL_BYTES (64u << 10) /* what a call counts for in that, beside its bytes */
#define FRAME_BYTES 512	       /* likewise, a frame */
#define CLIENT_NAME 48
#define PAGE 256
#define PAGES 4096 /* descriptors beyond have no guard and are refused */

/* A connection, by the number of its descriptor. `guard` is set and taken away by whoever owns the descriptor; the rest
 * is `lock`'s. */
struct watched {
	pthread_mutex_t lock;
	_Atomic(struct rpc_guard *) guard;
	struct frames frames;
	size_t bytes; /* of guard->call_bytes */
	struct bucket idle;
	size_t turn; /* bytes read since the others had a turn */
	int epoll;   /* gRPC's, which has `event` for it; -1: not yet */
	struct epoll_event event;
	pid_t pid;
	bool plain; /* not TLS, which hides the frames */
	bool cut;
};

static _Atomic(struct watched *) pages[PAGES];
static pthread_mutex_t pages_lock = PTHREAD_MUTEX_INITIALIZER;

/* gRPC's own listener. */
static struct {
	_Atomic(struct rpc_guard *) guard; /* NULL: there is none */
	int port;
	bool plain;
	struct connect_rate rate; /* with TLS; under the guard's lock, like `fast` */
	struct said fast;
} tcp;

static int64_t now_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

static void fill(struct bucket *b, int64_t most, int64_t per_s, int64_t now)
{
	int64_t one = NS_PER_S / per_s, come = (now - b->at_ns) / one;
	b->left = come < most - b->left ? b->left + come : most;
	b->at_ns += come * one;
}

/* false: less than n was left, and now nothing is. */
static bool take(struct bucket *b, int64_t n)
{
	b->left -= n;
	if (b->left >= 0)
		return true;
	b->left = 0;
	return false;
}

/* Charges the user for what this connection has caused since the last call. NULL, or the reason to close it. */
static const char *charge(struct rpc_guard *guard, struct watched *w, int64_t now)
{
	const char *why = NULL;
	pthread_mutex_lock(&guard->lock);
	guard->call_bytes += w->frames.bytes - w->bytes;
	if (w->frames.bytes > w->bytes && guard->call_bytes > guard->max_call_bytes)
		why = "your calls and their headers take more memory than a user may have";
	w->bytes = w->frames.bytes;
	fill(&guard->idle, GUARD_IDLE_AT_ONCE, GUARD_IDLE_PER_S, now);
	fill(&w->idle, OWN_AT_ONCE, OWN_PER_S, now);
	bool own = take(&w->idle, w->frames.idle), all = take(&guard->idle, w->frames.idle);
	if (!own && !all && !why)
		why = "too many frames that are no call and no data";
	w->frames.idle = 0;
	pthread_mutex_unlock(&guard->lock);
	return why;
}

/* ---- connections ---- */

static struct watched *find(int fd)
{
	if (fd < 0 || fd / PAGE >= PAGES)
		return NULL;
	struct watched *page = atomic_load_explicit(&pages[fd / PAGE], memory_order_acquire);
	struct watched *w = page ? &page[fd % PAGE] : NULL;
	return w && atomic_load_explicit(&w->guard, memory_order_acquire) ? w : NULL;
}

static struct watched *make_page(void)
{
	struct watched *page = calloc(PAGE, sizeof(*page));
	for (int i = 0; page && i < PAGE; i++)
		pthread_mutex_init(&page[i].lock, NULL);
	return page;
}

/* Pages are never freed. NULL: out of memory, or the number is too large. */
static struct watched *place_of(int fd)
{
	if (fd / PAGE >= PAGES)
		return NULL;
	pthread_mutex_lock(&pages_lock);
	struct watched *page = atomic_load(&pages[fd / PAGE]);
	if (!page) {
		page = make_page();
		atomic_store(&pages[fd / PAGE], page);
	}
	pthread_mutex_unlock(&pages_lock);
	return page ? &page[fd % PAGE] : NULL;
}

/* GOAWAY (RFC 9113, 6.8): last stream, code, text. If gRPC has sent only a part of a frame, the client cannot read this
 * and merely sees the connection end. */
static void send_goaway(int fd, uint32_t last, const char *why)
{
	enum { GOAWAY = 7, ENHANCE_YOUR_CALM = 11 };
	size_t n = strlen(why);
	uint8_t frame[9 + 8 + 128] = {
		[2] = (uint8_t)(8 + n), [3] = GOAWAY,  [9] = (uint8_t)(last >> 24), (uint8_t)(last >> 16),
		(uint8_t)(last >> 8),	(uint8_t)last, [16] = ENHANCE_YOUR_CALM
	};
	memcpy(frame + 17, why, n);
	if (send(fd, frame, 17 + n, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		return; /* it does not read */
}

static enum status watch(struct rpc_guard *guard, int fd, pid_t pid, bool plain)
{
	int64_t now = now_ns();
	struct watched *w = place_of(fd);
	if (!w)
		return ST_NO_MEMORY;
	const char *why = guard_enter(guard, now);
	if (why) {
		if (plain)
			send_goaway(fd, 0, why);
		return ST_RESOURCE_EXHAUSTED;
	}
	pthread_mutex_lock(&w->lock);
	frames_init(&w->frames, guard->max_streams, now);
	w->bytes = w->turn = 0;
	w->idle = (struct bucket){ OWN_AT_ONCE, now };
	w->epoll = -1;
	w->pid = pid;
	w->plain = plain;
	w->cut = false;
	atomic_store(&w->guard, guard);
	pthread_mutex_unlock(&w->lock);
	return ST_OK;
}

enum status rpc_guard_watch(struct rpc_guards *all, int fd, uid_t uid, pid_t pid)
{
	struct rpc_guard *guard = guard_of(all, uid, now_ns());
	return guard ? watch(guard, fd, pid, true) : ST_NO_MEMORY;
}

enum status rpc_guard_listen(struct rpc_guards *all, int port, bool plain)
{
	struct rpc_guard *guard = guard_of(all, (uid_t)-1, now_ns());
	if (!guard)
		return ST_NO_MEMORY;
	guard->refs++;
	guard->max_connections = TCP_CONNECTIONS;
	tcp.port = port;
	tcp.plain = plain;
	struct rpc_guard *before = atomic_exchange(&tcp.guard, guard);
	if (before)
		guard_unref(before);
	return ST_OK;
}

void rpc_guards_fini(struct rpc_guards *all)
{
	struct rpc_guard *listening = atomic_load(&tcp.guard);
	while (all->first) {
		struct rpc_guard *guard = all->first;
		if (guard == listening) {
			atomic_store(&tcp.guard, NULL);
			guard_unref(guard);
		}
		all->first = guard->next;
		guard_unref(guard);
	}
}

static void forget(struct watched *w)
{
	pthread_mutex_lock(&w->lock);
	struct rpc_guard *guard = atomic_exchange(&w->guard, NULL);
	frames_fini(&w->frames);
	pthread_mutex_lock(&guard->lock);
	guard->call_bytes -= w->bytes;
	guard->connections--;
	pthread_mutex_unlock(&guard->lock);
	pthread_mutex_unlock(&w->lock);
	guard_unref(guard);
}

/* For log lines; returns `out`. */
static const char *name(const struct rpc_guard *guard, const struct watched *w, char out[CLIENT_NAME])
{
	if (guard->uid == (uid_t)-1)
		snprintf(out, CLIENT_NAME, "a caller over TCP");
	else
		snprintf(out, CLIENT_NAME, "uid %u (pid %d)", (unsigned)guard->uid, (int)w->pid);
	return out;
}

static void cut(struct rpc_guard *guard, struct watched *w, int fd, const char *why, int64_t now)
{
	unsigned unsaid;
	char client[CLIENT_NAME];
	w->cut = true;
	send_goaway(fd, w->frames.last, why);
	shutdown(fd, SHUT_RDWR);
	pthread_mutex_lock(&guard->lock);
	guard->cuts_ns = (guard->cuts_ns > now ? guard->cuts_ns : now) + GUARD_CUT_NS;
	bool say = guard_may_say(&guard->cut, now, &unsaid);
	pthread_mutex_unlock(&guard->lock);
	if (say)
		log_warn("a connection of %s is closed: %s (%u more since this was said last)", name(guard, w, client),
			 why, unsaid);
}

static void log_throttled(struct rpc_guard *guard, struct watched *w)
{
	unsigned unsaid;
	char client[CLIENT_NAME];
	if (!w->frames.throttled)
		return;
	w->frames.throttled = 0;
	pthread_mutex_lock(&guard->lock);
	bool say = guard_may_say(&guard->throttled, now_ns(), &unsaid);
	pthread_mutex_unlock(&guard->lock);
	if (say)
		log_warn("requests of %s fill this user's part of limits.request_memory: calls are ended "
			 "(RESOURCE_EXHAUSTED, %u more "
			 "since this was said last)",
			 name(guard, w, client), unsaid);
}

static size_t piece(const struct iovec *iov, size_t n)
{
	return iov->iov_len < n ? iov->iov_len : n;
}

/* false: the connection has been cut. */
static bool received(struct watched *w, int fd, const struct msghdr *msg, size_t n)
{
	struct rpc_guard *guard = w->guard;
	const char *why = NULL;
	int64_t now = now_ns();
	pthread_mutex_lock(&w->lock);
	uint64_t begun = w->frames.begun, frames = w->frames.frames;
	w->turn += n;
	n = w->plain ? n : 0;
	for (const struct iovec *iov = msg->msg_iov; n > 0 && !why && !w->cut; iov++) {
		size_t k = piece(iov, n);
		why = frames_received(&w->frames, iov->iov_base, k, now);
		n -= k;
	}
	if (!why && !w->cut)
		why = charge(guard, w, now);
	if (why)
		cut(guard, w, fd, why, now);
	w->turn += (w->frames.begun - begun) * CALL_BYTES + (w->frames.frames - frames) * FRAME_BYTES;
	bool goes_on = !w->cut;
	pthread_mutex_unlock(&w->lock);
	return goes_on;
}

/* gRPC reads a connection until it is empty, and the thread that does so serves all. So after TURN_BYTES this pretends
 * that it is empty; re-arming epoll makes the next event arrive at once, but behind those of other connections. */
static bool give_way(struct watched *w, int fd)
{
	pthread_mutex_lock(&w->lock);
	bool gives = w->turn >= TURN_BYTES && w->epoll >= 0;
	if (gives) {
		w->turn = 0;
		gives = syscall(SYS_epoll_ctl, w->epoll, EPOLL_CTL_MOD, fd, &w->event) == 0;
	}
	pthread_mutex_unlock(&w->lock);
	return gives;
}

/* ---- in place of the C library's functions, which the system's headers declare ---- */

#define EXPORTED __attribute__((visibility("default")))

EXPORTED ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
	struct watched *w = find(fd);
	if (w && give_way(w, fd)) {
		errno = EAGAIN;
		return -1;
	}
	ssize_t n = syscall(SYS_recvmsg, fd, msg, flags);
	if (!w || n <= 0 || received(w, fd, msg, (size_t)n))
		return n;
	errno = ECONNRESET;
	return -1;
}

EXPORTED int epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
	struct watched *w = op == EPOLL_CTL_ADD ? find(fd) : NULL;
	if (w) {
		pthread_mutex_lock(&w->lock);
		w->event = *event;
		w->epoll = epoll;
		pthread_mutex_unlock(&w->lock);
	}
	return (int)syscall(SYS_epoll_ctl, epoll, op, fd, event);
}

/* The lock is held while the bytes leave, so that an answer to them is inspected after they are. */
EXPORTED ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
	struct watched *w = find(fd);
	if (!w)
		return syscall(SYS_sendmsg, fd, msg, flags);
	pthread_mutex_lock(&w->lock);
	ssize_t n = syscall(SYS_sendmsg, fd, msg, flags);
	int error = errno;
	size_t left = n > 0 && w->plain ? (size_t)n : 0;
	for (const struct iovec *iov = msg->msg_iov; left > 0; iov++) {
		size_t k = piece(iov, left);
		frames_sent(&w->frames, iov->iov_base, k);
		left -= k;
	}
	charge(w->guard, w, now_ns());
	log_throttled(w->guard, w);
	pthread_mutex_unlock(&w->lock);
	errno = error;
	return n;
}

static bool is_ours(int listener)
{
	struct sockaddr_storage at;
	socklen_t n = sizeof(at);
	if (getsockname(listener, (struct sockaddr *)&at, &n))
		return false;
	if (at.ss_family == AF_INET)
		return ntohs(((struct sockaddr_in *)&at)->sin_port) == tcp.port;
	return at.ss_family == AF_INET6 && ntohs(((struct sockaddr_in6 *)&at)->sin6_port) == tcp.port;
}

static void log_too_fast(const struct sockaddr_storage *from, unsigned unsaid)
{
	char host[NI_MAXHOST];
	if (getnameinfo((const struct sockaddr *)from, sizeof(*from), host, sizeof(host), NULL, 0, NI_NUMERICHOST))
		snprintf(host, sizeof(host), "an unknown address");
	log_warn("a connection from %s is closed: more than %d at once, or than %d a second, from one address (%u more "
		 "since this was said last)",
		 !strncmp(host, "::ffff:", 7) ? host + 7 : host, CONNECT_AT_ONCE, CONNECT_PER_S, unsaid);
}

/* Before gRPC does anything for it. */
static bool is_too_fast(struct rpc_guard *guard, int fd)
{
	struct sockaddr_storage from = { .ss_family = AF_UNSPEC };
	socklen_t n = sizeof(from);
	unsigned unsaid;
	const int64_t now = now_ns();
	if (tcp.plain || getpeername(fd, (struct sockaddr *)&from, &n))
		return false;
	pthread_mutex_lock(&guard->lock);
	const bool is = !connect_rate_take(&tcp.rate, (struct sockaddr *)&from, now);
	const bool say = is && guard_may_say(&tcp.fast, now, &unsaid);
	pthread_mutex_unlock(&guard->lock);
	if (say)
		log_too_fast(&from, unsaid);
	return is;
}

/* gRPC's listener retries after EINTR and EAGAIN, and stops for good after any other error. */
EXPORTED int accept4(int listener, __SOCKADDR_ARG addr, socklen_t *restrict n, int flags)
{
	struct rpc_guard *guard = atomic_load(&tcp.guard);
	int fd = (int)syscall(SYS_accept4, listener, addr.__sockaddr__, n, flags);
	if (!guard || !is_ours(listener))
		return fd;
	if (fd < 0) {
		errno = errno == EINTR ? EINTR : EAGAIN;
		return -1;
	}
	if (!is_too_fast(guard, fd) && watch(guard, fd, 0, tcp.plain) == ST_OK)
		return fd;
	syscall(SYS_close, fd);
	errno = EINTR;
	return -1;
}

EXPORTED int close(int fd)
{
	struct watched *w = find(fd);
	if (w)
		forget(w);
	return (int)syscall(SYS_close, fd);
}
