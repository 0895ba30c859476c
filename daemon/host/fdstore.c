#include "host/fdstore.h"

#include "base/log.h"
#include "proto/failpoint.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define FIRST_FD 3 /* sd_listen_fds(3) */
#define SEND_WAIT_MS 1000

struct fdstore {
	int fd; /* connected to the manager; -1: none */
	uint64_t watchdog_us, room;
};

/* A number of the environment that is meant for this process: `pid_name` must then hold our pid. */
static uint64_t own_number(const char *name, const char *pid_name)
{
	const char *value = getenv(name), *pid = getenv(pid_name);
	bool ours = pid ? strtoll(pid, NULL, 10) == getpid() : strcmp(pid_name, "WATCHDOG_PID") == 0;
	return value && ours ? strtoull(value, NULL, 10) : 0;
}

static bool valid_name(const char *name, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!isalnum((unsigned char)name[i]) && !strchr(".-_", name[i]))
			return false;
	return n > 0 && n < FDSTORE_MAX_NAME;
}

size_t fdstore_inherited(void)
{
	return own_number("LISTEN_FDS", "LISTEN_PID");
}

/* A descriptor whose name is not one of ours (a socket of a unit file) is closed: nobody would ever use it. */
static enum status inherit(struct fdstore_fd **out, size_t *out_n)
{
	uint64_t n = fdstore_inherited();
	const char *names = getenv("LISTEN_FDNAMES");
	struct fdstore_fd *fds = n && n < INT32_MAX ? calloc(n, sizeof *fds) : NULL;
	size_t used = 0;
	*out = NULL;
	*out_n = 0;
	if (n == 0)
		return ST_OK;
	if (!fds)
		return ST_NO_MEMORY;
	for (uint64_t i = 0; i < n; i++) {
		int fd = FIRST_FD + (int)i;
		size_t len = names ? strcspn(names, ":") : 0;
		fcntl(fd, F_SETFD, FD_CLOEXEC);
		if (names && valid_name(names, len)) {
			memcpy(fds[used].name, names, len);
			fds[used++].fd = fd;
		} else {
			log_warn("inherited descriptor %d has no name of ours: closed", fd);
			close(fd);
		}
		if (names)
			names = names[len] ? names + len + 1 : NULL;
	}
	*out = fds;
	*out_n = used;
	return ST_OK;
}

static enum status connect_manager(const char *path, int *out)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	size_t n = strlen(path);
	if (n < 2 || n >= sizeof to.sun_path || !strchr("/@", path[0])) {
		log_error("NOTIFY_SOCKET=%s is no address", path);
		return ST_INVALID_CONFIG;
	}
	memcpy(to.sun_path, path, n);
	if (path[0] == '@')
		to.sun_path[0] = 0;
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n))) {
		log_error("NOTIFY_SOCKET=%s: %s", path, strerror(errno));
		if (fd >= 0)
			close(fd);
		return ST_UNAVAILABLE;
	}
	*out = fd;
	return ST_OK;
}

enum status fdstore_open(struct fdstore **out, struct fdstore_fd **out_fds, size_t *out_n)
{
	static const char *const ours[] = { "NOTIFY_SOCKET",  "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS",
					    "LISTEN_FDNAMES", "LISTEN_PID",    "FDSTORE" };
	struct fdstore_fd *fds = NULL;
	size_t n = 0;
	struct fdstore *f = calloc(1, sizeof *f);
	if (!f)
		return ST_NO_MEMORY;
	f->fd = -1;
	/* Inherited numbers first: nothing of ours may take one of them. */
	enum status st = inherit(&fds, &n);
	const char *path = getenv("NOTIFY_SOCKET");
	if (st == ST_OK && path)
		st = connect_manager(path, &f->fd);
	if (st)
		goto fail;
	const char *room = getenv("FDSTORE"); /* systemd 254 and later, and --supervise */
	f->room = path && room ? strtoull(room, NULL, 10) : UINT64_MAX;
	f->watchdog_us = own_number("WATCHDOG_USEC", "WATCHDOG_PID");
	for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
		unsetenv(ours[i]);
	*out = f;
	*out_fds = fds;
	*out_n = n;
	return ST_OK;
fail:
	for (size_t i = 0; i < n; i++)
		close(fds[i].fd);
	free(fds);
	fdstore_close(f);
	return st;
}

