/* SPDX-License-Identifier: Apache-2.0 */
/* A job of several parts whose turn to exchange comes, or does not come for long: its bounds stand still, and its
 * reason says what it waits for. Called by daemon/edge and from the tick; the table is in coord_impl.h. Pure; loop
 * thread. */
#include "control/coord_impl.h"

#include <stdio.h>

#define TELL_NS (INT64_C(1) * 1000000000) /* shorter waits are no news */

void coord_on_exchange(struct coord *c, struct now now)
{
	if (c->slots.state != SLOTS_ASKED)
		return;
	coord_step(c, now); /* asks, and gets them */
	if (c->slots.state == SLOTS_ASKED)
		coord_slots_give(c, now);
}

/* ---- the tick ---- */

static void excuse(struct coord *c, struct now now)
{
	const int64_t waited = now.mono_ns - c->slots.looked_ns;
	c->slots.looked_ns = now.mono_ns;
	if (c->failing_ns)
		c->failing_ns += waited;
	c->progress_ns = c->phase_since_ns = now.mono_ns;
}

static void tell(struct coord *c, struct now now)
{
	char what[200] = "", text[240];
	if (c->state != JOB_RUNNING || now.mono_ns - c->slots.since_ns < TELL_NS)
		return;
	c->ports.exchange_waits(c->ports.ctx, what, sizeof(what), now);
	if (!*what)
		return;
	snprintf(text, sizeof(text), "window %llu waits for %s", (unsigned long long)c->window, what);
	c->slots.told = true;
	coord_set_state(c, JOB_RUNNING, text, now);
}

/* Its GO may be out; others must not wait for a node that is away. */
static bool is_stuck(struct coord *c, struct now now)
{
	if (c->phase != COORD_GO || !*c->hindrance) {
		c->slots.hindered_ns = 0;
		return false;
	}
	if (!c->slots.hindered_ns)
		c->slots.hindered_ns = now.mono_ns;
	return c->comm.board && now.mono_ns - c->slots.hindered_ns > coord_comm_stuck_ns(c);
}

bool coord_slots_watch(struct coord *c, struct now now)
{
	if (c->n_peers == 1 || !c->ports.exchange_ask)
		return false;
	if (c->slots.state == SLOTS_ASKED && *c->hindrance)
		coord_slots_give(c, now);
	if (c->slots.state == SLOTS_HELD)
		return is_stuck(c, now);
	if (c->slots.state == SLOTS_ASKED)
		excuse(c, now);
	if (c->phase == COORD_CLOSE || c->phase == COORD_GO)
		coord_step(c, now); /* the pause may be over, or the hindrance */
	if (c->slots.state == SLOTS_ASKED)
		tell(c, now);
	return false;
}
