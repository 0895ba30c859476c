/* SPDX-License-Identifier: Apache-2.0 */
/* What an operator changes while a job runs: pause, resume, flush, values, norms of the tensors. Called by the API's
 * methods in daemon/edge. Pure, like the rest of the coordinator; loop thread. */
#include "control/coord_impl.h"

#include <stdio.h>

/* ---- pause ---- */

enum status coord_pause(struct coord *c, const char *reason, struct now now)
{
	if (c->phase >= COORD_ENDING)
		return ST_JOB_ENDED;
	if (!c->held)
		c->held_since_ns = now.mono_ns;
	c->held = true;
	c->n_late = 0;
	snprintf(c->hold_reason, sizeof(c->hold_reason), "%s", reason);
	coord_event(c, false, "Paused", -1, reason);
	if (c->phase == COORD_START) /* it is not running yet, and will be held from its first window on */
		coord_set_state(c, c->state, reason, now);
	else
		coord_set_running(c, now);
	coord_broadcast(c, now);
	return ST_OK;
}

enum status coord_resume(struct coord *c, const char *reason, struct now now)
{
	if (c->phase >= COORD_ENDING)
		return ST_JOB_ENDED;
	if (!c->held)
		return ST_OK;
	c->held = false;
	c->held_ns += now.mono_ns - c->held_since_ns;
	c->hold_reason[0] = '\0';
	c->late_from_ns = now.mono_ns;
	coord_event(c, false, "Resumed", -1, reason);
	if (c->phase == COORD_START)
		coord_set_state(c, c->state, "", now);
	else
		coord_set_running(c, now);
	coord_step(c, now);
	if (c->phase == COORD_COLLECT && !c->armed && !c->n_marked[MARK_FROZEN])
		coord_arm(c);
	coord_broadcast(c, now);
	return ST_OK;
}

bool coord_held(const struct coord *c)
{
	return c->held;
}

/* ---- flush ---- */

enum status coord_flush(struct coord *c, uint64_t *out_window, struct now now)
{
	if (c->phase == COORD_START)
		return ST_NOT_READY;
	if (c->phase >= COORD_ENDING)
		return ST_JOB_ENDED;
	if (c->held)
		return ST_PAUSED;
	*out_window = c->window;
	if (c->phase == COORD_COLLECT) {
		coord_forget_straggler(c, false, now); /* the window closes without it */
		coord_start_close(c, now);
	}
	return ST_OK;
}

/* ---- values ---- */

/* The commit under way has already fixed the size of the next window, and after a restart nobody knows whether that
 * window has begun. Window 0 is the spec's. */
static uint64_t earliest_window(const struct coord *c)
{
	bool committing = c->phase == COORD_PERSIST || c->phase == COORD_COMMIT;
	return c->window + 1 + committing;
}

enum status coord_prepare_update(struct coord *c, struct update *u, const char **field, char *why, size_t n_why)
{
	*field = NULL;
	if (c->phase >= COORD_ENDING) {
		snprintf(why, n_why, "the job has ended: %s", c->end_reason);
		return ST_JOB_ENDED;
	}
	enum status st = update_check(u, c->spec, field, why, n_why);
	if (st)
		return st;
	uint64_t earliest = earliest_window(c);
	if (u->window && u->window < earliest) {
		*field = "window";
		snprintf(why, n_why, "window %llu has begun: the earliest that values can change for is window %llu",
			 (unsigned long long)u->window, (unsigned long long)earliest);
		return ST_WINDOW_BEGUN;
	}
	if (c->updates.n >= UPDATES_MAX_PENDING) {
		snprintf(why, n_why, "%u updates are not in force yet, more are not kept", c->updates.n);
		return ST_RESOURCE_EXHAUSTED;
	}
	if (!u->window)
		u->window = earliest;
	return updates_reserve(&c->updates);
}

void coord_take_update(struct coord *c, const struct update *u)
{
	char changes[160], text[220];
	update_describe(u, updates_at(&c->updates, c->values, u->window), changes, sizeof(changes));
	snprintf(text, sizeof(text), "from window %llu on: %s", (unsigned long long)u->window, changes);
	updates_put(&c->updates, u); /* its room is reserved */
	coord_event(c, false, "Updated", -1, text);
	c->ports.changed(c->ports.ctx, c->job_id);
}

const struct updates *coord_updates(const struct coord *c)
{
	return &c->updates;
}

const struct values *coord_values(const struct coord *c)
{
	return &c->values;
}

const struct carry *coord_carry(const struct coord *c)
{
	return &c->carry;
}

/* ---- norms ---- */

enum status coord_want_norms(struct coord *c)
{
	if (c->phase >= COORD_ENDING)
		return ST_JOB_ENDED;
	if (c->phase == COORD_START)
		return ST_NOT_READY;
	c->norms_wanted = true;
	coord_renew_order(c); /* an armed GO, which asks for no norms, is taken back */
	return ST_OK;
}
