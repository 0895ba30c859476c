/* SPDX-License-Identifier: Apache-2.0 */
/* The journal on a disk that is full: its reserve, and what is refused instead of using it. */
#include "journal_rig.h"

#include "faulty_vfs.h"
#include "base/log.h"
#include "support/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define RESERVE 3 /* MiB */

static struct journal *open_with_reserve(uint64_t *term)
{
	faulty_vfs_install();
	struct journal *j = open_ok();
	*term = term_of(j);
	for (uint32_t i = 1; i <= RESERVE; i++)
		ck_assert_uint_eq(journal_reserve(j, RESERVE), i);
	ck_assert_uint_eq(journal_reserve(j, RESERVE), RESERVE);
	return j;
}

/* A record that takes new pages each time. */
static struct journal_record update(uint64_t id, uint64_t window)
{
	static char bytes[64000];
	memset(bytes, 'u', sizeof(bytes));
	struct journal_record r = { .kind = JOURNAL_UPDATE, .update = { id, window, { bytes, sizeof(bytes) } } };
	return r;
}

START_TEST(commits_go_on_from_the_reserve)
{
	uint64_t term, written = 0;
	struct journal *j = open_with_reserve(&term);
	ck_assert_int_eq(write1(j, term, job(1)), ST_OK);
	faulty_vfs_fill(true);
	uint32_t left = RESERVE;
	while (left == RESERVE || left > 0) { /* each leaves its pages in use */
		ck_assert_int_eq(write1(j, term, update(1, ++written)), ST_OK);
		left = journal_reserve(j, RESERVE);
	}
	ck_assert_uint_gt(written, 32); /* 64 KB each: more than 2 MiB were there */
	ck_assert_uint_lt(written, 64);
	faulty_vfs_fill(false);
	for (uint32_t i = 1; i <= RESERVE; i++)
		ck_assert_uint_eq(journal_reserve(j, RESERVE), i);
	for (uint64_t w = 0; w < 2000; w++)
		ck_assert_int_eq(write1(j, term, commit(1, 1, w, term)), ST_OK);
	journal_close(j);
	j = open_ok();
	ck_assert_uint_eq(journal_reserve(j, 0), RESERVE);
	ck_assert_uint_eq(windows(j, 1, UINT64_MAX).n, 2000);
	journal_close(j);
}
END_TEST

/* Thousands of commits and checkpoints of the log that get not one byte from the disk, across a close and an open. */
START_TEST(a_full_disk_does_not_stop_small_commits)
{
	uint64_t term;
	struct journal *j = open_with_reserve(&term);
	ck_assert_int_eq(write1(j, term, job(1)), ST_OK);
	faulty_vfs_fill(true);
	for (uint64_t w = 0; w < 3000; w++)
		ck_assert_int_eq(write1(j, term, commit(1, 1, w, term)), ST_OK);
	journal_close(j);
	j = open_ok();
	term = term_of(j);
	for (uint64_t w = 3000; w < 6000; w++)
		ck_assert_int_eq(write1(j, term, commit(1, 1, w, term)), ST_OK);
	ck_assert_int_eq(write1(j, term, end(1)), ST_OK);
	ck_assert_uint_gt(journal_reserve(j, RESERVE), 0);
	faulty_vfs_fill(false);
	ck_assert_uint_eq(windows(j, 1, UINT64_MAX).n, 6000);
	journal_close(j);
}
END_TEST

