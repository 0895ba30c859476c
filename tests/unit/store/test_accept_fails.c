/* SPDX-License-Identifier: Apache-2.0 */
/* Every call of SQLite fails once while a damaged journal is opened, or accepted by the operator: an opening never
 * takes the damage for whole; an acceptance either counts and ends the job that has lost something and no other one, or
 * can be repeated. Of an acceptance's calls every third one fails, the first one drawn; TORTURE_EVERY=1: all. */
#include "lost_rig.h"

#include "base/log.h"
#include "support/sample.h"
#include "support/suite.h"

#include <check.h>
#include <ftw.h>
#include <glob.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned calls, fail_at; /* 0: none fails */

static bool fails(void)
{
	return ++calls == fail_at;
}

int __real_sqlite3_step(sqlite3_stmt *);
int __wrap_sqlite3_step(sqlite3_stmt *);
int __wrap_sqlite3_step(sqlite3_stmt *s)
{
	return fails() ? SQLITE_NOMEM : __real_sqlite3_step(s);
}

int __real_sqlite3_prepare_v2(sqlite3 *, const char *, int, sqlite3_stmt **, const char **);
int __wrap_sqlite3_prepare_v2(sqlite3 *, const char *, int, sqlite3_stmt **, const char **);
int __wrap_sqlite3_prepare_v2(sqlite3 *db, const char *text, int n, sqlite3_stmt **out, const char **tail)
{
	*out = NULL;
	return fails() ? SQLITE_NOMEM : __real_sqlite3_prepare_v2(db, text, n, out, tail);
}

int __real_sqlite3_exec(sqlite3 *, const char *, int (*)(void *, int, char **, char **), void *, char **);
int __wrap_sqlite3_exec(sqlite3 *, const char *, int (*)(void *, int, char **, char **), void *, char **);
int __wrap_sqlite3_exec(sqlite3 *db, const char *text, int (*fn)(void *, int, char **, char **), void *arg, char **why)
{
	return fails() ? SQLITE_NOMEM : __real_sqlite3_exec(db, text, fn, arg, why);
}

static void arm(unsigned n)
{
	calls = 0;
	fail_at = n;
}

static void ignore(void *arg, const char *line)
{
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

static enum status accept_loss(unsigned n)
{
	char pattern[200];
	glob_t copies;
	arm(n);
	enum status st = journal_accept(journal_path, 8, 4711, ignore, NULL);
	arm(0);
	snprintf(pattern, sizeof(pattern), "%s.damaged-*", journal_path);
	/* a shell for each of some hundred would take longer than the rest */
	if (glob(pattern, 0, NULL, &copies) == 0) {
		for (size_t i = 0; i < copies.gl_pathc; i++)
			ck_assert_int_eq(nftw(copies.gl_pathv[i], remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
		globfree(&copies);
	}
	return st;
}

/* A journal of which job 1 has lost a window, and jobs 2 and 3 nothing. */
static void lose_a_window(struct lost_image *out)
{
	sqlite3 *db;
	log_init("test", LOG_TEXT, LOG_ERROR - 1);
	lost_live_and_die(-1, true, 0, WINDOWS);
	ck_assert_int_eq(sqlite3_open(journal_path, &db), SQLITE_OK);
	ck_assert_int_eq(sqlite3_exec(db, "DELETE FROM windows WHERE job = 1 AND window = 3", NULL, NULL, NULL),
			 SQLITE_OK);
	sqlite3_close(db);
	lost_take(out);
}

START_TEST(damage_is_never_taken_for_whole)
{
	struct lost_image damaged;
	unsigned n = 0, done = 0;
	lose_a_window(&damaged);
	while (n == 0 || done >= n) {
		struct journal *j = NULL;
		lost_put_all(&damaged);
		arm(++n);
		enum status st = journal_open(journal_path, &j);
		done = calls;
		arm(0);
		journal_close(j);
		ck_assert_msg(st != ST_OK, "call %u: the journal is taken", n);
		ck_assert_int_eq(journal_open(journal_path, &j), ST_MALFORMED);
	}
	ck_assert_uint_gt(n, 15);
	lost_free(&damaged);
}
END_TEST

START_TEST(an_acceptance_ends_no_other_job)
{
	const char *given = getenv("TORTURE_EVERY");
	const unsigned every = given ? (unsigned)atoi(given) : 3;
	struct lost_image damaged;
	unsigned n = 1 + (unsigned)sample_seed() % every, failed = 0;
	enum status st;
	lose_a_window(&damaged);
	for (;; n += every) {
		struct journal_job b[8] = { { 0 } };
		lost_put_all(&damaged);
		st = accept_loss(n);
		failed += st != ST_OK;
		if (st)
			ck_assert_int_eq(accept_loss(0), ST_OK);
		struct journal *j = open_ok();
		ck_assert_int_eq(journal_each_job(j, true, copy_job, b), ST_OK);
		ck_assert_msg(b[1].ended, "call %u: job 1 has not ended", n);
		ck_assert_msg(!b[3].ended, "call %u: job 3 has ended, and has lost nothing", n);
		journal_close(j);
		if (st == ST_OK) /* there are not so many calls */
			break;
	}
	ck_assert_uint_gt(failed, 50 / every);
	lost_free(&damaged);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("accept fails");
	TCase *c = tcase_create("accept fails");
	tcase_add_checked_fixture(c, journal_setup, journal_teardown);
	tcase_set_timeout(c, 120);
	suite_add_tcase(s, c);
	tcase_add_test(c, damage_is_never_taken_for_whole);
	tcase_add_test(c, an_acceptance_ends_no_other_job);
	return suite_run(s);
}
