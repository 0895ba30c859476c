/* SPDX-License-Identifier: Apache-2.0 */
#include "store/history.h"

#include "base/log.h"
#include "support/scratch.h"
#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char dir[SCRATCH_PATH], path[96];
static struct history *h;

static void setup(void)
{
	static const struct history_limits limits = { .windows = 10, .events = 10 };
	ck_assert(scratch_make(dir));
	snprintf(path, sizeof(path), "%s/history.db", dir);
	log_init("test", LOG_TEXT, 0);
	ck_assert_int_eq(history_open(path, &limits, &h), ST_OK);
}

static void teardown(void)
{
	history_close(h);
	unlink(path);
	ck_assert_int_eq(rmdir(dir), 0);
}

static void put(uint64_t job, uint64_t window)
{
	const struct history_micro m = { .weight = 1 };
	struct history_window w = {
		.job = job, .window = window, .result = "window", .n_result = 6, .micro = &m, .n_micros = 1
	};
	ck_assert_int_eq(history_write(h, &w, 1, NULL, 0), ST_OK);
}

struct seen {
	uint64_t n, first, last, n_micros;
};

static enum status see(void *arg, const struct history_window *w)
{
	struct seen *s = arg;
	ck_assert(!s->n || w->window < s->last);
	if (!s->n++)
		s->first = w->window;
	s->last = w->window;
	s->n_micros += w->n_micros;
	return ST_OK;
}

static struct seen whole(uint64_t job, uint64_t before, uint64_t limit)
{
	struct seen s = { 0 };
	ck_assert_int_eq(history_each_of_whole(h, job, before, limit, see, &s), ST_OK);
	return s;
}

static struct seen all(uint64_t job)
{
	struct seen s = { 0 };
	ck_assert_int_eq(history_each_window(h, job, 0, UINT64_MAX, true, see, &s), ST_OK);
	return s;
}

START_TEST(a_thinned_series_of_the_whole_job_stays)
{
	const uint64_t from = 100005; /* it began with a checkpoint */
	for (uint64_t n = 0; n < 1200; n++) {
		put(1, from + n);
		if (n % 9 && n != HISTORY_WHOLE)
			continue;
		struct seen s = whole(1, 0, UINT64_MAX);
		ck_assert(s.first == from + n && s.last == from && s.n_micros == 0);
		ck_assert(s.n <= HISTORY_WHOLE + 2 && (s.n > n || s.n >= HISTORY_WHOLE / 2));
		s = all(1);
		ck_assert(s.n <= HISTORY_WHOLE + 42 && s.n_micros <= 42);
	}
	struct seen s = whole(1, 101199, 3); /* every 4th by now */
	ck_assert(s.n == 3 && s.first == 101196 && s.last == 101188);
	ck_assert_uint_eq(whole(3, 0, 10).n, 0);
}
END_TEST

/* ---- scalars ---- */

static void put_scalar(uint64_t job, uint64_t window, uint32_t rank, const char *name, double value)
{
	struct history_scalar v = { .job = job, .window = window, .rank = rank, .value = value };
	snprintf(v.name, sizeof(v.name), "%s", name);
	ck_assert_int_eq(history_write_scalars(h, &v, 1), ST_OK);
}

static enum status print(void *arg, const struct history_window *w)
{
	FILE *out = arg;
	for (size_t i = 0; i < w->n_scalars; i++)
		fprintf(out, "%d %s %d %g, ", (int)w->window, w->scalar[i].name, (int)w->scalar[i].rank,
			w->scalar[i].value);
	return ST_OK;
}

static const char *scalars(uint64_t job)
{
	static char text[4096];
	text[0] = '\0';
	FILE *out = fmemopen(text, sizeof(text), "w");
	ck_assert_int_eq(history_each_window(h, job, 0, 3, false, print, out), ST_OK);
	fclose(out);
	return text;
}

START_TEST(scalars_are_read_with_their_windows)
{
	put(1, 0);
	put_scalar(1, 0, 1, "b", 2.5);
	put_scalar(1, 0, 0, "b", NAN); /* the lowest rank, */
	put_scalar(1, 0, 2, "b", 4);
	put_scalar(1, 0, 0, "a", -1);
	put_scalar(1, 0, 0, "a", INFINITY); /* its last */
	put_scalar(1, 1, 3, "b", 5);	    /* before its window is there */
	put_scalar(2, 0, 0, "b", 6);
	ck_assert_str_eq(scalars(1), "0 a 0 inf, 0 b 0 nan, ");
	put(1, 1);
	ck_assert_str_eq(scalars(1), "1 b 3 5, 0 a 0 inf, 0 b 0 nan, ");
	ck_assert_int_eq(history_forget(h, 1), ST_OK);
	put(1, 0);
	put(2, 0);
	ck_assert_str_eq(scalars(1), "");
	ck_assert_str_eq(scalars(2), "0 b 0 6, ");
}
END_TEST

static enum status count(void *arg, const struct history_window *w)
{
	*(size_t *)arg += w->n_scalars;
	return ST_OK;
}

START_TEST(scalars_go_with_their_windows)
{
	for (uint64_t w = 0; w < 2 * HISTORY_WHOLE; w++) {
		put(1, w);
		put_scalar(1, w, 0, "a", 1);
	}
	size_t n = 0;
	ck_assert_int_eq(history_each_window(h, 1, 0, UINT64_MAX, false, count, &n), ST_OK);
	ck_assert_uint_eq(n, all(1).n);
	ck_assert_uint_le(n, HISTORY_WHOLE + 42);
	for (int i = 0; i < 2 * HISTORY_SCALARS; i++) { /* more than a daemon lets through */
		char name[16];
		snprintf(name, sizeof(name), "%d", i);
		put_scalar(3, 0, 0, name, 1);
	}
	n = 0;
	put(3, 0);
	ck_assert_int_eq(history_each_window(h, 3, 0, 1, false, count, &n), ST_OK);
	ck_assert_uint_eq(n, HISTORY_SCALARS);
}
END_TEST

START_TEST(it_goes_with_its_job)
{
	put(1, 3);
	put(2, 3);
	put(2, 4);
	ck_assert_int_eq(history_forget(h, 2), ST_OK);
	ck_assert_uint_eq(whole(2, 0, 10).n, 0);
	ck_assert_uint_eq(whole(1, 0, 10).n, 1);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("history_series");
	TCase *c = tcase_create("history_series");
	tcase_set_timeout(c, 60);
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, a_thinned_series_of_the_whole_job_stays);
	tcase_add_test(c, scalars_are_read_with_their_windows);
	tcase_add_test(c, scalars_go_with_their_windows);
	tcase_add_test(c, it_goes_with_its_job);
	suite_add_tcase(s, c);
	return suite_run(s);
}
