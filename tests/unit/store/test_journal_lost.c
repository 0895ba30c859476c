/* SPDX-License-Identifier: Apache-2.0 */
/* What was acknowledged and is missing or altered in the journal is found at the next opening, whatever happened to its
 * files; an ordinary death never looks like that; and the operator's word lets it go on. */
#include "journal_rig.h"

#include "store/anchor.h"
#include "base/log.h"
#include "support/suite.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const part[] = { "", "-wal", "-shm", ".anchor" };
enum { MAIN, WAL, SHM, ANCHOR, PARTS };
#define WINDOWS 9
#ifndef FLIP_STEP /* bytes from one flipped bit to the next, behind a file's head */
#define FLIP_STEP 499
#endif

static const char *path_of(int p, const char *also)
{
	static char path[200];
	snprintf(path, sizeof(path), "%s%s%s", journal_path, part[p], also);
	return path;
}

/* ---- copies of all files, in memory ---- */

struct image {
	char *data[PARTS];
	ssize_t n[PARTS]; /* -1: not there */
};

static void image_take(struct image *m)
{
	for (int p = 0; p < PARTS; p++) {
		int fd = open(path_of(p, ""), O_RDONLY);
		struct stat st;
		m->data[p] = NULL;
		m->n[p] = -1;
		if (fd < 0)
			continue;
		ck_assert_int_eq(fstat(fd, &st), 0);
		m->data[p] = malloc((size_t)st.st_size + 1);
		m->n[p] = read(fd, m->data[p], (size_t)st.st_size);
		ck_assert_int_eq(m->n[p], st.st_size);
		close(fd);
	}
}

static void image_put(const struct image *m, int p)
{
	unlink(path_of(p, ""));
	if (m->n[p] < 0)
		return;
	int fd = open(path_of(p, ""), O_WRONLY | O_CREAT | O_TRUNC, 0600);
	ck_assert_int_ge(fd, 0);
	ssize_t used = m->n[p]; /* most of a log is zeros, laid out in advance */
	while (used > 0 && !m->data[p][used - 1])
		used--;
	ck_assert_int_eq(write(fd, m->data[p], (size_t)used), used);
	ck_assert_int_eq(ftruncate(fd, m->n[p]), 0);
	close(fd);
}

static void image_put_all(const struct image *m)
{
	for (int p = 0; p < PARTS; p++)
		image_put(m, p);
}

static void image_free(struct image *m)
{
	for (int p = 0; p < PARTS; p++)
		free(m->data[p]);
}

/* ---- lives ---- */

/* Writes jobs 1 to 3, of which 2 is over and 1 has windows, and dies without a word; `moved`: the log is in the file
 * then. */
static void live_and_die(int kept, bool moved, uint64_t windows_from, uint64_t windows_to)
{
	fflush(NULL);
	pid_t pid = fork();
	if (pid == 0) {
		struct journal *j = NULL;
		uint64_t term;
		bool ok =
			!(kept < 0 ? journal_open(journal_path, &j) : journal_open_kept(journal_path, dup(kept), &j)) &&
			!journal_take_term(j, &term);
		for (uint64_t id = 1; id <= 3 && ok && windows_from == 0; id++)
			ok = !write1(j, term, job(id));
		ok = ok && (windows_from || !write1(j, term, end(2)));
		for (uint64_t w = windows_from; w < windows_to && ok; w++)
			ok = !write1(j, term, commit(1, 1, w, term));
		if (ok && moved)
			journal_close(j);
		_exit(ok ? 0 : 1);
	}
	int ws;
	ck_assert_int_eq(waitpid(pid, &ws, 0), pid);
	ck_assert_int_eq(ws, 0);
}

static enum status open_again(int kept, bool *whole)
{
	struct journal *j = NULL;
	enum status st = kept < 0 ? journal_open(journal_path, &j) : journal_open_kept(journal_path, dup(kept), &j);
	*whole = false;
	if (st)
		return st;
	struct journal_job b[8] = { { 0 } };
	ck_assert_int_eq(journal_each_job(j, true, copy_job, b), ST_OK);
	*whole = b[0].id == 3 && b[1].next_window == WINDOWS && !b[1].ended && b[2].ended &&
		 windows(j, 1, UINT64_MAX).n == WINDOWS;
	journal_close(j);
	return st;
}

