/* SPDX-License-Identifier: Apache-2.0 */
/* A journal of which something is missing or altered goes on at the operator's word: jobs without a loss as before,
 * others end. */
#include "lost_rig.h"

#include "base/log.h"
#include "support/suite.h"

#include <check.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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
	struct lost_image m;
	struct journal_job b[8] = { { 0 } };
	int kept = memfd_create("kept", MFD_CLOEXEC);
	bool whole;
	log_init("test", LOG_TEXT, LOG_ERROR - 1);
	lost_live_and_die(kept, false, 0, WINDOWS - 2);
	lost_take(&m);
	lost_live_and_die(kept, false, WINDOWS - 2, WINDOWS);
	lost_put(&m, MAIN);
	lost_put(&m, WAL);
	ck_assert_int_eq(lost_open_again(kept, &whole), ST_MALFORMED);
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
	lost_free(&m);
}
END_TEST

/* All files but the notes are of before the step. What it has written is of no job, so that no job ends. */
START_TEST(a_lost_schema_step_ends_no_job)
{
	struct lost_image m;
	struct journal_job b[8] = { { 0 } };
	bool whole;
	log_init("test", LOG_TEXT, LOG_ERROR - 1);
	lost_live_and_die(-1, true, 0, WINDOWS);
	lost_take(&m);
	lost_add_a_column();
	ck_assert(lost_open_again(-1, &whole) == ST_OK && whole);
	lost_put(&m, MAIN);
	lost_put(&m, WAL);
	ck_assert_int_eq(lost_open_again(-1, &whole), ST_MALFORMED);
	accept_loss();
	ck_assert_ptr_nonnull(strstr(told, "the last 1 records are missing"));
	struct journal *j = open_ok();
	ck_assert_int_eq(journal_each_job(j, true, copy_job, b), ST_OK);
	ck_assert(b[0].id == 3 && !b[1].ended && b[2].ended && !b[3].ended);
	journal_close(j);
	lost_free(&m);
}
END_TEST

/* What cannot be read at all: a new journal, whose numbers go on. */
START_TEST(numbers_go_on_in_a_new_journal)
{
	bool whole;
	uint64_t last;
	log_init("test", LOG_TEXT, LOG_ERROR - 1);
	lost_live_and_die(-1, true, 0, WINDOWS);
	unlink(lost_path(WAL, ""));
	if (_i == 0)
		unlink(journal_path);
	else
		ck_assert_int_eq(truncate(journal_path, 5000), 0);
	ck_assert_int_eq(lost_open_again(-1, &whole), ST_MALFORMED);
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
	lost_live_and_die(-1, true, 0, WINDOWS);
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
	Suite *s = suite_create("journal accept");
	TCase *c = tcase_create("journal accept");
	tcase_add_checked_fixture(c, journal_setup, journal_teardown);
	tcase_set_timeout(c, 120);
	suite_add_tcase(s, c);
	tcase_add_test(c, jobs_without_a_loss_go_on);
	tcase_add_test(c, a_lost_schema_step_ends_no_job);
	tcase_add_loop_test(c, numbers_go_on_in_a_new_journal, 0, 2);
	tcase_add_test(c, an_altered_job_ends_alone);
	return suite_run(s);
}
