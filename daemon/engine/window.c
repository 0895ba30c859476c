/* SPDX-License-Identifier: Apache-2.0 */
/* Attaches sessions, flushes ranks and closes the window; pushes are push.c's. For engine.c, and window_freeze for
 * step.c; the engine's main thread. */
#include "engine/process.h"

#include "proto/failpoint.h"

static enum status check_session(const struct engine *e, const struct engine_command *c)
{
	if (c->rank >= e->state.r.ranks)
		return ST_RANK_OUT_OF_RANGE;
	uint64_t sgen = e->state.rank[c->rank].sgen;
	if (c->sgen != sgen)
		return c->sgen < sgen ? ST_SESSION_FENCED : ST_SESSION_UNKNOWN;
	return engine_check_window(e, c->window);
}

/* The rank has given what it gives to this window. */
static enum status flush(struct engine *e, uint32_t i, bool leave)
{
	struct control_rank *rank = &e->state.rank[i];
	uint32_t flushed = leave ? RANK_LEFT : rank->flushed ? rank->flushed : RANK_FLUSHED;
	if (e->state.r.phase != WINDOW_OPEN && !leave && !rank->flushed)
		return ST_WINDOW_CLOSED;
	if (flushed != rank->flushed) {
		bool owed = engine_rank_owes(e, i);
		rank->flushed = flushed;
		engine_publish(e);
		push_refuse(e, i, UINT64_MAX, ST_FLUSHED);
		engine_show_rank(e, i);
		engine_note_done(e, owed);
	}
	return ST_OK;
}

static bool must_wait(struct engine *e, uint32_t rank)
{
	return boxes_of(e, rank) && e->state.r.phase == WINDOW_OPEN && accum_oldest(&e->accum, rank);
}

static void answer_flush(struct engine *e, uint32_t rank, uint64_t id, enum status st)
{
	engine_reply(e, &(struct engine_command){ .op = ENGINE_FLUSH, .id = id, .rank = rank }, st, NULL);
}

void window_flush(struct engine *e, const struct engine_command *c)
{
	enum status st = check_session(e, c);
	if (st == ST_OK) {
		while (push_has_work(e))
			push_pass(e);
		if (must_wait(e, c->rank)) {
			struct box *b = boxes_of(e, c->rank);
			if (b->flush_id)
				answer_flush(e, c->rank, b->flush_id, ST_UNAVAILABLE);
			b->flush_id = c->id;
			b->flush_leaves = c->leave;
			boxes_list(&e->boxes, c->rank, LIST_FLUSH);
			return;
		}
		st = flush(e, c->rank, c->leave);
	}
	engine_reply(e, c, st, NULL);
}

void window_flush_waiting(struct engine *e)
{
	struct boxes *b = &e->boxes;
	uint32_t n = 0;
	for (uint32_t i = 0; i < b->n_listed[LIST_FLUSH]; i++) {
		uint32_t rank = b->list[LIST_FLUSH][i];
		struct box *of = &b->rank[rank];
		if (of->flush_id && !must_wait(e, rank)) {
			answer_flush(e, rank, of->flush_id, flush(e, rank, of->flush_leaves));
			of->flush_id = 0;
		}
		of->listed[LIST_FLUSH] = of->flush_id != 0;
		if (of->flush_id)
			b->list[LIST_FLUSH][n++] = rank;
	}
	b->n_listed[LIST_FLUSH] = n;
}

/* Of a session that is over. */
static void forget_flush(struct engine *e, uint32_t rank)
{
	struct box *b = boxes_of(e, rank);
	if (!b || !b->flush_id)
		return;
	answer_flush(e, rank, b->flush_id, ST_SESSION_FENCED);
	b->flush_id = 0;
}

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
		forget_flush(e, c->rank);
		boxes_fence(e, c->rank, c->sgen);
	}
	push_refuse(e, c->rank, c->sgen, ST_SESSION_FENCED);
	engine_show_rank(e, c->rank);
	engine_reply(e, c, ST_OK, NULL);
}

void window_disarm(struct engine *e, enum status st)
{
	const struct engine_command go = e->armed.go;
	if (!e->armed.waits)
		return;
	e->armed.waits = false;
	engine_reply(e, &go, st, NULL);
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
	if (st == ST_OK) {
		window_disarm(e, ST_CANCELLED);
		window_freeze(e);
	}
	engine_reply(e, c, st, NULL);
}
