/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks log while the history's disk is slow: each user has a share of what may wait for it. */
#include "edge_rig.h"

#include "edge/hosted_scalars.h"
#include "gacc/v1/job.pb-c.h"
#include "runtime/recorder.h"
#include "runtime/scalars.h"
#include "support/suite.h"

#include <check.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>

#define SECOND 1000000000
#define FIT (RECORDER_USER_SCALARS / SCALARS_NAMES + SCALARS_WINDOWS) /* windows with all names */

static uint64_t window; /* that is open in all jobs */
static bool committing; /* and its commit is on its way to the parts */
static char why[256];

uint64_t __wrap_coord_window(const struct coord *c);
uint64_t __wrap_coord_window(const struct coord *c)
{
	return window;
}

enum coord_phase __real_coord_phase(const struct coord *c);
enum coord_phase __wrap_coord_phase(const struct coord *c);
enum coord_phase __wrap_coord_phase(const struct coord *c)
{
	return committing ? COORD_COMMIT : __real_coord_phase(c);
}

static enum status log_all(struct hosted *h, uint64_t of)
{
	static char name[SCALARS_NAMES][8];
	Gacc__V1__Scalar v[SCALARS_NAMES], *each[SCALARS_NAMES];
	for (int i = 0; i < SCALARS_NAMES; i++) {
		snprintf(name[i], sizeof(name[i]), "n%d", i);
		gacc__v1__scalar__init(&v[i]);
		v[i].name = name[i];
		v[i].value = (double)of;
		each[i] = &v[i];
	}
	return hosted_scalars_put(h, of, 0, each, SCALARS_NAMES, why, sizeof(why));
}

/* Logs all names in each window until that is refused; how many windows were kept. */
static uint64_t flood(struct hosted *h)
{
	for (window = 0; !log_all(h, window); window++)
		ck_assert_uint_lt(window, 1000);
	return window;
}

/* ---- a slow disk: the thread that writes waits ---- */

static struct slow {
	struct recorder_read read; /* first */
	sem_t go;
	bool done;
} slow;

static void wait_to_go(struct recorder_read *r, struct history *h)
{
	sem_wait(&slow.go);
}

static void gone(struct recorder_read *r)
{
	slow.done = true;
}

static void make_slow(void)
{
	slow = (struct slow){ .read = { .read = wait_to_go, .done = gone } };
	sem_init(&slow.go, 0, 0);
	recorder_read(d.recorder, &slow.read);
}

static void make_quick(void)
{
	sem_post(&slow.go);
	while (!slow.done)
		uv_run(&d.node.loop, UV_RUN_ONCE);
	sem_destroy(&slow.go);
}

static enum status count(void *arg, const struct history_window *w)
{
	for (size_t i = 0; i < w->n_scalars; i++)
		ck_assert_double_eq(w->scalar[i].value, (double)w->window);
	*(uint64_t *)arg += w->n_scalars;
	return ST_OK;
}

/* How many of a job are in the history. */
static uint64_t kept(const struct hosted *h, uint64_t windows)
{
	uint64_t n = 0;
	for (uint64_t w = 0; w < windows; w++)
		recorder_put_window(d.recorder, h->uid,
				    &(struct history_window){ .job = h->id, .window = w, .result = "r", .n_result = 1 },
				    NULL);
	for (int i = 0; i < 2; i++) { /* one batch may be under way */
		recorder_flush(d.recorder);
		rig_run();
	}
	ck_assert_int_eq(history_each_window(d.history, h->id, 0, windows, false, count, &n), ST_OK);
	return n;
}

static struct hosted *mine, *mine_too, *other;

static void open_jobs(void)
{
	rig_open();
	mine = rig_job(1, 1001, "me", NULL);
	mine_too = rig_job(2, 1001, "me", NULL);
	other = rig_job(3, 1002, "other", NULL);
	make_slow();
}

