/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of jobs that another gaccd coordinates: what is written of them is read back, and counts as the rest does when
 * something of the journal is lost. */
#include "lost_rig.h"

#include "base/log.h"
#include "support/suite.h"

#include <check.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct journal_record part(uint64_t job, uint32_t number, const char *placement)
{
	struct journal_record r = {
		.kind = JOURNAL_PART,
		.part = { .job = job, .part = number, .placement = { placement, strlen(placement) } }
	};
	memset(r.part.uuid, (int)job, sizeof(r.part.uuid));
	return r;
}

static struct journal_record tensors(uint64_t job, uint32_t number, const char *set)
{
	return (struct journal_record){ .kind = JOURNAL_PART_TENSORS,
					.part_tensors = { job, number, { set, strlen(set) } } };
}

static struct journal_record begun(uint64_t job, uint32_t number)
{
	return (struct journal_record){ .kind = JOURNAL_PART_BEGUN, .part_begun = { job, number } };
}

static struct journal_record gone(uint64_t job, uint32_t number)
{
	return (struct journal_record){ .kind = JOURNAL_PART_GONE, .part_gone = { job, number } };
}

/* "job.part placement tensors begun; ..." */
static char all[400];

static enum status see(void *arg, const struct journal_part *p)
{
	uint8_t uuid[16];
	size_t n = strlen(all);
	memset(uuid, (int)p->job, sizeof(uuid));
	ck_assert_mem_eq(p->uuid, uuid, sizeof(uuid));
	snprintf(all + n, sizeof(all) - n, "%d.%u %.*s %.*s %d; ", (int)p->job, p->part, (int)p->placement.n,
		 (const char *)p->placement.data, (int)p->tensors.n, (const char *)p->tensors.data, p->begun);
	return p->job == 66 ? ST_CANCELLED : ST_OK;
}

static const char *parts(struct journal *j)
{
	*all = '\0';
	ck_assert_int_eq(journal_each_part(j, see, NULL), ST_OK);
	return all;
}

START_TEST(a_part_reads_as_written)
{
	struct journal *j = open_ok();
	uint64_t term = term_of(j), last;
	ck_assert_str_eq(parts(j), "");
	struct journal_record r[] = { part(9, 1, "nine"), part(9, 0, "zero"), part(5, 2, "five"), tensors(9, 1, "set"),
				      begun(9, 1) };
	ck_assert_int_eq(journal_commit(j, term, r, 5), ST_OK);
	journal_close(j);
	j = open_ok();
	term = term_of(j);
	ck_assert_str_eq(parts(j), "5.2 five  0; 9.0 zero  0; 9.1 nine set 1; ");
	ck_assert_int_eq(journal_last_job(j, &last), ST_OK);
	ck_assert_uint_eq(last, 9); /* its memory is not another journal's */
	struct journal_job none[8] = { { 0 } };
	ck_assert_int_eq(journal_each_job(j, true, copy_job, none), ST_OK);
	ck_assert_uint_eq(none[0].id, 0);
	ck_assert_int_eq(write1(j, term, part(9, 1, "again")), ST_OK);
	ck_assert_str_eq(parts(j), "5.2 five  0; 9.0 zero  0; 9.1 again  0; ");
	ck_assert_int_eq(write1(j, term, gone(9, 1)), ST_OK);
	ck_assert_int_eq(write1(j, term, gone(5, 2)), ST_OK);
	journal_close(j);
	j = open_ok();
	ck_assert_str_eq(parts(j), "9.0 zero  0; ");
	ck_assert_int_eq(journal_last_job(j, &last), ST_OK);
	ck_assert_uint_eq(last, 9);
	journal_close(j);
}
END_TEST

START_TEST(reading_stops_where_it_is_told_to)
{
	struct journal *j = open_ok();
	struct journal_record r[] = { part(65, 0, "a"), part(66, 0, "b"), part(67, 0, "c") };
	ck_assert_int_eq(journal_commit(j, term_of(j), r, 3), ST_OK);
	*all = '\0';
	ck_assert_int_eq(journal_each_part(j, see, NULL), ST_CANCELLED);
	ck_assert_str_eq(all, "65.0 a  0; 66.0 b  0; ");
	journal_close(j);
}
END_TEST

