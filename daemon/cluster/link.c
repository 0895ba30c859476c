/* SPDX-License-Identifier: Apache-2.0 */
/* Queues packed messages between the coordinators and the parts of one gaccd, and delivers them after the sender has
 * returned. For edge/links.c, on the loop thread. */
#include "cluster/link.h"

#include <assert.h>
#include <stdlib.h>

struct queued {
	struct queued *next;
	struct link_message message;
};

struct link {
	struct link_ends ends;
	struct queued *first, **tail;
	bool running;
};

enum status link_new(const struct link_ends *ends, struct link **out)
{
	struct link *l = calloc(1, sizeof(*l));
	if (!l)
		return ST_NO_MEMORY;
	l->ends = *ends;
	l->tail = &l->first;
	*out = l;
	return ST_OK;
}

static void drop(struct queued *q)
{
	free((void *)q->message.bytes);
	shared_drop(q->message.end);
	free(q);
}

void link_free(struct link *l)
{
	if (!l)
		return;
	assert(!l->running);
	for (struct queued *q = l->first, *next; q; q = next) {
		next = q->next;
		drop(q);
	}
	free(l);
}

bool link_send(struct link *l, enum link_kind kind, uint64_t job, uint32_t part, void *bytes, size_t n)
{
	return link_send_shared(l, kind, job, part, bytes, n, NULL);
}

bool link_send_shared(struct link *l, enum link_kind kind, uint64_t job, uint32_t part, void *bytes, size_t n,
		      struct shared *end)
{
	struct queued *q = bytes ? malloc(sizeof(*q)) : NULL;
	bool was_empty = !l->first;
	if (!q) {
		free(bytes);
		return false;
	}
	*q = (struct queued){ NULL, { kind, job, part, bytes, n, end ? shared_hold(end) : NULL, false, 0 } };
	*l->tail = q;
	l->tail = &q->next;
	if (was_empty)
		l->ends.wake(l->ends.ctx);
	return true;
}

void link_run(struct link *l)
{
	assert(!l->running);
	struct queued *q = l->first;
	l->first = NULL;
	l->tail = &l->first;
	l->running = true;
	for (struct queued *next; q; q = next) {
		next = q->next;
		l->ends.arrived(l->ends.ctx, &q->message);
		drop(q);
	}
	l->running = false;
}

bool link_is_empty(const struct link *l)
{
	return !l->first;
}
