/* SPDX-License-Identifier: Apache-2.0 */
/* The fake engine: the real accum.c and control_state, a multiset instead of arenas, and death at any event. */
#include "sim.h"

#include "engine/commit.h"
#include "engine/judge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void answer(struct sim *s, const struct engine_answer *a)
{
	int64_t at = s->now + (int64_t)sim_random(s, 3 * MS);
	s->answer_at = at > s->answer_at ? at : s->answer_at + 1;
	struct event *e = sim_event(s, s->answer_at - s->now, EV_ENGINE_ANSWER);
	e->life = s->engine_life;
	e->answer = *a;
}

static struct engine_answer answer_to(const struct engine_command *c, enum status st)
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
	accum_fini(&s->accum);
	sim_exchange_left(s);
}

bool engine_take(struct sim *s, const struct engine_command *c)
{
	if (!s->engine_up)
		return false;
	int64_t at = s->now + (int64_t)sim_random(s, 2 * MS);
	s->command_at = at > s->command_at ? at : s->command_at + 1;
	struct event *e = sim_event(s, s->command_at - s->now, EV_ENGINE_COMMAND);
	e->life = s->engine_life;
	e->command = *c;
	return true;
}

static struct ledger_cell *cell(struct sim *s, uint32_t rank, uint32_t micro)
{
	return &s->ledger[rank * s->spec.max_micro_size + micro];
}

static void schedule_pass(struct sim *s)
{
	if (s->pass_scheduled)
		return;
	s->pass_scheduled = true;
	sim_event(s, (int64_t)sim_random(s, 4 * MS) + 1, EV_PASS)->life = s->engine_life;
}

/* To all who asked, as the engine's push.c does. */
static void answer_push(struct sim *s, const struct accum_entry *p, enum status st, uint32_t result)
{
	for (uint32_t i = 0; i < p->n_askers; i++) {
		struct engine_answer a = { .op = ENGINE_ADD,
					   .id = p->asker[i],
					   .rank = p->rank,
					   .window = s->d.r.window,
					   .rank_counted = s->d.rank[p->rank].counted,
					   .blocked_by = p->rank,
					   .status = st,
					   .result = result };
		answer(s, &a);
		result = result == PUSH_COUNTED ? PUSH_DUPLICATE : result;
	}
}

static void on_add(struct sim *s, const struct engine_command *c)
{
	struct engine_answer a = answer_to(c, ST_OK);
	const struct plan plan = { .job_id = 1,
				   .ranks = s->spec.ranks,
				   .slots = (s->spec.ranks + 1) * s->spec.slots_per_rank,
				   .slots_per_rank = s->spec.slots_per_rank,
				   .n_tensors = 1 };
	const struct window_state w = { &plan, &s->d, s->ledger, &s->accum };
	const struct push p = { .rank = c->rank,
				.micro = c->micro,
				.slot = c->slot - judge_first_slot(&w, c->rank),
				.sgen = c->sgen,
				.window = c->window,
				.data_key = c->data_key,
				.weight = c->weight,
				.lr = c->window_lr,
				.loss_scale = c->loss_scale };
	struct accum_entry e = { .asker = { c->id },
				 .n_askers = 1,
				 .sgen = c->sgen,
				 .rank = c->rank,
				 .micro = c->micro,
				 .slot = c->slot,
				 .weight = c->weight,
				 .data_key = c->data_key,
				 .window_lr = c->window_lr };
	const struct verdict v = judge_push(&w, &p);
	if (v.ruling >= PUSH_BAD_WEIGHT && v.ruling <= PUSH_BITMAP_END)
		sim_fail(s, "micro-batch %u of rank %u is ruled %d by the engine: no trainer sent that", c->micro,
			 c->rank, (int)v.ruling);
	if (v.ruling == PUSH_JOINS) {
		accum_join(&s->accum.entry[v.entry], c->id);
		return;
	}
	if (v.ruling == PUSH_QUEUES) {
		accum_queue(&s->accum, &e);
		schedule_pass(s);
		return;
	}
	a.status = v.status;
	a.result = v.result;
	a.blocked_by = c->rank;
	answer(s, &a);
}

