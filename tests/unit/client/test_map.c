/* SPDX-License-Identifier: Apache-2.0 */
/* Mapping memory over an attach socket whose other end is this test. */
#include "gacc/v1/attach.pb-c.h"
#include "gacc/v1/gradient.pb-c.h"
#include "lib/channel.h"
#include "lib/internal.h"
#include "support/suite.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PAGE 4096
#define N_SEGMENTS 4

static char dir[] = "/tmp/gacc-map-XXXXXX";
static char path[64];

/* What the fake daemon answers. */
struct daemon {
	int listener, connection;
	pthread_t thread;
	int fds[N_SEGMENTS];
	Gacc__V1__Segment segment[N_SEGMENTS];
	size_t n_fds; /* how many are really sent */
	const char *reason;
	uint64_t asked_session;
};

static int sealed_memfd(size_t bytes, bool seal)
{
	int fd = memfd_create("segment", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
	if (seal)
		ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
	return fd;
}

static void send_answer(struct daemon *d)
{
	Gacc__V1__MapResponse m = GACC__V1__MAP_RESPONSE__INIT;
	Gacc__V1__Segment *list[N_SEGMENTS];
	union {
		char bytes[CMSG_SPACE(N_SEGMENTS * sizeof(int))];
		struct cmsghdr align;
	} control = { { 0 } };
	uint8_t packet[1024];
	struct iovec iov = { packet, 0 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	for (int i = 0; i < N_SEGMENTS; i++)
		list[i] = &d->segment[i];
	m.version = 1;
	m.segments = list;
	m.n_segments = N_SEGMENTS;
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
	struct daemon *d = arg;
	uint8_t packet[512];
	ssize_t n;
	Gacc__V1__MapRequest *request;

	d->connection = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC);
	n = recv(d->connection, packet, sizeof(packet), 0);
	request = gacc__v1__map_request__unpack(NULL, n > 0 ? (size_t)n : 0, packet);
	if (request && request->session)
		d->asked_session = request->session->id;
	if (request)
		gacc__v1__map_request__free_unpacked(request, NULL);
	send_answer(d);
	return NULL;
}

static void describe(Gacc__V1__Segment *s, Gacc__V1__SegmentKind kind, uint32_t index, uint64_t bytes)
{
	gacc__v1__segment__init(s);
	s->kind = kind;
	s->index = index;
	s->bytes = bytes;
	s->data_offset = PAGE;
}

#define KIND(x) GACC__V1__SEGMENT_KIND__SEGMENT_KIND_##x

static void daemon_init(struct daemon *d)
{
	*d = (struct daemon){ .connection = -1, .n_fds = N_SEGMENTS };
	for (int i = 0; i < N_SEGMENTS; i++)
		d->fds[i] = sealed_memfd(3 * PAGE, true);
	describe(&d->segment[0], KIND(SLOT), 0, 3 * PAGE);
	describe(&d->segment[1], KIND(SLOT), 1, 3 * PAGE);
	describe(&d->segment[2], KIND(PARAMETERS), 0, 3 * PAGE);
	describe(&d->segment[3], KIND(STATUS), 0, 3 * PAGE);
}

static void daemon_start(struct daemon *d)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };

	strcpy(addr.sun_path, path);
	unlink(path);
	d->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	ck_assert_int_eq(bind(d->listener, (struct sockaddr *)&addr, sizeof(addr)), 0);
	ck_assert_int_eq(listen(d->listener, 1), 0);
	ck_assert_int_eq(pthread_create(&d->thread, NULL, serve, d), 0);
}

static void daemon_fini(struct daemon *d)
{
	pthread_join(d->thread, NULL);
	close(d->connection);
	close(d->listener);
	for (int i = 0; i < N_SEGMENTS; i++)
		close(d->fds[i]);
}

static Gacc__V1__Session session;
static struct gacc_job job;

static void setup(void)
{
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/attach", dir);
	gacc__v1__session__init(&session);
	session.id = 42;
	job = (struct gacc_job){ .session = &session,
				 .attach_socket = path,
				 .memory.socket = -1,
				 .layout = { .slots = 2, .slot_bytes = 2 * PAGE, .param_bytes = 2 * PAGE } };
}

static void teardown(void)
{
	memory_fini(&job.memory);
	unlink(path);
	rmdir(dir);
	strcpy(dir, "/tmp/gacc-map-XXXXXX");
}

static int open_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static enum status map(struct daemon *d)
{
	struct rpc_failure f = { 0 };
	enum status st;

	daemon_start(d);
	st = memory_map(&job.memory, &job, &f);
	ck_assert_msg(!st || *f.message, "no text for status %d", st);
	return st;
}

