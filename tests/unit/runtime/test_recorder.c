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

static void put(uint64_t window, uint64_t n_micros)
{
	struct history_micro *m = calloc(n_micros, sizeof(*m));
	struct history_window w = { .job = 1, .window = window, .result = "r", .n_result = 1, .n_micros = n_micros };
	if (n_micros)
		m[0].data_key = window;
	recorder_put_window(recorder, &w, m);
}

static void put_event(uint64_t id, const char *message)
{
	struct history_event e = { .id = id, .job = 1, .reason = "Why", .object = "job", .message = message };
	recorder_put_event(recorder, &e);
}

/* What the history holds, as a reader on the pool thread sees it. */
struct look {
	struct recorder_read read; /* first */
	uint64_t windows, whole, first_whole, newest, events, order;
	bool done;
};
static uint64_t n_done;

static enum status see_window(void *arg, const struct history_window *w)
{
	struct look *l = arg;
	if (!l->windows++)
		l->newest = w->window;
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
	struct history_query q = { .limit = UINT64_MAX };
	ck_assert_int_eq(history_each_window(h, 1, 0, UINT64_MAX, true, see_window, r), ST_OK);
	ck_assert_int_eq(history_each_event(h, &q, see_event, r), ST_OK);
}

static void looked(struct recorder_read *r)
{
	struct look *l = (struct look *)r;
	l->done = true;
	l->order = ++n_done;
}

static struct look look_now(void)
{
	struct look l = { .read = { .read = look, .done = looked } };
	recorder_read(recorder, &l.read);
	while (!l.done)
		uv_run(&loop, UV_RUN_ONCE);
	return l;
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
	struct look a = { .read = { .read = look, .done = looked } }, b = a;
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
		recorder_put_window(recorder, &w, NULL);
	}
	let_go(&h);
	struct look l = look_now();
	ck_assert(l.events == 0 && l.newest == 2 * fit - 1);
	ck_assert(l.windows < fit && l.windows > fit - 4);
}
END_TEST

START_TEST(a_forgotten_job_takes_along_what_was_put_before)
{
	put(1, 4);
	put_event(1, "message 1");
	recorder_forget(recorder, 1);
	struct look l = look_now();
	ck_assert(l.windows == 0 && l.events == 0);
	put(2, 4);
	recorder_forget(recorder, 2); /* another */
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
	tcase_add_test(c, a_forgotten_job_takes_along_what_was_put_before);
	tcase_add_test(c, the_end_writes_what_is_left);
	return suite_run(s);
}
