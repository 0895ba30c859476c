/* SPDX-License-Identifier: Apache-2.0 */
#include "store/history.h"

#include "base/log.h"
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

static char dir[SCRATCH_PATH], path[96];
static const struct history_limits roomy = { 1000, 1000 };

static void setup(void)
{
	ck_assert(scratch_make(dir));
	snprintf(path, sizeof(path), "%s/history.db", dir);
	log_init("test", LOG_TEXT, 0); /* failures are provoked */
}

static void remove_files(void)
{
	static const char *const names[] = { "", "-wal", "-journal", ".damaged", ".damaged-wal" };
	char file[128];
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		snprintf(file, sizeof(file), "%s%s", path, names[i]);
		unlink(file);
	}
}

static void teardown(void)
{
	remove_files();
	ck_assert_int_eq(rmdir(dir), 0);
}

static struct history *open_ok(const struct history_limits *limits)
{
	struct history *h = NULL;
	ck_assert_int_eq(history_open(path, limits, &h), ST_OK);
	return h;
}

/* ---- windows ---- */

/* What a window holds tells its job and number, so that a mix-up shows. */
static struct history_micro micro_of(uint64_t job, uint64_t window, uint32_t i)
{
	return (struct history_micro){ .rank = i / 4,
				       .micro = i % 4,
				       .voided = i == 5,
				       .weight = (double)job + 0.25 * i,
				       .loss = (double)window + 1.0 / (i + 1),
				       .unix_ns = (int64_t)(window * 1000 + i),
				       .lag_ns = i,
				       .data_key = job << 32 | window };
}

static enum status put(struct history *h, uint64_t job, uint64_t window, uint32_t n_micros)
{
	struct history_micro *m = calloc(n_micros + 1, sizeof(*m));
	char result[32];
	for (uint32_t i = 0; i < n_micros; i++)
		m[i] = micro_of(job, window, i);
	snprintf(result, sizeof(result), "%d/%d", (int)job, (int)window);
	struct history_window w = { .job = job,
				    .window = window,
				    .unix_ns = (int64_t)window,
				    .result = result,
				    .n_result = strlen(result),
				    .micro = m,
				    .n_micros = n_micros };
	enum status st = history_write(h, &w, 1, NULL, 0);
	free(m);
	return st;
}

struct seen {
	uint64_t job, n, first, last, with_micros, n_micros;
	enum status stop;
};

static enum status see_window(void *arg, const struct history_window *w)
{
	struct seen *s = arg;
	char want[32];
	ck_assert_msg(!s->n || w->window < s->last, "window %d after %d", (int)w->window, (int)s->last);
	snprintf(want, sizeof(want), "%d/%d", (int)s->job, (int)w->window);
	ck_assert_uint_eq(w->n_result, strlen(want));
	ck_assert_mem_eq(w->result, want, strlen(want));
	for (uint32_t i = 0; i < w->n_micros; i++) {
		struct history_micro m = micro_of(s->job, w->window, i);
		ck_assert_mem_eq(&w->micro[i], &m, sizeof(m));
	}
	if (!s->n++)
		s->first = w->window;
	s->last = w->window;
	s->with_micros += w->n_micros > 0;
	s->n_micros += w->n_micros;
	return s->stop;
}

static struct seen windows(struct history *h, uint64_t job, uint64_t before, uint64_t limit, bool micros)
{
	struct seen s = { .job = job };
	ck_assert_int_eq(history_each_window(h, job, before, limit, micros, see_window, &s), ST_OK);
	return s;
}

