/* SPDX-License-Identifier: Apache-2.0 */
/* The fake engine: its life, sessions and commits, with the real control_state, a multiset instead of arenas,
 * and death at any event. Its pushes are sim_push.c's, its
 * mailboxes sim_box.c's, its votes sim_vote.c's. */
#include "sim.h"

#include "engine/commit.h"

#include <stdlib.h>
#include <string.h>

void engine_answer_with(struct sim *s, const struct engine_answer *a, const struct sim_address *address)
{
	int64_t at = s->now + (int64_t)sim_random(s, 3 * MS);
	s->answer_at = at > s->answer_at ? at : s->answer_at + 1;
	struct event *e = sim_event(s, s->answer_at - s->now, EV_ENGINE_ANSWER);
	e->life = s->engine_life;
	e->answer = *a;
	e->address = *address;
	if (s->n_sent == SIM_SENT)
		sim_fail(s, "%d answers of an engine have not been read", SIM_SENT);
	else
		s->sent[s->n_sent++] = e;
}

void engine_answer(struct sim *s, const struct engine_answer *a)
{
	static const struct sim_address none = { 0 };
	engine_answer_with(s, a, &none);
}

/* gaccd reads it. */
static void pass_on(struct sim *s, const struct event *e)
{
	const void *tail = e->answer.n_tail ? &e->address : NULL;
	if (e->answer.op == ENGINE_JOIN)
		job_on_joining(s->job, &e->answer, tail, sim_now(s));
	else
		job_on_answer(s->job, &e->answer, sim_now(s));
}

/* The first n. */
static void hear(struct sim *s, uint32_t n)
{
	struct event *e[SIM_SENT];
	memcpy(e, s->sent, n * sizeof(*e));
	memmove(s->sent, s->sent + n, (s->n_sent - n) * sizeof(*s->sent));
	s->n_sent -= n;
	s->n_sure -= n < s->n_sure ? n : s->n_sure;
	for (uint32_t i = 0; i < n; i++) {
		e[i]->life = 0;
		pass_on(s, e[i]);
	}
}

void engine_hear(struct sim *s)
{
	if (s->engine_up && s->gaccd_up)
		hear(s, s->n_sent);
}

struct engine_answer engine_answer_for(const struct engine_command *c, enum status st)
{
	return (struct engine_answer){
		.op = c->op, .id = c->id, .rank = c->rank, .window = c->window, .attempt = c->attempt, .status = st
	};
}

static void start_durable(struct sim *s)
{
	control_state_init(&s->d, s->spec.ranks, s->spec.max_micro_size);
	s->d.r.job_id = 1;
	s->d.r.epoch = 1;
	s->d.r.ranks = s->spec.ranks;
	s->d.r.micro_size = s->spec.micro_size;
	s->d.r.max_micro_size = s->spec.max_micro_size;
	s->d.r.loss_scale = s->spec.loss_scale;
	s->durable = true;
}

void engine_start(struct sim *s)
{
	if (s->engine_up || s->engine_starting)
		return;
	s->engine_starting = true;
	struct event *e = sim_event(s, (int64_t)sim_random(s, 20 * MS) + 1, EV_ENGINE_UP);
	e->life = s->gaccd_life;
}

void engine_kill(struct sim *s)
{
	if (!s->engine_up)
		return;
	s->engine_up = s->engine_starting = s->pass_scheduled = false;
	s->engine_life++;
	s->n_passed = 0;
	s->armed.waits = false;
	s->n_sent = s->n_sure = 0;
	s->had_box = false;
	memset(s->box, 0, sizeof(s->box));
	accum_fini(&s->accum);
	sim_comm_dies(s);
}

void engine_dies(struct sim *s)
{
	if (!s->engine_up)
		return;
	hear(s, s->n_sure);
	engine_kill(s);
	job_on_engine_down(s->job, sim_now(s));
	engine_start(s);
}

