/* SPDX-License-Identifier: Apache-2.0 */
/* The first parameters of a job of several parts: one part has them, the others take them over a communicator. For
 * joining.c and engine.c; the engine's main thread, while the bytes move on the communication thread.
 *
 * From the first byte on nobody could say whose parameters a part has that takes some: it has none until all are there,
 * in its record, too, so a successor has none either. The part that gives keeps its own. */
#include "engine/process.h"

#include "proto/failpoint.h"

#include <assert.h>
#include <stdio.h>

static bool gives(const struct engine *e, const struct engine_command *c)
{
	return c->slot == e->mem.plan->part;
}

/* ---- the parameters move ---- */

static enum status move(void *arg, struct coll *coll)
{
	const struct fill_task *t = arg;
	return t->arith->ops->broadcast(t->arith, coll, t->root);
}

static void forget_own(struct engine *e)
{
	struct control_record *r = &e->state.r;
	if (r->params_ready) {
		r->params_ready = 0;
		r->params_digest = 0;
		engine_publish(e);
	}
	atomic_fetch_or(&e->mem.status->seq, 1); /* even again when they are ready */
	arith_before_write(e->arith, SEG_PARAMS);
	arith_before_write(e->arith, SEG_MASTER);
	FAILPOINT(engine_fill_begun);
}

static void begin(struct engine *e)
{
	const struct engine_command *c = &e->fill.command;
	assert(!comm_is_working(e->comm) && !e->state.r.window);
	if (!gives(e, c))
		forget_own(e);
	e->fill.stage = FILL_COPIES;
	e->fill.task = (struct fill_task){ e->arith, c->slot };
	comm_fill(e->comm, move, &e->fill.task);
}

/* ---- the command ---- */

static void answer_filled(struct engine *e, const struct engine_command *c)
{
	struct engine_answer a = engine_answer_to(e, c, ST_OK);
	a.digest = e->state.r.params_digest;
	engine_send(e, &a);
}

/* ST_OK: it may begin now, or as soon as all are connected. */
static enum status judge(const struct engine *e, const struct engine_command *c, const char **why)
{
	const struct control_record *r = &e->state.r;
	const struct coll_id id = engine_comm_id(e, c);
	const int lies = comm_compare(e->comm, &id);
	const enum comm_state s = comm_state(e->comm);
	*why = NULL;
	if (c->slot >= e->mem.plan->n_parts || e->mem.plan->n_parts == 1) {
		*why = "there is no such part";
		return ST_INVALID_ARGUMENT;
	}
	if (r->window || r->applied_step) { /* optimizer state would have to come, too */
		*why = "a job that has made steps is not filled";
		return ST_INVALID_ARGUMENT;
	}
	if (lies < 0 || (!lies && (s == COMM_NONE || s == COMM_BROKEN))) {
		*why = "the communicator is broken";
		return ST_UNAVAILABLE;
	}
	if (lies > 0 || s == COMM_BUSY) {
		*why = lies > 0 ? "the communicator was not told of" : "the communicator is busy";
		return ST_NOT_READY;
	}
	if (gives(e, c) && !r->params_ready) {
		*why = "this part has no parameters to give";
		return ST_NOT_READY;
	}
	return ST_OK;
}

static bool is_same(const struct engine *e, const struct engine_command *c, const struct engine_command *other)
{
	return c->term == other->term && c->comm == other->comm && c->slot == other->slot && e->mem.plan->n_parts > 1;
}

void fill_begin(struct engine *e, const struct engine_command *c)
{
	struct fill *f = &e->fill;
	const char *why;
	if (f->stage && is_same(e, c, &f->command)) {
		engine_reply(e, &f->command, ST_CANCELLED, "sent again");
		f->command = *c;
		return;
	}
	if (f->done && is_same(e, c, &f->command) && e->state.r.params_ready) {
		answer_filled(e, c);
		return;
	}
	enum status st = f->stage ? ST_NOT_READY : judge(e, c, &why);
	if (st) {
		engine_reply(e, c, st, f->stage ? "another fill is under way" : why);
		return;
	}
	f->stage = FILL_CONNECTS; /* `task` may still be read for an aborted fill */
	f->command = *c;
	f->done = false;
	fill_on_connected(e);
}

/* ---- what becomes of it ---- */

void fill_drop(struct engine *e, enum status st)
{
	struct fill *f = &e->fill;
	if (!f->stage)
		return;
	f->stage = FILL_NONE;
	engine_reply(e, &f->command, st, NULL);
}

void fill_on_connected(struct engine *e)
{
	const struct coll_id id = engine_comm_id(e, &e->fill.command);
	if (e->fill.stage == FILL_CONNECTS && !comm_compare(e->comm, &id) && comm_state(e->comm) == COMM_READY)
		begin(e);
}

static void answer_failure(struct engine *e, const struct comm_event *why)
{
	struct engine_answer a = engine_answer_to(e, &e->fill.command, why->status);
	a.suspects = why->suspects;
	a.connected = why->connected;
	a.pieces = why->pieces;
	snprintf(a.text, sizeof(a.text), "%s", why->text);
	e->fill.stage = FILL_NONE;
	engine_send(e, &a);
}

void fill_on_lost(struct engine *e, const struct comm_event *why)
{
	if (e->fill.stage == FILL_CONNECTS)
		answer_failure(e, why);
}

/* The part that gives has looked at its own when they became ready. */
static enum status take(struct engine *e, char *why, size_t n_why)
{
	struct arith_params p;
	FAILPOINT(engine_fill_done);
	arith_need("taking parameters over", e->arith->ops->filled(e->arith));
	arith_need("looking at the parameters", e->arith->ops->inspect_params(e->arith, &p));
	return step_params_ready(e, &p, why, n_why);
}

void fill_on_done(struct engine *e, const struct comm_event *done)
{
	struct fill *f = &e->fill;
	const struct engine_command c = f->command;
	char why[sizeof(((struct engine_answer *)0)->text)] = "";
	enum status st = ST_OK;
	assert(f->stage == FILL_COPIES);
	if (done->status) {
		answer_failure(e, done);
		return;
	}
	f->stage = FILL_NONE;
	if (!gives(e, &c))
		st = take(e, why, sizeof(why));
	f->done = !st;
	if (st)
		engine_reply(e, &c, st, why);
	else
		answer_filled(e, &c);
}