/* Only a disk that is full costs any of the reserve, however large a record is. */
START_TEST(large_records_leave_the_reserve_alone)
{
	uint64_t term;
	size_t n = 8 << 20;
	struct journal *j = open_with_reserve(&term);
	char *bytes = calloc(1, n);
	struct journal_bytes large = { bytes, n };
	struct journal_record window = commit(1, 1, 0, term), over = end(2);
	window.commit.payload = large;
	over.end.view = large;
	const struct journal_record records[] = {
		{ .kind = JOURNAL_TENSORS, .tensors = { 1, large } },
		{ .kind = JOURNAL_RESTORED, .restored = { 2, 0, large } },
		{ .kind = JOURNAL_UPDATE, .update = { 1, 3, large } },
		window,
		over,
		{ .kind = JOURNAL_VIEW, .view = { 2, large } },
		{ .kind = JOURNAL_EXITS, .exits = { 2, large } },
		{ .kind = JOURNAL_PART, .part = { .job = 3, .placement = large } },
		{ .kind = JOURNAL_PART_TENSORS, .part_tensors = { 3, 0, large } },
	};
	ck_assert_int_eq(write1(j, term, job(1)), ST_OK);
	ck_assert_int_eq(write1(j, term, job(2)), ST_OK);
	for (size_t i = 0; i < sizeof(records) / sizeof(*records); i++) {
		ck_assert_msg(write1(j, term, records[i]) == ST_OK, "record %zu", i);
		ck_assert_msg(journal_reserve(j, 0) == RESERVE, "record %zu", i);
	}
	free(bytes);
	journal_close(j);
}
END_TEST

/* They are as large as users make them, and nobody waits for them who was promised anything. */
START_TEST(new_jobs_and_tensors_do_not_use_the_reserve)
{
	uint64_t term;
	struct journal *j = open_with_reserve(&term);
	char *set = calloc(1, 1 << 20);
	struct journal_record tensors = { .kind = JOURNAL_TENSORS, .tensors = { 1, { set, 1 << 20 } } };
	ck_assert_int_eq(write1(j, term, job(1)), ST_OK);
	faulty_vfs_fill(true);
	ck_assert_int_eq(write1(j, term, tensors), ST_RESOURCE_EXHAUSTED);
	const struct journal_record part = { .kind = JOURNAL_PART,
					     .part = { .job = 9000, .placement = { set, 1 << 20 } } };
	ck_assert_int_eq(write1(j, term, part), ST_RESOURCE_EXHAUSTED);
	struct journal_record both[2] = { commit(1, 1, 0, term), tensors };
	ck_assert_int_eq(journal_commit(j, term, both, 2), ST_RESOURCE_EXHAUSTED);
	enum status st = ST_OK;
	for (uint64_t id = 2; id < 2000 && !st; id++) /* until the pages that were free anyway are used */
		st = write1(j, term, job(id));
	ck_assert_int_eq(st, ST_RESOURCE_EXHAUSTED);
	ck_assert_uint_eq(journal_reserve(j, RESERVE), RESERVE);
	ck_assert_int_eq(write1(j, term, commit(1, 1, 0, term)), ST_OK);
	faulty_vfs_fill(false);
	ck_assert_int_eq(write1(j, term, tensors), ST_OK);
	free(set);
	journal_close(j);
}
END_TEST

START_TEST(without_a_reserve_it_fails_for_good)
{
	uint64_t term;
	struct journal *j = open_with_reserve(&term);
	enum status st = ST_OK;
	ck_assert_int_eq(write1(j, term, job(1)), ST_OK);
	log_init("test", LOG_TEXT, 0);
	faulty_vfs_fill(true);
	uint64_t written = 0;
	while (!st)
		st = write1(j, term, update(1, ++written));
	ck_assert_int_eq(st, ST_STORE_FAILED);
	faulty_vfs_fill(false);
	ck_assert_int_eq(write1(j, term, commit(1, 1, 0, term)), ST_STORE_FAILED);
	journal_close(j);
	j = open_ok();
	ck_assert_uint_eq(journal_reserve(j, 0), 0);
	ck_assert_int_eq(write1(j, term_of(j), commit(1, 1, 0, term + 1)), ST_OK);
	journal_close(j);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("journal_room");
	TCase *tc = tcase_create("room");
	tcase_add_checked_fixture(tc, journal_setup, journal_teardown);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, commits_go_on_from_the_reserve);
	tcase_add_test(tc, a_full_disk_does_not_stop_small_commits);
	tcase_add_test(tc, large_records_leave_the_reserve_alone);
	tcase_add_test(tc, new_jobs_and_tensors_do_not_use_the_reserve);
	tcase_add_test(tc, without_a_reserve_it_fails_for_good);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
