/* SPDX-License-Identifier: Apache-2.0 */
/* The schema of a journal that somebody else may have open. SQLite itself says what is right: it is asked for copies of
 * the same files, with logs that end anywhere, and with flipped bits. */
#include "journal_rig.h"

#include "support/scratch.h"
#include "support/suite.h"

#include <check.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[SCRATCH_PATH], path[160], log_path[170], copy[160], copy_log[170];
static uint8_t *file_bytes, *log_bytes;
static size_t n_file, n_log;

static void setup(void)
{
	journal_setup();
	ck_assert(scratch_make(dir));
	snprintf(path, sizeof(path), "%s/db", dir);
	snprintf(log_path, sizeof(log_path), "%s-wal", path);
	snprintf(copy, sizeof(copy), "%s/copy", dir);
	snprintf(copy_log, sizeof(copy_log), "%s-wal", copy);
}

static void teardown(void)
{
	static const char *const names[] = { "db", "db-wal", "db-shm", "copy", "copy-wal", "copy-shm" };
	char name[200];
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		snprintf(name, sizeof(name), "%s/%s", dir, names[i]);
		unlink(name);
	}
	ck_assert_int_eq(rmdir(dir), 0);
	free(file_bytes);
	free(log_bytes);
	file_bytes = log_bytes = NULL;
	journal_teardown();
}

static uint32_t schema_of(const char *name)
{
	uint32_t version = 77;
	char why[200] = "";
	ck_assert_msg(!journal_schema_of(name, &version, why, sizeof(why)), "%s", why);
	return version;
}

static uint8_t *read_all(const char *name, size_t *out_n)
{
	struct stat is;
	int fd = open(name, O_RDONLY);
	ck_assert(fd >= 0 && !fstat(fd, &is));
	uint8_t *bytes = malloc((size_t)is.st_size + 1);
	ck_assert_int_eq(read(fd, bytes, (size_t)is.st_size), is.st_size);
	close(fd);
	*out_n = (size_t)is.st_size;
	return bytes;
}

