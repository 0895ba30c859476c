/* SPDX-License-Identifier: Apache-2.0 */
/* A unix listener that knows uid and pid of each client, limits the connections per user and guards its path with a
 * lock file; accepted descriptors go to gRPC or to host/attach.c. Loop thread. */
#include "host/listen.h"

#include "base/log.h"
#include "host/process.h"

#include <uv.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD /* Linux 6.5 */
#define SO_PEERPIDFD 77
#endif

#define BACKLOG 128
#define ACCEPTS_PER_WAKE 64 /* then others have their turn */
#define DEFAULT_PER_UID 256
/* A connection that counts, until it hangs up. */
struct counted {
	uv_poll_t poll;
	struct listener *listener;
	struct counted *next, **at; /* at: what points here, so that one that ends costs no walk over the others */
	struct tally *tally;
	int fd; /* a duplicate */
};

/* How many a user has; those of users that have none are freed. */
struct tally {
	struct tally *next;
	uid_t uid;
	uint32_t n;
};

struct listener {
	uv_poll_t poll;
	uv_loop_t *loop;
	listen_cb *cb;
	listen_gone_cb *gone;
	void *arg;
	char path[sizeof((struct sockaddr_un *)0)->sun_path];
	int fd, lock;
	int reserve; /* given up to accept and refuse when descriptors run out */
	uint32_t max_per_uid;
	uint32_t mode;
	gid_t gid; /* (gid_t)-1: the process's own */
	bool packets;
	bool open;		 /* until listener_close, which a callback may call */
	bool lost;		 /* the path was removed and cannot be made again */
	bool starving, refusing; /* said so already: a flood of connections is one line */
	struct counted *connections;
	struct tally *tallies;
};

/* ---- counting connections ---- */

/* This user's, made if there is none; NULL: no memory. */
static struct tally *tally_of(struct listener *l, uid_t uid)
{
	struct tally *t = l->tallies;
	while (t && t->uid != uid)
		t = t->next;
	if (!t && (t = calloc(1, sizeof(*t)))) {
		*t = (struct tally){ .next = l->tallies, .uid = uid };
		l->tallies = t;
	}
	return t;
}

static void drop_if_none(struct listener *l, struct tally *t)
{
	struct tally **at = &l->tallies;
	if (t->n)
		return;
	while (*at != t)
		at = &(*at)->next;
	*at = t->next;
	free(t);
}

static void on_counted_closed(uv_handle_t *h)
{
	struct counted *c = h->data;
	close(c->fd);
	free(c);
}

static void stop_counting(struct counted *c)
{
	uv_poll_stop(&c->poll);
	uv_close((uv_handle_t *)&c->poll, on_counted_closed);
}

/* Out of the list and its user's number, which it returns. */
static uid_t uncount(struct counted *c)
{
	uid_t uid = c->tally->uid;
	*c->at = c->next;
	if (c->next)
		c->next->at = c->at;
	c->tally->n--;
	drop_if_none(c->listener, c->tally);
	stop_counting(c);
	return uid;
}

static void on_hangup(uv_poll_t *h, int status, int events)
{
	struct counted *c = h->data;
	struct listener *l = c->listener;
	uid_t uid = uncount(c);
	if (l->gone)
		l->gone(l->arg, uid);
}

static bool start_counting(struct listener *l, int fd, struct tally *t)
{
	struct counted *c = calloc(1, sizeof(*c));
	if (!c)
		return false;
	c->listener = l;
	c->tally = t;
	c->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (c->fd < 0 || uv_poll_init(l->loop, &c->poll, c->fd)) {
		if (c->fd >= 0)
			close(c->fd);
		free(c);
		return false;
	}
	c->poll.data = c;
	c->next = l->connections;
	c->at = &l->connections;
	if (c->next)
		c->next->at = &c->next;
	l->connections = c;
	t->n++;
	uv_poll_start(&c->poll, UV_DISCONNECT, on_hangup);
	return true;
}

/* ---- accepting ---- */

/* When the process that connected was started. SO_PEERCRED has its number, which may be another's by now: since
 * Linux 6.5 a pidfd tells. An older kernel is believed, as connections are taken soon after they are made. */
