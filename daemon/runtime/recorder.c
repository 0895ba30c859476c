/* SPDX-License-Identifier: Apache-2.0 */
/* Queues windows, events and scalars for the history, by user; drops the oldest of the user who has most when the disk
 * is too slow; passes reads on. For edge's hosted_history.c, hosted_scalars.c and methods_look.c. Loop thread; the
 * history itself is used on one thread of libuv's pool at a time. */
#include "runtime/recorder.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>
#include <uv.h>

struct item {
	struct item *next;
	enum { WINDOW, EVENT, SCALAR, FORGET } kind;
	uint64_t forgotten; /* FORGET: this job */
	struct history_window window;
	struct history_event event;
	struct history_micro *micro; /* of the window; owned */
	size_t bytes;		     /* of the item, without them */
	char text[];		     /* what window or event point to */
};

/* Whose jobs have something queued. */
struct user {
	struct user *next;
	uint32_t uid;
	uint32_t n_scalars; /* in the queue */
	struct item *queue, **tail;
	struct item *whole; /* the first in it that may still have micro-batches */
	size_t bytes;	    /* of the queue */
	uint64_t stripped, dropped;
};

struct recorder {
	uv_loop_t *loop;
	uv_work_t work;
	struct history *history;
	struct user *users; /* loop thread; from one start to the next */
	size_t bytes;	    /* of all queues */
	uint64_t no_memory; /* items that were not queued for want of it, since the last warning */
	struct recorder_read *reads, **reads_tail;
	struct item *batch; /* the pool thread's while busy */
	struct recorder_read *reading;
	bool busy;
};

static void start(struct recorder *r);

/* ---- the pool thread ---- */