START_TEST(a_user_has_a_share_of_what_waits)
{
	ck_assert_uint_eq(flood(mine), FIT);
	ck_assert_int_eq(log_all(mine, window), ST_RESOURCE_EXHAUSTED);
	ck_assert_ptr_nonnull(strstr(why, "576 values of this job wait"));
	ck_assert_ptr_nonnull(strstr(why, "and 4096 of all your jobs"));
	ck_assert_ptr_nonnull(strstr(why, "none of these 64 is kept"));
	ck_assert_int_eq(log_all(mine, window - 1), ST_OK); /* they wait already */
	ck_assert_uint_eq(flood(mine_too), SCALARS_WINDOWS);
	ck_assert_uint_eq(flood(other), FIT);
	make_quick();
	window = FIT;
	ck_assert_int_eq(log_all(mine, window), ST_OK);
	hosted_scalars_write(mine);
	hosted_scalars_write(mine_too);
	hosted_scalars_write(other);
	ck_assert_uint_eq(kept(mine, FIT + 1), (FIT + 1) * SCALARS_NAMES);
	ck_assert_uint_eq(kept(mine_too, FIT + 1), SCALARS_WINDOWS * SCALARS_NAMES);
	ck_assert_uint_eq(kept(other, FIT + 1), FIT * SCALARS_NAMES);
}
END_TEST

/* Nobody reads a value that is the same one again. */
START_TEST(who_logs_one_window_again_and_again_takes_no_more_room)
{
	for (int i = 0; i < 1000; i++) {
		ck_assert_int_eq(log_all(mine, 0), ST_OK);
		ck_assert_uint_eq(recorder_scalars_room(d.recorder, 1001), RECORDER_USER_SCALARS);
	}
	make_quick();
	hosted_scalars_write(mine);
	ck_assert_uint_eq(kept(mine, 1), SCALARS_NAMES);
}
END_TEST

static const char *newest_event(uint64_t *n)
{
	*n = mine->events.n;
	return *n ? hosted_history_event(mine, *n - 1).message : "";
}

static void tick(int64_t s)
{
	hosted_scalars_tick(mine, (struct now){ .mono_ns = s * SECOND, .unix_ns = s * SECOND });
}

START_TEST(the_job_hears_how_many_were_refused)
{
	uint64_t before, n;
	newest_event(&before);
	tick(99);
	flood(mine);
	log_all(mine, window);
	tick(100);
	ck_assert_ptr_nonnull(strstr(newest_event(&n), "128 values that ranks have logged were refused"));
	ck_assert_uint_eq(n, before + 1);
	log_all(mine, window);
	tick(159);
	newest_event(&n);
	ck_assert_uint_eq(n, before + 1); /* not more than one a minute */
	tick(160);
	ck_assert_ptr_nonnull(strstr(newest_event(&n), "64 values"));
	tick(1000);
	newest_event(&n);
	ck_assert_uint_eq(n, before + 2);
	make_quick();
}
END_TEST

START_TEST(windows_that_take_values)
{
	make_quick();
	window = 20;
	ck_assert_int_eq(log_all(mine, 21), ST_NOT_CURRENT_WINDOW);
	ck_assert_ptr_nonnull(strstr(why, "window 21 is not open yet: 20 is"));
	ck_assert_int_eq(log_all(mine, 12), ST_OK);
	ck_assert_int_eq(log_all(mine, 11), ST_WINDOW_FORGOTTEN);
	committing = true; /* a part may have opened 21 */
	ck_assert_int_eq(log_all(mine, 22), ST_NOT_CURRENT_WINDOW);
	ck_assert_int_eq(log_all(mine, 21), ST_OK);
	ck_assert_int_eq(log_all(mine, 13), ST_OK);
	ck_assert_int_eq(log_all(mine, 12), ST_WINDOW_FORGOTTEN);
	committing = false;
}
END_TEST

START_TEST(the_end_of_a_job_writes_all_that_was_kept)
{
	flood(mine);
	hosted_scalars_end(mine);
	ck_assert_ptr_null(mine->scalars);
	ck_assert_uint_eq(recorder_scalars_room(d.recorder, 1001), 0);
	make_quick();
	ck_assert_uint_eq(kept(mine, FIT), FIT * SCALARS_NAMES);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("log_scalars");
	TCase *t = tcase_create("log_scalars");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, open_jobs, rig_close);
	tcase_add_test(t, a_user_has_a_share_of_what_waits);
	tcase_add_test(t, who_logs_one_window_again_and_again_takes_no_more_room);
	tcase_add_test(t, the_job_hears_how_many_were_refused);
	tcase_add_test(t, windows_that_take_values);
	tcase_add_test(t, the_end_of_a_job_writes_all_that_was_kept);
	return suite_run(s);
}
