/* SPDX-License-Identifier: Apache-2.0 */
/* Votes on closed windows, applies commits, opens the next window, and sets the first parameters. For engine.c, and
 * for saving.c after a restore; the engine's main thread. */
#include "engine/process.h"

#include "engine/commit.h"
#include "base/log.h"
#include "proto/failpoint.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static bool is_client(const struct engine *e)
{
	return e->mem.plan->optim.type == OPTIM_CLIENT;
}

static bool is_divided(const struct engine *e)
{
	return e->mem.plan->n_parts > 1;
}

/* The half with the sum of the whole job, once a vote has been given: that of a job of several parts was taken into the
 * other half, so that it can be taken again (step_parts.c). */
static uint32_t sum_half(const struct engine *e)
{
	const struct control_record *r = &e->state.r;
	if (e->mem.plan->in_slot)
		return r->filled ? ARITH_IN_SLOT(r->filled - 1) : ARITH_NO_HALF;
	return is_divided(e) ? 1 - r->x : r->filled ? r->x : ARITH_NO_HALF;
}

/* A new attempt after a vote reads the sum again: the vote may have failed because memory did. */
static void know_norm(struct engine *e)
{
	const struct control_record *r = &e->state.r;
	if (is_divided(e)) /* known: the sum was looked at when it had been taken */
		return;
	if (!r->filled)
		e->norm = (struct arith_norm){ 0 };
	else if (!e->norm_known || r->phase == WINDOW_PREPARED)
		arith_need("looking at the sum", e->arith->ops->inspect(e->arith, sum_half(e), &e->norm));
	e->norm_known = true;
}

/* false: there is no vote, and the command is answered. */
static bool prepare(struct engine *e, const struct engine_command *c)
{
	struct control_record *r = &e->state.r;
	char why[sizeof(((struct engine_answer *)0)->text)];
	const enum status st = verify_params(e, why, sizeof(why));
	if (st) {
		engine_reply(e, c, st, why);
		return false;
	}
	know_norm(e);
	r->phase = WINDOW_PREPARED;
	r->term = r->prepared_term = c->term;
	r->prepared_attempt = c->attempt;
	r->prepared_sumsq = e->norm.sumsq;
	r->prepared_nonfinite = e->norm.nonfinite;
	r->prepared_digest = e->norm.digest;
	r->prepared_norms = 0;
	return true;
}

/* false: they would have had to be taken with the sum, and were not. */
static bool take_norms(struct engine *e)
{
	if (plan_is_sharded(e->mem.plan))
		return e->sum_task.norms;
	arith_need("taking norms", e->arith->ops->norms(e->arith, sum_half(e)));
	return true;
}

void step_vote(struct engine *e, const struct engine_command *go)
{
	struct control_record *r = &e->state.r;
	window_freeze(e);
	bool known = r->phase == WINDOW_PREPARED && r->prepared_term == go->term && r->prepared_attempt == go->attempt;
	if (!known && !prepare(e, go))
		return;
	if (go->want_norms && !r->prepared_norms && take_norms(e)) {
		r->prepared_norms = 1;
		known = false;
	}
	if (!known) {
		FAILPOINT(engine_prepared_before);
		engine_publish(e);
		FAILPOINT(engine_prepared_after);
	}
	struct engine_answer a = engine_answer_to(e, go, ST_OK);
	a.sumsq = r->prepared_sumsq;
	a.nonfinite = r->prepared_nonfinite;
	a.digest = r->prepared_digest;
	a.comm = go->comm;
	engine_send(e, &a);
}

void step_go(struct engine *e, const struct engine_command *c)
{
	const struct go_verdict v = go_judge(&e->state.r, &e->armed, e->owing, c);
	if (v.ruling == GO_REFUSED) {
		engine_reply(e, c, v.status, NULL);
		return;
	}
	window_disarm(e, ST_CANCELLED);
	if (v.ruling == GO_WAITS)
		e->armed = (struct go_armed){ .waits = true, .go = *c };
	else
		step_vote(e, c);
}

void step_vote_if_due(struct engine *e)
{
	const struct engine_command go = e->armed.go;
	if (!go_is_due(&e->state.r, &e->armed, e->owing))
		return;
	e->armed.waits = false;
	FAILPOINT(engine_armed_due);
	step_vote(e, &go);
}

void step_disarm(struct engine *e, const struct engine_command *c)
{
	enum status st = engine_check_window(e, c->window);
	if (st == ST_OK)
		window_disarm(e, ST_CANCELLED);
	struct engine_answer a = engine_answer_to(e, c, st);
	a.result = e->state.r.phase;
	engine_send(e, &a);
}

