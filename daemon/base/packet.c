/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives packets, with the descriptors in them, without blocking: between gaccd (loop thread) and an engine
 * (main thread), and between gaccd and a launcher. No state; any thread. */
#include "base/packet.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int packet_send(int fd, const void *msg, uint32_t n, const void *tail, uint32_t n_tail, const int *fds, int n_fds)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(PACKET_MAX_FDS * sizeof(int))];
	} control;
	struct iovec iov[2] = { { (void *)msg, n }, { (void *)tail, n_tail } };
	struct msghdr m = { .msg_iov = iov, .msg_iovlen = n_tail ? 2 : 1 };
	if (n_fds < 0 || n_fds > PACKET_MAX_FDS)
		return -EINVAL;
	if (n_fds) {
		memset(&control, 0, sizeof(control));
		m.msg_control = control.buf;
		m.msg_controllen = CMSG_SPACE((size_t)n_fds * sizeof(int));
		struct cmsghdr *c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN((size_t)n_fds * sizeof(int));
		memcpy(CMSG_DATA(c), fds, (size_t)n_fds * sizeof(int));
	}
	ssize_t sent;
	do
		sent = sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (sent < 0 && errno == EINTR);
	return sent < 0 ? -errno : 0;
}

/* Moves the descriptors of m into fds (at most max) and closes the rest; how many there were. */
static int collect(struct msghdr *m, int *fds, int max)
{
	int n = 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		size_t k = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < k; i++, n++) {
			int fd;
			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			if (n < max)
				fds[n] = fd;
			else
				close(fd);
		}
	}
	return n;
}

int packet_recv(int fd, void *buf, uint32_t n, int *fds, int *n_fds)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(PACKET_MAX_FDS * sizeof(int))];
	} control;
	struct iovec iov = { buf, n };
	struct msghdr m = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf, .msg_controllen = sizeof(control.buf)
	};
	int max = n_fds ? *n_fds : 0;
	ssize_t got;
	if (n_fds)
		*n_fds = 0;
	do
		got = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (got < 0 && errno == EINTR);
	if (got < 0)
		return -errno;
	int k = collect(&m, fds, max);
	if (k > max || m.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) {
		for (int i = 0; i < k && i < max; i++)
			close(fds[i]);
		/* no peer sends more than `control` has room for */
		return m.msg_flags & MSG_CTRUNC ? -EMFILE : -EMSGSIZE;
	}
	if (n_fds)
		*n_fds = k;
	return (int)got;
}