static void write_all(const char *name, const uint8_t *bytes, size_t n)
{
	int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	ck_assert(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
	close(fd);
}

static void run(sqlite3 *db, const char *sql)
{
	char *why = NULL;
	ck_assert_msg(!sqlite3_exec(db, sql, NULL, NULL, &why), "%s: %s", sql, why);
}

static int note_version(void *arg, int n, char **value, char **name)
{
	*(uint32_t *)arg = (uint32_t)atoi(value[0]);
	return 0;
}

/* What SQLite makes of the copy, which it may change. */
static uint32_t sqlite_says(void)
{
	uint32_t version = 78;
	sqlite3 *db;
	ck_assert_int_eq(sqlite3_open(copy, &db), SQLITE_OK);
	ck_assert_int_eq(sqlite3_exec(db, "PRAGMA user_version", note_version, &version, NULL), SQLITE_OK);
	sqlite3_close(db);
	return version;
}

/* Of the file and the first `n` bytes of the log. */
static void same_as_sqlite(size_t n)
{
	unlink(copy_log);
	write_all(copy, file_bytes, n_file);
	write_all(copy_log, log_bytes, n);
	const uint32_t version = schema_of(copy);
	ck_assert_uint_eq(version, sqlite_says());
}

/* Three transactions with page 1 in the log, behind what is left of an earlier, longer log, and one that is not
 * committed; then the files are read. */
static void make_files(int page_size)
{
	sqlite3 *db;
	char sql[100];
	ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
	snprintf(sql, sizeof(sql), "PRAGMA page_size = %d", page_size);
	run(db, sql);
	run(db, "PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0; PRAGMA cache_size = 2;"
		"CREATE TABLE t (x BLOB); PRAGMA user_version = 3");
	for (int i = 0; i < 9; i++)
		run(db, "INSERT INTO t VALUES (zeroblob(3000)); PRAGMA user_version = 4");
	run(db, "PRAGMA wal_checkpoint(RESTART)");
	run(db, "PRAGMA user_version = 5; INSERT INTO t VALUES (zeroblob(30)); PRAGMA user_version = 6;"
		"BEGIN; PRAGMA user_version = 7; INSERT INTO t VALUES (zeroblob(10000)); COMMIT");
	run(db, "BEGIN; PRAGMA user_version = 8; INSERT INTO t VALUES (zeroblob(50000))");
	file_bytes = read_all(path, &n_file);
	log_bytes = read_all(log_path, &n_log);
	run(db, "ROLLBACK");
	sqlite3_close(db);
}

START_TEST(a_log_that_ends_anywhere)
{
	make_files(512 << _i * 3);
	bool seen[9] = { false };
	for (size_t n = 0; n <= n_log; n += n < 4000 ? 31 : 307) {
		same_as_sqlite(n);
		seen[sqlite_says()] = true;
	}
	same_as_sqlite(n_log);
	ck_assert_uint_eq(sqlite_says(), 7);
	ck_assert(seen[4] && seen[5] && seen[6] && seen[7] && !seen[8]);
}
END_TEST

START_TEST(flipped_bits_in_the_log)
{
	make_files(1024);
	for (size_t at = 0; at < n_log; at += at < 100 ? 1 : 211) {
		log_bytes[at] ^= (uint8_t)(1 << at % 8);
		same_as_sqlite(n_log);
		log_bytes[at] ^= (uint8_t)(1 << at % 8);
	}
}
END_TEST

START_TEST(beside_a_gaccd_that_has_it_open)
{
	struct journal *j = open_ok();
	uint64_t term = term_of(j);
	for (uint64_t i = 1; i < 40; i++)
		ck_assert_int_eq(write1(j, term, job(i)), ST_OK);
	pid_t pid = fork();
	if (pid == 0) {
		uint32_t version;
		char why[200];
		_exit(journal_schema_of(journal_path, &version, why, sizeof(why)) || version != journal_schema());
	}
	int ws = 1;
	ck_assert_int_eq(waitpid(pid, &ws, 0), pid);
	ck_assert_int_eq(ws, 0);
	ck_assert_int_eq(write1(j, term, job(41)), ST_OK);
	journal_close(j);
	ck_assert_uint_eq(schema_of(journal_path), journal_schema());
}
END_TEST

START_TEST(nothing_is_changed_or_made)
{
	struct stat before[2], after[2];
	make_files(4096);
	write_all(copy, file_bytes, n_file);
	write_all(copy_log, log_bytes, n_log);
	ck_assert(!chmod(copy, 0400) && !chmod(copy_log, 0400) && !stat(dir, &before[0]) && !stat(copy, &before[1]));
	ck_assert_uint_eq(schema_of(copy), 7);
	ck_assert(!stat(dir, &after[0]) && !stat(copy, &after[1]));
	for (int i = 0; i < 2; i++)
		ck_assert(!memcmp(&before[i].st_mtim, &after[i].st_mtim, sizeof(before[i].st_mtim)));
	char name[180];
	snprintf(name, sizeof(name), "%s-shm", copy);
	ck_assert_int_ne(access(name, F_OK), 0);
}
END_TEST

START_TEST(what_is_no_journal)
{
	uint32_t version;
	char why[200];
	ck_assert_uint_eq(schema_of(path), 0); /* there is none */
	write_all(path, NULL, 0);
	ck_assert_uint_eq(schema_of(path), 0);
	write_all(path, (const uint8_t *)"SQLite format 3", 16); /* cut short */
	ck_assert_int_eq(journal_schema_of(path, &version, why, sizeof(why)), ST_MALFORMED);
	ck_assert_str_eq(why, "this is no SQLite file");
	uint8_t junk[4096];
	memset(junk, 'x', sizeof(junk));
	write_all(path, junk, sizeof(junk));
	ck_assert_int_eq(journal_schema_of(path, &version, why, sizeof(why)), ST_MALFORMED);
	ck_assert_int_eq(symlink(path, copy), 0); /* of another user's making, perhaps */
	ck_assert_int_eq(journal_schema_of(copy, &version, why, sizeof(why)), ST_STORE_FAILED);
	ck_assert_int_eq(journal_schema_of(dir, &version, why, sizeof(why)), ST_STORE_FAILED);
	ck_assert_str_eq(why, "Invalid argument");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("journal_version");
	TCase *c = tcase_create("journal_version");
	suite_add_tcase(s, c);
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_loop_test(c, a_log_that_ends_anywhere, 0, 3);
	tcase_add_test(c, flipped_bits_in_the_log);
	tcase_add_test(c, beside_a_gaccd_that_has_it_open);
	tcase_add_test(c, nothing_is_changed_or_made);
	tcase_add_test(c, what_is_no_journal);
	return suite_run(s);
}
