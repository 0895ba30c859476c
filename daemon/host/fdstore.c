/* SPDX-License-Identifier: Apache-2.0 */
/* gaccd's side of the service manager: finds its socket, takes over the descriptors that it kept across a restart,
 * and answers its watchdog. fdstore_send.c sends the messages. Loop thread. */
#include "host/fdstore_impl.h"

#include "base/log.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define FIRST_FD 3 /* sd_listen_fds(3) */

/* A number of the environment that is meant for this process: `pid_name` must then hold our pid. */
static uint64_t own_number(const char *name, const char *pid_name)
{
	const char *value = getenv(name), *pid = getenv(pid_name);
	bool ours = pid ? strtoll(pid, NULL, 10) == getpid() : strcmp(pid_name, "WATCHDOG_PID") == 0;
	return value && ours ? strtoull(value, NULL, 10) : 0;
}

bool fdstore_valid_name(const char *name, size_t n)
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
	struct fdstore_fd *fds = n && n < INT32_MAX ? calloc(n, sizeof(*fds)) : NULL;
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
		if (names && fdstore_valid_name(names, len)) {
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
	if (n < 2 || n >= sizeof(to.sun_path) || !strchr("/@", path[0])) {
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
	struct fdstore *f = calloc(1, sizeof(*f));
	if (!f)
		return ST_NO_MEMORY;
	f->fd = -1;
	f->text_tail = &f->text;
	f->request_tail = &f->request;
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
	for (size_t i = 0; i < sizeof(ours) / sizeof(*ours); i++)
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
