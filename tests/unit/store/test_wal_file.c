/* SPDX-License-Identifier: Apache-2.0 */
/* The log's writes are gathered: what is in the file when, over a VFS whose calls are counted and fail. */
#include "store/wal_file.h"

#include "faulty_vfs.h"
#include "support/scratch.h"
#include "support/suite.h"

#include <check.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FLAGS (SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE)

static char dir[SCRATCH_PATH], path[96];
static sqlite3_file *log_file;

static sqlite3_file *open_file(int flags)
{
	faulty_vfs_install();
	sqlite3_vfs *v = sqlite3_vfs_find(wal_file_vfs());
	ck_assert_ptr_nonnull(v);
	sqlite3_file *f = calloc(1, (size_t)v->szOsFile);
	ck_assert_int_eq(v->xOpen(v, path, f, FLAGS | flags, NULL), SQLITE_OK);
	faulty_vfs_arm(0, 0);
	return f;
}

static void close_file(sqlite3_file *f)
{
	ck_assert_int_eq(f->pMethods->xClose(f), SQLITE_OK);
	free(f);
}

static void setup(void)
{
	ck_assert(scratch_make(dir));
	snprintf(path, sizeof(path), "%s/db", dir);
	close_file(open_file(SQLITE_OPEN_MAIN_DB)); /* whose mode a log gets */
	snprintf(path, sizeof(path), "%s/db-wal", dir);
	log_file = open_file(SQLITE_OPEN_WAL);
}

static void teardown(void)
{
	close_file(log_file);
}

static int put(const char *text, sqlite3_int64 at)
{
	return log_file->pMethods->xWrite(log_file, text, (int)strlen(text), at);
}

static int sync_log(void)
{
	return log_file->pMethods->xSync(log_file, SQLITE_SYNC_NORMAL);
}

/* What another process would read. */
static void expect_file(const char *text)
{
	char found[64] = "";
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(read(fd, found, sizeof(found) - 1), (int)strlen(text));
	ck_assert_str_eq(found, text);
	close(fd);
}

START_TEST(a_sync_finds_one_write)
{
	ck_assert_int_eq(put("head", 0), SQLITE_OK);
	ck_assert_int_eq(put("page", 4), SQLITE_OK);
	ck_assert_int_eq(put("more", 8), SQLITE_OK);
	expect_file("");
	ck_assert_int_eq(faulty_vfs_calls(), 0);
	ck_assert_int_eq(sync_log(), SQLITE_OK);
	ck_assert(faulty_vfs_calls() == 2 && faulty_vfs_syncs() == 1);
	expect_file("headpagemore");
	ck_assert_int_eq(sync_log(), SQLITE_OK);
	ck_assert(faulty_vfs_calls() == 3 && faulty_vfs_syncs() == 2);
}
END_TEST

/* Over what waits, before it, or behind a gap. */
START_TEST(what_does_not_follow_is_written_apart)
{
	static const sqlite3_int64 places[] = { 4, 0, 9 };
	static const char *const found[] = { "....over", "overpage", "....page.over" };
	ck_assert_int_eq(put("........", 0), SQLITE_OK);
	ck_assert_int_eq(put(".", 8), SQLITE_OK);
	ck_assert_int_eq(sync_log(), SQLITE_OK);
	ck_assert_int_eq(put("page", 4), SQLITE_OK);
	faulty_vfs_arm(0, 0);
	ck_assert_int_eq(put("over", places[_i]), SQLITE_OK);
	ck_assert_int_eq(faulty_vfs_calls(), 1);
	ck_assert_int_eq(log_file->pMethods->xTruncate(log_file, (sqlite3_int64)strlen(found[_i])), SQLITE_OK);
	ck_assert_int_eq(faulty_vfs_calls(), 3);
	expect_file(found[_i]);
}
END_TEST