START_TEST(windows_read_as_written_newest_first)
{
	struct history *h = open_ok(&roomy);
	struct stat st;
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_int_eq(st.st_mode & 0777, 0600);
	for (uint64_t w = 0; w < 10; w++) {
		ck_assert_int_eq(put(h, 7, w, 8), ST_OK);
		ck_assert_int_eq(put(h, 8, w, w == 3 ? 0 : 6), ST_OK);
	}
	struct seen s = windows(h, 7, 0, 100, true);
	ck_assert(s.n == 10 && s.first == 9 && s.last == 0 && s.n_micros == 80);
	s = windows(h, 8, 0, 100, true);
	ck_assert(s.n == 10 && s.with_micros == 9);
	s = windows(h, 7, 0, 100, false);
	ck_assert(s.n == 10 && s.n_micros == 0);
	s = windows(h, 7, 6, 3, true);
	ck_assert(s.n == 3 && s.first == 5 && s.last == 3);
	s = windows(h, 9, 0, 100, true);
	ck_assert_uint_eq(s.n, 0);
	s = (struct seen){ .job = 7, .stop = ST_CANCELLED };
	ck_assert_int_eq(history_each_window(h, 7, 0, 100, true, see_window, &s), ST_CANCELLED);
	ck_assert_uint_eq(s.n, 1);
	history_close(h);
	h = open_ok(&roomy);
	s = windows(h, 7, 0, 100, true);
	ck_assert(s.n == 10 && s.n_micros == 80);
	history_close(h);
}
END_TEST

START_TEST(what_is_restored_replaces_nothing)
{
	struct history *h = open_ok(&roomy);
	ck_assert_int_eq(put(h, 1, 4, 8), ST_OK);
	struct history_window w = { .job = 1, .window = 4, .result = "other", .n_result = 5, .if_missing = true };
	ck_assert_int_eq(history_write(h, &w, 1, NULL, 0), ST_OK);
	struct seen s = windows(h, 1, 0, 10, true);
	ck_assert(s.n == 1 && s.n_micros == 8);
	w.window = 5;
	w.result = "1/5";
	w.n_result = 3;
	ck_assert_int_eq(history_write(h, &w, 1, NULL, 0), ST_OK);
	s = windows(h, 1, 0, 10, true);
	ck_assert(s.n == 2 && s.first == 5 && s.with_micros == 1);
	ck_assert_int_eq(put(h, 1, 5, 3), ST_OK); /* the window was decided anew */
	s = windows(h, 1, 0, 10, true);
	ck_assert(s.n == 2 && s.with_micros == 2);
	history_close(h);
}
END_TEST

START_TEST(old_windows_go)
{
	static const struct history_limits limits = { 100, 1000 };
	struct history *h = open_ok(&limits);
	for (uint64_t w = 0; w < 700; w++) {
		ck_assert_int_eq(put(h, 1, w, 2), ST_OK);
		struct seen s = windows(h, 1, 0, UINT64_MAX, true);
		ck_assert(s.first == w && s.last == 0 && s.n <= HISTORY_WHOLE + 132);
		ck_assert(s.with_micros >= (w < 100 ? w + 1 : 100) && s.with_micros <= 132);
		s = windows(h, 1, 0, 100, true); /* the newest have no gaps */
		ck_assert(s.last == (w < 100 ? 0 : w - 99) && s.with_micros == s.n);
	}
	history_close(h);
}
END_TEST

START_TEST(many_micro_batches_push_out_old_ones)
{
	struct history *h = open_ok(&roomy);
	const uint32_t n = HISTORY_MICRO_BYTES / sizeof(struct history_micro) / 4; /* of four windows */
	for (uint64_t w = 0; w < 7; w++)
		ck_assert_int_eq(put(h, 1, w, n), ST_OK);
	struct seen s = windows(h, 1, 0, UINT64_MAX, true);
	ck_assert_uint_eq(s.n, 7);
	ck_assert_uint_eq(s.with_micros, 4);
	ck_assert_uint_eq(windows(h, 1, 3, UINT64_MAX, true).n_micros, 0);
	history_close(h);
}
END_TEST

/* ---- events ---- */

static enum status put_event(struct history *h, uint64_t id, uint64_t job, uint32_t uid)
{
	char message[32];
	snprintf(message, sizeof(message), "message %d", (int)id);
	struct history_event e = { .id = id,
				   .job = job,
				   .uid = uid,
				   .unix_ns = (int64_t)id * 10,
				   .warning = id % 2,
				   .reason = "RankLost",
				   .object = "rank 3",
				   .message = message,
				   .window = id + 5 };
	return history_write(h, NULL, 0, &e, 1);
}

