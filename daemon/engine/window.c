/* SPDX-License-Identifier: Apache-2.0 */
/* Attaches sessions, flushes ranks and closes the window; pushes are push.c's. For engine.c, and window_freeze for
 * step.c; the engine's main thread. */
#include "engine/process.h"

#include "proto/failpoint.h"

/* A rank that had left takes part from the next window on: in this one it counts as flushed. */
void window_attach(struct engine *e, const struct engine_command *c)
{
	struct control_rank *rank = c->rank < e->state.r.ranks ? &e->state.rank[c->rank] : NULL;
	if (!rank) {
		engine_reply(e, c, ST_RANK_OUT_OF_RANGE, NULL);
		return;
	}
	if (c->sgen < rank->sgen) {
		engine_reply(e, c, ST_SESSION_FENCED, NULL);
		return;
	}
	if (c->sgen > rank->sgen) {
		uint32_t step_acked = rank->session.step_acked;
		rank->sgen = c->sgen;
		rank->session = c->session;
		rank->session.step_acked = step_acked;
		if (rank->flushed == RANK_LEFT)
			rank->flushed = RANK_FLUSHED;
		FAILPOINT(engine_attach_before);
		engine_publish(e);
	}
	push_refuse(e, c->rank, c->sgen, ST_SESSION_FENCED);
	push_progress(e, c->rank);
	engine_reply(e, c, ST_OK, NULL);
}

static enum status check_session(const struct engine *e, const struct engine_command *c)
{
	if (c->rank >= e->state.r.ranks)
		return ST_RANK_OUT_OF_RANGE;
	uint64_t sgen = e->state.rank[c->rank].sgen;
	if (c->sgen != sgen)
		return c->sgen < sgen ? ST_SESSION_FENCED : ST_SESSION_UNKNOWN;
	return engine_check_window(e, c->window);
}

void window_flush(struct engine *e, const struct engine_command *c)
{
	enum status st = check_session(e, c);
	if (st == ST_OK) {
		while (push_has_work(e))
			push_pass(e);
		struct control_rank *rank = &e->state.rank[c->rank];
		uint32_t flushed = c->leave ? RANK_LEFT : rank->flushed ? rank->flushed : RANK_FLUSHED;
		if (e->state.r.phase != WINDOW_OPEN && !c->leave && !rank->flushed)
			st = ST_WINDOW_CLOSED;
		else if (flushed != rank->flushed) {
			rank->flushed = flushed;
			engine_publish(e);
			push_refuse(e, c->rank, UINT64_MAX, ST_FLUSHED);
			push_progress(e, c->rank);
		}
	}
	engine_reply(e, c, st, NULL);
}

void window_freeze(struct engine *e)
{
	struct control_record *r = &e->state.r;
	while (push_has_work(e))
		push_pass(e);
	if (r->phase != WINDOW_OPEN)
		return;
	r->phase = WINDOW_CLOSED;
	engine_publish(e);
	FAILPOINT(engine_closed);
	push_refuse(e, UINT32_MAX, UINT64_MAX, ST_WINDOW_CLOSED);
}

void window_close(struct engine *e, const struct engine_command *c)
{
	enum status st = engine_check_window(e, c->window);
	if (st == ST_OK)
		window_freeze(e);
	engine_reply(e, c, st, NULL);
}
