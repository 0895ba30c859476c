/* SPDX-License-Identifier: Apache-2.0 */
/* Commits of a sharded job: updates this part's share of the parameters, and gathers the others' meanwhile. For
 * joining.c and engine.c; the engine's main thread, while bytes move on the communication thread. */
#include "engine/process.h"

#include "proto/failpoint.h"

#include <assert.h>
#include <stdio.h>

bool apply_is_wanted(const struct engine *e, uint32_t outcome)
{
	return plan_is_sharded(e->mem.plan) && outcome == STEP_APPLIED;
}

static const char *explain(const struct apply_verdict *v, const struct engine_command *c)
{
	if (v->status == ST_UNAVAILABLE)
		return "the communicator is broken";
	if (v->status == ST_NOT_READY)
		return c->comm ? "the communicator was not told of, or is busy" : "no communicator is named";
	return "";
}

static void answer(struct engine *e, const struct engine_command *c, enum status st, const char *why)
{
	struct engine_answer a = engine_answer_to(e, c, st);
	a.result = e->state.r.phase;
	snprintf(a.text, sizeof(a.text), "%s", why);
	engine_send(e, &a);
}

static enum go_comm standing(const struct engine *e, const struct engine_command *c)
{
	return step_standing(e, &(struct engine_command){ .term = c->comm_term, .comm = c->comm });
}

/* ---- the share ---- */

static void know_share(struct engine *e)
{
	e->apply.has_share = true;
	e->apply.share_window = e->state.r.commit_window;
}

/* To its end, whatever becomes of a gather that has begun: the gather waits for nothing else. */
static void update_share(struct engine *e)
{
	struct arith_params own;
	step_update(e, &own);
	struct arith_share share = { .values = own.digest };
	arith_need("looking at the share", e->arith->ops->digests(e->arith, true, &share));
	know_share(e);
	FAILPOINT(engine_share_updated);
}

void apply_resume(struct engine *e)
{
	step_begin_update(e);
	update_share(e);
}

static enum status gather(void *arg, struct coll *coll)
{
	struct gather_task *t = arg;
	return t->arith->ops->gather(t->arith, coll, t->whole, t->table);
}

static void begin_gather(struct engine *e)
{
	struct apply *a = &e->apply;
	assert(!comm_is_working(e->comm));
	if (!a->has_share || a->share_window != e->state.r.commit_window) {
		struct arith_share share;
		arith_need("looking at the share", e->arith->ops->digests(e->arith, false, &share));
		know_share(e);
	}
	a->task = (struct gather_task){ .arith = e->arith, .whole = a->serves };
	a->at_hand.stage = APPLY_GATHERS;
	comm_gather(e->comm, gather, &a->task);
}

/* ---- the command ---- */

static void take(struct engine *e, const struct engine_command *c, enum go_comm comm, bool serves)
{
	e->apply.serves = serves;
	e->apply.at_hand = (struct apply_at_hand){ APPLY_CONNECTS, *c };
	if (comm == GO_COMM_FREE)
		begin_gather(e);
}

/* false: it is new. */
static bool apply_again(struct engine *e, const struct engine_command *c)
{
	struct apply *a = &e->apply;
	const enum go_comm comm = standing(e, c);
	const struct apply_verdict v = apply_judge(&e->state.r, &a->at_hand, &a->gathered, comm, c);
	switch (v.ruling) {
	case APPLY_IS_NEW:
		return false;
	case APPLY_DONE:
		step_answer_commit(e, c);
		break;
	case APPLY_JOINS:
		answer(e, &a->at_hand.command, ST_CANCELLED, "");
		a->at_hand.command = *c;
		break;
	case APPLY_REFUSED:
		answer(e, c, v.status, explain(&v, c));
		break;
	case APPLY_GOES_ON:
	case APPLY_SERVES:
		apply_drop(e, ST_CANCELLED); /* of another communicator, which is over */
		take(e, c, comm, v.ruling == APPLY_SERVES);
		break;
	}
	return true;
}

void apply_commit(struct engine *e, const struct engine_command *c)
{
	if (apply_again(e, c) || !step_record(e, c))
		return;
	step_begin_update(e);
	know_share(e);
	apply_again(e, c); /* first: each piece goes to the other parts as soon as it is updated */
	update_share(e);
}

/* ---- what becomes of it ---- */

void apply_drop(struct engine *e, enum status st)
{
	struct apply *a = &e->apply;
	if (!a->at_hand.stage)
		return;
	a->at_hand.stage = APPLY_NONE;
	answer(e, &a->at_hand.command, st, "");
}

void apply_on_connected(struct engine *e)
{
	struct apply *a = &e->apply;
	if (a->at_hand.stage == APPLY_CONNECTS && standing(e, &a->at_hand.command) == GO_COMM_FREE)
		begin_gather(e);
}

/* It says whom it has waited for. */
static void answer_failure(struct engine *e, const struct comm_event *why)
{
	struct engine_answer a = engine_answer_to(e, &e->apply.at_hand.command, why->status);
	a.result = e->state.r.phase;
	a.suspects = why->suspects;
	a.connected = why->connected;
	a.pieces = why->pieces;
	snprintf(a.text, sizeof(a.text), "%s", why->text);
	e->apply.at_hand.stage = APPLY_NONE;
	engine_send(e, &a);
}

void apply_on_lost(struct engine *e, const struct comm_event *why)
{
	const struct apply_at_hand *h = &e->apply.at_hand;
	if (h->stage == APPLY_CONNECTS && apply_names(&h->command, why->id.term, why->id.k))
		answer_failure(e, why);
}

void apply_on_done(struct engine *e, const struct comm_event *done)
{
	struct apply *a = &e->apply;
	struct arith_params params;
	const struct engine_command c = a->at_hand.command;
	assert(a->at_hand.stage == APPLY_GATHERS);
	if (done->status) {
		answer_failure(e, done);
		return;
	}
	a->at_hand.stage = APPLY_NONE;
	a->gathered = (struct apply_gathered){ c.comm_term, c.comm, c.window };
	if (a->serves) {
		step_answer_commit(e, &c);
		return;
	}
	assert(e->state.r.phase == WINDOW_APPLYING && e->state.r.commit_window == c.window);
	FAILPOINT(engine_shares_here);
	arith_need("looking at all shares", e->arith->ops->gathered(e->arith, a->task.table, &params));
	step_open(e, &params);
	step_answer_commit(e, &c);
	boxes_end_waits(e); /* only now, as in step.c */
}
