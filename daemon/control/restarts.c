/* SPDX-License-Identifier: Apache-2.0 */
/* Decides when a job's engine is restarted after a failure, how long the backoff is, and when a crash loop has lasted
 * too long. For runtime/part_engine.c. Pure; loop thread. */
#include "control/restarts.h"

#include <stdio.h>
#include <string.h>

static bool of_use(const struct restarts *r, struct now now)
{
	return r->up && (r->moved || now.mono_ns - r->up_ns >= RESTARTS_STEADY_NS);
}

static void end_row(struct restarts *r)
{
	r->failures = r->own = 0;
	r->cause[0] = '\0';
}

static int64_t pause_ns(uint32_t failures)
{
	int64_t ns = RESTARTS_FIRST_NS << (failures < 16 ? failures : 16);
	return ns < RESTARTS_MAX_NS ? ns : RESTARTS_MAX_NS;
}

static bool has_moved(const struct restarts *r, const struct control_record *c)
{
	if (c->window != r->window)
		return c->window > r->window;
	return c->count > r->count || (c->params_ready && !r->params_ready);
}

void restarts_on_hello(struct restarts *r, const struct control_record *c, struct now now)
{
	if (has_moved(r, c))
		end_row(r);
	r->window = c->window;
	r->count = c->count;
	r->params_ready = c->params_ready;
	r->up = r->patient = true;
	r->moved = false;
	r->up_ns = now.mono_ns;
}

void restarts_on_answer(struct restarts *r, const struct engine_answer *a)
{
	bool counted = a->op == ENGINE_ADD && (a->result == PUSH_COUNTED || a->result == PUSH_VOID);
	r->moved |= !a->status && (counted || a->op == ENGINE_COMMIT);
}

static bool hopeless(const struct restarts *r, int64_t patience_ns, struct now now)
{
	if (r->failures < RESTARTS_ROW)
		return false;
	return (!r->patient && r->own >= RESTARTS_ROW) || now.mono_ns - r->since_ns >= patience_ns;
}

enum restarts_verdict restarts_on_failure(struct restarts *r, const char *cause, bool outside, int64_t patience_ns,
					  struct now now)
{
	if (of_use(r, now))
		end_row(r);
	if (!r->failures)
		r->since_ns = now.mono_ns;
	bool news = r->up || strncmp(r->cause, cause, sizeof(r->cause) - 1) != 0;
	snprintf(r->cause, sizeof(r->cause), "%s", cause);
	r->had_come_up = r->up;
	r->up = false;
	r->due_ns = now.mono_ns + pause_ns(r->failures++);
	r->own += !outside;
	if (hopeless(r, patience_ns, now)) {
		r->due_ns = 0;
		return RESTARTS_GIVE_UP;
	}
	r->troubled = restarts_in_trouble(r);
	return news ? RESTARTS_NEWS : RESTARTS_AS_BEFORE;
}

void restarts_excuse(struct restarts *r, struct now now)
{
	r->since_ns = now.mono_ns;
}

bool restarts_due(struct restarts *r, struct now now)
{
	if (!r->due_ns || now.mono_ns < r->due_ns)
		return false;
	r->due_ns = 0;
	return true;
}

bool restarts_recovered(struct restarts *r, struct now now)
{
	bool useful = of_use(r, now), back = useful || (r->up && now.mono_ns - r->up_ns >= RESTARTS_BACK_NS),
	     was = r->troubled;
	if (useful)
		end_row(r);
	r->troubled &= !back;
	return was && back;
}

bool restarts_in_trouble(const struct restarts *r)
{
	return r->failures >= RESTARTS_ROW;
}