bool engine_take(struct sim *s, const struct engine_command *c, const void *present)
{
	if (!s->engine_up)
		return false;
	int64_t at = s->now + (int64_t)sim_random(s, 2 * MS);
	s->command_at = at > s->command_at ? at : s->command_at + 1;
	struct event *e = sim_event(s, s->command_at - s->now, EV_ENGINE_COMMAND);
	e->life = s->engine_life;
	e->command = *c;
	if (c->op == ENGINE_ADDRESS)
		memcpy(&e->address, present, sizeof(e->address));
	if (c->op == ENGINE_MAILBOX)
		e->box = sim_box_sent(s, c);
	return true;
}

static void on_attach(struct sim *s, const struct engine_command *c)
{
	struct control_rank *r = &s->d.rank[c->rank];
	struct engine_answer a = engine_answer_for(c, c->sgen < r->sgen ? ST_SESSION_FENCED : ST_OK);
	if (!a.status) {
		uint32_t step_acked = r->session.step_acked;
		sim_box_fence(s, c->rank, c->sgen);
		r->sgen = c->sgen;
		r->session = c->session;
		r->session.step_acked = step_acked;
		if (r->flushed == RANK_LEFT)
			r->flushed = RANK_FLUSHED;
		sim_push_drop(s, c->rank, c->sgen, ST_SESSION_FENCED);
	}
	engine_answer(s, &a);
}

/* What lies in the rank's cells came before it, and what is queued of that is awaited. */
static bool flush_waits(struct sim *s, uint32_t rank)
{
	return s->box[rank].of && s->d.r.phase == WINDOW_OPEN && accum_oldest(&s->accum, rank);
}

static void flush(struct sim *s, const struct engine_command *c)
{
	struct control_rank *r = &s->d.rank[c->rank];
	struct engine_answer a = engine_answer_for(c, ST_OK);
	uint32_t owing = sim_owing(s);
	if (c->sgen < r->sgen)
		a.status = ST_SESSION_FENCED;
	else if (!c->leave && c->window != s->d.r.window)
		a.status = c->window < s->d.r.window ? ST_WINDOW_CLOSED : ST_NOT_CURRENT_WINDOW;
	else if (c->leave)
		r->flushed = RANK_LEFT;
	else if (!r->flushed)
		r->flushed = RANK_FLUSHED;
	if (!a.status) {
		s->d.r.seq++;
		sim_push_drop(s, c->rank, UINT64_MAX, ST_FLUSHED);
		sim_push_progress(s, c->rank);
		sim_push_owe_nothing(s, owing);
	}
	engine_answer(s, &a);
}

static void on_flush(struct sim *s, const struct engine_command *c)
{
	struct sim_open_box *b = &s->box[c->rank];
	struct engine_answer gone = engine_answer_for(&b->flush, ST_UNAVAILABLE);
	sim_box_look(s, c->rank);
	if (!flush_waits(s, c->rank)) {
		flush(s, c);
		return;
	}
	if (b->flush.id)
		engine_answer(s, &gone);
	b->flush = *c;
}

/* Those that have waited long enough: at the end of each turn. */
static void flush_waiting(struct sim *s)
{
	for (uint32_t i = 0; i < s->spec.ranks; i++) {
		const struct engine_command c = s->box[i].flush;
		if (!c.id || flush_waits(s, i))
			continue;
		s->box[i].flush.id = 0;
		flush(s, &c);
	}
}

static bool reads_step(const struct sim *s, const struct engine_command *c)
{
	return s->spec.optim.type == OPTIM_CLIENT && c->outcome == OUTCOME_APPLIED;
}

void sim_commit_answer(struct sim *s, const struct engine_command *c)
{
	struct engine_answer a = engine_answer_for(c, ST_OK);
	a.digest = s->d.r.params_digest;
	a.nonfinite = s->d.r.params_nonfinite;
	engine_answer(s, &a);
}

