/* SPDX-License-Identifier: Apache-2.0 */
/* A job of one part: its sums are the job's, and are there at once. */
#include "sim.h"

void sim_exchange(struct sim *s, const struct engine_command *go)
{
	struct sim_sums own = engine_sums(s);
	engine_exchanged(s, go, ST_OK, &own);
}

void sim_exchange_left(struct sim *s)
{
}

struct event *sim_event(struct sim *s, int64_t delay, enum event_type type)
{
	return sim_event_in(s, delay, type, sizeof(struct event));
}