static void check_noticed(int kept, const char *what, long at)
{
	bool whole;
	enum status st = open_again(kept, &whole);
	ck_assert_msg(st == ST_OK ? whole : st == ST_MALFORMED || st == ST_VERSION_SKEW, "%s, %ld: %s, %s", what, at,
		      status_info(st)->name, whole ? "whole" : "and records are missing");
}

/* ---- damage ---- */

/* _i & 1: the log has been moved into the file. One bit of each sampled byte, of what is in use. */
START_TEST(a_flipped_bit_loses_nothing_in_silence)
{
	struct image m;
	long noticed = 0, tried = 0;
	log_init("test", LOG_TEXT, LOG_ERROR - 1);
	live_and_die(-1, _i, 0, WINDOWS);
	image_take(&m);
	for (int p = MAIN; p <= WAL; p++) {
		ssize_t n = m.n[p];
		while (n > 0 && !m.data[p][n - 1])
			n--; /* laid out in advance */
		for (ssize_t at = 0; at < n; at += at < 110 ? 1 : FLIP_STEP) {
			bool whole;
			image_put_all(&m);
			m.data[p][at] ^= (char)(1 << at % 8);
			image_put(&m, p);
			m.data[p][at] ^= (char)(1 << at % 8);
			enum status st = open_again(-1, &whole);
			ck_assert_msg(st == ST_OK ? whole : st == ST_MALFORMED || st == ST_VERSION_SKEW,
				      "%s byte %zd: %s", part[p], at, status_info(st)->name);
			noticed += st != ST_OK;
			tried++;
		}
	}
	ck_assert_int_gt(tried, 120);
	ck_assert_int_gt(noticed, tried / 8); /* much of a file is free space */
	image_free(&m);
}
END_TEST

START_TEST(a_file_that_is_gone_or_short_is_noticed)
{
	struct image m;
	log_init("test", LOG_TEXT, LOG_ERROR - 1);
	live_and_die(-1, _i, 0, WINDOWS);
	image_take(&m);
	for (int p = 0; p < PARTS; p++) {
		bool whole;
		if (m.n[p] < 0)
			continue;
		image_put_all(&m);
		unlink(path_of(p, ""));
		enum status st = open_again(-1, &whole);
		bool nothing_in_it = p == SHM || (p == WAL && _i); /* it has been moved */
		ck_assert_msg(st == ST_MALFORMED || (nothing_in_it && whole), "%s deleted: %s", part[p],
			      status_info(st)->name);
		for (long at = 0; p != ANCHOR && at < m.n[p]; at += at < 65536 ? 4096 - 13 : 1 << 20) {
			image_put_all(&m);
			ck_assert_int_eq(truncate(path_of(p, ""), at), 0);
			check_noticed(-1, part[p], at);
		}
	}
	image_put_all(&m);
	bool whole;
	ck_assert(open_again(-1, &whole) == ST_OK && whole);
	image_free(&m);
}
END_TEST