static uint64_t start_of(int fd, pid_t pid)
{
	int process = -1;
	socklen_t n = sizeof(process);
	uint64_t start = pid ? process_start_time(pid) : 0;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &process, &n))
		return errno == ESRCH || errno == EINVAL || errno == ENODATA ? 0 : start;
	if (!process_lives(process))
		start = 0;
	close(process);
	return start;
}

static void greet(struct listener *l, int fd)
{
	struct ucred peer_cred;
	socklen_t n = sizeof(peer_cred);
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer_cred, &n)) {
		log_error("%s: SO_PEERCRED: %s", l->path, strerror(errno));
		close(fd);
		return;
	}
	struct tally *t = tally_of(l, peer_cred.uid);
	if (t && t->n >= l->max_per_uid) {
		if (!l->refusing)
			log_warn("%s: uid %u (pid %d) has %u connections, the most (listen.connections_per_user): "
				 "refused",
				 l->path, (unsigned)peer_cred.uid, (int)peer_cred.pid, l->max_per_uid);
		l->refusing = true;
		close(fd);
		return;
	}
	l->refusing = false;
	if (!t || !start_counting(l, fd, t)) {
		log_error("%s: out of memory or descriptors: a connection is refused", l->path);
		close(fd);
		if (t)
			drop_if_none(l, t);
		return;
	}
	struct listen_peer peer = { peer_cred.uid, peer_cred.gid, peer_cred.pid, start_of(fd, peer_cred.pid) };
	l->cb(l->arg, fd, &peer);
}

/* Without this, a listener whose process has no descriptor left would be woken for ever by a connection that it cannot
 * take. */
static void refuse_one(struct listener *l)
{
	if (!l->starving)
		log_error("%s: no descriptors left: connections are refused", l->path);
	l->starving = true;
	if (l->reserve >= 0)
		close(l->reserve);
	int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC);
	if (fd >= 0)
		close(fd);
	l->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void on_connection(uv_poll_t *h, int status, int events)
{
	struct listener *l = h->data;
	for (int i = 0; i < ACCEPTS_PER_WAKE && l->open; i++) {
		int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd >= 0) {
			l->starving = false;
			greet(l, fd);
		} else if (errno == EMFILE || errno == ENFILE) {
			refuse_one(l);
			return;
		} else if (errno != EINTR && errno != ECONNABORTED) {
			if (errno != EAGAIN)
				log_error("%s: accept: %s", l->path, strerror(errno));
			return;
		}
	}
}

/* ---- the path ---- */

static void lock_name(const struct listener *l, char out[sizeof(l->path) + 8])
{
	snprintf(out, sizeof(l->path) + 8, "%s.lock", l->path);
}

static enum status take_lock(struct listener *l)
{
	char name[sizeof(l->path) + 8];
	lock_name(l, name);
	l->lock = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (l->lock < 0) {
		log_error("%s: %s", name, strerror(errno));
		return ST_IO_ERROR;
	}
	if (flock(l->lock, LOCK_EX | LOCK_NB)) {
		log_error("%s: a running daemon has it", l->path);
		return ST_ALREADY_EXISTS;
	}
	return ST_OK;
}

static enum status remove_dead_socket(const struct listener *l)
{
	struct stat st;
	if (lstat(l->path, &st)) {
		if (errno == ENOENT)
			return ST_OK;
	} else if (!S_ISSOCK(st.st_mode)) {
		log_error("%s: exists and is no socket", l->path);
		return ST_ALREADY_EXISTS;
	} else if (unlink(l->path) == 0) {
		return ST_OK;
	}
	log_error("%s: %s", l->path, strerror(errno));
	return ST_IO_ERROR;
}

static enum status find_group(const char *name, gid_t *out)
{
	*out = (gid_t)-1;
	if (!name || !*name)
		return ST_OK;
	struct group *g = getgrnam(name);
	if (!g) {
		log_error("no group \"%s\"", name);
		return ST_INVALID_CONFIG;
	}
	*out = g->gr_gid;
	return ST_OK;
}

