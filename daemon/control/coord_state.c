/* SPDX-License-Identifier: Apache-2.0 */
/* A coordinator's phase, its state as users see it, its end and its clock, which the coordinator's other files change
 * through the functions here. Pure; loop thread. */
#include "control/coord_impl.h"

#include <stdio.h>
#include <string.h>

/* ---- state and phase ---- */

void coord_set_state(struct coord *c, enum job_state state, const char *reason, struct now now)
{
	if (c->state == state && !strcmp(c->reason, reason))
		return;
	if (c->state != state)
		c->state_since_unix_ns = now.unix_ns;
	c->state = state;
	if (reason != c->reason) /* only the state is new */
		snprintf(c->reason, sizeof(c->reason), "%s", reason);
	c->ports.changed(c->ports.ctx, c->job_id);
}

void coord_set_running(struct coord *c, struct now now)
{
	coord_forget_straggler(c, !c->held && !*c->hindrance, now);
	if (c->held)
		coord_set_state(c, JOB_PAUSED, c->hold_reason, now);
	else
		coord_set_state(c, *c->hindrance ? JOB_STALLED : JOB_RUNNING, c->hindrance, now);
}

void coord_set_phase(struct coord *c, enum coord_phase phase, struct now now)
{
	if (phase != COORD_CLOSE && phase != COORD_GO)
		coord_slots_give(c, now);
	if (c->slots.told && c->state == JOB_RUNNING) /* it has its turn */
		coord_set_running(c, now);
	c->slots.told = false;
	c->phase = phase;
	c->phase_since_ns = now.mono_ns;
	c->sent_ns = 0;
}

void coord_event(struct coord *c, bool warning, const char *reason, int64_t rank, const char *text)
{
	c->ports.event(c->ports.ctx, c->job_id, warning, reason, rank, text);
}

/* ---- words ---- */

void coord_part_on(struct coord *c, uint32_t part, const char *node)
{
	snprintf(c->peer[part].node, sizeof(c->peer[part].node), "%s", node);
}

const char *coord_node_of(const struct coord *c, uint32_t part, char out[COORD_NODE])
{
	const char *node = c->peer[part].node;
	snprintf(out, COORD_NODE, "%s%s%s", *node ? " (node " : "", node, *node ? ")" : "");
	return out;
}

/* ---- the end, or what comes in its place ---- */

void coord_hold(struct coord *c, const char *why, struct now now)
{
	char reason[sizeof(c->hold_reason)];
	snprintf(reason, sizeof(reason), "held: %.240s", why);
	if (c->held && !strcmp(c->hold_reason, reason))
		return;
	if (!c->held)
		c->held_since_ns = now.mono_ns;
	c->held = true;
	c->n_late = 0;
	memcpy(c->hold_reason, reason, sizeof(reason));
	coord_event(c, true, "Held", -1, why);
	if (c->ports.hold)
		c->ports.hold(c->ports.ctx, c->job_id, reason);
	if (c->phase == COORD_START)
		coord_set_state(c, c->state, reason, now);
	else
		coord_set_running(c, now);
	coord_broadcast(c, now);
}

void coord_end(struct coord *c, enum status end, const char *reason, struct now now)
{
	if (c->phase >= COORD_ENDING)
		return;
	c->end_status = end;
	snprintf(c->end_reason, sizeof(c->end_reason), "%s", reason);
	coord_set_phase(c, COORD_ENDING, now);
	coord_set_state(c, JOB_COMPLETING, reason, now);
	c->ports.persist_end(c->ports.ctx, c->job_id, end, c->end_reason);
}

enum job_state coord_end_state(enum status end)
{
	return end == ST_OK					      ? JOB_COMPLETED
	       : end == ST_CANCELLED				      ? JOB_CANCELLED
	       : end == ST_SEGMENT_CORRUPT || end == ST_ENGINE_FAILED ? JOB_NODE_FAIL
								      : JOB_FAILED;
}

/* ---- stragglers ---- */

void coord_forget_straggler(struct coord *c, bool back, struct now now)
{
	char text[160], more[40] = "";
	if (c->straggler.since_ns && back) {
		if (c->straggler.n_more)
			snprintf(more, sizeof(more), " and %u more", c->straggler.n_more);
		snprintf(text, sizeof(text),
			 "nobody waits any longer for rank %u%s in window %llu; others had waited for %.1f s",
			 c->straggler.rank, more, (unsigned long long)c->straggler.window,
			 (double)(now.mono_ns - c->straggler.since_ns) / 1e9);
		coord_event(c, false, "RankBack", c->straggler.rank, text);
	}
	c->straggler.since_ns = 0;
}

/* ---- the clock ---- */

/* Pause before the next attempt; from the third failure in a row on, each failure doubles it. */
#define RETRY_NS (INT64_C(100) * 1000000)
#define RETRY_MAX_NS (INT64_C(10) * 1000000000)

int64_t coord_pause_after(uint32_t failures)
{
	int64_t ns = RETRY_NS;
	for (uint32_t i = 2; i < failures && ns < RETRY_MAX_NS; i++)
		ns *= 2;
	return ns < RETRY_MAX_NS ? ns : RETRY_MAX_NS;
}

int64_t coord_ran_ns(const struct coord *c, int64_t mono_ns)
{
	int64_t now_held = c->held && mono_ns > c->held_since_ns ? mono_ns - c->held_since_ns : 0;
	return mono_ns - c->held_ns - now_held;
}