struct seen_events {
	uint64_t n, first, last, jobs; /* jobs: a bit for each */
};

static enum status see_event(void *arg, const struct history_event *e)
{
	struct seen_events *s = arg;
	char want[32];
	ck_assert(!s->n || e->id > s->last);
	snprintf(want, sizeof(want), "message %d", (int)e->id);
	ck_assert_str_eq(e->message, want);
	ck_assert_str_eq(e->reason, "RankLost");
	ck_assert_str_eq(e->object, "rank 3");
	ck_assert_int_eq(e->unix_ns, (int64_t)e->id * 10);
	ck_assert_int_eq(e->warning, e->id % 2);
	ck_assert_uint_eq(e->window, e->id + 5);
	if (!s->n++)
		s->first = e->id;
	s->last = e->id;
	s->jobs |= UINT64_C(1) << e->job;
	return ST_OK;
}

static struct seen_events events(struct history *h, struct history_query q)
{
	struct seen_events s = { 0 };
	ck_assert_int_eq(history_each_event(h, &q, see_event, &s), ST_OK);
	return s;
}

START_TEST(events_by_job_user_and_id)
{
	struct history *h = open_ok(&roomy);
	for (uint64_t id = 1; id <= 30; id++) /* job 0: the node; jobs 1 and 2: users 101 and 102 */
		ck_assert_int_eq(put_event(h, id, id % 3, id % 3 ? 100 + (uint32_t)(id % 3) : 0), ST_OK);
	struct seen_events s = events(h, (struct history_query){ .limit = 100 });
	ck_assert(s.n == 30 && s.first == 1 && s.last == 30 && s.jobs == 7);
	s = events(h, (struct history_query){ .of_user = true, .uid = 102, .limit = 100 });
	ck_assert(s.n == 20 && s.jobs == 5);
	s = events(h, (struct history_query){ .of_user = true, .uid = 9, .limit = 100 });
	ck_assert(s.n == 10 && s.jobs == 1);
	s = events(h, (struct history_query){ .of_job = true, .job = 1, .limit = 100 });
	ck_assert(s.n == 10 && s.jobs == 2);
	s = events(h, (struct history_query){ .of_job = true, .job = 1, .after_id = 4, .limit = 2 });
	ck_assert(s.n == 2 && s.first == 7 && s.last == 10);
	s = events(h, (struct history_query){ .after_id = 12, .limit = 5 });
	ck_assert(s.n == 5 && s.first == 13 && s.last == 17);
	s = (struct seen_events){ 0 };
	ck_assert_int_eq(history_last_events(h, 2, 3, see_event, &s), ST_OK);
	ck_assert(s.n == 3 && s.first == 23 && s.last == 29);
	history_close(h);
}
END_TEST

START_TEST(old_events_go_per_job)
{
	static const struct history_limits limits = { 1000, 80 };
	struct history *h = open_ok(&limits);
	ck_assert_int_eq(put_event(h, 1, 2, 1), ST_OK);
	for (uint64_t id = 2; id < 400; id++) {
		ck_assert_int_eq(put_event(h, id, 1, 1), ST_OK);
		struct seen_events s = events(h, (struct history_query){ .of_job = true, .job = 1, .limit = 1000 });
		ck_assert(s.n >= (id <= 80 ? id - 1 : 80) && s.n <= 90 && s.last == id);
		if (id == 200) { /* how many there are is not forgotten */
			history_close(h);
			h = open_ok(&limits);
		}
	}
	ck_assert_uint_eq(events(h, (struct history_query){ .of_job = true, .job = 2, .limit = 9 }).n, 1);
	history_close(h);
}
END_TEST

