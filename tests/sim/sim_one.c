/* SPDX-License-Identifier: Apache-2.0 */
/* A job of one part: its sums are the job's, and are there at once. */
#include "sim.h"

#include <stddef.h>

void sim_exchange(struct sim *s, const struct engine_command *go)
{
	struct sim_sums own = engine_sums(s);
	engine_exchanged(s, go, ST_OK, &own);
}

void sim_exchange_left(struct sim *s)
{
}

/* Most events only say whom they wake: the messages of others are not there. */
static size_t bytes_of(enum event_type type)
{
	switch (type) {
	case EV_ENGINE_UP:
	case EV_PASS:
	case EV_PASSED:
	case EV_BOX_BELL:
	case EV_BOX_RING:
	case EV_PROC:
	case EV_TICK:
	case EV_FAULT:
	case EV_GACCD_UP:
	case EV_START_PROC:
		return offsetof(struct event, command);
	default:
		return sizeof(struct event);
	}
}

struct event *sim_event(struct sim *s, int64_t delay, enum event_type type)
{
	return sim_event_in(s, delay, type, bytes_of(type));
}
