/* SPDX-License-Identifier: Apache-2.0 */
/* What was acknowledged and is missing or altered in the journal is found at the next opening, whatever happened to its
 * files; an ordinary death never looks like that. */
#include "lost_rig.h"

#include "base/log.h"
#include "support/suite.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef FLIP_STEP /* bytes from one flipped bit to the next, behind a file's head */
#define FLIP_STEP 499
#endif

static void check_noticed(int kept, const char *what, long at)
{
	bool whole;
	enum status st = lost_open_again(kept, &whole);
	ck_assert_msg(st == ST_OK ? whole : st == ST_MALFORMED || st == ST_VERSION_SKEW, "%s, %ld: %s, %s", what, at,
		      status_info(st)->name, whole ? "whole" : "and records are missing");
}

/* ---- damage ---- */

/* _i & 1: the log has been moved into the file. One bit of each sampled byte, of what is in use. */
START_TEST(a_flipped_bit_loses_nothing_in_silence)
{
	struct lost_image m;
	long noticed = 0, tried = 0;
	log_init("test", LOG_TEXT, LOG_ERROR - 1);
	lost_live_and_die(-1, _i, 0, WINDOWS);
	lost_take(&m);
	for (int p = MAIN; p <= WAL; p++) {
		ssize_t n = m.n[p];
		while (n > 0 && !m.data[p][n - 1])
			n--; /* laid out in advance */
		for (ssize_t at = 0; at < n; at += at < 110 ? 1 : FLIP_STEP) {
			bool whole;
			lost_put_all(&m);
			m.data[p][at] ^= (char)(1 << at % 8);
			lost_put(&m, p);
			m.data[p][at] ^= (char)(1 << at % 8);
			enum status st = lost_open_again(-1, &whole);
			ck_assert_msg(st == ST_OK ? whole : st == ST_MALFORMED || st == ST_VERSION_SKEW,
				      "%s byte %zd: %s", lost_part[p], at, status_info(st)->name);
			noticed += st != ST_OK;
			tried++;
		}
	}
	ck_assert_int_gt(tried, 120);
	ck_assert_int_gt(noticed, tried / 8); /* much of a file is free space */
	lost_free(&m);
}
END_TEST

START_TEST(a_file_that_is_gone_or_short_is_noticed)
{
	struct lost_image m;
	log_init("test", LOG_TEXT, LOG_ERROR - 1);
	lost_live_and_die(-1, _i, 0, WINDOWS);
	lost_take(&m);
	for (int p = 0; p < LOST_PARTS; p++) {
		bool whole;
		if (m.n[p] < 0)
			continue;
		lost_put_all(&m);
		unlink(lost_path(p, ""));
		enum status st = lost_open_again(-1, &whole);
		bool nothing_in_it = p == SHM || (p == WAL && _i); /* it has been moved */
		ck_assert_msg(st == ST_MALFORMED || (nothing_in_it && whole), "%s deleted: %s", lost_part[p],
			      status_info(st)->name);
		for (long at = 0; p != ANCHOR && at < m.n[p]; at += at < 65536 ? 4096 - 13 : 1 << 20) {
			lost_put_all(&m);
			ck_assert_int_eq(truncate(lost_path(p, ""), at), 0);
			check_noticed(-1, lost_part[p], at);
		}
	}
	lost_put_all(&m);
	bool whole;
	ck_assert(lost_open_again(-1, &whole) == ST_OK && whole);
	lost_free(&m);
}
END_TEST

/* All files as they were some windows ago: only what is kept elsewhere can tell. */
START_TEST(an_older_copy_is_noticed)
{
	struct lost_image older, newer;
	bool whole;
	int kept = memfd_create("kept", MFD_CLOEXEC);
	log_init("test", LOG_TEXT, LOG_ERROR - 1);
	lost_live_and_die(kept, _i, 0, WINDOWS - 1);
	lost_take(&older);
	lost_live_and_die(kept, _i, WINDOWS - 1, WINDOWS);
	lost_take(&newer);
	for (int p = 0; p < LOST_PARTS; p++) {
		lost_put_all(&newer);
		lost_put(&older, p);
		check_noticed(kept, lost_part[p], -1);
	}
	lost_put_all(&older);
	ck_assert_int_eq(lost_open_again(kept, &whole), ST_MALFORMED);
	lost_put_all(&newer);
	lost_put(&older, MAIN);
	lost_put(&older, WAL);
	ck_assert_int_eq(lost_open_again(-1, &whole), ST_MALFORMED);
	lost_put_all(&newer);
	ck_assert(lost_open_again(kept, &whole) == ST_OK && whole);
	close(kept);
	lost_free(&older);
	lost_free(&newer);
}
END_TEST

START_TEST(a_row_that_was_changed_is_noticed)
{
	static const char *const sql[] = { "UPDATE windows SET outcome = 2 WHERE job = 1 AND window = 4",
					   "DELETE FROM jobs WHERE id = 3",
					   "UPDATE recent SET data = x'00' WHERE window = 8",
					   "UPDATE meta SET value = 1 WHERE key = 'last_job'",
					   "INSERT INTO updates (job, window, data) VALUES (1, 2, x'01')",
					   "UPDATE specs SET spec = x'00' WHERE job = 2",
					   "UPDATE meta SET value = value - 1 WHERE key = 'records'" };
	bool whole;
	sqlite3 *db;
	log_init("test", LOG_TEXT, LOG_ERROR - 1);
	lost_live_and_die(-1, true, 0, WINDOWS);
	ck_assert_int_eq(sqlite3_open(journal_path, &db), SQLITE_OK);
	ck_assert_int_eq(sqlite3_exec(db, sql[_i], NULL, NULL, NULL), SQLITE_OK);
	sqlite3_close(db);
	ck_assert_int_eq(lost_open_again(-1, &whole), ST_MALFORMED);
}
END_TEST

