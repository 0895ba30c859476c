/* SPDX-License-Identifier: Apache-2.0 */
/* What an earlier gaccd has left at the service manager: names, whose it is, how it is taken and given up. */
#include "part_rig.h"
#include "rpc/pool.h"
#include "runtime/stored.h"
#include "support/suite.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0 || errno != EBADF;
}

static void on_kept(void *arg, enum status st)
{
	*(enum status *)arg = st;
}

#define N_SOME 8

/* The manager keeps memory of job 7 (segments of 1, 3 and 4 pages), of job 70 (one of 2), the journal's, and that of
 * the two parts of job 9 (one of 6; of 7 and 8). */
static void keep_some(void)
{
	static const struct {
		uint64_t job;
		uint32_t part, n_parts;
		struct plan_segment segment;
	} some[N_SOME] = { { 7, 0, 1, { .role = SEG_CONTROL } },
			   { 70, 0, 1, { .role = SEG_CONTROL } },
			   { 7, 0, 1, { .role = SEG_SLOT, .index = 3 } },
			   { 7, 0, 1, { .role = SEG_PARAMS } },
			   { 0 },
			   { 9, 0, 2, { .role = SEG_CONTROL } },
			   { 9, 1, 2, { .role = SEG_CONTROL } },
			   { 9, 1, 2, { .role = SEG_SLOT, .index = 2 } } };
	struct fdstore_fd *item = calloc(N_SOME, sizeof(*item));
	struct fdstore_request *request;
	static enum status kept_so;
	kept_so = ST_INTERNAL;
	for (int i = 0; i < N_SOME; i++) {
		item[i].fd = memfd_create("test", MFD_CLOEXEC);
		ck_assert_int_eq(ftruncate(item[i].fd, (i + 1) * 4096), 0);
		if (some[i].job)
			stored_name(some[i].job, some[i].part, some[i].n_parts, &some[i].segment, item[i].name);
		else
			strcpy(item[i].name, "journal.1");
	}
	struct fdstore_fd copy[N_SOME];
	memcpy(copy, item, sizeof(copy));
	fdstore_keep(node.fdstore, item, N_SOME, on_kept, &kept_so, &request);
	UNTIL(kept_so == ST_OK);
	for (int i = 0; i < N_SOME; i++)
		close(copy[i].fd);
	ck_assert_int_eq(n_kept, N_SOME);
	rig_restart();
}

/* ---- names ---- */

START_TEST(names_are_a_format)
{
	char name[FDSTORE_MAX_NAME];
	stored_name(7, 0, 1, &(struct plan_segment){ .role = SEG_SLOT, .index = 3 }, name);
	ck_assert_str_eq(name, "j7.r16.3.1");
	stored_name(1, 0, 1, &(struct plan_segment){ .role = SEG_CONTROL }, name);
	ck_assert_str_eq(name, "j1.r1.0.1");
	stored_name(UINT64_MAX, 0, 1, &(struct plan_segment){ .role = UINT32_MAX, .index = UINT32_MAX }, name);
	ck_assert_str_eq(name, "j18446744073709551615.r4294967295.4294967295.1");
	stored_name(7, 1, 2, &(struct plan_segment){ .role = SEG_SLOT, .index = 3 }, name);
	ck_assert_str_eq(name, "j7.r16.3.1.p1");
	stored_name(7, 0, 2, &(struct plan_segment){ .role = SEG_CONTROL }, name);
	ck_assert_str_eq(name, "j7.r1.0.1.p0");
	stored_name(UINT64_MAX, PART_MAX - 1, PART_MAX,
		    &(struct plan_segment){ .role = UINT32_MAX, .index = UINT32_MAX }, name);
	ck_assert_str_eq(name, "j18446744073709551615.r4294967295.4294967295.1.p15");
	stored_name(7, 0, 1, &(struct plan_segment){ .role = SEG_PARAMS, .on_device = true }, name);
	ck_assert_str_eq(name, "j7.r5.0.1.d");
}
END_TEST