START_TEST(maps_and_shares)
{
	struct daemon d;
	unsigned char byte;
	int before = open_fds();

	daemon_init(&d);
	ck_assert_int_eq(map(&d), ST_OK);
	ck_assert_uint_eq(d.asked_session, 42);
	for (int i = 0; i < 2; i++) {
		mapping_data(&job.memory.slot[i])[5] = (unsigned char)(10 + i);
		ck_assert_int_eq(pread(d.fds[i], &byte, 1, PAGE + 5), 1);
		ck_assert_uint_eq(byte, 10 + (unsigned)i);
	}
	byte = 99;
	ck_assert_int_eq(pwrite(d.fds[2], &byte, 1, PAGE), 1);
	ck_assert_uint_eq(mapping_data(&job.memory.params)[0], 99);
	ck_assert(!memory_hung_up(&job.memory));
	daemon_fini(&d);
	ck_assert(memory_hung_up(&job.memory));
	ck_assert_int_eq(open_fds(), before + 1); /* the socket alone */
}
END_TEST

/* Another daemon with other memory: the trainer's pointers and what it has written stay. */
START_TEST(remaps_in_place)
{
	struct daemon first, second;
	unsigned char *slot, byte = 7;
	const unsigned char *params;

	daemon_init(&first);
	ck_assert_int_eq(map(&first), ST_OK);
	slot = mapping_data(&job.memory.slot[0]);
	params = mapping_data(&job.memory.params);
	memset(slot, 0x5a, 2 * PAGE);
	daemon_fini(&first);
	daemon_init(&second);
	ck_assert_int_eq(pwrite(second.fds[2], &byte, 1, PAGE), 1);
	ck_assert_int_eq(map(&second), ST_OK);
	ck_assert_ptr_eq(mapping_data(&job.memory.slot[0]), slot);
	ck_assert_ptr_eq(mapping_data(&job.memory.params), params);
	ck_assert_uint_eq(params[0], 7);
	ck_assert_uint_eq(slot[2 * PAGE - 1], 0x5a);
	ck_assert_int_eq(pread(second.fds[0], &byte, 1, PAGE), 1);
	ck_assert_uint_eq(byte, 0x5a); /* the new daemon sees it */
	daemon_fini(&second);
}
END_TEST

/* The same memory again, as a daemon with a descriptor store offers it. */
START_TEST(keeps_the_same_memory)
{
	struct daemon d;
	unsigned char *slot;

	daemon_init(&d);
	ck_assert_int_eq(map(&d), ST_OK);
	slot = mapping_data(&job.memory.slot[1]);
	slot[0] = 3;
	pthread_join(d.thread, NULL);
	close(d.connection);
	close(d.listener);
	ck_assert_int_eq(map(&d), ST_OK);
	ck_assert_ptr_eq(mapping_data(&job.memory.slot[1]), slot);
	ck_assert_uint_eq(slot[0], 3);
	daemon_fini(&d);
}
END_TEST

enum lie { UNSEALED, SHORT_FILE, SMALL_SLOT, NO_PARAMS, TWICE, FD_MISSING, OFFSET_OUTSIDE, REFUSED, N_LIES };

static void tell_lie(struct daemon *d, enum lie lie)
{
	switch (lie) {
	case UNSEALED:
		close(d->fds[1]);
		d->fds[1] = sealed_memfd(3 * PAGE, false);
		break;
	case SHORT_FILE:
		d->segment[2].bytes = 4 * PAGE;
		break;
	case SMALL_SLOT:
		d->segment[1].bytes = 2 * PAGE;
		break;
	case NO_PARAMS:
		d->segment[2].kind = KIND(UNSPECIFIED);
		break;
	case TWICE:
		d->segment[1].index = 0;
		break;
	case FD_MISSING:
		d->n_fds = N_SEGMENTS - 1;
		break;
	case OFFSET_OUTSIDE:
		d->segment[0].data_offset = 5 * PAGE;
		break;
	default:
		d->reason = "SESSION_UNKNOWN";
	}
}

START_TEST(believes_no_lie)
{
	struct daemon d;
	int before = open_fds();
	enum status st;

	daemon_init(&d);
	tell_lie(&d, (enum lie)_i);
	st = map(&d);
	ck_assert_int_ne(st, ST_OK);
	if (_i == REFUSED)
		ck_assert_int_eq(st, ST_SESSION_UNKNOWN);
	ck_assert_ptr_null(job.memory.params.base);
	ck_assert_int_eq(job.memory.socket, -1);
	daemon_fini(&d);
	ck_assert_int_eq(open_fds(), before);
}
END_TEST

START_TEST(nobody_listens)
{
	struct rpc_failure f = { 0 };

	ck_assert_int_eq(memory_map(&job.memory, &job, &f), ST_UNAVAILABLE);
	ck_assert_ptr_nonnull(strstr(f.message, "No such file"));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client map");
	TCase *tc = tcase_create("all");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, maps_and_shares);
	tcase_add_test(tc, remaps_in_place);
	tcase_add_test(tc, keeps_the_same_memory);
	tcase_add_loop_test(tc, believes_no_lie, 0, N_LIES);
	tcase_add_test(tc, nobody_listens);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