START_TEST(whoever_looks_finds_it_written)
{
	char text[5] = "";
	sqlite3_int64 size = 0;
	ck_assert_int_eq(put("page", 0), SQLITE_OK);
	switch (_i) {
	case 0:
		ck_assert_int_eq(log_file->pMethods->xRead(log_file, text, 4, 0), SQLITE_OK);
		ck_assert_str_eq(text, "page");
		break;
	case 1:
		ck_assert_int_eq(log_file->pMethods->xFileSize(log_file, &size), SQLITE_OK);
		ck_assert_int_eq(size, 4);
		break;
	case 2:
		ck_assert_int_eq(log_file->pMethods->xTruncate(log_file, 2), SQLITE_OK);
		break;
	default:
		close_file(log_file);
		log_file = open_file(SQLITE_OPEN_WAL);
	}
	expect_file(_i == 2 ? "pa" : "page");
}
END_TEST

START_TEST(what_has_no_room_is_written_before)
{
	static char large[WAL_FILE_ROOM + 1];
	ck_assert_int_eq(put("page", 0), SQLITE_OK);
	ck_assert_int_eq(log_file->pMethods->xWrite(log_file, large, WAL_FILE_ROOM - 4, 4), SQLITE_OK);
	ck_assert_int_eq(faulty_vfs_calls(), 0);
	ck_assert_int_eq(put("x", WAL_FILE_ROOM), SQLITE_OK);
	ck_assert_int_eq(faulty_vfs_calls(), 1);
	ck_assert_int_eq(log_file->pMethods->xWrite(log_file, large, WAL_FILE_ROOM + 1, WAL_FILE_ROOM + 1), SQLITE_OK);
	ck_assert_int_eq(faulty_vfs_calls(), 3);
	struct stat st;
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_int_eq(st.st_size, 2 * WAL_FILE_ROOM + 2);
}
END_TEST

/* Whoever waits for it hears of it; it is not tried again, as its transaction is undone. */
START_TEST(a_write_that_fails_is_told)
{
	char text[5];
	sqlite3_int64 size;
	const struct sqlite3_io_methods *m = log_file->pMethods;
	ck_assert_int_eq(put("page", 0), SQLITE_OK);
	faulty_vfs_arm(1, SQLITE_FULL);
	int rc = _i == 0   ? sync_log()
		 : _i == 1 ? m->xRead(log_file, text, 4, 0)
		 : _i == 2 ? m->xFileSize(log_file, &size)
		 : _i == 3 ? m->xTruncate(log_file, 0)
			   : put("far", 100);
	ck_assert_int_eq(rc, SQLITE_FULL);
	ck_assert_int_eq(faulty_vfs_calls(), 1);
	ck_assert_int_eq(put("PAGE", 0), SQLITE_OK);
	ck_assert_int_eq(sync_log(), SQLITE_OK);
	ck_assert_int_eq(faulty_vfs_calls(), 3);
	expect_file("PAGE");
}
END_TEST

START_TEST(a_sync_that_fails_is_told)
{
	ck_assert_int_eq(put("page", 0), SQLITE_OK);
	faulty_vfs_arm(2, SQLITE_IOERR_FSYNC);
	ck_assert_int_eq(sync_log(), SQLITE_IOERR_FSYNC);
}
END_TEST

START_TEST(other_files_are_left_alone)
{
	sqlite3_file *f = open_file(SQLITE_OPEN_MAIN_DB);
	ck_assert_int_eq(f->pMethods->xWrite(f, "page", 4, 0), SQLITE_OK);
	expect_file("page");
	close_file(f);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("wal_file");
	TCase *tc = tcase_create("wal_file");
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, a_sync_finds_one_write);
	tcase_add_loop_test(tc, what_does_not_follow_is_written_apart, 0, 3);
	tcase_add_loop_test(tc, whoever_looks_finds_it_written, 0, 4);
	tcase_add_test(tc, what_has_no_room_is_written_before);
	tcase_add_loop_test(tc, a_write_that_fails_is_told, 0, 5);
	tcase_add_test(tc, a_sync_that_fails_is_told);
	tcase_add_test(tc, other_files_are_left_alone);
	suite_add_tcase(s, tc);
	return suite_run(s);
}