static struct history *four_jobs(void)
{
	struct history *h = open_ok(&roomy);
	for (uint64_t job = 1; job <= 4; job++) {
		ck_assert_int_eq(put(h, job, job, 4), ST_OK);
		ck_assert_int_eq(put_event(h, job, job, 1), ST_OK);
	}
	ck_assert_int_eq(put_event(h, 10, 0, 0), ST_OK); /* the node is no job */
	return h;
}

START_TEST(a_job_is_forgotten_as_a_whole)
{
	struct history *h = four_jobs();
	ck_assert_uint_eq(windows(h, 2, 0, 9, true).n_micros, 4);
	ck_assert_int_eq(history_forget(h, 2), ST_OK);
	ck_assert_int_eq(history_forget(h, 7), ST_OK); /* there is none */
	ck_assert_uint_eq(windows(h, 2, 0, 9, true).n, 0);
	ck_assert_uint_eq(windows(h, 1, 0, 9, true).n_micros, 4);
	ck_assert_uint_eq(events(h, (struct history_query){ .limit = 100 }).jobs, 1 << 0 | 1 << 1 | 1 << 3 | 1 << 4);
	history_close(h);
}
END_TEST

START_TEST(all_but_those_that_are_known_are_forgotten)
{
	static const uint64_t known[] = { 2, 4, 5 };
	struct history *h = four_jobs();
	ck_assert_int_eq(history_forget_others(h, known, 3), ST_OK);
	ck_assert_uint_eq(windows(h, 3, 0, 9, true).n, 0);
	ck_assert_uint_eq(windows(h, 4, 0, 9, true).n_micros, 4);
	ck_assert_uint_eq(events(h, (struct history_query){ .limit = 100 }).jobs, 1 << 0 | 1 << 2 | 1 << 4);
	ck_assert_int_eq(history_forget_others(h, known, 0), ST_OK);
	ck_assert_uint_eq(events(h, (struct history_query){ .limit = 100 }).jobs, 1 << 0);
	history_close(h);
}
END_TEST

/* ---- trouble ---- */

static bool exists(const char *suffix)
{
	char file[128];
	snprintf(file, sizeof(file), "%s%s", path, suffix);
	return access(file, F_OK) == 0;
}

static void overwrite(off_t from, off_t to)
{
	char noise[512];
	memset(noise, 0xa5, sizeof(noise));
	int fd = open(path, O_WRONLY);
	ck_assert_int_ge(fd, 0);
	for (off_t at = from; at < to; at += (off_t)sizeof(noise))
		ck_assert_int_eq(pwrite(fd, noise, sizeof(noise), at), sizeof(noise));
	close(fd);
}

static void is_new_and_works(struct history *h)
{
	ck_assert_int_eq(put(h, 2, 1, 8), ST_OK);
	ck_assert_uint_eq(windows(h, 2, 0, 9, true).n_micros, 8);
	ck_assert_uint_eq(windows(h, 1, 0, 9, true).n, 0);
	ck_assert(exists(".damaged"));
}

START_TEST(a_file_that_is_none_is_moved_aside)
{
	history_close(open_ok(&roomy));
	overwrite(0, 4096);
	struct history *h = open_ok(&roomy);
	is_new_and_works(h);
	history_close(h);
}
END_TEST

/* A few pages in the middle: the open finds nothing; _i: a reader or a writer does. */
START_TEST(damage_that_shows_later_is_moved_aside)
{
	struct history *h = open_ok(&roomy);
	for (uint64_t w = 0; w < 300; w++)
		ck_assert_int_eq(put(h, 1, w, 32), ST_OK);
	history_close(h);
	struct stat st;
	ck_assert_int_eq(stat(path, &st), 0);
	overwrite(8 * 4096, st.st_size / 4096 * 4096);
	h = open_ok(&roomy);
	ck_assert(!exists(".damaged"));
	struct seen s = { .job = 1 };
	if (_i)
		ck_assert_int_eq(put(h, 1, 300, 32), ST_OK);
	else
		ck_assert_int_eq(history_each_window(h, 1, 0, 1000, true, see_window, &s), ST_STORE_FAILED);
	ck_assert(exists(".damaged"));
	ck_assert_uint_eq(windows(h, 1, 0, 9, true).n, _i);
	ck_assert_int_eq(put(h, 2, 1, 8), ST_OK);
	ck_assert_uint_eq(windows(h, 2, 0, 9, true).n_micros, 8);
	history_close(h);
}
END_TEST

