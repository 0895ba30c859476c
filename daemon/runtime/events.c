/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the last events of a job in a ring, so that views and describe need not read the history. For
 * edge/hosted_history.c, which also sends each event to the recorder. Loop thread. */
#include "runtime/events.h"

#include "proto/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool events_init(struct events *e, uint32_t room)
{
	*e = (struct events){ .ring = calloc(room, sizeof(*e->ring)), .room = room };
	return e->ring != NULL;
}

void events_fini(struct events *e)
{
	free(e->ring);
	*e = (struct events){ .ring = NULL };
}

struct event *events_add(struct events *e, const struct event *what, const char *reason, const char *object,
			 const char *message)
{
	struct event *to = &e->ring[e->n++ % e->room];
	*to = *what;
	snprintf(to->reason, sizeof(to->reason), "%s", reason);
	snprintf(to->object, sizeof(to->object), "%s", object);
	snprintf(to->message, sizeof(to->message), "%s", message);
	utf8_repair(to->message);
	return to;
}

uint64_t events_first(const struct events *e)
{
	return e->n > e->room ? e->n - e->room : 0;
}

const struct event *events_at(const struct events *e, uint64_t number)
{
	return &e->ring[number % e->room];
}

int64_t events_when(const struct events *e, const char *reason)
{
	for (uint64_t i = e->n; i-- > events_first(e);)
		if (!strcmp(events_at(e, i)->reason, reason))
			return events_at(e, i)->unix_ns;
	return 0;
}

void events_shrink(struct events *e, uint32_t room)
{
	uint64_t kept = e->n - events_first(e);
	uint32_t n = kept < room ? (uint32_t)kept : room;
	struct event *ring = n && n < e->room ? malloc(n * sizeof(*ring)) : NULL;
	if (!ring)
		return;
	for (uint64_t i = e->n - n; i < e->n; i++)
		ring[i % n] = *events_at(e, i);
	free(e->ring);
	e->ring = ring;
	e->room = n;
}