/* fchmod before bind gives the path's first mode, so that it is never open to more than it should be. */
static enum status bind_path(const struct listener *l, int *out_fd)
{
	bool bound = false;
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	memcpy(at.sun_path, l->path, sizeof(l->path));
	int fd = socket(AF_UNIX, (l->packets ? SOCK_SEQPACKET : SOCK_STREAM) | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || fchmod(fd, 0) || bind(fd, (struct sockaddr *)&at, sizeof(at)))
		goto fail;
	bound = true;
	if ((l->gid != (gid_t)-1 && chown(l->path, (uid_t)-1, l->gid)) || chmod(l->path, l->mode) ||
	    listen(fd, BACKLOG))
		goto fail;
	*out_fd = fd;
	return ST_OK;
fail:
	log_error("%s: %s", l->path, strerror(errno));
	if (bound)
		unlink(l->path);
	if (fd >= 0)
		close(fd);
	return ST_IO_ERROR;
}

/* ---- life ---- */

static void free_listener(struct listener *l)
{
	if (l->fd >= 0)
		close(l->fd);
	if (l->reserve >= 0)
		close(l->reserve);
	if (l->lock >= 0)
		close(l->lock);
	free(l);
}

static void on_listener_closed(uv_handle_t *h)
{
	free_listener(h->data);
}

enum status listener_open(void *loop, const struct listen_opts *o, listen_cb *cb, void *arg, struct listener **out)
{
	struct listener *l = calloc(1, sizeof(*l));
	if (!l)
		return ST_NO_MEMORY;
	l->loop = loop;
	l->cb = cb;
	l->gone = o->gone;
	l->arg = arg;
	l->fd = l->lock = l->reserve = -1;
	l->max_per_uid = o->max_per_uid ? o->max_per_uid : DEFAULT_PER_UID;
	l->mode = o->mode;
	l->packets = o->packets;
	enum status st = ST_INVALID_CONFIG;
	if (strlen(o->path) >= sizeof(l->path)) {
		log_error("%s: longer than the %zu bytes that a socket's path may have", o->path, sizeof(l->path) - 1);
		goto fail;
	}
	strcpy(l->path, o->path);
	if ((st = find_group(o->group, &l->gid)) || (st = take_lock(l)) || (st = remove_dead_socket(l)) ||
	    (st = bind_path(l, &l->fd)))
		goto fail;
	st = ST_IO_ERROR;
	l->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (uv_poll_init(loop, &l->poll, l->fd)) {
		log_error("%s: cannot be polled", l->path);
		goto fail;
	}
	l->poll.data = l;
	uv_poll_start(&l->poll, UV_READABLE, on_connection);
	l->open = true;
	*out = l;
	return ST_OK;
fail:
	if (l->fd >= 0)
		unlink(l->path);
	free_listener(l);
	return st;
}

static bool is_removed(const char *path)
{
	struct stat st;
	return lstat(path, &st) && errno == ENOENT;
}

/* The lock file may be gone as well: a process that made another one may think that the path is free. */
static enum status keep_lock(struct listener *l)
{
	char name[sizeof(l->path) + 8];
	struct stat ours, there;
	lock_name(l, name);
	if (!fstat(l->lock, &ours) && !lstat(name, &there) && ours.st_dev == there.st_dev &&
	    ours.st_ino == there.st_ino)
		return ST_OK;
	close(l->lock);
	return take_lock(l);
}

void listener_heal(struct listener *l)
{
	int fd = -1;
	if (!l || l->lost || !is_removed(l->path))
		return;
	if (keep_lock(l) || bind_path(l, &fd)) {
		l->lost = true;
		log_error("%s was removed and cannot be made again: nobody can connect before a restart", l->path);
		return;
	}
	uv_poll_stop(&l->poll);
	dup3(fd, l->fd, O_CLOEXEC); /* the number is the loop's */
	close(fd);
	uv_poll_start(&l->poll, UV_READABLE, on_connection);
	log_warn("%s was removed: it is made anew", l->path);
}

void listener_close(struct listener *l)
{
	if (!l)
		return;
	if (!l->lost)
		unlink(l->path);
	l->open = false;
	while (l->connections)
		uncount(l->connections);
	uv_poll_stop(&l->poll);
	uv_close((uv_handle_t *)&l->poll, on_listener_closed);
}