void fdstore_close(struct fdstore *f)
{
	if (!f)
		return;
	if (f->fd >= 0)
		close(f->fd);
	free(f);
}

bool fdstore_active(const struct fdstore *f)
{
	return f->fd >= 0;
}

uint64_t fdstore_room(const struct fdstore *f)
{
	return f->room;
}

uint64_t fdstore_watchdog_us(const struct fdstore *f)
{
	return f->watchdog_us;
}

/* The queue of a datagram socket is short (net.unix.max_dgram_qlen), and children's deaths interrupt waiting for it. */
static bool wait_for_room(int fd)
{
	struct pollfd p = { fd, POLLOUT, 0 };
	int n;
	do
		n = poll(&p, 1, SEND_WAIT_MS);
	while (n < 0 && errno == EINTR);
	if (!n)
		errno = EAGAIN;
	return n > 0;
}

/* One message with at most one descriptor. */
static enum status tell(struct fdstore *f, const char *text, int fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct iovec iov = { (void *)(uintptr_t)text, strlen(text) };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
	if (fd >= 0) {
		m.msg_control = control.bytes;
		m.msg_controllen = sizeof control.bytes;
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof fd);
		memcpy(CMSG_DATA(c), &fd, sizeof fd);
	}
	while (sendmsg(f->fd, &m, MSG_NOSIGNAL) < 0) {
		if (errno == EINTR || (errno == EAGAIN && wait_for_room(f->fd)))
			continue;
		log_error("service manager: %.*s: %s", (int)strcspn(text, "\n"), text, strerror(errno));
		return ST_UNAVAILABLE;
	}
	return ST_OK;
}

enum status fdstore_ready(struct fdstore *f)
{
	return f->fd < 0 ? ST_OK : tell(f, "READY=1\n", -1);
}

enum status fdstore_stopping(struct fdstore *f)
{
	return f->fd < 0 ? ST_OK : tell(f, "STOPPING=1\n", -1);
}

enum status fdstore_watchdog(struct fdstore *f)
{
	return f->fd < 0 ? ST_OK : tell(f, "WATCHDOG=1\n", -1);
}

enum status fdstore_put(struct fdstore *f, const char *name, int fd)
{
	char text[128];
	if (!valid_name(name, strlen(name)))
		return ST_INVALID_ARGUMENT;
	/* FDPOLL=0: systemd would drop a descriptor that polls as hung up. */
	snprintf(text, sizeof text, "FDSTORE=1\nFDNAME=%s\nFDPOLL=0\n", name);
	enum status st = f->fd < 0 ? ST_UNAVAILABLE : FAILPOINT_ERROR(gaccd_fdstore_before);
	if (!st)
		st = tell(f, text, fd);
	FAILPOINT(gaccd_fdstore_after);
	return st;
}

enum status fdstore_remove(struct fdstore *f, const char *name)
{
	char text[128];
	if (!valid_name(name, strlen(name)))
		return ST_INVALID_ARGUMENT;
	snprintf(text, sizeof text, "FDSTOREREMOVE=1\nFDNAME=%s\n", name);
	return f->fd < 0 ? ST_OK : tell(f, text, -1);
}

enum status fdstore_barrier(struct fdstore *f, int *out_fd)
{
	int p[2];
	if (f->fd < 0)
		return ST_UNAVAILABLE;
	if (pipe2(p, O_CLOEXEC | O_NONBLOCK)) {
		log_error("barrier: %s", strerror(errno));
		return ST_IO_ERROR;
	}
	enum status st = FAILPOINT_ERROR(gaccd_barrier_before);
	if (!st)
		st = tell(f, "BARRIER=1", p[1]); /* the manager closes it: then nobody holds the other end */
	close(p[1]);
	if (st)
		close(p[0]);
	else
		*out_fd = p[0];
	return st;
}
