/* SPDX-License-Identifier: Apache-2.0 */
/* The queues, and the threads that work them off. Signals of the program are not for these threads. */
#include "stream.h"

#include "driver.h"
#include "event.h"
#include "ghost.h"
#include "graph.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static struct stream *all;

static bool can_run(const struct operation *op)
{
	return op->kind != OPERATION_WAIT || stream_is_done(op->other, op->until);
}

static void run_head(struct stream *s)
{
	struct operation *op = s->head;
	if (op->kind == OPERATION_WAIT)
		return;
	if (op->kind == OPERATION_RECORD) {
		event_happens(op->event);
		return;
	}
	s->running = true;
	driver_unlock();
	if (options()->delay_us)
		usleep(options()->delay_us);
	operation_run(op, s->context->on_machine);
	if (ghost_is_due())
		ghost_die();
	driver_lock();
	s->running = false;
}

static void pop(struct stream *s)
{
	struct operation *op = s->head;
	s->head = op->next;
	if (!s->head)
		s->tail = &s->head;
	s->done = op->number;
	if (!ghost_is_here())
		free(op);
	driver_notify();
}

static void *stream_main(void *arg)
{
	struct stream *s = arg;
	driver_lock();
	while (s->head || !s->ending) {
		if (!s->head || !can_run(s->head)) {
			driver_wait();
			continue;
		}
		run_head(s);
		pop(s);
		if (ghost_is_here())
			stream_finish_all();
	}
	driver_unlock();
	return NULL;
}

static int start(struct stream *s)
{
	sigset_t mask, old;
	sigfillset(&mask);
	sigdelset(&mask, SIGSEGV);
	sigdelset(&mask, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &mask, &old);
	int failed = pthread_create(&s->thread, NULL, stream_main, s);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return failed;
}

cu_result stream_make(struct context *c, bool blocking, struct stream **out)
{
	struct stream *s = calloc(1, sizeof(*s));
	if (!s)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*s = (struct stream){ .next = all, .context = c, .live = true, .blocking = blocking, .tail = &s->head };
	if (start(s)) {
		free(s);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	all = s;
	*out = s;
	return CUDA_SUCCESS;
}

static struct stream *default_stream(void)
{
	struct context *c = context_current();
	if (!c->default_stream && stream_make(c, true, &c->default_stream))
		return NULL;
	return c->default_stream;
}

struct stream *stream_find(cu_stream handle)
{
	if (!handle || (uintptr_t)handle == 1)
		return default_stream();
	for (struct stream *s = all; s; s = s->next)
		if (stream_handle(s) == handle && s->live)
			return s;
	return NULL;
}

cu_stream stream_handle(struct stream *s)
{
	return (cu_stream)s;
}

void stream_destroy(struct stream *s)
{
	s->live = false;
	s->ending = true;
	pthread_detach(s->thread);
	driver_notify();
}

void stream_wait_all(struct context *c)
{
	for (struct stream *s = all; s; s = s->next)
		if (s->context == c)
			stream_wait(s, s->queued);
}

void stream_end_all(struct context *c)
{
	stream_wait_all(c);
	for (struct stream *s = all; s; s = s->next)
		if (s->context == c && s->live)
			stream_destroy(s);
}

struct operation *stream_operation(enum operation_kind kind, size_t n_params)
{
	struct operation *op = aligned_alloc(16, (sizeof(*op) + n_params + 15) / 16 * 16);
	if (!op)
		return NULL;
	*op = (struct operation){ .kind = kind, .n_params = n_params };
	return op;
}

static void append(struct stream *s, struct operation *op)
{
	op->next = NULL;
	op->number = ++s->queued;
	*s->tail = op;
	s->tail = &op->next;
	driver_notify();
}

static void append_wait(struct stream *s, struct stream *other)
{
	if (stream_is_done(other, other->queued))
		return;
	struct operation *op = stream_operation(OPERATION_WAIT, 0);
	if (!op)
		abort();
	op->other = other;
	op->until = other->queued;
	append(s, op);
}

/* The default stream waits for the blocking ones, and they for it. */
static void append_waits(struct stream *s)
{
	struct stream *first = s->context->default_stream;
	if (s == first) {
		for (struct stream *other = all; other; other = other->next)
			if (other != s && other->blocking && other->context == s->context)
				append_wait(s, other);
	} else if (s->blocking && first) {
		append_wait(s, first);
	}
}

uint64_t stream_queue(struct stream *s, struct operation *op)
{
	if (s->capture) {
		graph_add(s->capture, op);
		return 1;
	}
	append_waits(s);
	append(s, op);
	return op->number;
}

void stream_wait(struct stream *s, uint64_t number)
{
	while (!stream_is_done(s, number))
		driver_wait();
}

bool stream_is_done(const struct stream *s, uint64_t number)
{
	return s->done >= number;
}

bool stream_any_runs(void)
{
	for (struct stream *s = all; s; s = s->next)
		if (s->running)
			return true;
	return false;
}

/* One operation of the stream. False: it has none, or none that a ghost can do. */
static bool finish_one(struct stream *s)
{
	if (!s->head || s->head->kind == OPERATION_HOST_FUNCTION || !can_run(s->head))
		return false;
	bool is_lost = s->head->kind == OPERATION_KERNEL && s->running; /* its thread is gone */
	if (s->head->kind != OPERATION_WAIT && s->head->kind != OPERATION_RECORD && !is_lost)
		operation_run(s->head, s->context->on_machine);
	s->running = false;
	pop(s);
	return true;
}

void stream_finish_all(void)
{
	for (bool any = true; any;) {
		any = false;
		for (struct stream *s = all; s; s = s->next)
			any |= finish_one(s);
	}
	_exit(0);
}
