/* SPDX-License-Identifier: Apache-2.0 */
/* The history after power cuts: what was written last may be missing, but what is there is whole, a window has its
 * event, nothing is missing in between, and it is never taken for damaged. */
#include "store/history.h"

#include "cuts.h"
#include "script.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MICROS 3200 /* of a window: 200 KB, so that the log is moved into the file on the way */
#define WINDOWS 30
#define CLOSE WINDOWS /* the last operation: all of it is durable then */
#define OPERATIONS (WINDOWS + 1)

static const struct history_limits roomy = { 1000, 1000 };

static void path_of(const char *dir, char out[128])
{
	snprintf(out, 128, "%s/history.db", dir);
}

static struct history *open_it(const char *dir)
{
	struct history *h;
	char path[128], aside[160];
	path_of(dir, path);
	if (history_open(path, &roomy, &h))
		script_fail("it cannot be opened");
	snprintf(aside, sizeof(aside), "%s.damaged", path);
	if (!access(aside, F_OK))
		script_fail("it was taken for damaged");
	return h;
}

/* ---- writing ---- */

static struct history_micro micro_of(uint64_t window, uint32_t i)
{
	return (struct history_micro){ .rank = i / 4,
				       .micro = i % 4,
				       .weight = 0.25 * i,
				       .loss = (double)window + 1.0 / (i + 1),
				       .data_key = window << 32 | i };
}

static enum status write_window(struct history *h, uint64_t number)
{
	static struct history_micro micro[MICROS];
	for (uint32_t i = 0; i < MICROS; i++)
		micro[i] = micro_of(number, i);
	struct history_window w = {
		.job = 1, .window = number, .result = "result", .n_result = 6, .micro = micro, .n_micros = MICROS
	};
	struct history_event e = { .id = number + 1,
				   .job = 1,
				   .reason = "Applied",
				   .object = "job/1",
				   .message = "a message",
				   .window = number };
	return history_write(h, &w, 1, &e, 1);
}

/* ---- reading ---- */

struct found {
	uint64_t windows, events;
};

/* Newest first. */
static enum status take_window(void *arg, const struct history_window *w)
{
	struct found *f = arg;
	if (f->windows++ == 0)
		f->events = w->window + 1; /* as many events are expected */
	if (w->window != f->events - f->windows)
		script_fail("window %" PRIu64 " stands where %" PRIu64 " should", w->window, f->events - f->windows);
	if (w->n_result != 6 || memcmp(w->result, "result", 6) != 0 || w->n_micros != MICROS)
		script_fail("window %" PRIu64 " is not whole", w->window);
	for (uint32_t i = 0; i < MICROS; i++) {
		struct history_micro want = micro_of(w->window, i);
		if (memcmp(&w->micro[i], &want, sizeof(want)) != 0)
			script_fail("window %" PRIu64 ": micro-batch %u is not what was written", w->window, i);
	}
	return ST_OK;
}

static enum status take_event(void *arg, const struct history_event *e)
{
	uint64_t *n = arg;
	if (e->id != ++*n || e->window + 1 != e->id)
		script_fail("event %" PRIu64 " stands where %" PRIu64 " should", e->id, *n);
	return ST_OK;
}

/* How many windows it has. */
static uint64_t windows_in(struct history *h)
{
	const struct history_query all = { .limit = OPERATIONS };
	struct found f = { 0, 0 };
	uint64_t events = 0;
	if (history_each_window(h, 1, 0, OPERATIONS, true, take_window, &f) ||
	    history_each_event(h, &all, take_event, &events))
		script_fail("it cannot be read");
	if (f.windows != f.events || events != f.windows)
		script_fail("%" PRIu64 " windows up to %" PRIu64 ", %" PRIu64 " events", f.windows, f.events, events);
	return f.windows;
}

/* ---- life and judge ---- */

static void life(const char *dir, int from)
{
	struct history *h = open_it(dir);
	(void)from; /* nothing was promised: it goes on from what is there */
	for (uint64_t at = windows_in(h); at < WINDOWS; at++) {
		cuts_begins((int)at);
		if (write_window(h, at))
			script_fail("window %" PRIu64 " cannot be written", at);
		cuts_done((int)at);
	}
	cuts_begins(CLOSE);
	history_close(h);
	cuts_done(CLOSE);
}

static void judge(const char *dir, int low, int high)
{
	struct history *h = open_it(dir);
	uint64_t n = windows_in(h);
	if (n > (uint64_t)high || (low == OPERATIONS && n != WINDOWS))
		script_fail("it has %" PRIu64 " windows", n);
	if (write_window(h, n) || windows_in(h) != n + 1)
		script_fail("window %" PRIu64 " cannot be written", n);
	history_close(h);
	h = open_it(dir);
	if (windows_in(h) != n + 1)
		script_fail("the next life's window is not there");
	history_close(h);
}

int main(int argc, char **argv)
{
	static const struct cuts c = { .name = "history", .operations = OPERATIONS, .life = life, .judge = judge };
	return cuts_main(argc, argv, &c);
}