static const char *commit_wrong(const struct engine *e, const struct engine_command *c)
{
	const struct control_record *r = &e->state.r;
	bool applied = c->outcome == STEP_APPLIED;
	const char *number = commit_wrong_number(c, r->max_micro_size);
	if (number)
		return number;
	if (c->applied_step != r->applied_step + applied)
		return "applied_step";
	if (applied && !r->filled && !is_divided(e)) /* other parts may have added something */
		return "outcome: nothing was added";
	for (uint64_t i = 0; i < e->mem.plan->n_optim_groups && !number; i++)
		number = commit_wrong_scalar(c, &e->mem.plan->optim, &plan_optim_groups(e->mem.plan)[i],
					     e->mem.plan->skip_untouched);
	return number;
}

static enum status check_commit(const struct engine *e, const struct engine_command *c, const char **why)
{
	const struct control_record *r = &e->state.r;
	enum status st = engine_check_window(e, c->window);
	if (st)
		return st;
	if (r->phase != WINDOW_PREPARED || c->term != r->prepared_term || c->attempt != r->prepared_attempt) {
		*why = "not prepared for this attempt";
		return r->phase == WINDOW_PREPARED ? ST_STALE_ATTEMPT : ST_NOT_READY;
	}
	*why = commit_wrong(e, c);
	if (*why)
		return ST_INVALID_ARGUMENT;
	if (c->outcome != STEP_APPLIED)
		return ST_OK;
	if (is_client(e) && r->client_pending) {
		*why = "the reduced gradient of an earlier window is still being read";
		return ST_NOT_READY;
	}
	if (!is_client(e) && !r->params_ready) {
		*why = "there are no parameters yet";
		return ST_NOT_READY;
	}
	return ST_OK;
}

/* The commit is in the record before any parameter changes: from here on it can only be completed. */
static void record_commit(struct engine *e, const struct engine_command *c)
{
	struct control_record *r = &e->state.r;
	arith_need("beginning an update", e->arith->ops->update_begin(e->arith, c->window));
	r->phase = WINDOW_APPLYING;
	r->commit_window = c->window;
	r->commit_term = c->term;
	r->commit_attempt = c->attempt;
	r->commit_applied_step = c->applied_step;
	r->commit_outcome = c->outcome;
	r->commit_micro_size = c->next_micro_size;
	r->commit_scale = c->scale;
	r->commit_clip_value = c->clip_value;
	r->commit_lr = c->lr;
	r->commit_next_loss_scale = c->next_loss_scale;
	r->commit_result = c->result;
	engine_publish(e);
}

/* A checkpoint under way keeps what it has not read yet. */
static void protect_update(struct engine *e)
{
	static const enum segment_role roles[] = { SEG_PARAMS, SEG_MASTER, SEG_STATE0, SEG_STATE1 };
	for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++)
		arith_before_write(e->arith, roles[i]);
}

/* As a sentence without its end: "3 values of the parameters are inf or NaN, the first in tensor "w"". */
static void describe_nonfinite(const struct plan *p, const struct nonfinite *f, char *text, size_t n)
{
	const char *name = f->tensor < p->n_tensors ? plan_name(p, &plan_tensors(p)[f->tensor]) : "";
	snprintf(text, n, "%" PRIu64 " value%s of the parameters %s inf or NaN, the first in tensor \"%.80s\"",
		 f->count, f->count == 1 ? "" : "s", f->count == 1 ? "is" : "are", name);
}

/* Records the state that the update has left. If parameters are not finite, gaccd ends the job: only a checkpoint
 * leads back. */
static void note_params(struct engine *e, const struct arith_params *p)
{
	struct control_record *r = &e->state.r;
	char text[200];
	r->params_digest = p->digest;
	verify_note(e);
	r->params_nonfinite = p->nonfinite.count;
	r->nonfinite_tensor = p->nonfinite.tensor;
	if (!p->nonfinite.count)
		return;
	describe_nonfinite(e->mem.plan, &p->nonfinite, text, sizeof(text));
	log_line(LOG_ERROR, (struct log_fields){ e->mem.plan->job_id, -1, r->window, "ParamsNonfinite" },
		 "after the update: %s", text);
}

