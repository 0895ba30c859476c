/* SPDX-License-Identifier: Apache-2.0 */
/* The last events of one job, in memory: a ring, in which a new event takes the place of the oldest. Loop thread. */
#ifndef GACC_RUNTIME_EVENTS_H
#define GACC_RUNTIME_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

struct event {
	uint64_t id, window;
	int64_t unix_ns;
	bool warning;
	char reason[32], object[32], message[256];
};

/* Events have numbers from 0 on; the last `room` of them are there. */
struct events {
	struct event *ring;
	uint32_t room;
	uint64_t n; /* ever */
};

/* An empty one for so many events, at least 1; false: no memory, and it may only be freed. */
bool events_init(struct events *, uint32_t room);
void events_fini(struct events *);
/* Copies the event; texts too long for it are cut, the message between two characters. */
struct event *events_add(struct events *, const struct event *, const char *reason, const char *object,
			 const char *message);
/* Number of the oldest that is there; n: none is. */
uint64_t events_first(const struct events *);
/* Lent until the next change; events_first <= number < n. */
const struct event *events_at(const struct events *, uint64_t number);
/* When the newest with this reason was, of those that are there; 0: none. */
int64_t events_when(const struct events *, const char *reason);
/* Keeps no more than the newest `room`, and no memory beyond that. Without memory for it all stay. */
void events_shrink(struct events *, uint32_t room);

#endif
