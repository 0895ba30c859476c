/* SPDX-License-Identifier: Apache-2.0 */
/* Events. A wait for one is a wait for the stream's operation that was the last to record it, so an event may be
 * recorded anew, or destroyed, while others wait. */
#include "event.h"

#include "ghost.h"

#include <stdlib.h>
#include <time.h>

static struct event *all;

cu_result event_make(struct context *c, bool timed, struct event **out)
{
	struct event *e = calloc(1, sizeof(*e));
	if (!e)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*e = (struct event){ .next = all, .context = c, .live = true, .timed = timed };
	all = e;
	*out = e;
	return CUDA_SUCCESS;
}

struct event *event_find(cu_event handle)
{
	for (struct event *e = all; e; e = e->next)
		if (event_handle(e) == handle && e->live)
			return e;
	return NULL;
}

cu_event event_handle(struct event *e)
{
	return (cu_event)e;
}

static void drop(struct event *e)
{
	if (e->live || e->n_pending || ghost_is_here())
		return;
	struct event **at = &all;
	while (*at != e)
		at = &(*at)->next;
	*at = e->next;
	free(e);
}

void event_destroy(struct event *e)
{
	e->live = false;
	drop(e);
}

cu_result event_record(struct event *e, struct stream *s)
{
	struct operation *op = stream_operation(OPERATION_RECORD, 0);
	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	op->event = e;
	e->n_pending++;
	e->stream = s;
	e->number = stream_queue(s, op);
	return CUDA_SUCCESS;
}

bool event_is_done(const struct event *e)
{
	return !e->stream || stream_is_done(e->stream, e->number);
}

void event_happens(struct event *e)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	e->ns = now.tv_sec * 1000000000 + now.tv_nsec;
	e->n_pending--;
	drop(e);
}