static void on_commit(struct sim *s, const struct engine_command *c)
{
	struct control_record *r = &s->d.r;
	struct engine_answer a = engine_answer_for(c, ST_OK);
	if (sim_shares(s, c->outcome) && sim_comm_commit_again(s, c))
		return;
	if (c->window + 1 == r->window) {
		sim_commit_answer(s, c);
		return;
	}
	if (c->window != r->window || r->phase != WINDOW_PREPARED || c->term != r->prepared_term ||
	    c->attempt != r->prepared_attempt) {
		a.status = ST_STALE_ATTEMPT;
		engine_answer(s, &a);
		return;
	}
	const char *wrong = commit_wrong_number(c, s->spec.max_micro_size);
	for (uint32_t i = 0; i <= s->spec.n_groups && !wrong; i++) {
		const struct optim_group g = job_spec_group(&s->spec, i);
		wrong = commit_wrong_scalar(c, &s->spec.optim, &g, s->spec.untouched == UNTOUCHED_SKIP);
	}
	if (wrong)
		sim_fail(s, "I9: the commit of window %llu has a %s that no engine takes",
			 (unsigned long long)c->window, wrong);
	if (reads_step(s, c) && r->client_pending) {
		a.status = ST_NOT_READY;
		engine_answer(s, &a);
		return;
	}
	(sim_shares(s, c->outcome) ? sim_comm_share : sim_commit_open)(s, c);
}

void sim_commit_open(struct sim *s, const struct engine_command *c)
{
	struct control_record *r = &s->d.r;
	struct engine_answer a = engine_answer_for(c, ST_OK);
	struct commit k = { .window = c->window,
			    .term = c->term,
			    .attempt = c->attempt,
			    .outcome = c->outcome,
			    .applied_step = c->applied_step };
	sim_comm_commit(s, c);
	sim_check_apply(s, &k);
	s->applied[s->n_applied++] = k;
	r->params_nonfinite = k.outcome == OUTCOME_APPLIED && k.window == s->lost_window;
	if (reads_step(s, c)) {
		r->client_pending = 1;
		r->client_window = r->window;
		for (uint32_t i = 0; i < s->spec.ranks; i++)
			s->d.rank[i].session.step_acked = 0;
	}
	s->n_void += sim_count_void(s);
	r->window++;
	r->applied_step = c->applied_step;
	r->micro_size = c->next_micro_size;
	r->loss_scale = c->next_loss_scale;
	r->phase = WINDOW_OPEN;
	r->params_digest = r->params_digest * 31 + r->prepared_digest + c->attempt;
	r->count = 0;
	r->window_lr = 0;
	r->sum_weight = 0;
	r->prepared_term = r->prepared_attempt = 0;
	r->commit_window = k.window;
	r->commit_outcome = k.outcome;
	r->commit_result = c->result;
	memcpy(s->d.last_counted, s->d.counted, s->d.n_words * 8);
	memset(s->d.counted, 0, s->d.n_words * 8);
	memset(s->d.voided, 0, s->d.n_words * 8);
	for (uint32_t i = 0; i < s->spec.ranks; i++) {
		s->d.rank[i].counted = 0;
		s->d.rank[i].flushed = s->d.rank[i].flushed == RANK_LEFT ? RANK_LEFT : RANK_OPEN;
	}
	s->n_acc = 0;
	for (uint32_t i = 0; i < s->spec.ranks; i++)
		sim_push_progress(s, i);
	r->commit_next_loss_scale = c->next_loss_scale;
	r->commit_micro_size = c->next_micro_size;
	a.digest = r->params_digest;
	a.nonfinite = r->params_nonfinite;
	engine_answer(s, &a);
	sim_box_end_waits(s);
}

static void on_ack(struct sim *s, const struct engine_command *c)
{
	struct control_record *r = &s->d.r;
	bool fenced = !c->last && c->sgen < s->d.rank[c->rank].sgen;
	struct engine_answer a = engine_answer_for(c, c->window >= r->window ? ST_NOT_CURRENT_WINDOW
						      : fenced		     ? ST_SESSION_FENCED
									     : ST_OK);
	if (!a.status && r->client_pending && c->window == r->client_window) {
		if (c->last)
			r->client_pending = 0;
		else
			s->d.rank[c->rank].session.step_acked = 1;
	}
	engine_answer(s, &a);
}