START_TEST(names_tell_the_job)
{
	static const char *const others[] = { "",
					      "journal.1",
					      "j",
					      "j7",
					      "j7.",
					      "j7.s16.3.1",
					      "j.r16.3.1",
					      "jx.r1.0.1",
					      "7.r1.0.1",
					      "j7.r.0",
					      "k7.r1.0.1",
					      "j7.p.r1.0",
					      "j7.p1.",
					      "j7.q1.r1.0.1",
					      "j7.p1.s1.0.1",
					      "j7.r1.0.1.p",
					      "j7.r1.0.1.px" };
	struct fdstore_fd s = { .fd = 0 };
	uint32_t part = 7;
	unsigned role = 0;
	stored_name(UINT64_MAX, 0, 1, &(struct plan_segment){ .role = SEG_SLOT, .index = 9 }, s.name);
	ck_assert_uint_eq(stored_job(&s, &part, &role), UINT64_MAX);
	ck_assert_uint_eq(role, SEG_SLOT);
	ck_assert_uint_eq(part, 0);
	stored_name(8, 3, 4, &(struct plan_segment){ .role = SEG_PARAMS, .index = 2 }, s.name);
	ck_assert_uint_eq(stored_job(&s, &part, &role), 8);
	ck_assert_uint_eq(role, SEG_PARAMS);
	ck_assert_uint_eq(part, 3);
	stored_name(UINT64_MAX, 0, 1, &(struct plan_segment){ .role = SEG_SLOT, .index = 9 }, s.name);
	ck_assert_uint_eq(stored_job(&s, NULL, NULL), UINT64_MAX);
	stored_name(9, 2, 4, &(struct plan_segment){ .role = SEG_SLOT, .index = 1 }, s.name);
	stored_other_name(s.name);
	ck_assert_str_eq(s.name, "j9.r16.1.1.p2.b");
	ck_assert_uint_eq(stored_job(&s, &part, &role), 9);
	ck_assert_uint_eq(part, 2);
	s.fd = -1; /* taken */
	ck_assert_uint_eq(stored_job(&s, &part, &role), 0);
	s.fd = 0;
	for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
		strcpy(s.name, others[i]);
		ck_assert_msg(stored_job(&s, &part, &role) == 0, "%s", others[i]);
	}
}
END_TEST

/* ---- what is there ---- */

START_TEST(bytes_are_those_of_the_job)
{
	uint64_t n;
	ck_assert_uint_eq(stored_bytes(&node, 7, &n), 0);
	ck_assert_uint_eq(n, 0);
	keep_some();
	ck_assert_uint_eq(stored_bytes(&node, 7, &n), 8 * 4096);
	ck_assert_uint_eq(n, 3);
	ck_assert_uint_eq(stored_bytes(&node, 70, &n), 2 * 4096);
	ck_assert_uint_eq(n, 1);
	ck_assert_uint_eq(stored_bytes(&node, 8, NULL), 0);
	ck_assert_uint_eq(stored_bytes(&node, 9, &n), (6 + 7 + 8) * 4096); /* of both parts */
	ck_assert_uint_eq(n, 3);
	close(stored_take(&node, "j7.r16.3.1"));
	ck_assert_uint_eq(stored_bytes(&node, 7, &n), 5 * 4096);
	ck_assert_uint_eq(n, 2);
}
END_TEST

START_TEST(a_descriptor_is_taken_once)
{
	struct stat info;
	ck_assert_int_eq(stored_take(&node, "j7.r1.0.1"), -1);
	keep_some();
	int fd = stored_take(&node, "j7.r5.0.1");
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(fstat(fd, &info), 0);
	ck_assert_int_eq(info.st_size, 4 * 4096);
	ck_assert_int_eq(stored_take(&node, "j7.r5.0.1"), -1);
	ck_assert_int_eq(stored_take(&node, "j7.r5.0"), -1);
	ck_assert_int_eq(n_kept, N_SOME); /* the manager keeps it on */
	close(fd);
}
END_TEST

/* ---- what is given up ---- */