/* A pass reads the slots as they are now, flips, and answers later: it may die in between. One micro-batch in thirty is
 * refused as non-finite when the spec says so. */
static void on_pass(struct sim *s)
{
	struct accum_entry *e[2], pass[2];
	s->pass_scheduled = false;
	uint32_t n = accum_next(&s->accum, &s->d, e, 2);
	for (uint32_t i = 0; i < n; i++)
		pass[i] = *e[i];
	for (uint32_t i = 0; i < n; i++) {
		const struct accum_entry *p = &pass[i];
		bool reject = s->spec.nonfinite != NONFINITE_SKIP_STEP && (p->data_key % 30) == 7;
		if (p->sgen != s->d.rank[p->rank].sgen)
			sim_fail(s, "I6: a pass adds a push of session %llu of rank %u, %llu is in force",
				 (unsigned long long)p->sgen, p->rank, (unsigned long long)s->d.rank[p->rank].sgen);
		if (reject) {
			control_set_bit(s->d.voided, s->spec.max_micro_size, p->rank, p->micro);
		} else {
			s->acc[s->n_acc++] = s->slot[p->slot];
			control_set_bit(s->d.counted, s->spec.max_micro_size, p->rank, p->micro);
			s->d.rank[p->rank].counted++;
			if (!s->d.r.count)
				s->d.r.window_lr = p->window_lr;
			s->d.r.count++;
			s->d.r.sum_weight += p->weight;
			*cell(s, p->rank, p->micro) =
				(struct ledger_cell){ .weight = p->weight, .data_key = p->data_key };
		}
		s->d.r.seq++;
		answer_push(s, p, ST_OK, reject ? PUSH_VOID : PUSH_COUNTED);
	}
	for (uint32_t i = 0; i < n; i++)
		accum_remove(&s->accum, accum_find(&s->accum, pass[i].rank, pass[i].micro));
	if (n)
		schedule_pass(s);
}

static void drop_queue(struct sim *s, uint32_t rank, uint64_t below_sgen, enum status st)
{
	struct accum_entry *p;
	while ((p = accum_find_stale(&s->accum, rank, below_sgen))) {
		answer_push(s, p, st, 0);
		accum_remove(&s->accum, p);
	}
}

static void on_attach(struct sim *s, const struct engine_command *c)
{
	struct control_rank *r = &s->d.rank[c->rank];
	struct engine_answer a = answer_to(c, c->sgen < r->sgen ? ST_SESSION_FENCED : ST_OK);
	if (!a.status) {
		uint32_t step_acked = r->session.step_acked;
		r->sgen = c->sgen;
		r->session = c->session;
		r->session.step_acked = step_acked;
		if (r->flushed == RANK_LEFT)
			r->flushed = RANK_FLUSHED;
		drop_queue(s, c->rank, c->sgen, ST_SESSION_FENCED);
	}
	answer(s, &a);
}

static void on_flush(struct sim *s, const struct engine_command *c)
{
	struct control_rank *r = &s->d.rank[c->rank];
	struct engine_answer a = answer_to(c, ST_OK);
	if (c->sgen < r->sgen)
		a.status = ST_SESSION_FENCED;
	else if (!c->leave && c->window != s->d.r.window)
		a.status = c->window < s->d.r.window ? ST_WINDOW_CLOSED : ST_NOT_CURRENT_WINDOW;
	else if (c->leave)
		r->flushed = RANK_LEFT;
	else if (!r->flushed)
		r->flushed = RANK_FLUSHED;
	if (!a.status)
		drop_queue(s, c->rank, UINT64_MAX, ST_FLUSHED);
	answer(s, &a);
}

