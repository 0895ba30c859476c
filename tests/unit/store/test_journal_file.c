/* SPDX-License-Identifier: Apache-2.0 */
/* The journal as a file: who may open it, damage, older and newer schemas, and what is found after errors and deaths.
 */
#include "journal_rig.h"

#include "base/log.h"
#include "faulty_vfs.h"
#include "support/suite.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

START_TEST(an_older_schema_is_brought_up_to_date)
{
	struct journal *j = open_ok();
	uint64_t term = term_of(j);
	ck_assert_int_eq(write1(j, term, job(1)), ST_OK);
	for (uint64_t w = 0; w < 21; w++)
		ck_assert_int_eq(write1(j, term, commit(1, 1, w, term)), ST_OK);
	journal_close(j);
	sqlite3 *db;
	ck_assert_int_eq(sqlite3_open(journal_path, &db), SQLITE_OK);
	ck_assert_int_eq(
		sqlite3_exec(
			db,
			"ALTER TABLE jobs DROP COLUMN sum; DELETE FROM meta WHERE key NOT IN ('term', 'incarnation', "
			"'last_job');"
			"ALTER TABLE jobs DROP COLUMN hold; DROP TABLE updates; ALTER TABLE jobs DROP COLUMN base;"
			"DROP TABLE checkpoints; ALTER TABLE jobs DROP COLUMN exits; ALTER TABLE jobs DROP COLUMN view;"
			"ALTER TABLE jobs ADD COLUMN spec BLOB; ALTER TABLE jobs ADD COLUMN tensors BLOB;"
			"UPDATE jobs SET spec = (SELECT spec FROM specs); DROP TABLE specs;"
			"CREATE TABLE payloads (id INTEGER PRIMARY KEY, job INTEGER NOT NULL, window INTEGER NOT NULL,"
			" data BLOB NOT NULL, UNIQUE (job, window));"
			"INSERT INTO payloads (job, window, data) SELECT job, window, data FROM recent; DROP TABLE "
			"recent;"
			"DROP TABLE parts; DROP TABLE away;"
			"PRAGMA user_version = 1",
			NULL, NULL, NULL),
		SQLITE_OK);
	sqlite3_close(db);
	journal_remove_anchor();
	j = open_ok();
	ck_assert_int_eq(write1(j, term_of(j), hold(1, "by ana")), ST_OK);
	ck_assert_int_eq(journal_each_job(j, false, check_hold, (void *)"by ana"), ST_OK);
	struct journal_job b[8] = { { 0 } };
	ck_assert_int_eq(journal_each_job(j, false, copy_job, b), ST_OK);
	ck_assert_uint_eq(b[1].spec.n, 4);
	struct journal_record of_another_user = job(2); /* a request id was unique across users once */
	memcpy(of_another_user.job.request_id, job(1).job.request_id, 16);
	of_another_user.job.uid++;
	ck_assert_int_eq(write1(j, term_of(j), of_another_user), ST_OK);
	struct seen_windows seen = windows(j, 1, UINT64_MAX);
	ck_assert_uint_eq(seen.n, 21);
	ck_assert_uint_eq(seen.with_payload, JOURNAL_KEEP_PAYLOADS);
	journal_close(j);
}
END_TEST

START_TEST(one_process_at_a_time)
{
	struct journal *j = open_ok();
	pid_t pid = fork();
	if (pid == 0) {
		struct journal *other = NULL;
		_exit(journal_open(journal_path, &other) == ST_UNAVAILABLE && !other ? 0 : 1);
	}
	int ws = 0;
	ck_assert_int_eq(waitpid(pid, &ws, 0), pid);
	ck_assert_int_eq(ws, 0);
	ck_assert_uint_eq(term_of(j), 1); /* the other's attempt did not cost us the lock */
	journal_close(j);
}
END_TEST

START_TEST(the_file_is_private)
{
	struct journal *j = open_ok();
	struct stat st;
	char wal[128];
	snprintf(wal, sizeof(wal), "%s-wal", journal_path);
	term_of(j);
	ck_assert_int_eq(stat(journal_path, &st), 0);
	ck_assert_int_eq(st.st_mode & 0777, 0600);
	ck_assert_int_eq(stat(wal, &st), 0);
	ck_assert_int_eq(st.st_mode & 0777, 0600);
	journal_close(j);
}
END_TEST

START_TEST(damage_and_newer_schemas_are_refused)
{
	struct journal *j = open_ok();
	uint64_t term = term_of(j);
	for (uint64_t i = 1; i < 40; i++)
		ck_assert_int_eq(write1(j, term, job(i)), ST_OK);
	journal_close(j);
	sqlite3 *db;
	ck_assert_int_eq(sqlite3_open(journal_path, &db), SQLITE_OK);
	ck_assert_int_eq(sqlite3_exec(db, "PRAGMA user_version = 999", NULL, NULL, NULL), SQLITE_OK);
	sqlite3_close(db);
	struct journal *bad = NULL;
	ck_assert_int_eq(journal_open(journal_path, &bad), ST_VERSION_SKEW);

	int fd = open(journal_path, O_RDWR);
	char junk[3000];
	memset(junk, 0x5a, sizeof(junk));
	ck_assert_int_eq(pwrite(fd, junk, sizeof(junk), 4096), (ssize_t)sizeof(junk));
	close(fd);
	ck_assert_int_eq(journal_open(journal_path, &bad), ST_MALFORMED);
	ck_assert_int_eq(journal_open("/nonexistent/journal", &bad), ST_STORE_FAILED);
	ck_assert_ptr_null(bad);
}
END_TEST

