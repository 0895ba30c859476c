/* SPDX-License-Identifier: Apache-2.0 */
/* Asks the attach socket for a session's memory (proto/gacc/v1/attach.proto). For map.c, and for cuda.c, which says
 * that a device will use it; the job's thread. */
#include "lib/map_ask.h"

#include "lib/channel.h"
#include "proto/failpoint.h"
#include "proto/version.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PACKET_MAX 8192
#define ANSWER_S 30

enum status map_fail(struct rpc_failure *f, enum status st, const char *what, const char *why)
{
	f->status = st;
	snprintf(f->message, sizeof(f->message), "attach socket: %s: %s", what, why);
	return st;
}

void map_answer_fini(struct map_answer *a)
{
	bytes_free((struct ProtobufCMessage *)a->message);
	for (size_t i = 0; i < a->n_fds; i++)
		if (a->fds[i] >= 0) /* -1: handed on */
			close(a->fds[i]);
}

static enum status connect_to(const char *path, int *out_fd, struct rpc_failure *f)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct timeval tv = { .tv_sec = ANSWER_S };
	int fd;

	if (strlen(path) >= sizeof(addr.sun_path))
		return map_fail(f, ST_INVALID_ARGUMENT, path, "path too long");
	strcpy(addr.sun_path, path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return map_fail(f, ST_RESOURCE_EXHAUSTED, "socket", strerror(errno));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv));
	if (connect(fd, (struct sockaddr *)&addr, sizeof(addr))) {
		int err = errno;

		close(fd);
		return map_fail(f, err == EACCES ? ST_PERMISSION_DENIED : ST_UNAVAILABLE, path, strerror(err));
	}
	*out_fd = fd;
	return ST_OK;
}

static enum status ask(int fd, Gacc__V1__Session *session, struct map_wants wants, struct rpc_failure *f)
{
	Gacc__V1__MapRequest request = GACC__V1__MAP_REQUEST__INIT;
	uint8_t packet[512];
	size_t n;

	request.version = MAP_VERSION;
	request.session = session;
	request.wants_mailbox = wants.mailbox;
	request.device = wants.device;
	request.gpu = (char *)(uintptr_t)wants.gpu;
	n = gacc__v1__map_request__get_packed_size(&request);
	if (n > sizeof(packet))
		return map_fail(f, ST_MALFORMED, "request", "session token too long");
	gacc__v1__map_request__pack(&request, packet);
	if (send(fd, packet, n, MSG_NOSIGNAL) != (ssize_t)n)
		return map_fail(f, ST_UNAVAILABLE, "send", strerror(errno));
	return ST_OK;
}

/* All descriptors of the packet, also those of a second control message: none may leak. */
static void take_fds(struct msghdr *msg, struct map_answer *a)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int) && a->n_fds < MAP_FDS_MAX; i++)
			memcpy(&a->fds[a->n_fds++], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
	}
}

static enum status receive(int fd, struct map_answer *a, struct rpc_failure *f)
{
	union {
		char bytes[CMSG_SPACE(MAP_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control;
	uint8_t packet[PACKET_MAX];
	struct iovec iov = { packet, sizeof(packet) };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)
	};
	ssize_t n;

	do
		n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return map_fail(f, ST_UNAVAILABLE, "receive", strerror(errno));
	take_fds(&msg, a);
	if (n == 0)
		return map_fail(f, ST_UNAVAILABLE, "receive", "closed by gaccd");
	if (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ||
	    bytes_decode(&gacc__v1__map_response__descriptor, packet, (size_t)n,
			 (struct ProtobufCMessage **)&a->message))
		return map_fail(f, ST_MALFORMED, "receive", "not a MapResponse");
	return ST_OK;
}

static enum status check_answer(const struct map_answer *a, struct rpc_failure *f)
{
	const Gacc__V1__MapResponse *m = a->message;
	int known;

	if (*m->reason) {
		known = status_by_name(m->reason);
		snprintf(f->reason, sizeof(f->reason), "%s", m->reason);
		return map_fail(f, known > 0 ? (enum status)known : ST_INTERNAL, "refused", m->message);
	}
	if (m->version != MAP_VERSION)
		return map_fail(f, ST_VERSION_SKEW, "answer", "unknown version");
	if (m->n_segments != a->n_fds)
		return map_fail(f, ST_MALFORMED, "answer", "descriptors do not match the segments");
	return ST_OK;
}

enum status map_ask(const struct gacc_job *job, struct map_wants wants, int *out_fd, struct map_answer *out,
		    struct rpc_failure *f)
{
	enum status st;

	*out_fd = -1;
	st = connect_to(job->attach_socket, out_fd, f);
	if (!st)
		st = ask(*out_fd, job->session, wants, f);
	if (!st)
		st = receive(*out_fd, out, f);
	if (!st)
		st = FAILPOINT_ERROR(client_map_received);
	return st ? st : check_answer(out, f);
}

/* On a connection of its own: the mailbox waits for the end of the first one. The note is in the memory. */
enum status memory_tell_device(struct memory *memory, const struct gacc_job *job, struct rpc_failure *f)
{
	struct map_answer a = { 0 };
	int fd;
	enum status st = map_ask(job, (struct map_wants){ .device = true, .gpu = "" }, &fd, &a, f);

	map_answer_fini(&a);
	if (fd >= 0)
		close(fd);
	if (!st)
		memory->device = true;
	return st;
}
