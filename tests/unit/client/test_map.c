/* SPDX-License-Identifier: Apache-2.0 */
/* Mapping memory over an attach socket whose other end is this test. */
#include "engine/mailbox.h"
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
#define N_SEGMENTS 4 /* and three more with a mailbox */
#define MAX_SEGMENTS 7
#define TENSORS 20

static char dir[] = "/tmp/gacc-map-XXXXXX";
static char path[64];

/* What the fake daemon answers. */
struct daemon {
	int listener, connection;
	pthread_t thread;
	int fds[MAX_SEGMENTS];
	Gacc__V1__Segment segment[MAX_SEGMENTS];
	size_t n, n_fds; /* n_fds: how many are really sent */
	const char *reason;
	uint64_t asked_session;
	bool asked_mailbox;
	int answer; /* with a mailbox, the eventfd that rings the trainer; -1 */
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
	struct daemon *d = arg;
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
	*d = (struct daemon){ .connection = -1, .n = N_SEGMENTS, .n_fds = N_SEGMENTS, .answer = -1 };
	for (int i = 0; i < N_SEGMENTS; i++)
		d->fds[i] = sealed_memfd(3 * PAGE, true);
	describe(&d->segment[0], KIND(SLOT), 0, 3 * PAGE);
	describe(&d->segment[1], KIND(SLOT), 1, 3 * PAGE);
	describe(&d->segment[2], KIND(PARAMETERS), 0, 3 * PAGE);
	describe(&d->segment[3], KIND(STATUS), 0, 3 * PAGE);
}

/* What gaccd hands out beside the rest. */
static void add_mailbox(struct daemon *d, uint64_t sgen)
{
	struct mailbox_owner o = { .job = 8, .sgen = sgen, .rank = 3, .slots = 2, .n_tensors = TENSORS };
	struct mailbox_fds f;
	char why[160] = "";

	ck_assert_msg(mailbox_make(&f, &o, why, sizeof(why)) == ST_OK, "%s", why);
	d->fds[N_SEGMENTS] = f.memory;
	d->fds[N_SEGMENTS + 1] = f.submit;
	d->fds[N_SEGMENTS + 2] = f.waits;
	d->answer = f.answer;
	describe(&d->segment[N_SEGMENTS], KIND(MAILBOX), 0, gacc_box_bytes(TENSORS));
	describe(&d->segment[N_SEGMENTS + 1], KIND(SUBMIT), 0, 0);
	describe(&d->segment[N_SEGMENTS + 2], KIND(ANSWER), 0, 0);
	d->n = d->n_fds = MAX_SEGMENTS;
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
	for (size_t i = 0; i < d->n; i++)
		close(d->fds[i]);
	if (d->answer >= 0)
		close(d->answer);
}

static Gacc__V1__Session session;
static struct gacc_job job;

