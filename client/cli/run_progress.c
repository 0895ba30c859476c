/* SPDX-License-Identifier: Apache-2.0 */
/* Draws the line on a terminal that tells how the job of a `gaccctl run` gets on: steps, time left, loss, stragglers.
 * For run.c; one thread. */
#include "run_impl.h"
#include "status_line.h"

#include <inttypes.h>
#include <stdarg.h>

#define OFTEN_MS 200			  /* between two lines */
#define LATE_NS (INT64_C(2) * 1000000000) /* a window that is open for so long waits for somebody */
#define ASK_MS 1000			  /* between two questions whom it waits for */
#define NAMED 3				  /* ranks of whom it waits for */

struct line {
	char text[256];
	size_t n;
};

static void put(struct line *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Cut if it does not fit. */
static void put(struct line *l, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(l->text + l->n, sizeof(l->text) - l->n, fmt, ap);
	va_end(ap);
	if (n > 0)
		l->n += (size_t)n < sizeof(l->text) - l->n ? (size_t)n : sizeof(l->text) - 1 - l->n;
}

static void put_left(struct line *l, double seconds)
{
	const uint64_t s = seconds < 1e9 ? (uint64_t)(seconds + 0.5) : 0;

	if (s >= 3600)
		put(l, ", %" PRIu64 ":%02u:%02u left", s / 3600, (unsigned)(s / 60 % 60), (unsigned)(s % 60));
	else if (s)
		put(l, ", %u:%02u left", (unsigned)(s / 60), (unsigned)(s % 60));
}

/* Micro-batches of this rank in the open window. */
static uint64_t given(const gacc_job_info *j, uint32_t rank)
{
	return rank < j->n_rank ? (uint64_t)j->rank[rank].micro_count + j->rank[rank].void_count : 0;
}

static bool is_late(const gacc_job_info *j)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return j->n_missing && j->window_opened_unix_nanos &&
	       now.tv_sec * INT64_C(1000000000) + now.tv_nsec - j->window_opened_unix_nanos >= LATE_NS;
}

/* The others wait for those that have given least. */
static void put_late(struct line *l, const gacc_job_info *j)
{
	uint64_t least = UINT64_MAX, n = 0;

	for (size_t i = 0; i < j->n_missing; i++)
		least = given(j, j->missing[i]) < least ? given(j, j->missing[i]) : least;
	put(l, ", waits for rank");
	for (size_t i = 0; i < j->n_missing; i++)
		if (given(j, j->missing[i]) == least && n++ < NAMED)
			put(l, "%s %u", n > 1 ? "," : "", j->missing[i]);
	if (n > NAMED)
		put(l, " and %" PRIu64 " more", n - NAMED);
}

static void put_step(struct line *l, const gacc_job_info *j)
{
	put(l, "step %" PRIu64, j->applied_step);
	if (j->steps)
		put(l, "/%" PRIu64, j->steps);
	if (j->steps_per_second > 0) {
		put(l, ", %.3g a second", j->steps_per_second);
		if (j->steps > j->applied_step)
			put_left(l, (double)(j->steps - j->applied_step) / j->steps_per_second);
	}
	if (!j->has_last)
		return;
	put(l, ", loss %.4g, batch %.6g", j->last_loss,
	    j->batch ? (double)j->batch * j->micro_size * j->ranks : j->last_weight);
	if (j->ranks > 1)
		put(l, ", last: rank %u (+%.0f ms)", j->last_rank, (double)j->last_lag_ns / 1e6);
}

void run_show_progress(struct run *r)
{
	const gacc_job_info *j = run_info(r);
	const int64_t now = run_now_ms();
	struct line l = { .n = 0 };

	if (!status_line_is_open() || j->ended || r->stopping || !ranks_running(&r->ranks) || !r->params_said ||
	    (status_line_is_visible() && now - r->progress_ms < OFTEN_MS))
		return;
	r->progress_ms = now;
	if (is_late(j) && now - r->asked_ms >= ASK_MS) { /* what ranks give in between is no change that is told */
		r->asked_ms = run_refresh(r) ? now : INT64_MAX;
		j = run_info(r);
	}
	put_step(&l, j);
	if (is_late(j))
		put_late(&l, j);
	status_line_show(l.text);
}
