/* SPDX-License-Identifier: Apache-2.0 */
/* What the library takes for a mailbox: gaccd's (mailbox_make), and nothing that could block, kill or mislead a
 * trainer.
 */
#include "lib/cells.h"

#include "support/box.h"

#include <check.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define TENSORS 70

Suite *cells_open_suite(void);

enum lie {
	NO_MEMORY,
	NO_SUBMIT,
	NO_WAITS,
	SMALLER,
	LARGER,
	UNSEALED,
	NO_MEMFD,
	MAGIC,
	VERSION,
	CELLS,
	JOB,
	RANK,
	SLOTS,
	SGEN,
	BLOCKING_BELL,
	PIPE_AS_BELL,
	SOCKET_AS_BELL,
	EVENTFD_AS_WAITS,
	NO_LIE,
	N_LIES
};

static int memory_of(size_t bytes, const void *header, int seals)
{
	int fd = memfd_create("mailbox", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
	ck_assert_int_eq(pwrite(fd, header, sizeof(struct gacc_box_header), 0), sizeof(struct gacc_box_header));
	ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static void put(int *fd, int other)
{
	if (*fd >= 0)
		close(*fd);
	*fd = other;
}

/* A pipe or a socket whose other end is gone: a write would raise SIGPIPE. */
static int broken(bool is_pipe)
{
	int end[2];

	ck_assert_int_eq(is_pipe ? pipe2(end, O_CLOEXEC | O_NONBLOCK)
				 : socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, end),
			 0);
	close(end[0]);
	return end[1];
}

static void lie_in_header(struct gacc_box_header *h, enum lie lie)
{
	h->magic += lie == MAGIC;
	h->version += lie == VERSION;
	h->cells += lie == CELLS;
	h->job += lie == JOB;
	h->rank += lie == RANK;
	h->slots += lie == SLOTS;
	h->sgen += lie == SGEN;
}

static void tell_lie(struct cells_fds *f, enum lie lie)
{
	struct gacc_box_header h;
	size_t bytes = gacc_box_bytes(TENSORS);

	ck_assert_int_eq(pread(f->memory, &h, sizeof(h), 0), sizeof(h));
	lie_in_header(&h, lie);
	if (lie >= MAGIC && lie <= SGEN)
		put(&f->memory, memory_of(bytes, &h, F_SEAL_SHRINK));
	else if (lie == SMALLER || lie == LARGER)
		put(&f->memory, memory_of(lie == SMALLER ? bytes - 1 : bytes + 1, &h, F_SEAL_SHRINK));
	else if (lie == UNSEALED)
		put(&f->memory, memory_of(bytes, &h, F_SEAL_GROW));
	else if (lie == NO_MEMORY || lie == NO_MEMFD)
		put(&f->memory, lie == NO_MEMORY ? -1 : open("/dev/zero", O_RDWR | O_CLOEXEC));
	else if (lie == NO_SUBMIT || lie == BLOCKING_BELL)
		put(&f->submit, lie == NO_SUBMIT ? -1 : eventfd(0, EFD_CLOEXEC));
	else if (lie == PIPE_AS_BELL || lie == SOCKET_AS_BELL)
		put(&f->submit, broken(lie == PIPE_AS_BELL));
	else if (lie != NO_LIE)
		put(&f->waits, lie == NO_WAITS ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

static int open_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

START_TEST(what_is_no_mailbox_is_not_taken)
{
	struct cells_owner o = { .job = 7, .sgen = 1, .rank = 0, .slots = 2, .n_tensors = TENSORS };
	struct box_world world;
	struct gacc_box_answer a;
	struct cells c;
	char why[160] = "";
	int line[2], before; /* line: the attach socket */

	box_world_make(&world, 1, 1, TENSORS);
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line), 0);
	before = open_fds();
	struct cells_fds f = { dup(world.fds[0].memory), dup(world.fds[0].submit), dup(world.fds[0].waits) };

	tell_lie(&f, (enum lie)_i);
	ck_assert_int_eq(cells_open(&c, &f, &o, line[0], why, sizeof(why)) == ST_OK, _i == NO_LIE);
	ck_assert_int_eq(*why == '\0', _i == NO_LIE);
	ck_assert(cells_usable(&c) == (_i == NO_LIE) && !cells_await(&c, 1, 0, &a));
	if (_i == NO_LIE)
		cells_close(&c);
	ck_assert_int_eq(open_fds(), before);
	cells_close(&c);
	close(line[0]);
	close(line[1]);
	box_world_free(&world);
}
END_TEST

Suite *cells_open_suite(void)
{
	Suite *suite = suite_create("client cells, opening");
	TCase *tc = tcase_create("all");

	tcase_add_loop_test(tc, what_is_no_mailbox_is_not_taken, 0, N_LIES);
	suite_add_tcase(suite, tc);
	return suite;
}