START_TEST(what_does_not_fit_is_refused)
{
	struct journal *j = open_ok();
	uint64_t term = term_of(j);
	ck_assert_int_eq(write1(j, term, job(1)), ST_OK);
	ck_assert_int_eq(write1(j, term, part(1, 0, "p")), ST_ALREADY_EXISTS); /* coordinated here */
	ck_assert_int_eq(write1(j, term, part(2, 0, "p")), ST_OK);
	struct journal_record other = part(2, 1, "p");
	other.part.uuid[15]++;
	ck_assert_int_eq(write1(j, term, other), ST_ALREADY_EXISTS);
	other.part.part = 0;
	ck_assert_int_eq(write1(j, term, other), ST_ALREADY_EXISTS);
	ck_assert_int_eq(write1(j, term, tensors(2, 1, "set")), ST_JOB_NOT_FOUND);
	ck_assert_int_eq(write1(j, term, begun(3, 0)), ST_JOB_NOT_FOUND);
	ck_assert_int_eq(write1(j, term, gone(2, 1)), ST_JOB_NOT_FOUND);
	ck_assert_int_eq(write1(j, term, part(0, 0, "p")), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(write1(j, term, part((uint64_t)INT64_MAX + 1, 0, "p")), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(write1(j, term, part(2, 2, "")), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(write1(j, term, tensors(2, 0, "")), ST_INVALID_ARGUMENT);
	struct journal_record large = part(2, 2, "p"), set = tensors(2, 0, "set");
	large.part.placement.n = JOURNAL_MAX_PLACEMENT + 1;
	set.part_tensors.set.n = JOURNAL_MAX_BYTES + 1;
	ck_assert_int_eq(write1(j, term, large), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(write1(j, term, set), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(write1(j, term + 1, part(2, 3, "p")), ST_STALE_TERM);
	ck_assert_str_eq(parts(j), "2.0 p  0; ");
	ck_assert_int_eq(write1(j, term, gone(2, 0)), ST_OK);
	ck_assert_int_eq(write1(j, term, other), ST_OK); /* nothing is left of the one before */
	journal_close(j);
}
END_TEST

static enum status see_size(void *arg, const struct journal_part *p)
{
	*(size_t *)arg = p->placement.n;
	return ST_OK;
}

/* That of a job that begins with a checkpoint has the largest tensor set, and a specification. */
START_TEST(a_placement_may_have_a_whole_tensor_set)
{
	struct journal *j = open_ok();
	struct journal_record r = part(2, 0, "");
	const size_t n = JOURNAL_MAX_BYTES + 100000;
	size_t kept = 0;
	void *bytes = calloc(1, n);
	ck_assert_ptr_nonnull(bytes);
	r.part.placement = (struct journal_bytes){ bytes, n };
	ck_assert_int_eq(write1(j, term_of(j), r), ST_OK);
	free(bytes);
	journal_close(j);
	j = open_ok();
	ck_assert_int_eq(journal_each_part(j, see_size, &kept), ST_OK);
	ck_assert_uint_eq(kept, n);
	journal_close(j);
}
END_TEST

/* ---- what is lost ---- */

static char told[2000];

static void remember(void *arg, const char *line)
{
	size_t n = strlen(told);
	snprintf(told + n, sizeof(told) - n, "%s\n", line);
}

static void edit(const char *text)
{
	sqlite3 *db;
	ck_assert_int_eq(sqlite3_open(journal_path, &db), SQLITE_OK);
	ck_assert_int_eq(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
	sqlite3_close(db);
}

static void expect_lost(void)
{
	struct journal *j = NULL;
	ck_assert_int_eq(journal_open(journal_path, &j), ST_MALFORMED);
	*told = '\0';
	ck_assert_int_eq(journal_accept(journal_path, 8, 4711, remember, NULL), ST_OK);
}

static void write_parts(void)
{
	struct journal *j = open_ok();
	struct journal_record r[] = { job(1),
				      part(2, 0, "two"),
				      part(2, 1, "second"),
				      part(3, 0, "three"),
				      tensors(2, 1, "set"),
				      part(4, 0, "four"),
				      gone(4, 0),
				      begun(3, 0) };
	log_init("test", LOG_TEXT, LOG_ERROR - 1);
	ck_assert_int_eq(journal_commit(j, term_of(j), r, sizeof(r) / sizeof(*r)), ST_OK);
	journal_close(j);
}

/* Each change is noticed, and costs the parts of its job alone. */
START_TEST(an_altered_part_is_noticed)
{
	static const char *const change[] = { "UPDATE parts SET placement = 'tvo' WHERE job = 2 AND part = 0",
					      "UPDATE parts SET tensors = NULL WHERE job = 2",
					      "UPDATE parts SET begun = 1 WHERE job = 2",
					      "UPDATE parts SET part = 5 WHERE job = 2 AND part = 1",
					      "DELETE FROM parts WHERE job = 2 AND part = 1",
					      "DELETE FROM away WHERE job = 2",
					      "UPDATE away SET uuid = zeroblob(16) WHERE job = 2" };
	struct journal_job b[8] = { { 0 } };
	write_parts();
	edit(change[_i]);
	expect_lost();
	ck_assert_ptr_nonnull(strstr(told, "job 2"));
	ck_assert_ptr_null(strstr(told, "job 3"));
	struct journal *j = open_ok();
	ck_assert_str_eq(parts(j), "3.0 three  1; ");
	ck_assert_int_eq(journal_each_job(j, false, copy_job, b), ST_OK);
	ck_assert(b[0].id == 1 && !b[1].ended);
	journal_close(j);
	journal_close(open_ok());
}
END_TEST

/* The newest records are missing, and whose they were is known. */
START_TEST(records_of_a_part_that_are_missing)
{
	struct lost_image before;
	write_parts();
	lost_take(&before);
	struct journal *j = open_ok();
	ck_assert_int_eq(write1(j, term_of(j), begun(2, 0)), ST_OK);
	journal_close(j);
	lost_put(&before, MAIN);
	lost_put(&before, WAL);
	lost_put(&before, SHM);
	expect_lost();
	ck_assert_ptr_nonnull(strstr(told, "job 2, which another gaccd coordinates: records are missing"));
	j = open_ok();
	ck_assert_str_eq(parts(j), "3.0 three  1; ");
	journal_close(j);
	lost_free(&before);
}
END_TEST

/* A schema of before is brought up, and sums of parts outlive a step of the schema. */
START_TEST(a_schema_step_keeps_them)
{
	write_parts();
	lost_add_a_column();
	struct journal *j = open_ok();
	ck_assert_str_eq(parts(j), "2.0 two  0; 2.1 second set 0; 3.0 three  1; ");
	journal_close(j);
	edit("UPDATE parts SET begun = 1 WHERE job = 2");
	expect_lost();
	ck_assert_ptr_nonnull(strstr(told, "job 2"));
	ck_assert_ptr_null(strstr(told, "job 3"));
}
END_TEST

/* What is logged when the journal is refused. */
static const char *log_of_opening(void)
{
	static char text[4000];
	FILE *to = tmpfile();
	int before = dup(STDERR_FILENO);
	struct journal *j;
	log_init("test", LOG_TEXT, LOG_ERROR);
	ck_assert(to && dup2(fileno(to), STDERR_FILENO) >= 0);
	enum status st = journal_open(journal_path, &j);
	ck_assert_int_ge(dup2(before, STDERR_FILENO), 0);
	ck_assert_int_eq(st, ST_MALFORMED);
	rewind(to);
	text[fread(text, 1, sizeof(text) - 1, to)] = '\0';
	fclose(to);
	close(before);
	return text;
}

START_TEST(a_journal_of_before_gets_them)
{
	static const char back[] = "DROP TABLE parts; DROP TABLE away; PRAGMA user_version = 8;"
				   "UPDATE meta SET value = 8 WHERE key = 'sealed'";
	struct journal *j = open_ok();
	ck_assert_int_eq(write1(j, term_of(j), job(1)), ST_OK);
	journal_close(j);
	edit(back);
	j = open_ok();
	ck_assert_int_eq(write1(j, term_of(j), part(2, 0, "two")), ST_OK);
	journal_close(j);
	j = open_ok();
	ck_assert_str_eq(parts(j), "2.0 two  0; ");
	ck_assert_int_eq(write1(j, term_of(j), gone(2, 0)), ST_OK);
	journal_close(j);
	edit(back);
	edit("UPDATE jobs SET user = 'bob'");
	/* which job it is can be said without the tables */
	ck_assert_ptr_nonnull(strstr(log_of_opening(), "records of job 1 have been altered"));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("journal parts");
	TCase *c = tcase_create("journal parts");
	suite_add_tcase(s, c);
	tcase_add_checked_fixture(c, journal_setup, journal_teardown);
	tcase_set_timeout(c, 60);
	tcase_add_test(c, a_part_reads_as_written);
	tcase_add_test(c, reading_stops_where_it_is_told_to);
	tcase_add_test(c, what_does_not_fit_is_refused);
	tcase_add_test(c, a_placement_may_have_a_whole_tensor_set);
	tcase_add_loop_test(c, an_altered_part_is_noticed, 0, 7);
	tcase_add_test(c, records_of_a_part_that_are_missing);
	tcase_add_test(c, a_schema_step_keeps_them);
	tcase_add_test(c, a_journal_of_before_gets_them);
	return suite_run(s);
}
