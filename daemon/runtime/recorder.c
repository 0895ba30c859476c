/* SPDX-License-Identifier: Apache-2.0 */
/* Queues windows and events for the history, drops the oldest when the disk is too slow, and passes reads on. For
 * edge's hosted_history.c and methods_look.c. Loop thread; the history itself is used on one thread of libuv's pool
 * at a time. */
#include "runtime/recorder.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>
#include <uv.h>

struct item {
	struct item *next;
	enum { WINDOW, EVENT, FORGET } kind;
	uint64_t forgotten; /* FORGET: this job */
	struct history_window window;
	struct history_event event;
	struct history_micro *micro; /* of the window; owned */
	size_t bytes;		     /* of the item, without them */
	char text[];		     /* what window or event point to */
};

struct recorder {
	uv_loop_t *loop;
	uv_work_t work;
	struct history *history;
	struct item *queue, **tail; /* loop thread */
	struct item *whole;	    /* the first in it that may still have micro-batches */
	size_t bytes;		    /* of the queue */
	uint64_t stripped, dropped; /* since the last warning */
	struct recorder_read *reads, **reads_tail;
	struct item *batch; /* the pool thread's while busy */
	struct recorder_read *reading;
	bool busy;
};

static void start(struct recorder *r);

/* ---- the pool thread ---- */

static void write_batch(struct recorder *r)
{
	size_t n_windows = 0, n_events = 0, n = 0;
	for (struct item *i = r->batch; i; i = i->next)
		n++;
	struct history_window *w = calloc(n + 1, sizeof(*w));
	struct history_event *e = calloc(n + 1, sizeof(*e));
	for (struct item *i = r->batch; i && w && e; i = i->next)
		if (i->kind == EVENT)
			e[n_events++] = i->event;
		else if (i->kind == WINDOW)
			w[n_windows++] = i->window;
	if (n_windows + n_events)
		history_write(r->history, w, n_windows, e, n_events); /* which says what is wrong */
	for (struct item *i = r->batch; i; i = i->next)
		if (i->kind == FORGET) /* nothing of the job is queued after it */
			history_forget(r->history, i->forgotten);
	free(w);
	free(e);
}

static void work(uv_work_t *w)
{
	struct recorder *r = w->data;
	if (r->batch)
		write_batch(r);
	for (struct recorder_read *q = r->reading; q; q = q->next)
		q->read(q, r->history);
}

/* ---- the loop ---- */

static void free_items(struct item *i)
{
	while (i) {
		struct item *next = i->next;
		free(i->micro);
		free(i);
		i = next;
	}
}

static void warn_of_losses(struct recorder *r)
{
	if (r->stripped || r->dropped)
		log_warn("history: the disk is too slow: %llu windows were written without their micro-batches, %llu "
			 "windows and events "
			 "not at all",
			 (unsigned long long)r->stripped, (unsigned long long)r->dropped);
	r->stripped = r->dropped = 0;
}

static void on_worked(uv_work_t *w, int canceled)
{
	struct recorder *r = w->data;
	struct recorder_read *q = r->reading;
	free_items(r->batch);
	r->batch = NULL;
	r->reading = NULL;
	r->busy = false;
	warn_of_losses(r);
	while (q) {
		struct recorder_read *next = q->next;
		q->done(q);
		q = next;
	}
	if (r->reads)
		start(r);
}

static void start(struct recorder *r)
{
	if (r->busy || (!r->queue && !r->reads))
		return;
	r->batch = r->queue;
	r->queue = r->whole = NULL;
	r->tail = &r->queue;
	r->bytes = 0;
	r->reading = r->reads;
	r->reads = NULL;
	r->reads_tail = &r->reads;
	r->busy = true;
	uv_queue_work(r->loop, &r->work, work, on_worked);
}

enum status recorder_new(void *loop, struct history *history, struct recorder **out)
{
	struct recorder *r = calloc(1, sizeof(*r));
	if (!r)
		return ST_NO_MEMORY;
	r->loop = loop;
	r->history = history;
	r->tail = &r->queue;
	r->reads_tail = &r->reads;
	r->work.data = r;
	*out = r;
	return ST_OK;
}

void recorder_free(struct recorder *r)
{
	if (!r)
		return;
	for (start(r); r->busy; start(r))
		uv_run(r->loop, UV_RUN_ONCE);
	free(r);
}

void recorder_flush(struct recorder *r)
{
	start(r);
}

void recorder_read(struct recorder *r, struct recorder_read *q)
{
	q->next = NULL;
	*r->reads_tail = q;
	r->reads_tail = &q->next;
	start(r);
}

/* ---- the queue ---- */

static size_t micro_bytes(const struct item *i)
{
	return i->window.n_micros * sizeof(*i->micro);
}

static void strip_oldest(struct recorder *r)
{
	struct item *i = r->whole;
	r->whole = i->next;
	if (!i->micro)
		return;
	r->bytes -= micro_bytes(i);
	r->stripped++;
	free(i->micro);
	i->micro = NULL;
	i->window.micro = NULL;
	i->window.n_micros = 0;
}

static void drop_oldest(struct recorder *r)
{
	struct item *i = r->queue;
	r->queue = i->next;
	if (!r->queue)
		r->tail = &r->queue;
	i->next = NULL;
	r->bytes -= i->bytes;
	r->dropped++;
	free_items(i);
}

static void put(struct recorder *r, struct item *i)
{
	*r->tail = i;
	r->tail = &i->next;
	if (!r->whole)
		r->whole = i;
	r->bytes += i->bytes + micro_bytes(i);
	while (r->bytes > RECORDER_MAX_BYTES && r->whole)
		strip_oldest(r);
	while (r->bytes > RECORDER_MAX_BYTES)
		drop_oldest(r);
}

void recorder_put_window(struct recorder *r, const struct history_window *w, struct history_micro *take)
{
	struct item *i = malloc(sizeof(*i) + w->n_result);
	if (!i) {
		free(take);
		r->dropped++;
		return;
	}
	*i = (struct item){ .window = *w, .micro = take, .bytes = sizeof(*i) + w->n_result };
	i->window.result = memcpy(i->text, w->result, w->n_result);
	i->window.micro = take;
	put(r, i);
}

static char *append(char **at, const char *text)
{
	char *start_of = *at;
	*at = stpcpy(*at, text) + 1;
	return start_of;
}

void recorder_put_event(struct recorder *r, const struct history_event *e)
{
	size_t n = strlen(e->reason) + strlen(e->object) + strlen(e->message) + 3;
	struct item *i = malloc(sizeof(*i) + n);
	if (!i) {
		r->dropped++;
		return;
	}
	*i = (struct item){ .kind = EVENT, .event = *e, .bytes = sizeof(*i) + n };
	char *at = i->text;
	i->event.reason = append(&at, e->reason);
	i->event.object = append(&at, e->object);
	i->event.message = append(&at, e->message);
	put(r, i);
	start(r);
}

void recorder_forget(struct recorder *r, uint64_t job)
{
	struct item *i = malloc(sizeof(*i));
	if (!i)
		return; /* the next start does it */
	*i = (struct item){ .kind = FORGET, .forgotten = job, .bytes = sizeof(*i) };
	put(r, i);
}