START_TEST(all_of_a_job_is_given_up)
{
	int fd[5];
	keep_some();
	for (int i = 0; i < 5; i++)
		fd[i] = node.stored[i].fd;
	stored_release(&node, 7, STORED_ALL, 1000);
	ck_assert_uint_eq(stored_bytes(&node, 7, NULL), 0);
	UNTIL(n_kept == N_SOME - 3 && !is_open(fd[0]) && !is_open(fd[2]) && !is_open(fd[3]));
	ck_assert(is_open(fd[1]) && is_open(fd[4]));
	ck_assert_str_eq(kept[0].name, "j70.r1.0.1");
	ck_assert_str_eq(kept[1].name, "journal.1");
	stored_release(&node, 7, STORED_ALL, 1000);
	stored_release(&node, 99, STORED_ALL, 1000);
	rig_turn();
	ck_assert_int_eq(n_kept, N_SOME - 3);
}
END_TEST

/* What a part has adopted is no longer stored memory that nobody needs. */
START_TEST(what_was_taken_is_not_given_up)
{
	keep_some();
	int fd = stored_take(&node, "j7.r1.0.1");
	stored_release(&node, 7, STORED_ALL, 1000);
	UNTIL(n_kept == N_SOME - 2);
	for (int i = 0; i < 3; i++)
		rig_turn();
	ck_assert(is_open(fd));
	ck_assert_str_eq(kept[0].name, "j7.r1.0.1");
	close(fd);
}
END_TEST

START_TEST(the_memory_of_one_part_is_given_up)
{
	int fd[N_SOME];
	keep_some();
	for (int i = 0; i < N_SOME; i++)
		fd[i] = node.stored[i].fd;
	stored_release(&node, 9, 1, 1000);
	ck_assert_uint_eq(stored_bytes(&node, 9, NULL), 6 * 4096);
	UNTIL(n_kept == N_SOME - 2 && !is_open(fd[6]) && !is_open(fd[7]));
	ck_assert(is_open(fd[5]));
	ck_assert_str_eq(kept[N_SOME - 3].name, "j9.r1.0.1.p0");
	stored_release(&node, 9, STORED_ALL, 1000);
	UNTIL(n_kept == N_SOME - 3 && !is_open(fd[5]));
}
END_TEST

static struct segment *two_segments(int fd[2])
{
	struct segment *s = calloc(2, sizeof(*s));
	char why[200];
	for (uint32_t i = 0; i < 2; i++) {
		ck_assert_int_eq(segment_create(&s[i], 7, 1, 5, SEG_SLOT, i, 4096, i, why, sizeof(why)), ST_OK);
		fd[i] = s[i].fd;
	}
	return s;
}

START_TEST(segments_are_closed_in_the_pool)
{
	int fd[2];
	rig_wait_begins("the pool");
	segments_release(&node, 1000, two_segments(fd), 2);
	ck_assert(rpc_pool_running(node.pool, RPC_POOL_RELEASE) == 1);
	UNTIL(!rpc_pool_busy(node.pool));
	ck_assert(!is_open(fd[0]) && !is_open(fd[1]));
}
END_TEST

START_TEST(a_gaccd_that_ends_closes_them_at_once)
{
	int fd[2];
	node.stopping = true;
	segments_release(&node, 1000, two_segments(fd), 2);
	ck_assert(!is_open(fd[0]) && !is_open(fd[1]));
	ck_assert(!rpc_pool_busy(node.pool));
}
END_TEST

int main(int argc, char **argv)
{
	RIG_ENGINE(argc, argv);
	Suite *s = suite_create("stored");
	TCase *t = tcase_create("stored");
	suite_add_tcase(s, t);
	tcase_set_timeout(t, 150);
	tcase_add_checked_fixture(t, rig_open_managed, rig_close);
	tcase_add_test(t, names_are_a_format);
	tcase_add_test(t, names_tell_the_job);
	tcase_add_test(t, bytes_are_those_of_the_job);
	tcase_add_test(t, a_descriptor_is_taken_once);
	tcase_add_test(t, all_of_a_job_is_given_up);
	tcase_add_test(t, the_memory_of_one_part_is_given_up);
	tcase_add_test(t, what_was_taken_is_not_given_up);
	tcase_add_test(t, segments_are_closed_in_the_pool);
	tcase_add_test(t, a_gaccd_that_ends_closes_them_at_once);
	return suite_run(s);
}
