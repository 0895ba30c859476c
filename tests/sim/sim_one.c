/* SPDX-License-Identifier: Apache-2.0 */
/* A job of one part: its engine is alone. */
#include "sim.h"

#include <stddef.h>

void sim_comm_command(struct sim *s, const struct event *e)
{
	sim_fail(s, "the engine of a job of one part is sent the operation %u", e->command.op);
}

void sim_comm_commit(struct sim *s, const struct engine_command *c)
{
}

void sim_comm_dies(struct sim *s)
{
}

bool sim_comm_fills(const struct sim *s)
{
	return false;
}

uint64_t sim_life(const struct sim *s)
{
	return 0;
}

void sim_port_blob(void *ctx, const struct part_blob *b)
{
	sim_fail(ctx, "a job of one part has an address for the coordinator");
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

bool sim_shares(const struct sim *s, uint32_t outcome)
{
	return false;
}

bool sim_comm_commit_again(struct sim *s, const struct engine_command *c)
{
	return false;
}

void sim_comm_share(struct sim *s, const struct engine_command *c)
{
}