START_TEST(a_file_of_a_newer_version_is_moved_aside)
{
	history_close(open_ok(&roomy));
	sqlite3 *db;
	ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
	ck_assert_int_eq(sqlite3_exec(db, "PRAGMA user_version = 1000", NULL, NULL, NULL), SQLITE_OK);
	sqlite3_close(db);
	struct history *h = open_ok(&roomy);
	is_new_and_works(h);
	history_close(h);
}
END_TEST

START_TEST(a_file_that_another_has_is_tried_again)
{
	history_close(open_ok(&roomy));
	sqlite3 *db;
	ck_assert_int_eq(sqlite3_open(path, &db), SQLITE_OK);
	ck_assert_int_eq(sqlite3_exec(db, "BEGIN EXCLUSIVE", NULL, NULL, NULL), SQLITE_OK);
	struct history *h = open_ok(&roomy);
	struct seen s = { .job = 1 };
	ck_assert_int_eq(put(h, 1, 0, 4), ST_STORE_FAILED);
	ck_assert_int_eq(history_each_window(h, 1, 0, 9, true, see_window, &s), ST_STORE_FAILED);
	sqlite3_close(db);
	ck_assert_int_eq(put(h, 1, 1, 4), ST_OK);
	ck_assert(!exists(".damaged"));
	ck_assert_uint_eq(windows(h, 1, 0, 9, true).n, 1);
	history_close(h);
}
END_TEST

static const int codes[] = { SQLITE_FULL, SQLITE_IOERR_WRITE };

/* Writes until the n-th call fails; each call wrote all or nothing, and the next ones work. */
START_TEST(every_nth_call_fails)
{
	faulty_vfs_install();
	for (int n = 1;; n++) {
		remove_files();
		faulty_vfs_arm(n, codes[_i]);
		struct history *h = open_ok(&roomy);
		bool there[6];
		int failed = 0;
		for (uint64_t w = 0; w < 6; w++)
			failed += !(there[w] = put(h, 1, w, 50) == ST_OK);
		bool happened = faulty_vfs_calls() >= n;
		faulty_vfs_arm(0, 0);
		ck_assert_int_le(failed, 1);
		ck_assert_int_eq(put(h, 1, 6, 50), ST_OK);
		for (uint64_t w = 0; w < 6; w++) {
			struct seen s = windows(h, 1, w + 1, 1, true);
			ck_assert_msg(there[w] == (s.n == 1 && s.first == w && s.n_micros == 50), "n %d, window %d", n,
				      (int)w);
		}
		history_close(h);
		ck_assert(!exists(".damaged"));
		if (!happened) {
			ck_assert_int_gt(n, 30);
			break;
		}
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("history");
	TCase *c = tcase_create("history");
	tcase_set_timeout(c, 60);
	suite_add_tcase(s, c);
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, windows_read_as_written_newest_first);
	tcase_add_test(c, what_is_restored_replaces_nothing);
	tcase_add_test(c, old_windows_go);
	tcase_add_test(c, many_micro_batches_push_out_old_ones);
	tcase_add_test(c, events_by_job_user_and_id);
	tcase_add_test(c, old_events_go_per_job);
	tcase_add_test(c, a_job_is_forgotten_as_a_whole);
	tcase_add_test(c, all_but_those_that_are_known_are_forgotten);
	tcase_add_test(c, a_file_that_is_none_is_moved_aside);
	tcase_add_loop_test(c, damage_that_shows_later_is_moved_aside, 0, 2);
	tcase_add_test(c, a_file_of_a_newer_version_is_moved_aside);
	tcase_add_test(c, a_file_that_another_has_is_tried_again);
	tcase_add_loop_test(c, every_nth_call_fails, 0, 2);
	return suite_run(s);
}