static void setup(void)
{
	ck_assert_ptr_nonnull(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/attach", dir);
	gacc__v1__session__init(&session);
	session.id = 42;
	unsetenv("GACC_MAILBOX");
	setenv("GACC_QUIET", "1", 1);
	job = (struct gacc_job){ .session = &session,
				 .id = 8,
				 .rank = 3,
				 .generation = 11,
				 .attach_socket = path,
				 .memory.socket = -1,
				 .layout = {
					 .slots = 2, .n = TENSORS, .slot_bytes = 2 * PAGE, .param_bytes = 2 * PAGE } };
}

static void teardown(void)
{
	memory_unmap(&job.memory);
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

/* ---- the mailbox ---- */

START_TEST(a_mailbox_comes_along)
{
	struct daemon d;
	int before = open_fds();

	daemon_init(&d);
	add_mailbox(&d, 11);
	ck_assert_int_eq(map(&d), ST_OK);
	ck_assert(d.asked_mailbox && cells_usable(&job.memory.cells));
	ck_assert_uint_eq(job.memory.cells.sgen, 11);
	daemon_fini(&d);
	ck_assert_int_eq(open_fds(), before + 3); /* the socket and two bells */
	memory_unmap(&job.memory);
	ck_assert_int_eq(open_fds(), before);
}
END_TEST

START_TEST(the_next_session_has_another)
{
	struct daemon first, second;
	struct gacc_box_answer a;
	uint64_t seq;
	int before = open_fds();

	daemon_init(&first);
	add_mailbox(&first, 11);
	ck_assert_int_eq(map(&first), ST_OK);
	daemon_fini(&first);
	daemon_init(&second);
	add_mailbox(&second, 12);
	job.generation = 12;
	ck_assert_int_eq(map(&second), ST_OK);
	ck_assert(cells_usable(&job.memory.cells));
	ck_assert_uint_eq(job.memory.cells.sgen, 12);
	seq = cells_publish(&job.memory.cells, (struct gacc_box_request){ .kind = GACC_BOX_PUSH }, NULL);
	daemon_fini(&second);
	ck_assert_int_eq(open_fds(), before + 3);
	ck_assert(!cells_await(&job.memory.cells, seq, 20000, &a)); /* this socket's hang-up is watched */
}
END_TEST

START_TEST(the_next_session_has_none)
{
	struct daemon first, second;
	int before = open_fds();

	daemon_init(&first);
	add_mailbox(&first, 11);
	ck_assert_int_eq(map(&first), ST_OK);
	daemon_fini(&first);
	daemon_init(&second);
	ck_assert_int_eq(map(&second), ST_OK);
	ck_assert(!cells_usable(&job.memory.cells));
	daemon_fini(&second);
	ck_assert_int_eq(open_fds(), before + 1);
}
END_TEST

START_TEST(none_is_asked_for)
{
	const char *value[] = { "0", "", "1" };
	struct daemon d;

	setenv("GACC_MAILBOX", value[_i], 1);
	daemon_init(&d);
	ck_assert_int_eq(map(&d), ST_OK);
	ck_assert_int_eq(d.asked_mailbox, _i > 0);
	ck_assert(!job.memory.cells_told);
	daemon_fini(&d);
}
END_TEST

/* Something is wrong with it: one sentence, and the rest of the memory is mapped as ever. */
START_TEST(a_wrong_mailbox_is_left)
{
	struct daemon d;
	char said[256] = "";
	int before = open_fds(), to[2], stderr_was = dup(STDERR_FILENO);

	unsetenv("GACC_QUIET");
	ck_assert_int_eq(pipe2(to, O_CLOEXEC | O_NONBLOCK), 0);
	dup2(to[1], STDERR_FILENO);
	for (int i = 0; i < 2; i++) {
		daemon_init(&d);
		add_mailbox(&d, 11 + 1);
		if (_i == 1)
			d.segment[N_SEGMENTS + 1].kind = KIND(ANSWER); /* two of a kind */
		ck_assert_int_eq(map(&d), ST_OK);
		ck_assert(job.memory.params.base && job.memory.socket >= 0);
		ck_assert(!cells_usable(&job.memory.cells));
		daemon_fini(&d);
	}
	dup2(stderr_was, STDERR_FILENO);
	ck_assert_int_gt(read(to[0], said, sizeof(said) - 1), 0);
	ck_assert_ptr_nonnull(strstr(said, "rank 3: pushes go by RPC"));
	ck_assert_ptr_null(strstr(strchr(said, '\n') + 1, "gacc")); /* once */
	close(stderr_was);
	close(to[0]);
	close(to[1]);
	ck_assert_int_eq(open_fds(), before + 1);
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
	tcase_add_test(tc, a_mailbox_comes_along);
	tcase_add_test(tc, the_next_session_has_another);
	tcase_add_test(tc, the_next_session_has_none);
	tcase_add_loop_test(tc, none_is_asked_for, 0, 3);
	tcase_add_loop_test(tc, a_wrong_mailbox_is_left, 0, 2);
	tcase_add_test(tc, nobody_listens);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
