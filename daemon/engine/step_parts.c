/* SPDX-License-Identifier: Apache-2.0 */
/* The vote of a job of several parts: takes the sum over all of them in the communicator that a GO names, and votes
 * with what it has found. For step.c and engine.c; the engine's main thread, while the sum itself is taken on the
 * communication thread. */
#include "engine/process.h"

#include "engine/sum_parts.h"

#include "proto/failpoint.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum go_comm step_standing(const struct engine *e, const struct engine_command *go)
{
	const struct coll_id id = engine_comm_id(e, go);
	int lies = comm_compare(e->comm, &id);
	if (lies)
		return lies > 0 ? GO_COMM_UNTOLD : GO_COMM_OVER;
	switch (comm_state(e->comm)) {
	case COMM_OFFERED:
	case COMM_JOINING:
		return GO_COMM_FORMS;
	case COMM_READY:
		return GO_COMM_FREE;
	case COMM_BUSY: /* no other GO's sum, and no COMMIT's gather: that one is at hand, and judged before */
		return GO_COMM_FILLS;
	default:
		return GO_COMM_OVER;
	}
}

static const char *explain(const struct engine *e, const struct go_verdict *v, const struct engine_command *go)
{
	if (v->status == ST_UNAVAILABLE)
		return "the communicator is broken";
	if (v->status == ST_INVALID_ARGUMENT)
		return "a job of several parts arms no GO";
	if (v->status != ST_NOT_READY)
		return NULL;
	if (e->state.r.phase == WINDOW_APPLYING)
		return "the window is being applied";
	if (e->state.r.client_pending)
		return "the reduced gradient of an earlier window is still being read";
	return go->close || e->state.r.phase != WINDOW_OPEN ? "the communicator was not told of" : NULL;
}

/* With the phase, which a GO that was sent to an open window may have left closed. */
static void refuse(struct engine *e, const struct engine_command *go, const struct go_verdict *v)
{
	struct engine_answer a = engine_answer_to(e, go, v->status);
	const char *why = explain(e, v, go);
	a.comm = go->comm;
	a.result = e->state.r.phase;
	snprintf(a.text, sizeof(a.text), "%s", why ? why : "");
	engine_send(e, &a);
}

/* ---- the sum ---- */

/* The tensors that any part has touched go with the sum over all parts. */
static enum status gather_touched(const struct sum_task *t, struct coll *coll)
{
	const struct plan *p = t->touched->plan;
	const size_t n = t->touched->n_bytes;
	unsigned char *own = t->sets + p->part * n;
	uint64_t bounds[PLAN_MAX_PARTS + 1];
	for (uint32_t part = 0; part <= p->n_parts; part++)
		bounds[part] = part * n;
	memset(own, 0, n);
	if (t->filled)
		memcpy(own, t->touched->set[t->src], n);
	enum status st = coll_gather(
		coll, &(struct coll_gather){ .buffer = t->sets, .bounds = bounds, .piece = SUM_PARTS_PIECE });
	if (!st)
		touched_join(t->touched, t->dst, t->sets, p->n_parts);
	return st;
}

static enum status take_sum(void *arg, struct coll *coll)
{
	const struct sum_task *t = arg;
	enum status st = t->arith->ops->reduce(t->arith, coll, t->dst, t->src, t->filled, t->norm);
	if (!st && t->sets)
		st = gather_touched(t, coll);
	return st || !t->norms ? st : t->arith->ops->norms_of_shares(t->arith, coll, t->dst);
}

/* A vote whose half is about to be overwritten must not outlive this process: a successor would take the half for what
 * the record says of it. */
static void withdraw_vote(struct engine *e)
{
	struct control_record *r = &e->state.r;
	if (r->phase != WINDOW_PREPARED)
		return;
	r->phase = WINDOW_CLOSED;
	r->prepared_term = r->prepared_attempt = 0;
	r->prepared_sumsq = 0;
	r->prepared_nonfinite = r->prepared_digest = 0;
	r->prepared_norms = 0;
	engine_publish(e);
	FAILPOINT(engine_vote_withdrawn);
}