/* All files as they were some windows ago: only what is kept elsewhere can tell. */
START_TEST(an_older_copy_is_noticed)
{
	struct image older, newer;
	bool whole;
	int kept = memfd_create("kept", MFD_CLOEXEC);
	log_init("test", LOG_TEXT, LOG_ERROR - 1);
	live_and_die(kept, _i, 0, WINDOWS - 1);
	image_take(&older);
	live_and_die(kept, _i, WINDOWS - 1, WINDOWS);
	image_take(&newer);
	for (int p = 0; p < PARTS; p++) {
		image_put_all(&newer);
		image_put(&older, p);
		check_noticed(kept, part[p], -1);
	}
	image_put_all(&older);
	ck_assert_int_eq(open_again(kept, &whole), ST_MALFORMED);
	image_put_all(&newer);
	image_put(&older, MAIN);
	image_put(&older, WAL);
	ck_assert_int_eq(open_again(-1, &whole), ST_MALFORMED);
	image_put_all(&newer);
	ck_assert(open_again(kept, &whole) == ST_OK && whole);
	close(kept);
	image_free(&older);
	image_free(&newer);
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
	live_and_die(-1, true, 0, WINDOWS);
	ck_assert_int_eq(sqlite3_open(journal_path, &db), SQLITE_OK);
	ck_assert_int_eq(sqlite3_exec(db, sql[_i], NULL, NULL, NULL), SQLITE_OK);
	sqlite3_close(db);
	ck_assert_int_eq(open_again(-1, &whole), ST_MALFORMED);
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
	unlink(path_of(ANCHOR, ""));
	bool whole;
	log_init("test", LOG_TEXT, LOG_ERROR - 1);
	ck_assert_int_eq(open_again(-1, &whole), ST_MALFORMED); /* from now on it counts */
}
END_TEST

/* As a step of the schema leaves it: with a column more, and not sealed since. */
static void add_a_column(void)
{
	sqlite3 *db;
	ck_assert_int_eq(sqlite3_open(journal_path, &db), SQLITE_OK);
	ck_assert_int_eq(sqlite3_exec(db,
				      "ALTER TABLE windows ADD COLUMN newer INTEGER DEFAULT 5;"
				      "UPDATE meta SET value = value - 1 WHERE key = 'sealed'",
				      NULL, NULL, NULL),
			 SQLITE_OK);
	sqlite3_close(db);
}

/* Death between the sealing and the first note of it: the notes are those of before. */
START_TEST(a_death_behind_a_schema_step_is_no_loss)
{
	struct image before;
	bool whole;
	char old[8192];
	int kept = memfd_create("kept", MFD_CLOEXEC);
	live_and_die(kept, _i, 0, WINDOWS);
	image_take(&before);
	ssize_t n = pread(kept, old, sizeof(old), 0);
	add_a_column();
	ck_assert(open_again(kept, &whole) == ST_OK && whole);
	image_put(&before, ANCHOR);
	ck_assert_int_eq(pwrite(kept, old, (size_t)n, 0), n);
	ck_assert(open_again(kept, &whole) == ST_OK && whole);
	close(kept);
	image_free(&before);
}
END_TEST

/* ---- the operator's word ---- */

static char told[4096];

static void remember(void *arg, const char *line)
{
	size_t n = strlen(told);
	snprintf(told + n, sizeof(told) - n, "%s\n", line);
}

static void remove_copies(void)
{
	char command[200];
	snprintf(command, sizeof(command), "rm -r %s.damaged-*", journal_path);
	ck_assert_int_eq(system(command), 0); /* there is one */
}

static void accept_loss(void)
{
	*told = 0;
	ck_assert_int_eq(journal_accept(journal_path, 8, 4711, remember, NULL), ST_OK);
	remove_copies();
}

START_TEST(jobs_without_a_loss_go_on)
{
	struct image m;
	struct journal_job b[8] = { { 0 } };
	int kept = memfd_create("kept", MFD_CLOEXEC);
	bool whole;
	log_init("test", LOG_TEXT, LOG_ERROR - 1);
	live_and_die(kept, false, 0, WINDOWS - 2);
	image_take(&m);
	live_and_die(kept, false, WINDOWS - 2, WINDOWS);
	image_put(&m, MAIN);
	image_put(&m, WAL);
	ck_assert_int_eq(open_again(kept, &whole), ST_MALFORMED);
	accept_loss();
	ck_assert_ptr_nonnull(strstr(told, "the last 3 records are missing")); /* and a term */
	ck_assert_ptr_nonnull(strstr(told, "job 1: records are missing: it ends"));
	ck_assert_ptr_null(strstr(told, "job 3"));
	struct journal *j = NULL;
	ck_assert_int_eq(journal_open_kept(journal_path, dup(kept), &j), ST_OK);
	ck_assert(journal_was_accepted(j));
	ck_assert_int_eq(journal_each_job(j, true, copy_job, b), ST_OK);
	ck_assert(b[0].id == 3 && b[1].ended && b[1].end_state == 8 && b[1].ended_unix_ns == 4711 && !b[3].ended);
	ck_assert_uint_eq(term_of(j), 3); /* not that of the missing record again */
	journal_close(j);
	ck_assert_int_eq(journal_open_kept(journal_path, dup(kept), &j), ST_OK);
	ck_assert(!journal_was_accepted(j)); /* once */
	journal_close(j);
	close(kept);
	image_free(&m);
}
END_TEST