static void scale_for_client(struct engine *e)
{
	struct control_record *r = &e->state.r;
	const uint32_t sum = sum_half(e);
	arith_before_write(e->arith, sum ? SEG_ACCUM0 : SEG_ACCUM1);
	arith_need("scaling", e->arith->ops->scale(e->arith, 1 - sum, sum, r->commit_scale, r->commit_clip_value));
	r->client_pending = 1;
	r->client_window = r->window;
	for (uint32_t i = 0; i < r->ranks; i++)
		e->state.rank[i].session.step_acked = 0;
}

void step_begin_update(struct engine *e)
{
	protect_update(e);
	/* odd before the first store to a parameter; a predecessor may have set it already */
	atomic_fetch_or(&e->mem.status->seq, 1);
}

void step_update(struct engine *e, struct arith_params *out)
{
	arith_need("updating", e->arith->ops->update_run(e->arith, &e->state.r, sum_half(e), out));
	arith_need("showing the parameters", on_device_show_params(&e->mem, e->arith));
}

static void open_window(struct engine *e)
{
	struct control_state *s = &e->state;
	struct control_record *r = &s->r;
	/* trainers read their reduced gradient in P[1-x], and a job of several parts has it in P[x] */
	if (is_divided(e) && is_client(e) && r->commit_outcome == STEP_APPLIED)
		r->x = 1 - r->x;
	r->window++;
	r->applied_step = r->commit_applied_step;
	r->micro_size = r->commit_micro_size;
	r->loss_scale = r->commit_next_loss_scale;
	r->phase = WINDOW_OPEN;
	r->filled = 0;
	r->count = 0;
	r->sum_weight = r->sum_loss = 0;
	r->window_lr = 0;
	r->lr_rank = 0;
	r->prepared_term = r->prepared_attempt = 0;
	r->prepared_sumsq = 0;
	r->prepared_nonfinite = r->prepared_digest = 0;
	r->prepared_norms = 0;
	r->last_rank = UINT32_MAX;
	memcpy(s->last_counted, s->counted, s->n_words * sizeof(*s->counted));
	memset(s->counted, 0, s->n_words * sizeof(*s->counted));
	memset(s->voided, 0, s->n_words * sizeof(*s->voided));
	for (uint32_t i = 0; i < r->ranks; i++) {
		s->rank[i].counted = 0;
		if (s->rank[i].flushed == RANK_FLUSHED)
			s->rank[i].flushed = RANK_OPEN;
	}
}

void step_open(struct engine *e, const struct arith_params *p)
{
	if (p)
		note_params(e, p);
	if (p && e->touched.plan)
		touched_note(&e->touched, e->state.r.commit_applied_step, touched_half(e->mem.plan, &e->state.r));
	FAILPOINT(engine_params_step_before);
	open_window(e);
	engine_publish(e);
	FAILPOINT(engine_params_step_after);
	push_zero_slots(e); /* of one that was the sum until now */
	engine_show_status(e);
	engine_show_ranks(e);
}

void step_finish(struct engine *e)
{
	struct arith_params params;
	const bool steps = e->state.r.commit_outcome == STEP_APPLIED;
	if (steps && is_client(e))
		scale_for_client(e);
	if (steps && !is_client(e)) {
		step_begin_update(e);
		step_update(e, &params);
	}
	step_open(e, steps && !is_client(e) ? &params : NULL);
}

/* Sent again after it was done. */
static bool is_done(const struct engine *e, const struct engine_command *c)
{
	const struct control_record *r = &e->state.r;
	return c->window + 1 == r->window && c->window == r->commit_window && c->term == r->commit_term &&
	       c->attempt == r->commit_attempt;
}

void step_answer_commit(struct engine *e, const struct engine_command *c)
{
	struct engine_answer a = engine_answer_to(e, c, ST_OK);
	a.digest = e->state.r.params_digest;
	a.nonfinite = e->state.r.params_nonfinite;
	a.nonfinite_tensor = e->state.r.nonfinite_tensor;
	engine_send(e, &a);
}

bool step_record(struct engine *e, const struct engine_command *c)
{
	const char *why = NULL;
	enum status st = check_commit(e, c, &why);
	if (st) {
		engine_reply(e, c, st, why);
		return false;
	}
	record_commit(e, c);
	FAILPOINT(engine_commit_recorded);
	return true;
}

void step_commit(struct engine *e, const struct engine_command *c)
{
	bool done = is_done(e, c);
	if (!done) {
		if (!step_record(e, c))
			return;
		step_finish(e);
	}
	step_answer_commit(e, c);
	/* only now: the next that gaccd hears may be what a trainer does in the window that follows */
	if (!done)
		boxes_end_waits(e);
}

