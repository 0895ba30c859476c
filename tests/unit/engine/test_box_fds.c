/* SPDX-License-Identifier: Apache-2.0 */
/* A mailbox as descriptors: what is made, what is refused, bells that nobody reads. */
#include "engine/mailbox.h"

#include "support/box.h"
#include "support/suite.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define TENSORS 600

static struct mailbox_fds fds;
static char why[160];

static void setup(void)
{
	const struct mailbox_owner o = { .job = 5, .sgen = 6, .rank = 7, .slots = 2, .n_tensors = TENSORS };
	ck_assert_msg(mailbox_make(&fds, &o, why, sizeof(why)) == ST_OK, "%s", why);
}

static void teardown(void)
{
	mailbox_close_fds(&fds);
}

static int open_files(void)
{
	int n = 0;
	DIR *d = opendir("/proc/self/fd");
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* What the engine gets. */
static struct mailbox_fds copies(void)
{
	return (struct mailbox_fds){ dup(fds.memory), dup(fds.submit), dup(fds.answer), -1 };
}

static void open_box(struct mailbox *m)
{
	struct mailbox_fds f = copies();
	ck_assert_msg(mailbox_open(m, &f, TENSORS, 2, why, sizeof(why)) == ST_OK, "%s", why);
}

static int events(int epoll)
{
	struct epoll_event e[4];
	return epoll_wait(epoll, e, 4, 0);
}

/* ---- making one ---- */

START_TEST(what_is_made)
{
	struct stat st;
	struct gacc_box_header h;
	ck_assert_int_eq(fstat(fds.memory, &st), 0);
	ck_assert_int_eq(st.st_size, (off_t)gacc_box_bytes(TENSORS));
	ck_assert_int_eq(st.st_mode & 0777, 0600);
	ck_assert_int_ge(st.st_blocks * 512, st.st_size); /* allocated */
	ck_assert_int_eq(fcntl(fds.memory, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	ck_assert_int_eq(pread(fds.memory, &h, sizeof(h), 0), sizeof(h));
	ck_assert(h.magic == GACC_BOX_MAGIC && h.version == 1 && h.cells == 8 && h.closed == 0);
	ck_assert(h.job == 5 && h.sgen == 6 && h.rank == 7 && h.slots == 2);
	ck_assert_mem_eq(&h, "GACCBOX1", 8);
	const int all[] = { fds.memory, fds.submit, fds.answer, fds.waits };
	for (int i = 0; i < 4; i++)
		ck_assert_int_eq(fcntl(all[i], F_GETFD), FD_CLOEXEC);
}
END_TEST

START_TEST(sizes)
{
	ck_assert_uint_eq(gacc_box_bytes(1), 8192 + 8 * 64);
	ck_assert_uint_eq(gacc_box_bytes(512), 8192 + 8 * 64);
	ck_assert_uint_eq(gacc_box_bytes(513), 8192 + 8 * 128);
	ck_assert_uint_eq(gacc_box_present_at(513, 7) + 128, gacc_box_bytes(513));
	ck_assert_uint_eq(gacc_box_present_bytes(9), 2);
}
END_TEST

/* ---- what an engine does not take ---- */

static void check_refused(struct mailbox_fds f, uint64_t n_tensors, enum status st, const char *word)
{
	struct mailbox m;
	ck_assert_int_eq(mailbox_open(&m, &f, n_tensors, 2, why, sizeof(why)), st);
	ck_assert_msg(strstr(why, word) != NULL, "%s", why);
}

static int memory(size_t bytes, unsigned flags, int seals)
{
	int fd = memfd_create("other", flags);
	ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
	if (seals)
		ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

START_TEST(other_memory_is_refused_and_closed)
{
	const int seal[] = { F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL };
	size_t bytes = gacc_box_bytes(TENSORS);
	int before = open_files();
	for (int i = 0; i < 3; i++) {
		struct mailbox_fds f = copies();
		close(f.memory);
		f.memory = memory(bytes, MFD_ALLOW_SEALING, seal[i] | seal[(i + 1) % 3]);
		check_refused(f, TENSORS, ST_SEGMENT_CORRUPT, "seal");
	}
	check_refused(copies(), TENSORS + 512, ST_SEGMENT_CORRUPT, "bytes");
	check_refused(copies(), TENSORS - 128, ST_SEGMENT_CORRUPT, "bytes");
	struct mailbox_fds f = copies();
	close(f.memory);
	f.memory = open("/dev/null", O_RDWR);
	check_refused(f, TENSORS, ST_SEGMENT_CORRUPT, "seal");
	f = copies();
	close(f.answer);
	f.answer = eventfd(0, 0);
	check_refused(f, TENSORS, ST_INVALID_ARGUMENT, "block");
	ck_assert_int_eq(open_files(), before);
}
END_TEST

START_TEST(the_header_is_not_asked)
{
	char noise[128];
	struct mailbox m;
	memset(noise, 0x5a, sizeof(noise));
	ck_assert_int_eq(pwrite(fds.memory, noise, sizeof(noise), 0), sizeof(noise));
	open_box(&m);
	mailbox_drop(&m);
}
END_TEST

START_TEST(nothing_is_left_of_a_mailbox)
{
	struct mailbox m;
	int before = open_files(), epoll = epoll_create1(0);
	open_box(&m);
	ck_assert_int_eq(mailbox_watch(&m, epoll, 3), ST_OK);
	mailbox_drop(&m);
	const uint64_t one = 1;
	ck_assert_int_eq(write(fds.submit, &one, 8), 8); /* its file is still there */
	ck_assert_int_eq(events(epoll), 0);
	close(epoll);
	ck_assert_int_eq(open_files(), before);
}
END_TEST

/* ---- bells ---- */

START_TEST(the_engines_bell_is_never_read)
{
	struct mailbox m;
	struct epoll_event e;
	const uint64_t one = 1;
	uint64_t n;
	int epoll = epoll_create1(0);
	ck_assert_int_eq(write(fds.submit, &one, 8), 8); /* before anyone watches */
	open_box(&m);
	ck_assert_int_eq(mailbox_watch(&m, epoll, 0x123456789abcdef), ST_OK);
	for (int i = 0; i < 10000; i++) {
		ck_assert_int_eq(epoll_wait(epoll, &e, 1, 0), 1);
		ck_assert_uint_eq(e.data.u64, 0x123456789abcdef);
		ck_assert_int_eq(events(epoll), 0);
		for (int k = 0; k <= i % 3; k++)
			ck_assert_int_eq(write(fds.submit, &one, 8), 8);
	}
	ck_assert_int_eq(read(fds.submit, &n, 8), 8);
	ck_assert_uint_gt(n, 10000);
	mailbox_drop(&m);
	close(epoll);
}
END_TEST

/* A trainer that fills its own bell is not heard, and holds up nobody. */
START_TEST(the_engines_bell_at_its_maximum)
{
	struct mailbox m;
	int epoll = epoll_create1(0);
	const uint64_t most = UINT64_MAX - 1, one = 1;
	open_box(&m);
	ck_assert_int_eq(mailbox_watch(&m, epoll, 1), ST_OK);
	ck_assert_int_eq(write(fds.submit, &most, 8), 8);
	ck_assert_int_eq(events(epoll), 1);
	ck_assert(write(fds.submit, &one, 8) < 0 && errno == EAGAIN);
	ck_assert_int_eq(events(epoll), 0);
	mailbox_drop(&m);
	close(epoll);
}
END_TEST

START_TEST(the_trainers_bell)
{
	struct mailbox m;
	struct epoll_event e;
	open_box(&m);
	ck_assert_int_eq(events(fds.waits), 0);
	box_ring(&m.cells, m.answer); /* the predecessor may have died before it */
	ck_assert_int_eq(epoll_wait(fds.waits, &e, 1, 0), 1);
	ck_assert_uint_eq(e.data.u64, MAILBOX_BELL);
	ck_assert_int_eq(events(fds.waits), 0);
	box_ring(&m.cells, m.answer); /* nothing is due */
	ck_assert_int_eq(events(fds.waits), 0);
	for (int i = 0; i < 1000; i++) {
		m.cells.bell_due = true;
		box_ring(&m.cells, m.answer);
		ck_assert_int_eq(events(fds.waits), 1);
		ck_assert_int_eq(events(fds.waits), 0);
	}
	mailbox_drop(&m);
}
END_TEST

START_TEST(the_trainers_bell_at_its_maximum)
{
	struct mailbox m;
	const uint64_t most = UINT64_MAX - 1;
	open_box(&m);
	ck_assert_int_eq(write(fds.answer, &most, 8), 8);
	ck_assert_int_eq(events(fds.waits), 1);
	box_ring(&m.cells, m.answer);
	ck_assert_int_eq(events(fds.waits), 1);
	m.cells.bell_due = true;
	box_ring(&m.cells, m.answer);
	ck_assert_int_eq(events(fds.waits), 1);
	mailbox_drop(&m);
}
END_TEST

/* Whatever a trainer does to the file of the bell that it shares. */
START_TEST(a_blocking_submit_bell_blocks_nobody)
{
	struct mailbox m;
	int epoll = epoll_create1(0);
	ck_assert_int_eq(fcntl(fds.submit, F_SETFL, 0), 0);
	open_box(&m);
	ck_assert_int_eq(mailbox_watch(&m, epoll, 1), ST_OK);
	m.cells.bell_due = true;
	box_ring(&m.cells, m.answer);
	ck_assert_int_eq(events(epoll), 0);
	mailbox_drop(&m);
	close(epoll);
}
END_TEST

START_TEST(a_closed_mailbox_rings)
{
	struct mailbox m;
	uint32_t closed;
	open_box(&m);
	box_ring(&m.cells, m.answer);
	ck_assert_int_eq(events(fds.waits), 1);
	box_set_closed(&m.cells);
	box_ring(&m.cells, m.answer);
	ck_assert_int_eq(events(fds.waits), 1);
	mailbox_drop(&m);
	ck_assert_int_eq(pread(fds.memory, &closed, 4, offsetof(struct gacc_box_header, closed)), 4);
	ck_assert_uint_eq(closed, 1);
}
END_TEST

Suite *box_cells_suite(void);
Suite *box_hostile_suite(void);

int main(void)
{
	Suite *s = suite_create("mailbox descriptors");
	TCase *t = tcase_create("descriptors");
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, what_is_made);
	tcase_add_test(t, sizes);
	tcase_add_test(t, other_memory_is_refused_and_closed);
	tcase_add_test(t, the_header_is_not_asked);
	tcase_add_test(t, nothing_is_left_of_a_mailbox);
	tcase_add_test(t, the_engines_bell_is_never_read);
	tcase_add_test(t, the_engines_bell_at_its_maximum);
	tcase_add_test(t, the_trainers_bell);
	tcase_add_test(t, the_trainers_bell_at_its_maximum);
	tcase_add_test(t, a_blocking_submit_bell_blocks_nobody);
	tcase_add_test(t, a_closed_mailbox_rings);
	suite_add_tcase(s, t);
	return suite_run(box_cells_suite(), box_hostile_suite(), s);
}