/* ---- no false alarm ---- */

static void commit_for_ever(int kept, int tell)
{
	struct journal *j = NULL;
	struct journal_job b[8] = { { 0 } };
	uint64_t term;
	if (journal_open_kept(journal_path, dup(kept), &j) || journal_take_term(j, &term) ||
	    journal_each_job(j, true, copy_job, b))
		_exit(1);
	if (b[0].id == 0 && write1(j, term, job(1)))
		_exit(2);
	for (uint64_t w = b[1].next_window;; w++)
		if (write1(j, term, commit(1, 1, w, term)) || (w % 7 == 0 && journal_settle(j)) ||
		    write(tell, &w, sizeof(w)) != sizeof(w))
			_exit(3);
}

/* Killed at any moment: inside a commit, between it and its note, while it is opened, while the log is moved. */
START_TEST(a_death_is_no_loss)
{
	int kept = memfd_create("kept", MFD_CLOEXEC);
	uint64_t acked = 0, any = 0;
	srand(7);
	for (int kills = 0; kills < 60; kills++) {
		int p[2], ws;
		ck_assert_int_eq(pipe(p), 0);
		pid_t pid = fork();
		if (pid == 0) {
			close(p[0]);
			commit_for_ever(kept, p[1]);
		}
		close(p[1]);
		if (kills % 3 == 0)
			ck_assert_int_eq(read(p[0], &acked, sizeof(acked)), sizeof(acked));
		usleep((useconds_t)(rand() % 6000));
		ck_assert_int_eq(kill(pid, SIGKILL), 0);
		while (read(p[0], &acked, sizeof(acked)) == sizeof(acked))
			any++;
		close(p[0]);
		ck_assert_int_eq(waitpid(pid, &ws, 0), pid);
		ck_assert_msg(WIFSIGNALED(ws), "kill %d: it ended with %d", kills, WEXITSTATUS(ws));
		struct journal *j = NULL;
		ck_assert_int_eq(kills % 2 ? journal_open(journal_path, &j)
					   : journal_open_kept(journal_path, dup(kept), &j),
				 ST_OK);
		ck_assert(!any || windows(j, 1, 8).last >= acked);
		journal_close(j);
	}
	ck_assert_uint_gt(any, 50);
	close(kept);
}
END_TEST

START_TEST(a_journal_without_sums_is_taken)
{
	char command[400];
	struct journal_job b[8] = { { 0 } };
	snprintf(command, sizeof(command), "gzip -dc " SOURCE_DIR "/tests/golden/journal-6.sqlite.gz > %s",
		 journal_path);
	ck_assert_int_eq(system(command), 0);
	struct journal *j = open_ok();
	uint64_t term = term_of(j), last;
	ck_assert_uint_eq(term, 2);
	ck_assert_int_eq(journal_last_job(j, &last), ST_OK);
	ck_assert_uint_eq(last, 2);
	ck_assert_int_eq(journal_each_job(j, true, copy_job, b), ST_OK);
	ck_assert(b[0].id == 2 && b[1].next_window == 3 && b[1].params_ready && !b[1].ended && b[2].ended);
	ck_assert_int_eq(write1(j, term, commit(1, 1, 3, term)), ST_OK);
	journal_close(j);
	j = open_ok();
	ck_assert_uint_eq(term_of(j), 3);
	journal_close(j);
	unlink(lost_path(ANCHOR, ""));
	bool whole;
	log_init("test", LOG_TEXT, LOG_ERROR - 1);
	ck_assert_int_eq(lost_open_again(-1, &whole), ST_MALFORMED); /* from now on it counts */
}
END_TEST

/* Death between the sealing and the first note of it: the notes are those of before. */
START_TEST(a_death_behind_a_schema_step_is_no_loss)
{
	struct lost_image before;
	bool whole;
	char old[8192];
	int kept = memfd_create("kept", MFD_CLOEXEC);
	lost_live_and_die(kept, _i, 0, WINDOWS);
	lost_take(&before);
	ssize_t n = pread(kept, old, sizeof(old), 0);
	lost_add_a_column();
	ck_assert(lost_open_again(kept, &whole) == ST_OK && whole);
	lost_put(&before, ANCHOR);
	ck_assert_int_eq(pwrite(kept, old, (size_t)n, 0), n);
	ck_assert(lost_open_again(kept, &whole) == ST_OK && whole);
	close(kept);
	lost_free(&before);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("journal lost");
	TCase *c = tcase_create("journal lost");
	tcase_add_checked_fixture(c, journal_setup, journal_teardown);
	tcase_set_timeout(c, 120);
	suite_add_tcase(s, c);
	tcase_add_loop_test(c, a_flipped_bit_loses_nothing_in_silence, 0, 2);
	tcase_add_loop_test(c, a_file_that_is_gone_or_short_is_noticed, 0, 2);
	tcase_add_loop_test(c, an_older_copy_is_noticed, 0, 2);
	tcase_add_loop_test(c, a_row_that_was_changed_is_noticed, 0, 7);
	tcase_add_test(c, a_death_is_no_loss);
	tcase_add_test(c, a_journal_without_sums_is_taken);
	tcase_add_loop_test(c, a_death_behind_a_schema_step_is_no_loss, 0, 2);
	return suite_run(s);
}