/* All files but the notes are of before the step. What it has written is of no job, so that no job ends. */
START_TEST(a_lost_schema_step_ends_no_job)
{
	struct image m;
	struct journal_job b[8] = { { 0 } };
	bool whole;
	log_init("test", LOG_TEXT, LOG_ERROR - 1);
	live_and_die(-1, true, 0, WINDOWS);
	image_take(&m);
	add_a_column();
	ck_assert(open_again(-1, &whole) == ST_OK && whole);
	image_put(&m, MAIN);
	image_put(&m, WAL);
	ck_assert_int_eq(open_again(-1, &whole), ST_MALFORMED);
	accept_loss();
	ck_assert_ptr_nonnull(strstr(told, "the last 1 records are missing"));
	struct journal *j = open_ok();
	ck_assert_int_eq(journal_each_job(j, true, copy_job, b), ST_OK);
	ck_assert(b[0].id == 3 && !b[1].ended && b[2].ended && !b[3].ended);
	journal_close(j);
	image_free(&m);
}
END_TEST

/* What cannot be read at all: a new journal, whose numbers go on. */
START_TEST(numbers_go_on_in_a_new_journal)
{
	bool whole;
	uint64_t last;
	log_init("test", LOG_TEXT, LOG_ERROR - 1);
	live_and_die(-1, true, 0, WINDOWS);
	unlink(path_of(WAL, ""));
	if (_i == 0)
		unlink(journal_path);
	else
		ck_assert_int_eq(truncate(journal_path, 5000), 0);
	ck_assert_int_eq(open_again(-1, &whole), ST_MALFORMED);
	accept_loss();
	ck_assert_ptr_nonnull(strstr(told, "all jobs that it had are lost"));
	struct journal *j = open_ok();
	ck_assert_int_eq(journal_last_job(j, &last), ST_OK);
	ck_assert_uint_eq(last, 3);
	ck_assert_uint_eq(term_of(j), 2);
	journal_close(j);
}
END_TEST

START_TEST(an_altered_job_ends_alone)
{
	struct journal_job b[8] = { { 0 } };
	sqlite3 *db;
	log_init("test", LOG_TEXT, LOG_ERROR - 1);
	live_and_die(-1, true, 0, WINDOWS);
	ck_assert_int_eq(sqlite3_open(journal_path, &db), SQLITE_OK);
	ck_assert_int_eq(sqlite3_exec(db, "DELETE FROM windows WHERE job = 1 AND window = 3", NULL, NULL, NULL),
			 SQLITE_OK);
	sqlite3_close(db);
	accept_loss();
	ck_assert_ptr_nonnull(strstr(told, "job 1: records have been altered or are missing: it ends"));
	struct journal *j = open_ok();
	ck_assert_int_eq(journal_each_job(j, true, copy_job, b), ST_OK);
	ck_assert(b[0].id == 3 && b[1].ended && !b[3].ended);
	ck_assert_int_eq(journal_accept(journal_path, 8, 1, remember, NULL), ST_UNAVAILABLE);
	journal_close(j);
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
	tcase_add_test(c, jobs_without_a_loss_go_on);
	tcase_add_test(c, a_lost_schema_step_ends_no_job);
	tcase_add_loop_test(c, numbers_go_on_in_a_new_journal, 0, 2);
	tcase_add_test(c, an_altered_job_ends_alone);
	return suite_run(s);
}
