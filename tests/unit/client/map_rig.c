/* SPDX-License-Identifier: Apache-2.0 */
#include "map_rig.h"

#include "engine/mailbox.h"
#include "gacc/v1/gradient.pb-c.h"

#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static char dir[] = "/tmp/gacc-map-XXXXXX";
static char path[64];

int map_memfd(size_t bytes, bool seal)
{
	int fd = memfd_create("segment", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
	if (seal)
		ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
	return fd;
}

static void send_answer(struct map_daemon *d)
{
	Gacc__V1__MapResponse m = GACC__V1__MAP_RESPONSE__INIT;
	Gacc__V1__Segment *list[MAX_SEGMENTS];
	union {
		char bytes[CMSG_SPACE(MAX_SEGMENTS * sizeof(int))];
		struct cmsghdr align;
	} control = { { 0 } };
	uint8_t packet[1024];
	struct iovec iov = { packet, 0 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	for (size_t i = 0; i < d->n; i++)
		list[i] = &d->segment[i];
	m.version = 1;
	m.segments = list;
	m.n_segments = d->n;
	if (d->reason) {
		m.reason = (char *)(uintptr_t)d->reason;
		m.n_segments = 0;
		d->n_fds = 0;
	}
	iov.iov_len = gacc__v1__map_response__pack(&m, packet);
	if (d->n_fds) {
		struct cmsghdr *c;

		msg.msg_control = control.bytes;
		msg.msg_controllen = CMSG_SPACE(d->n_fds * sizeof(int));
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(d->n_fds * sizeof(int));
		memcpy(CMSG_DATA(c), d->fds, d->n_fds * sizeof(int));
	}
	sendmsg(d->connection, &msg, MSG_NOSIGNAL);
}

static void *serve(void *arg)
{
	struct map_daemon *d = arg;
	uint8_t packet[512];
	ssize_t n;
	Gacc__V1__MapRequest *request;

	d->connection = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC);
	n = recv(d->connection, packet, sizeof(packet), 0);
	request = gacc__v1__map_request__unpack(NULL, n > 0 ? (size_t)n : 0, packet);
	if (request && request->session)
		d->asked_session = request->session->id;
	d->asked_mailbox = request && request->wants_mailbox;
	if (request)
		gacc__v1__map_request__free_unpacked(request, NULL);
	send_answer(d);
	return NULL;
}

void map_describe(Gacc__V1__Segment *s, Gacc__V1__SegmentKind kind, uint32_t index, uint64_t bytes)
{
	gacc__v1__segment__init(s);
	s->kind = kind;
	s->index = index;
	s->bytes = bytes;
	s->data_offset = PAGE;
}

void map_daemon_init(struct map_daemon *d)
{
	*d = (struct map_daemon){ .connection = -1, .n = N_SEGMENTS, .n_fds = N_SEGMENTS, .answer = -1 };
	for (int i = 0; i < N_SEGMENTS; i++)
		d->fds[i] = map_memfd(3 * PAGE, true);
	map_describe(&d->segment[0], KIND(SLOT), 0, 3 * PAGE);
	map_describe(&d->segment[1], KIND(SLOT), 1, 3 * PAGE);
	map_describe(&d->segment[2], KIND(PARAMETERS), 0, 3 * PAGE);
	map_describe(&d->segment[3], KIND(STATUS), 0, 3 * PAGE);
}

/* What gaccd hands out beside the rest. */
void map_add_mailbox(struct map_daemon *d, uint64_t sgen)
{
	struct mailbox_owner o = { .job = 8, .sgen = sgen, .rank = 3, .slots = 2, .n_tensors = TENSORS };
	struct mailbox_fds f;
	char why[160] = "";

	ck_assert_msg(mailbox_make(&f, &o, why, sizeof(why)) == ST_OK, "%s", why);
	d->fds[N_SEGMENTS] = f.memory;
	d->fds[N_SEGMENTS + 1] = f.submit;
	d->fds[N_SEGMENTS + 2] = f.waits;
	d->answer = f.answer;
	map_describe(&d->segment[N_SEGMENTS], KIND(MAILBOX), 0, gacc_box_bytes(TENSORS));
	map_describe(&d->segment[N_SEGMENTS + 1], KIND(SUBMIT), 0, 0);
	map_describe(&d->segment[N_SEGMENTS + 2], KIND(ANSWER), 0, 0);
	d->n = d->n_fds = MAX_SEGMENTS;
}

void map_daemon_start(struct map_daemon *d)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };

	strcpy(addr.sun_path, path);
	unlink(path);
	d->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(d->listener, (struct sockaddr *)&addr, sizeof(addr)), 0);
	ck_assert_int_eq(listen(d->listener, 1), 0);
	ck_assert_int_eq(pthread_create(&d->thread, NULL, serve, d), 0);
}

void map_daemon_fini(struct map_daemon *d)
{
	pthread_join(d->thread, NULL);
	close(d->connection);
	close(d->listener);
	for (size_t i = 0; i < d->n; i++)
		close(d->fds[i]);
	if (d->answer >= 0)
		close(d->answer);
}

static Gacc__V1__Session session;
struct gacc_job map_job;
struct rpc_failure map_failure;

void map_setup(void)
{
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/attach", dir);
	gacc__v1__session__init(&session);
	session.id = 42;
	unsetenv("GACC_MAILBOX");
	setenv("GACC_QUIET", "1", 1);
	map_job = (struct gacc_job){
		.session = &session,
		.id = 8,
		.rank = 3,
		.generation = 11,
		.attach_socket = path,
		.memory.socket = -1,
		.layout = { .slots = 2, .n = TENSORS, .slot_bytes = 2 * PAGE, .param_bytes = 2 * PAGE }
	};
}

void map_teardown(void)
{
	memory_unmap(&map_job.memory);
	unlink(path);
	rmdir(dir);
	strcpy(dir, "/tmp/gacc-map-XXXXXX");
}

int map_open_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

enum status map_with(struct map_daemon *d)
{
	enum status st;

	map_daemon_start(d);
	map_failure = (struct rpc_failure){ 0 };
	st = memory_map(&map_job.memory, &map_job, &map_failure);
	ck_assert_msg(!st || *map_failure.message, "no text for status %d", st);
	return st;
}
