/* SPDX-License-Identifier: Apache-2.0 */
/* Bounds for phases that wait for nodes or for the journal: STALLED after stall_warn, and after stall_abort the job
 * ends, or is held where an outcome is durable. Also ends jobs that nodes refuse to go on with, or whose parameters are
 * lost. Stragglers are coord_look.c's. Pure, like the rest of the coordinator; called from its tick and its steps. */
#include "control/coord_impl.h"

#include "engine/control_page.h"

#include <stdio.h>

/* The first part that this phase waits for; n_peers: none. */
static uint32_t awaited(const struct coord *c)
{
	COORD_EACH_PART(c, i)
	{
		const struct peer *p = &c->peer[i];
		bool there = p->known && p->last.window == c->window;
		if (c->phase == COORD_CLOSE && (!there || p->last.phase < WINDOW_CLOSED || !p->has_bitmap))
			return i;
		if (c->phase == COORD_COMMIT && (!p->known || p->last.window <= c->commit.window))
			return i;
	}
	return c->n_peers;
}

static void describe(const struct coord *c, char *text, size_t n, double seconds)
{
	unsigned long long window = c->window;
	uint32_t i = awaited(c);
	const struct report *r = i < c->n_peers && c->peer[i].known ? &c->peer[i].last : NULL;
	char node[COORD_NODE] = "";
	if (i < c->n_peers)
		coord_node_of(c, i, node);
	if (c->phase == COORD_PERSIST)
		snprintf(text, n, "window %llu: the journal has not answered for %.0f s", window, seconds);
	else if (c->phase == COORD_CLOSE)
		snprintf(text, n, "window %llu: part %u%s has not closed it for %.0f s", window, i, node, seconds);
	else if (!r)
		snprintf(text, n, "window %llu has its outcome, but part %u%s has not reported for %.0f s", window, i,
			 node, seconds);
	else if (r->refused)
		snprintf(text, n, "window %llu has its outcome, but it has not been applied for %.0f s: %s", window,
			 seconds, r->refusal);
	else
		snprintf(text, n,
			 "window %llu has its outcome, but part %u%s has not applied it for %.0f s; it is in window "
			 "%llu, phase %u",
			 window, i, node, seconds, (unsigned long long)r->window, r->phase);
}

/* Trainers have not acknowledged a step: they are late, as stragglers are, and no part is at fault. */
static bool waits_for_trainers(const struct coord *c)
{
	uint32_t i = awaited(c);
	return i < c->n_peers && c->peer[i].known && c->peer[i].last.refused == ST_NOT_READY;
}

void coord_watch_phase(struct coord *c, struct now now)
{
	char text[256];
	if (c->phase != COORD_CLOSE && c->phase != COORD_PERSIST && c->phase != COORD_COMMIT)
		return;
	if (!c->phase_since_ns || c->held || *c->hindrance) /* the engine has a bound of its own: control/restarts.h */
		c->phase_since_ns = now.mono_ns;
	int64_t ns = now.mono_ns - c->phase_since_ns;
	if (ns < c->spec->stall_warn_ns)
		return;
	describe(c, text, sizeof(text), (double)ns / 1e9);
	/* PERSIST: the outcome may be durable already, and the end would have to be written to the same journal */
	if (ns >= c->spec->stall_abort_ns && c->phase == COORD_COMMIT && !waits_for_trainers(c)) {
		coord_hold(c, text, now);
	} else if (ns >= c->spec->stall_abort_ns && c->phase != COORD_PERSIST) {
		coord_end(c, ST_STALLED, text, now);
	} else if (c->state != JOB_STALLED) {
		coord_event(c, true, "WindowStuck", -1, text);
		coord_set_state(c, JOB_STALLED, text, now);
		coord_broadcast(c, now);
	}
}

void coord_hold_on_difference(struct coord *c, struct now now)
{
	char text[240];
	int at = snprintf(text, sizeof(text),
			  "step %llu is applied, and the parts do not have the same parameters (digests",
			  (unsigned long long)c->applied_step);
	COORD_EACH_PART(c, i)
	if (at < (int)sizeof(text))
		at += snprintf(text + at, sizeof(text) - (size_t)at, "%s part %u: %016llx", i ? "," : "", i,
			       (unsigned long long)c->peer[i].last.params_digest);
	if (at < (int)sizeof(text))
		snprintf(text + at, sizeof(text) - (size_t)at, ")");
	coord_hold(c, text, now);
}

/* A part does not take an outcome that is durable. */
static void hold_on_refusal(struct coord *c, uint32_t part, struct now now)
{
	const struct report *r = &c->peer[part].last;
	char text[240];
	if (c->phase != COORD_COMMIT || r->window != c->commit.window || !r->refused || r->refused == ST_NOT_READY)
		return;
	snprintf(text, sizeof(text), "the engine of part %u refuses the outcome of window %llu: %s", part,
		 (unsigned long long)c->commit.window, r->refusal);
	coord_hold(c, text, now);
}

bool coord_end_on_lost(struct coord *c, struct now now)
{
	char text[256], saved[160] = "";
	COORD_EACH_PART(c, i)
	{
		const char *lost = c->peer[i].last.params_lost;
		if (!*lost)
			continue;
		if (c->ports.saved)
			c->ports.saved(c->ports.ctx, saved, sizeof(saved));
		snprintf(text, sizeof(text), "window %llu, step %llu: %s%s", (unsigned long long)c->commit.window,
			 (unsigned long long)c->applied_step, lost, saved);
		coord_end(c, ST_NONFINITE, text, now);
		return true;
	}
	return false;
}

bool coord_end_on_refusal(struct coord *c, struct now now)
{
	char text[256];
	bool ahead = c->n_marked[MARK_FAR_AHEAD] || (c->n_marked[MARK_AHEAD] && c->phase != COORD_COMMIT);
	if (c->phase >= COORD_ENDING || (!ahead && !c->n_marked[MARK_REFUSES]))
		return c->phase >= COORD_ENDING;
	COORD_EACH_PART(c, i)
	{
		const struct report *r = &c->peer[i].last;
		uint64_t newest = c->window + (c->phase == COORD_COMMIT);
		if (c->phase == COORD_START && c->peer[i].known && r->refused && r->refused != ST_NOT_READY) {
			snprintf(text, sizeof(text), "the initial parameters: %s", r->refusal);
			coord_end(c, r->refused, text, now);
			return true;
		}
		if (!c->peer[i].known || r->start < START_PARAMS)
			continue;
		if (r->window > newest) {
			snprintf(text, sizeof(text),
				 "the journal is older than the job's memory: part %u is in window %llu, the journal's "
				 "next is %llu",
				 i, (unsigned long long)r->window, (unsigned long long)newest);
			coord_end(c, ST_STORE_FAILED, text, now);
			return true;
		}
		hold_on_refusal(c, i, now);
	}
	return false;
}
