/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/recorder.h"

#include "support/scratch.h"
#include "support/suite.h"

#include <check.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

static char dir[SCRATCH_PATH], path[96];
static uv_loop_t loop;
static struct history *history;
static struct recorder *recorder;

static void setup(void)
{
	static const struct history_limits limits = { 100000, 100000 };
	ck_assert(scratch_make(dir));
	snprintf(path, sizeof(path), "%s/history.db", dir);
	ck_assert_int_eq(uv_loop_init(&loop), 0);
	ck_assert_int_eq(history_open(path, &limits, &history), ST_OK);
	ck_assert_int_eq(recorder_new(&loop, history, &recorder), ST_OK);
}

static void teardown(void)
{
	recorder_free(recorder);
	history_close(history);
	ck_assert_int_eq(uv_loop_close(&loop), 0);
	unlink(path);
	ck_assert_int_eq(rmdir(dir), 0);
}

/* Job N is user N's. */
static void put_of(uint32_t user, uint64_t window, uint64_t n_micros)
{
	struct history_micro *m = calloc(n_micros, sizeof(*m));
	struct history_window w = { .job = user, .window = window, .result = "r", .n_result = 1, .n_micros = n_micros };
	if (n_micros)
		m[0].data_key = window;
	recorder_put_window(recorder, user, &w, m);
}

static void put(uint64_t window, uint64_t n_micros)
{
	put_of(1, window, n_micros);
}

static void put_event_of(uint32_t user, uint64_t id, const char *message)
{
	struct history_event e = {
		.id = id, .job = user, .uid = user, .reason = "Why", .object = "job", .message = message
	};
	recorder_put_event(recorder, &e);
}

static void put_event(uint64_t id, const char *message)
{
	put_event_of(1, id, message);
}

static void put_scalars(uint32_t user, uint64_t window, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		struct history_scalar v = { .job = user, .window = window + i / 64, .value = 1 };
		snprintf(v.name, sizeof(v.name), "n%u", (unsigned int)(i % 64));
		recorder_put_scalar(recorder, user, &v);
	}
}

/* What the history holds, as a reader on the pool thread sees it. */
struct look {
	struct recorder_read read; /* first */
	uint64_t job, windows, whole, first_whole, newest, scalars, events, order;
	bool done;
};
static uint64_t n_done;

static enum status see_window(void *arg, const struct history_window *w)
{
	struct look *l = arg;
	if (!l->windows++)
		l->newest = w->window;
	l->scalars += w->n_scalars;
	if (w->n_micros) {
		ck_assert_uint_eq(w->micro[0].data_key, w->window);
		l->whole++;
		l->first_whole = w->window;
	}
	return ST_OK;
}

static enum status see_event(void *arg, const struct history_event *e)
{
	char want[32];
	snprintf(want, sizeof(want), "message %d", (int)e->id);
	ck_assert_str_eq(e->message, want);
	ck_assert_str_eq(e->reason, "Why");
	((struct look *)arg)->events++;
	return ST_OK;
}

static void look(struct recorder_read *r, struct history *h)
{
	const uint64_t job = ((struct look *)r)->job;
	struct history_query q = { .of_job = true, .job = job, .limit = UINT64_MAX };
	ck_assert_int_eq(history_each_window(h, job, 0, UINT64_MAX, true, see_window, r), ST_OK);
	ck_assert_int_eq(history_each_event(h, &q, see_event, r), ST_OK);
}

static void looked(struct recorder_read *r)
{
	struct look *l = (struct look *)r;
	l->done = true;
	l->order = ++n_done;
}

static struct look look_at(uint64_t job)
{
	struct look l = { .read = { .read = look, .done = looked }, .job = job };
	recorder_read(recorder, &l.read);
	while (!l.done)
		uv_run(&loop, UV_RUN_ONCE);
	return l;
}

static struct look look_now(void)
{
	return look_at(1);
}

/* Keeps the pool's thread until it is let go, as a slow disk does. */
struct hold {
	struct recorder_read read; /* first */
	sem_t go;
	bool done;
};

