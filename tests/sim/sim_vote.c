/* SPDX-License-Identifier: Apache-2.0 */
/* Votes of the fake engine: CLOSE, GO, one that is armed (by the real table), and DISARM. Where a job has several
 * parts, GO is cluster_comm.c's. */
#include "sim.h"

#include <math.h>

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

static void disarm(struct sim *s)
{
	struct engine_answer a = engine_answer_for(&s->armed.go, ST_CANCELLED);
	if (s->armed.waits)
		engine_answer(s, &a);
	s->armed.waits = false;
}

void sim_vote_freeze(struct sim *s)
{
	if (s->d.r.phase != WINDOW_OPEN)
		return;
	s->d.r.phase = WINDOW_CLOSED;
	sim_push_drop(s, UINT32_MAX, UINT64_MAX, ST_WINDOW_CLOSED);
}

void sim_vote_close(struct sim *s, const struct engine_command *c)
{
	struct engine_answer a = engine_answer_for(c, c->window == s->d.r.window ? ST_OK : ST_WINDOW_CLOSED);
	if (!a.status) {
		disarm(s);
		sim_vote_freeze(s);
	}
	fill_sums(s, &a);
	engine_answer(s, &a);
}

void sim_vote_again(struct sim *s, const struct engine_command *c)
{
	struct engine_answer a = engine_answer_for(c, ST_OK);
	fill_sums(s, &a);
	a.sumsq = s->d.r.prepared_sumsq;
	a.nonfinite = s->d.r.prepared_nonfinite;
	a.digest = s->d.r.prepared_digest;
	engine_answer(s, &a);
}

void sim_vote_summed(struct sim *s, const struct engine_command *go, const struct sim_sums *all)
{
	struct control_record *r = &s->d.r;
	struct engine_answer a = engine_answer_for(go, ST_OK);
	fill_sums(s, &a);
	fill_vote(s, &a, all);
	r->seq++;
	r->phase = WINDOW_PREPARED;
	r->prepared_term = go->term;
	r->prepared_attempt = go->attempt;
	r->prepared_sumsq = a.sumsq;
	r->prepared_nonfinite = a.nonfinite;
	r->prepared_digest = a.digest;
	engine_answer(s, &a);
}

static void vote(struct sim *s, const struct engine_command *c)
{
	const struct control_record *r = &s->d.r;
	struct sim_sums own;
	sim_vote_freeze(s);
	own = engine_sums(s);
	if (r->phase == WINDOW_PREPARED && c->term == r->prepared_term && c->attempt == r->prepared_attempt)
		sim_vote_again(s, c);
	else
		sim_vote_summed(s, c, &own);
}

void sim_vote_go(struct sim *s, const struct engine_command *c)
{
	const struct go_verdict v = go_judge(&s->d.r, &s->armed, sim_owing(s), c);
	if (v.ruling == GO_REFUSED) {
		struct engine_answer a = engine_answer_for(c, v.status);
		engine_answer(s, &a);
		return;
	}
	disarm(s);
	if (v.ruling == GO_WAITS)
		s->armed = (struct go_armed){ true, *c };
	else
		vote(s, c);
}

void sim_vote_if_due(struct sim *s)
{
	const struct engine_command go = s->armed.go;
	if (s->n_passed || !go_is_due(&s->d.r, &s->armed, sim_owing(s)))
		return; /* the answers of a pass come before the vote */
	s->armed.waits = false;
	vote(s, &go);
}

void sim_vote_disarm(struct sim *s, const struct engine_command *c)
{
	bool is_over = c->window < s->d.r.window;
	struct engine_answer a = engine_answer_for(c, is_over ? ST_WINDOW_CLOSED : ST_OK);
	if (!is_over)
		disarm(s);
	a.result = s->d.r.phase;
	engine_answer(s, &a);
}
