/* SPDX-License-Identifier: Apache-2.0 */
/* A job that no rank is attached to: it waits visibly, and ends after timeouts.abandoned. Stragglers, which other ranks
 * wait for, are coord_look.c's. Pure, like the rest of the coordinator; called from its tick. */
#include "control/coord_impl.h"

#include <stdio.h>

static bool any_attached(const struct coord *c)
{
	COORD_EACH_RANK(c, r)
	if (c->rank[r].attached && !c->rank[r].silent)
		return true;
	return false;
}

/* Makes the job STALLED with this reason, or leaves it STARTING with it; the event is sent once. */
static void tell(struct coord *c, struct now now)
{
	char text[200];

	snprintf(text, sizeof(text), "no rank is attached: without one the job ends after timeouts.abandoned (%g s)",
		 (double)c->spec->abandoned_ns / 1e9);
	if (!c->alone_told)
		coord_event(c, true, "NoRanks", -1, text);
	c->alone_told = true;
	coord_forget_straggler(c, false, now);
	coord_set_state(c, c->phase == COORD_START ? c->state : JOB_STALLED, text, now);
}

/* Starts counting the time without ranks from zero. */
static void reset(struct coord *c, bool attached, struct now now)
{
	char text[100];

	if (c->alone_told && attached) {
		snprintf(text, sizeof(text), "a rank is attached again after %.0f s without any",
			 (double)(now.mono_ns - c->alone_since_ns) / 1e9);
		coord_event(c, false, "RanksBack", -1, text);
		if (c->phase == COORD_START)
			coord_set_state(c, c->state, "", now);
		else
			coord_set_running(c, now);
	}
	c->alone_told = false;
	c->alone_since_ns = 0;
}

bool coord_watch_abandoned(struct coord *c, struct now now)
{
	char text[160];
	bool attached = any_attached(c);

	if (c->phase != COORD_START && c->phase != COORD_COLLECT)
		return false; /* a closing window needs no rank, and takes a bounded time */
	if (attached || c->queued || c->held || *c->hindrance) {
		reset(c, attached, now);
		return false;
	}
	c->n_late = 0;
	if (!c->alone_since_ns)
		c->alone_since_ns = now.mono_ns;
	int64_t alone_ns = now.mono_ns - c->alone_since_ns;
	if (alone_ns >= c->spec->abandoned_ns) {
		snprintf(text, sizeof(text), "abandoned: no rank was attached for %g s (timeouts.abandoned)",
			 (double)c->spec->abandoned_ns / 1e9);
		coord_end(c, ST_STALLED, text, now);
	} else if (alone_ns >= c->spec->stall_warn_ns) {
		tell(c, now);
	}
	return true;
}