static void wait_to_go(struct recorder_read *r, struct history *h)
{
	sem_wait(&((struct hold *)r)->go);
}

static void gone(struct recorder_read *r)
{
	((struct hold *)r)->done = true;
}

static void hold(struct hold *h)
{
	*h = (struct hold){ .read = { .read = wait_to_go, .done = gone } };
	sem_init(&h->go, 0, 0);
	recorder_read(recorder, &h->read);
}

static void let_go(struct hold *h)
{
	sem_post(&h->go);
	while (!h->done)
		uv_run(&loop, UV_RUN_ONCE);
	sem_destroy(&h->go);
}

START_TEST(readers_see_all_that_was_put_before)
{
	put(1, 4);
	put_event(1, "message 1");
	put(2, 4);
	struct look l = look_now();
	ck_assert(l.windows == 2 && l.whole == 2 && l.events == 1);
	struct look a = { .read = { .read = look, .done = looked }, .job = 1 }, b = a;
	put(3, 4);
	recorder_read(recorder, &a.read);
	put(4, 4);
	recorder_read(recorder, &b.read);
	while (!b.done)
		uv_run(&loop, UV_RUN_ONCE);
	ck_assert(a.done && a.order < b.order && a.windows == 3 && b.windows == 4);
}
END_TEST

START_TEST(events_are_written_at_once_windows_with_the_flush)
{
	put(1, 4);
	ck_assert_int_eq(uv_loop_alive(&loop), 0);
	recorder_flush(recorder);
	ck_assert_int_ne(uv_loop_alive(&loop), 0);
	uv_run(&loop, UV_RUN_DEFAULT);
	recorder_flush(recorder); /* nothing is left */
	ck_assert_int_eq(uv_loop_alive(&loop), 0);
	put_event(1, "message 1");
	ck_assert_int_ne(uv_loop_alive(&loop), 0);
}
END_TEST

/* A tenth of what may wait, in each: nine and the windows themselves fit. */
START_TEST(the_oldest_windows_lose_their_micro_batches)
{
	const uint64_t n = RECORDER_MAX_BYTES / 10 / sizeof(struct history_micro);
	struct hold h;
	hold(&h);
	for (uint64_t w = 0; w < 30; w++)
		put(w, n);
	put_event(1, "message 1");
	let_go(&h);
	struct look l = look_now();
	ck_assert(l.windows == 30 && l.newest == 29 && l.events == 1);
	ck_assert(l.whole == 9 && l.first_whole == 21);
	put(30, n); /* and all is as before */
	l = look_now();
	ck_assert(l.windows == 31 && l.whole == 10);
}
END_TEST

START_TEST(then_the_oldest_go)
{
	static char large[64 << 10];
	const uint64_t fit = RECORDER_MAX_BYTES / sizeof(large);
	struct hold h;
	hold(&h);
	put_event(1, "message 1");
	for (uint64_t i = 0; i < 2 * fit; i++) {
		struct history_window w = { .job = 1, .window = i, .result = large, .n_result = sizeof(large) };
		recorder_put_window(recorder, 1, &w, NULL);
	}
	let_go(&h);
	struct look l = look_now();
	ck_assert(l.events == 0 && l.newest == 2 * fit - 1);
	ck_assert(l.windows < fit && l.windows > fit - 4);
}
END_TEST

static void put_some_of_everything(uint32_t user)
{
	put_of(user, 1, 4);
	put_event_of(user, user, user == 2 ? "message 2" : "message 3");
	put_scalars(user, 1, 3);
}

static void check_that_all_is_there(uint32_t user)
{
	const struct look l = look_at(user);
	ck_assert_uint_eq(l.windows, 1);
	ck_assert_uint_eq(l.whole, 1);
	ck_assert_uint_eq(l.events, 1);
	ck_assert_uint_eq(l.scalars, 3);
}

