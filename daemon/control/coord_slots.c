/* SPDX-License-Identifier: Apache-2.0 */
/* The exchange slots of a job of several parts: asks for them before each GO, and gives them back after it; the table
 * is in coord_impl.h. For the coordinator's other files. Pure; loop thread. */
#include "control/coord_impl.h"

static bool needs_none(const struct coord *c)
{
	return c->n_peers == 1 || !c->ports.exchange_ask;
}

bool coord_slots_held(const struct coord *c)
{
	return needs_none(c) || c->slots.state == SLOTS_HELD;
}

/* A job whose engines or nodes are not all there would hold them for nothing. */
bool coord_slots_ask(struct coord *c, struct now now)
{
	if (coord_slots_held(c))
		return true;
	if (*c->hindrance || c->superseded)
		return false;
	if (c->slots.state == SLOTS_NONE) {
		c->slots.state = SLOTS_ASKED;
		c->slots.since_ns = c->slots.looked_ns = now.mono_ns;
	}
	if (!c->ports.exchange_ask(c->ports.ctx, now))
		return false;
	c->slots.state = SLOTS_HELD;
	return true;
}

void coord_slots_give(struct coord *c, struct now now)
{
	const bool had = c->slots.state != SLOTS_NONE;
	c->slots.state = SLOTS_NONE;
	c->slots.hindered_ns = 0;
	if (had)
		c->ports.exchange_give(c->ports.ctx, now);
}