static void fill_sums(struct sim *s, struct engine_answer *a)
{
	a->count = s->d.r.count;
	a->sum_weight = s->d.r.sum_weight;
	a->window_lr = s->d.r.window_lr;
}

struct sim_sums engine_sums(const struct sim *s)
{
	struct sim_sums own = { s->d.r.sum_weight, s->d.r.count * 77 + s->d.r.window };
	for (uint32_t i = 0; i < s->d.n_words; i++)
		own.digest = own.digest * 31 + s->d.counted[i];
	return own;
}

static void fill_vote(struct sim *s, struct engine_answer *a, const struct sim_sums *all)
{
	/* of the window alone, so that every attempt finds the same: now and then not finite, or far out */
	uint64_t luck = (s->seed + s->d.r.window) * UINT64_C(0x9E3779B97F4A7C15) >> 40;
	double norm = luck % 7 == 3 ? 100 : 1 + (double)(luck % 10) / 10;
	if (s->d.r.window >= s->level_window)
		norm *= 50;
	a->sumsq = pow(norm * all->weight * s->d.r.loss_scale, 2);
	a->nonfinite = luck % 5 == 2 && s->spec.dynamic_loss_scale.enabled;
	a->digest = all->digest;
}

static void freeze(struct sim *s)
{
	if (s->d.r.phase != WINDOW_OPEN)
		return;
	s->d.r.phase = WINDOW_CLOSED;
	drop_queue(s, UINT32_MAX, UINT64_MAX, ST_WINDOW_CLOSED);
}

static void on_close(struct sim *s, const struct engine_command *c)
{
	struct engine_answer a = answer_to(c, c->window == s->d.r.window ? ST_OK : ST_WINDOW_CLOSED);
	if (!a.status)
		freeze(s);
	fill_sums(s, &a);
	answer(s, &a);
}

static void on_go(struct sim *s, const struct engine_command *c)
{
	struct control_record *r = &s->d.r;
	struct engine_answer a = answer_to(c, ST_OK);
	if (c->window != r->window || (r->phase < WINDOW_CLOSED && !c->close))
		a.status = ST_ATTEMPT_FAILED;
	else if (c->term < r->prepared_term || (c->term == r->prepared_term && c->attempt < r->prepared_attempt))
		a.status = ST_STALE_ATTEMPT;
	if (!a.status)
		freeze(s);
	bool again = r->phase == WINDOW_PREPARED && c->term == r->prepared_term && c->attempt == r->prepared_attempt;
	if (!a.status && again) {
		fill_sums(s, &a);
		a.sumsq = r->prepared_sumsq;
		a.nonfinite = r->prepared_nonfinite;
		a.digest = r->prepared_digest;
	}
	if (a.status || again)
		answer(s, &a);
	else
		sim_exchange(s, c);
}

void engine_exchanged(struct sim *s, const struct engine_command *go, enum status st, const struct sim_sums *all)
{
	struct control_record *r = &s->d.r;
	struct engine_answer a = answer_to(go, st);
	fill_sums(s, &a);
	if (!st) {
		fill_vote(s, &a, all);
		r->seq++;
		r->phase = WINDOW_PREPARED;
		r->prepared_term = go->term;
		r->prepared_attempt = go->attempt;
		r->prepared_sumsq = a.sumsq;
		r->prepared_nonfinite = a.nonfinite;
		r->prepared_digest = a.digest;
	}
	answer(s, &a);
}