static void begin_sum(struct engine *e)
{
	const struct control_record *r = &e->state.r;
	assert(r->phase == WINDOW_CLOSED || r->phase == WINDOW_PREPARED);
	assert(!r->client_pending && !comm_is_working(e->comm));
	withdraw_vote(e);
	arith_before_write(e->arith, r->x ? SEG_ACCUM0 : SEG_ACCUM1);
	if (!r->filled)
		arith_before_write(e->arith, r->x ? SEG_ACCUM1 : SEG_ACCUM0);
	e->sum.stage = GO_ADDS;
	const bool norms = plan_is_sharded(e->mem.plan) && e->sum.go.want_norms; /* the same at all parts: one order */
	e->sum_task = (struct sum_task){ e->arith,     1 - r->x, r->x,	      r->filled,
					 &e->sum_norm, norms,	 &e->touched, e->touched_sets };
	comm_reduce(e->comm, take_sum, &e->sum_task);
}

void step_drop_sum(struct engine *e, enum status st)
{
	const struct engine_command go = e->sum.go;
	const struct coll_id id = engine_comm_id(e, &go);
	enum go_stage stage = e->sum.stage;
	if (!stage)
		return;
	e->sum.stage = GO_NONE;
	if (stage == GO_ADDS)
		comm_abort(e->comm, &id);
	engine_reply(e, &go, st, NULL);
}

void step_go_parts(struct engine *e, const struct engine_command *c)
{
	if (go_supersedes(&e->state.r, &e->sum, c))
		step_drop_sum(e, ST_CANCELLED);
	const enum go_comm comm = step_standing(e, c);
	const struct go_verdict v = go_judge_sum(&e->state.r, &e->sum, comm, c);
	switch (v.ruling) {
	case GO_VOTES:
		step_vote(e, c);
		break;
	case GO_JOINS:
		engine_reply(e, &e->sum.go, ST_CANCELLED, NULL);
		e->sum.go = *c;
		break;
	case GO_SUMS:
		window_freeze(e);
		e->sum = (struct go_sum){ GO_CONNECTS, *c };
		if (comm == GO_COMM_FREE)
			begin_sum(e);
		break;
	default:
		refuse(e, c, &v);
	}
}

/* ---- what becomes of it ---- */

void step_on_connected(struct engine *e)
{
	if (e->sum.stage == GO_CONNECTS && step_standing(e, &e->sum.go) == GO_COMM_FREE)
		begin_sum(e);
}

/* The vote that failed says whom it has waited for. */
static void answer_failure(struct engine *e, const struct comm_event *why)
{
	struct engine_answer a = engine_answer_to(e, &e->sum.go, why->status);
	a.comm = e->sum.go.comm;
	a.result = e->state.r.phase;
	a.suspects = why->suspects;
	a.connected = why->connected;
	a.pieces = why->pieces;
	snprintf(a.text, sizeof(a.text), "%s", why->text);
	e->sum.stage = GO_NONE;
	engine_send(e, &a);
}

void step_on_lost(struct engine *e, const struct comm_event *why)
{
	if (e->sum.stage == GO_CONNECTS && e->sum.go.comm == why->id.k && e->sum.go.term == why->id.term)
		answer_failure(e, why);
}

void step_on_sum(struct engine *e, const struct comm_event *done)
{
	const struct engine_command go = e->sum.go;
	assert(e->sum.stage == GO_ADDS && e->state.r.phase == WINDOW_CLOSED);
	if (done->status) {
		answer_failure(e, done);
		return;
	}
	e->sum.stage = GO_NONE;
	FAILPOINT(engine_sum_taken);
	arith_need("taking the sum over", e->arith->ops->reduced(e->arith, e->sum_task.dst));
	if (plan_is_sharded(e->mem.plan)) /* nobody has all of it; the shares were looked at as they were added */
		e->norm = e->sum_norm;
	else
		arith_need("looking at the sum", e->arith->ops->inspect(e->arith, e->sum_task.dst, &e->norm));
	step_vote(e, &go);
}