/* The rules draw the same on all parts, and so do later engines; what ranks give is never twice the same. */
static void on_params(struct sim *s, const struct engine_command *c)
{
	struct control_record *r = &s->d.r;
	struct engine_answer a = engine_answer_for(c, ST_OK);
	bool puts = c->op == ENGINE_PUT_PARAMS;
	if (puts && c->sgen < s->d.rank[c->rank].sgen)
		a.status = ST_SESSION_FENCED;
	else if (!r->params_ready && sim_comm_fills(s))
		a.status = ST_NOT_READY;
	a.result = r->params_ready;
	if (!a.status && !r->params_ready && (!puts || c->last)) {
		r->params_ready = 1;
		r->params_digest = puts ? (uint64_t)s->part.number << 32 | ++s->n_puts : s->drawn;
	}
	a.digest = r->params_digest;
	engine_answer(s, &a);
}

static void on_command(struct sim *s, const struct event *e)
{
	const struct engine_command *c = &e->command;
	s->d.r.seq++;
	if (s->accum.n)
		sim_schedule_pass(s); /* what is queued may have got its turn */
	switch ((enum engine_op)c->op) {
	case ENGINE_ATTACH:
		on_attach(s, c);
		break;
	case ENGINE_ADD:
		sim_push_add(s, c);
		break;
	case ENGINE_FLUSH:
		on_flush(s, c);
		break;
	case ENGINE_CLOSE:
		sim_vote_close(s, c);
		break;
	case ENGINE_GO:
		s->part.n_parts > 1 ? sim_comm_command(s, e) : sim_vote_go(s, c);
		break;
	case ENGINE_JOIN:
	case ENGINE_ADDRESS:
	case ENGINE_ABORT:
	case ENGINE_FILL:
		sim_comm_command(s, e);
		break;
	case ENGINE_DISARM:
		sim_vote_disarm(s, c);
		break;
	case ENGINE_COMMIT:
		on_commit(s, c);
		break;
	case ENGINE_ACK_STEP:
		on_ack(s, c);
		break;
	case ENGINE_MAILBOX: {
		struct engine_answer a = engine_answer_for(c, sim_box_take(s, c, e->box));
		engine_answer(s, &a);
		break;
	}
	case ENGINE_INIT_PARAMS:
	case ENGINE_PUT_PARAMS:
		on_params(s, c);
		break;
	default:
		sim_fail(s, "the job sends the engine operation %u", c->op);
	}
}

static void on_up(struct sim *s)
{
	s->engine_starting = false;
	if (!s->gaccd_up || s->engine_up)
		return;
	if (!s->durable)
		start_durable(s);
	s->engine_up = true;
	s->engine_life++;
	s->command_at = s->answer_at = s->now;
	accum_init(&s->accum, s->spec.ranks * 4, s->spec.max_micro_size, s->spec.ordering == ORDER_CANONICAL);
	for (uint32_t i = 0; i < s->spec.ranks; i++)
		sim_push_progress(s, i);
	if (s->d.r.seq < s->told)
		sim_fail(s, "I4: an engine begins with record %llu, and %llu was told", (unsigned long long)s->d.r.seq,
			 (unsigned long long)s->told);
	if (job_on_engine_up(s->job, &s->d, sim_life(s), sim_now(s)))
		sim_fail(s, "the job refuses the engine's control record");
}

/* One thread: what a pass has recorded is answered before anything else is done. */
static void turn(struct sim *s, const struct event *e)
{
	sim_push_answer_pass(s);
	if (e->type == EV_ENGINE_COMMAND)
		on_command(s, e);
	else if (e->type == EV_PASS)
		sim_push_pass(s);
	else if (e->type == EV_BOX_BELL)
		sim_box_look(s, e->proc);
	flush_waiting(s);
	sim_vote_if_due(s);
}

void engine_event(struct sim *s, const struct event *e)
{
	bool between = e->type == EV_PASSED || e->type == EV_BOX_RING;
	if (e->type == EV_ENGINE_UP) {
		if (e->life == s->gaccd_life)
			on_up(s);
		return;
	}
	if (e->life != s->engine_life || !s->engine_up)
		return;
	if (between && s->faults && sim_chance(s, 3)) /* a record without its answers, an answer without its bell */
		engine_dies(s);
	else if (e->type == EV_BOX_RING)
		sim_box_ring(s, e->proc);
	else if (e->type != EV_ENGINE_ANSWER)
		turn(s, e);
	else if (s->gaccd_up)
		hear(s, 1); /* which is this one: they are in order */
}