static void on_commit(struct sim *s, const struct engine_command *c)
{
	struct control_record *r = &s->d.r;
	struct engine_answer a = answer_to(c, ST_OK);
	if (c->window + 1 == r->window) {
		a.digest = r->params_digest;
		a.nonfinite = r->params_nonfinite;
		answer(s, &a);
		return;
	}
	if (c->window != r->window || r->phase != WINDOW_PREPARED || c->term != r->prepared_term ||
	    c->attempt != r->prepared_attempt) {
		a.status = ST_STALE_ATTEMPT;
		answer(s, &a);
		return;
	}
	const char *wrong = commit_wrong_number(c, s->spec.max_micro_size);
	for (uint32_t i = 0; i <= s->spec.n_groups && !wrong; i++) {
		const struct optim_group g = job_spec_group(&s->spec, i);
		wrong = commit_wrong_scalar(c, &s->spec.optim, &g);
	}
	if (wrong)
		sim_fail(s, "I9: the commit of window %llu has a %s that no engine takes",
			 (unsigned long long)c->window, wrong);
	bool reads = s->spec.optim.type == OPTIM_CLIENT && c->outcome == OUTCOME_APPLIED;
	if (reads && r->client_pending) {
		a.status = ST_NOT_READY;
		answer(s, &a);
		return;
	}
	struct commit k = { .window = c->window,
			    .term = c->term,
			    .attempt = c->attempt,
			    .outcome = c->outcome,
			    .applied_step = c->applied_step };
	sim_exchange_left(s);
	sim_check_apply(s, &k);
	s->applied[s->n_applied++] = k;
	r->params_nonfinite = k.outcome == OUTCOME_APPLIED && k.window == s->lost_window;
	if (reads) {
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
	memset(s->d.counted, 0, s->d.n_words * 8);
	memset(s->d.voided, 0, s->d.n_words * 8);
	for (uint32_t i = 0; i < s->spec.ranks; i++) {
		s->d.rank[i].counted = 0;
		s->d.rank[i].flushed = s->d.rank[i].flushed == RANK_LEFT ? RANK_LEFT : RANK_OPEN;
	}
	s->n_acc = 0;
	a.digest = r->params_digest;
	a.nonfinite = r->params_nonfinite;
	answer(s, &a);
}

static void on_ack(struct sim *s, const struct engine_command *c)
{
	struct control_record *r = &s->d.r;
	bool fenced = !c->last && c->sgen < s->d.rank[c->rank].sgen;
	struct engine_answer a = answer_to(c, c->window >= r->window ? ST_NOT_CURRENT_WINDOW
					      : fenced		     ? ST_SESSION_FENCED
								     : ST_OK);
	if (!a.status && r->client_pending && c->window == r->client_window) {
		if (c->last)
			r->client_pending = 0;
		else
			s->d.rank[c->rank].session.step_acked = 1;
	}
	answer(s, &a);
}

static void on_command(struct sim *s, const struct engine_command *c)
{
	s->d.r.seq++;
	if (s->accum.n)
		schedule_pass(s); /* what is queued may have got its turn */
	switch ((enum engine_op)c->op) {
	case ENGINE_ATTACH:
		on_attach(s, c);
		break;
	case ENGINE_ADD:
		on_add(s, c);
		break;
	case ENGINE_FLUSH:
		on_flush(s, c);
		break;
	case ENGINE_CLOSE:
		on_close(s, c);
		break;
	case ENGINE_GO:
		on_go(s, c);
		break;
	case ENGINE_COMMIT:
		on_commit(s, c);
		break;
	case ENGINE_ACK_STEP:
		on_ack(s, c);
		break;
	case ENGINE_INIT_PARAMS: {
		struct engine_answer a = answer_to(c, ST_OK);
		s->d.r.params_ready = 1;
		answer(s, &a);
		break;
	}
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
	if (job_on_engine_up(s->job, &s->d, sim_now(s)))
		sim_fail(s, "the job refuses the engine's control record");
}

void engine_event(struct sim *s, const struct event *e)
{
	if (e->type == EV_ENGINE_UP) {
		if (e->life == s->gaccd_life)
			on_up(s);
		return;
	}
	if (e->life != s->engine_life || !s->engine_up)
		return;
	if (e->type == EV_ENGINE_COMMAND)
		on_command(s, &e->command);
	else if (e->type == EV_PASS)
		on_pass(s);
	else if (s->gaccd_up)
		job_on_answer(s->job, &e->answer, sim_now(s));
}