START_TEST(a_flood_of_one_user_takes_nothing_from_others)
{
	struct hold h;
	hold(&h);
	put_some_of_everything(2);
	put_scalars(1, 1, 100000);
	put_some_of_everything(3);
	put_of(1, 1 + 100000 / 64, 0); /* the newest values of the flood are there */
	let_go(&h);
	check_that_all_is_there(2);
	check_that_all_is_there(3);
	ck_assert_uint_eq(look_now().scalars, 100000 % 64);
	hold(&h);
	put_of(2, 2, 4);
	for (uint64_t w = 0; w < 30; w++)
		put(w, RECORDER_MAX_BYTES / 10 / sizeof(struct history_micro));
	let_go(&h);
	ck_assert_uint_eq(look_at(2).whole, 2);
}
END_TEST

START_TEST(a_user_has_a_share_of_scalars)
{
	struct hold h;
	hold(&h);
	ck_assert_uint_eq(recorder_scalars_room(recorder, 1), RECORDER_USER_SCALARS);
	put_scalars(1, 1, RECORDER_USER_SCALARS - 10);
	ck_assert_uint_eq(recorder_scalars_room(recorder, 1), 10);
	put(1, 4);		  /* counts not */
	recorder_flush(recorder); /* the disk is slow */
	put_scalars(1, 0, 20);
	ck_assert_uint_eq(recorder_scalars_room(recorder, 1), 0);
	ck_assert_uint_eq(recorder_scalars_room(recorder, 2), RECORDER_USER_SCALARS);
	let_go(&h);
	ck_assert_uint_eq(recorder_scalars_room(recorder, 1), 0);
	recorder_flush(recorder);
	ck_assert_uint_eq(recorder_scalars_room(recorder, 1), RECORDER_USER_SCALARS);
	ck_assert_uint_eq(look_now().scalars, 64);
}
END_TEST

START_TEST(what_is_dropped_takes_no_share)
{
	static char large[4 << 20];
	struct hold h;
	hold(&h);
	put_scalars(1, 0, RECORDER_USER_SCALARS);
	for (uint64_t i = 0; i < 4; i++) {
		struct history_window w = { .job = 1, .window = i, .result = large, .n_result = sizeof(large) };
		recorder_put_window(recorder, 1, &w, NULL);
	}
	ck_assert_uint_eq(recorder_scalars_room(recorder, 1), RECORDER_USER_SCALARS);
	let_go(&h);
}
END_TEST

START_TEST(a_forgotten_job_takes_along_what_was_put_before)
{
	put(1, 4);
	put_event(1, "message 1");
	recorder_forget(recorder, 1, 1);
	struct look l = look_now();
	ck_assert(l.windows == 0 && l.events == 0);
	put(2, 4);
	recorder_forget(recorder, 2, 2); /* another */
	l = look_now();
	ck_assert(l.windows == 1);
}
END_TEST

START_TEST(the_end_writes_what_is_left)
{
	struct hold h;
	hold(&h);
	put(1, 4);
	put_event(1, "message 1");
	sem_post(&h.go);
	recorder_free(recorder);
	ck_assert(h.done);
	sem_destroy(&h.go);
	ck_assert_int_eq(recorder_new(&loop, history, &recorder), ST_OK);
	struct look l = look_now();
	ck_assert(l.windows == 1 && l.events == 1);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("recorder");
	TCase *c = tcase_create("recorder");
	suite_add_tcase(s, c);
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, readers_see_all_that_was_put_before);
	tcase_add_test(c, events_are_written_at_once_windows_with_the_flush);
	tcase_add_test(c, the_oldest_windows_lose_their_micro_batches);
	tcase_add_test(c, then_the_oldest_go);
	tcase_add_test(c, a_flood_of_one_user_takes_nothing_from_others);
	tcase_add_test(c, a_user_has_a_share_of_scalars);
	tcase_add_test(c, what_is_dropped_takes_no_share);
	tcase_add_test(c, a_forgotten_job_takes_along_what_was_put_before);
	tcase_add_test(c, the_end_writes_what_is_left);
	return suite_run(s);
}