static void write_batch(struct recorder *r)
{
	size_t n_windows = 0, n_events = 0, n_scalars = 0, n = 0;
	for (struct item *i = r->batch; i; i = i->next)
		n++;
	struct history_window *w = calloc(n + 1, sizeof(*w));
	struct history_event *e = calloc(n + 1, sizeof(*e));
	struct history_scalar *v = calloc(n + 1, sizeof(*v));
	for (struct item *i = r->batch; i && w && e && v; i = i->next)
		if (i->kind == EVENT)
			e[n_events++] = i->event;
		else if (i->kind == SCALAR)
			memcpy(&v[n_scalars++], i->text, sizeof(*v));
		else if (i->kind == WINDOW)
			w[n_windows++] = i->window;
	if (n_windows + n_events)
		history_write(r->history, w, n_windows, e, n_events); /* which says what is wrong */
	if (n_scalars)
		history_write_scalars(r->history, v, n_scalars);
	for (struct item *i = r->batch; i; i = i->next)
		if (i->kind == FORGET) /* nothing of the job is queued after it */
			history_forget(r->history, i->forgotten);
	free(w);
	free(e);
	free(v);
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

static void warn_of_losses(const struct user *u)
{
	if (u->stripped || u->dropped)
		log_warn("history: the disk is too slow for what the jobs of uid %u have to keep: %llu of their "
			 "windows were "
			 "written without their micro-batches, %llu windows, events and logged values not at all",
			 u->uid, (unsigned long long)u->stripped, (unsigned long long)u->dropped);
}

static void on_worked(uv_work_t *w, int canceled)
{
	struct recorder *r = w->data;
	struct recorder_read *q = r->reading;
	free_items(r->batch);
	r->batch = NULL;
	r->reading = NULL;
	r->busy = false;
	if (r->no_memory)
		log_warn("history: %llu windows, events and logged values were not kept: there was no memory",
			 (unsigned long long)r->no_memory);
	r->no_memory = 0;
	while (q) {
		struct recorder_read *next = q->next;
		q->done(q);
		q = next;
	}
	if (r->reads)
		start(r);
}

/* All that is queued, in the order of each user. */
static struct item *take_queues(struct recorder *r)
{
	struct item *all = NULL, **end = &all;
	while (r->users) {
		struct user *u = r->users;
		r->users = u->next;
		warn_of_losses(u);
		*end = u->queue;
		if (u->queue)
			end = u->tail;
		free(u);
	}
	r->bytes = 0;
	return all;
}

static void start(struct recorder *r)
{
	if (r->busy || (!r->users && !r->reads))
		return;
	r->batch = take_queues(r);
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

static void strip_oldest(struct recorder *r, struct user *u)
{
	struct item *i = u->whole;
	u->whole = i->next;
	if (!i->micro)
		return;
	u->bytes -= micro_bytes(i);
	r->bytes -= micro_bytes(i);
	u->stripped++;
	free(i->micro);
	i->micro = NULL;
	i->window.micro = NULL;
	i->window.n_micros = 0;
}

static void drop_oldest(struct recorder *r, struct user *u)
{
	struct item *i = u->queue;
	u->queue = i->next;
	if (!u->queue)
		u->tail = &u->queue;
	i->next = NULL;
	u->bytes -= i->bytes;
	r->bytes -= i->bytes;
	u->n_scalars -= i->kind == SCALAR;
	u->dropped++;
	free_items(i);
}

/* Who has most loses first, so what others have waiting stays. */
static struct user *with_most(struct recorder *r)
{
	struct user *most = r->users;
	for (struct user *u = r->users; u; u = u->next)
		if (u->bytes > most->bytes)
			most = u;
	return most;
}

static void make_room(struct recorder *r)
{
	while (r->bytes > RECORDER_MAX_BYTES) {
		struct user *u = with_most(r);
		if (u->whole)
			strip_oldest(r, u);
		else
			drop_oldest(r, u);
	}
}

static struct user *find_user(const struct recorder *r, uint32_t uid)
{
	struct user *u = r->users;
	while (u && u->uid != uid)
		u = u->next;
	return u;
}

static struct user *add_user(struct recorder *r, uint32_t uid)
{
	struct user *u = calloc(1, sizeof(*u));
	if (u) {
		u->uid = uid;
		u->tail = &u->queue;
		u->next = r->users;
		r->users = u;
	}
	return u;
}

/* Takes the item. */
static void put(struct recorder *r, uint32_t uid, struct item *i)
{
	struct user *u = find_user(r, uid);
	if (!u)
		u = add_user(r, uid);
	if (!u) {
		r->no_memory++;
		free_items(i);
		return;
	}
	*u->tail = i;
	u->tail = &i->next;
	if (!u->whole)
		u->whole = i;
	u->bytes += i->bytes + micro_bytes(i);
	r->bytes += i->bytes + micro_bytes(i);
	u->n_scalars += i->kind == SCALAR;
	make_room(r);
}

void recorder_put_window(struct recorder *r, uint32_t uid, const struct history_window *w, struct history_micro *take)
{
	struct item *i = malloc(sizeof(*i) + w->n_result);
	if (!i) {
		free(take);
		r->no_memory++;
		return;
	}
	*i = (struct item){ .window = *w, .micro = take, .bytes = sizeof(*i) + w->n_result };
	i->window.result = memcpy(i->text, w->result, w->n_result);
	i->window.micro = take;
	put(r, uid, i);
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
		r->no_memory++;
		return;
	}
	*i = (struct item){ .kind = EVENT, .event = *e, .bytes = sizeof(*i) + n };
	char *at = i->text;
	i->event.reason = append(&at, e->reason);
	i->event.object = append(&at, e->object);
	i->event.message = append(&at, e->message);
	put(r, e->uid, i);
	start(r);
}

size_t recorder_scalars_room(const struct recorder *r, uint32_t uid)
{
	const struct user *u = find_user(r, uid);
	const size_t n = u ? u->n_scalars : 0;
	return n < RECORDER_USER_SCALARS ? RECORDER_USER_SCALARS - n : 0;
}

void recorder_put_scalar(struct recorder *r, uint32_t uid, const struct history_scalar *v)
{
	struct item *i = malloc(sizeof(*i) + sizeof(*v));
	if (!i) {
		r->no_memory++;
		return;
	}
	*i = (struct item){ .kind = SCALAR, .bytes = sizeof(*i) + sizeof(*v) };
	memcpy(i->text, v, sizeof(*v));
	put(r, uid, i);
}

void recorder_forget(struct recorder *r, uint32_t uid, uint64_t job)
{
	struct item *i = malloc(sizeof(*i));
	if (!i)
		return; /* the next start does it */
	*i = (struct item){ .kind = FORGET, .forgotten = job, .bytes = sizeof(*i) };
	put(r, uid, i);
}