/* A run of a coordinator's life; returns how many windows were acknowledged, *opened: whether it came so far. */
static uint64_t life(bool *out_job)
{
	struct journal *j = NULL;
	uint64_t term, acked = 0;
	*out_job = false;
	if (journal_open(journal_path, &j))
		return 0;
	if (journal_take_term(j, &term) || write1(j, term, job(1)))
		goto out;
	*out_job = true;
	while (acked < 20 && write1(j, term, commit(1, 1, acked, term)) == ST_OK)
		acked++;
	if (acked < 20) { /* nothing works after a failure, though the disk does again */
		ck_assert_int_eq(write1(j, term, commit(1, 1, acked, term)), ST_STORE_FAILED);
		ck_assert_int_eq(journal_take_term(j, &term), ST_STORE_FAILED);
	}
out:
	journal_close(j);
	return acked;
}

static void every_nth_call_fails(int code)
{
	int n, failures = 0;
	log_init("test", LOG_TEXT, 0); /* hundreds of expected errors */
	for (n = 1;; n++) {
		bool has_job;
		journal_remove_files();
		faulty_vfs_arm(n, code);
		uint64_t acked = life(&has_job);
		bool happened = faulty_vfs_calls() >= n;
		failures += acked < 20;
		faulty_vfs_arm(0, 0);
		struct journal *j = open_ok();
		struct journal_job b[8] = { { 0 } };
		ck_assert_int_eq(journal_each_job(j, true, copy_job, b), ST_OK);
		ck_assert_msg(!has_job || b[0].id == 1, "call %d failed and the job was lost", n);
		uint64_t found = windows(j, 1, 100).n;
		ck_assert_msg(found >= acked, "call %d failed: %d windows acknowledged, %d found", n, (int)acked,
			      (int)found);
		ck_assert_uint_le(found, acked + 1);
		journal_close(j);
		if (!happened)
			break;
	}
	ck_assert_int_gt(failures, 20);
	ck_assert_int_gt(n, failures);
}

START_TEST(nothing_acknowledged_is_lost_when_io_fails)
{
	static const int codes[] = { SQLITE_IOERR_WRITE, SQLITE_IOERR_FSYNC, SQLITE_FULL };
	faulty_vfs_install();
	every_nth_call_fails(codes[_i]);
}
END_TEST

START_TEST(a_batch_costs_one_write_and_one_sync)
{
	faulty_vfs_install();
	struct journal *j = open_ok();
	uint64_t term = term_of(j);
	struct journal_record r[8];
	for (uint64_t i = 0; i < 8; i++)
		r[i] = job(i + 1);
	ck_assert_int_eq(journal_commit(j, term, r, 8), ST_OK);
	for (uint64_t i = 0; i < 8; i++)
		r[i] = commit(i + 1, 1, 0, term);
	for (size_t n = 1; n <= 7; n += 6) { /* one, then the other seven */
		faulty_vfs_arm(0, 0);
		ck_assert_int_eq(journal_commit(j, term, r + n / 7, n), ST_OK);
		ck_assert_int_eq(faulty_vfs_syncs(), 1);
		ck_assert_int_eq(faulty_vfs_calls(), 2);
	}
	journal_close(j);
}
END_TEST

/* Commits until killed, telling each acknowledged window. */
static void commit_for_ever(int tell)
{
	struct journal *j = NULL;
	struct journal_job b[8] = { { 0 } };
	uint64_t term;
	if (journal_open(journal_path, &j) || journal_take_term(j, &term) || journal_each_job(j, true, copy_job, b))
		_exit(1);
	if (b[0].id == 0 && write1(j, term, job(1)))
		_exit(2);
	for (uint64_t w = b[1].next_window;; w++)
		if (write1(j, term, commit(1, 1, w, term)) || write(tell, &w, sizeof(w)) != sizeof(w))
			_exit(3);
}

START_TEST(nothing_acknowledged_is_lost_when_killed)
{
	uint64_t acked = 0;
	for (int kills = 0; kills < 20; kills++) {
		int p[2], ws;
		ck_assert_int_eq(pipe(p), 0);
		pid_t pid = fork();
		if (pid == 0) {
			close(p[0]);
			commit_for_ever(p[1]);
		}
		close(p[1]);
		for (int i = 0; i <= 3 * kills; i++) /* kill it at different places of its work */
			ck_assert_int_eq(read(p[0], &acked, sizeof(acked)), sizeof(acked));
		ck_assert_int_eq(kill(pid, SIGKILL), 0);
		while (read(p[0], &acked, sizeof(acked)) == sizeof(acked))
			;
		close(p[0]);
		ck_assert_int_eq(waitpid(pid, &ws, 0), pid);
		ck_assert(WIFSIGNALED(ws) && WTERMSIG(ws) == SIGKILL);
		struct journal *j = open_ok();
		struct seen_windows s = windows(j, 1, UINT64_MAX);
		ck_assert_uint_ge(s.last, acked);
		ck_assert_uint_le(s.last, acked + 1);
		ck_assert_uint_eq(s.first, 0);
		journal_close(j);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("journal file");
	TCase *c = tcase_create("journal file");
	tcase_add_checked_fixture(c, journal_setup, journal_teardown);
	tcase_set_timeout(c, 60);
	suite_add_tcase(s, c);
	tcase_add_test(c, an_older_schema_is_brought_up_to_date);
	tcase_add_test(c, one_process_at_a_time);
	tcase_add_test(c, the_file_is_private);
	tcase_add_test(c, damage_and_newer_schemas_are_refused);
	tcase_add_loop_test(c, nothing_acknowledged_is_lost_when_io_fails, 0, 3);
	tcase_add_test(c, a_batch_costs_one_write_and_one_sync);
	tcase_add_test(c, nothing_acknowledged_is_lost_when_killed);
	return suite_run(s);
}