void step_ack(struct engine *e, const struct engine_command *c)
{
	struct control_record *r = &e->state.r;
	if (c->rank >= r->ranks || c->window >= r->window) {
		engine_reply(e, c, c->rank >= r->ranks ? ST_RANK_OUT_OF_RANGE : ST_NOT_CURRENT_WINDOW, NULL);
		return;
	}
	if (!c->last && c->sgen < e->state.rank[c->rank].sgen) {
		/* an old session cannot acknowledge for its successor */
		engine_reply(e, c, ST_SESSION_FENCED, "a newer process has attached as this rank");
		return;
	}
	if (r->client_pending && c->window == r->client_window) {
		if (c->last)
			r->client_pending = 0;
		else
			e->state.rank[c->rank].session.step_acked = 1;
		engine_publish(e);
	}
	engine_reply(e, c, ST_OK, NULL);
}

enum status step_params_ready(struct engine *e, const struct arith_params *p, char *why, size_t n_why)
{
	if (p->nonfinite.count) {
		describe_nonfinite(e->mem.plan, &p->nonfinite, why, n_why);
		return ST_NONFINITE;
	}
	arith_need("showing the parameters", on_device_show_params(&e->mem, e->arith));
	e->state.r.params_digest = p->digest;
	verify_note(e);
	e->state.r.params_ready = 1;
	engine_publish(e);
	if (is_divided(e)) /* a fill that failed has left the page odd */
		engine_show_status(e);
	log_job(e->mem.plan->job_id, LOG_INFO, "ParamsReady", "parameters are ready, digest %016" PRIx64,
		e->state.r.params_digest);
	return ST_OK;
}

static enum status check_and_declare(struct engine *e, char *why, size_t n_why)
{
	struct arith_params p;
	arith_need("looking at the parameters", e->arith->ops->inspect_params(e->arith, &p));
	return step_params_ready(e, &p, why, n_why);
}

static void answer_params(struct engine *e, const struct engine_command *c, bool were_ready)
{
	struct engine_answer a = engine_answer_to(e, c, ST_OK);
	a.result = were_ready;
	a.digest = e->state.r.params_digest;
	engine_send(e, &a);
}

bool step_is_being_filled(struct engine *e, const struct engine_command *c)
{
	if (e->state.r.params_ready || !comm_is_filling(e->comm))
		return false;
	engine_reply(e, c, ST_NOT_READY, "another part's parameters are coming");
	return true;
}

/* What a PUT_PARAMS names lies in its slot and in the parameters. */
static bool is_inside(const struct plan *p, const struct engine_command *c)
{
	return c->slot < p->slots && c->bytes <= p->slot_bytes && c->offset <= p->param_bytes &&
	       c->bytes <= p->param_bytes - c->offset;
}

void step_put_params(struct engine *e, const struct engine_command *c)
{
	char why[sizeof(((struct engine_answer *)0)->text)] = "";
	bool were_ready = e->state.r.params_ready;
	if (c->rank < e->state.r.ranks && c->sgen < e->state.rank[c->rank].sgen) {
		engine_reply(e, c, ST_SESSION_FENCED, "a newer process has attached as this rank");
		return;
	}
	if (step_is_being_filled(e, c))
		return;
	if (!were_ready) {
		enum status st = ST_OK;
		if (!is_inside(e->mem.plan, c)) {
			engine_reply(e, c, ST_INVALID_ARGUMENT, "outside the slot or the parameters");
			return;
		}
		arith_need("putting parameters", e->arith->ops->put(e->arith, c->slot, c->offset, c->bytes));
		FAILPOINT(engine_params_put);
		if (c->last) {
			st = check_and_declare(e, why, sizeof(why));
			FAILPOINT(engine_params_ready);
		}
		if (st) {
			engine_reply(e, c, st, why);
			return;
		}
	}
	answer_params(e, c, were_ready);
}

void step_init_params(struct engine *e, const struct engine_command *c)
{
	char why[sizeof(((struct engine_answer *)0)->text)] = "";
	bool were_ready = e->state.r.params_ready;
	if (step_is_being_filled(e, c))
		return;
	if (!were_ready) {
		arith_need("drawing parameters", e->arith->ops->init(e->arith));
		enum status st = check_and_declare(e, why, sizeof(why));
		if (st) {
			engine_reply(e, c, st, why);
			return;
		}
	}
	answer_params(e, c, were_ready);
}
