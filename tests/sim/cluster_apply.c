/* SPDX-License-Identifier: Apache-2.0 */
/* Commits of a sharded job in a fake engine, by the real table of engine/apply.h: it updates its share at once, and
 * gets the others' in its communicator. For sim_engine.c and cluster_comm.c. */
#include "cluster.h"

static struct cluster_member *member_of(struct sim *s)
{
	return &cluster_of(s)->member[cluster_part(s)];
}

bool sim_shares(const struct sim *s, uint32_t outcome)
{
	return s->part.n_parts > 1 && spec_is_sharded(&s->spec) && outcome == OUTCOME_APPLIED;
}

static void answer(struct sim *s, const struct engine_command *c, enum status st, uint32_t suspects)
{
	struct engine_answer a = engine_answer_for(c, st);
	a.comm = c->comm;
	a.window = s->d.r.window;
	a.result = s->d.r.phase;
	a.suspects = suspects;
	engine_answer(s, &a);
}

void cluster_apply_end(struct sim *s, enum status st, uint32_t suspects)
{
	struct apply_at_hand *h = &cluster_engine(s)->apply;
	if (h->stage)
		answer(s, &h->command, st, suspects);
	h->stage = APPLY_NONE;
}

void cluster_apply_if_due(struct sim *s)
{
	struct cluster_engine *e = cluster_engine(s);
	const struct engine_command *c = &e->apply.command;
	const struct cluster_op op = { .kind = OP_GATHER, .window = c->window, .attempt = c->attempt };
	if (e->apply.stage != APPLY_CONNECTS || cluster_standing(s, c->comm_term, c->comm) != GO_COMM_FREE)
		return;
	e->apply.stage = APPLY_GATHERS;
	e->state = COMM_BUSY;
	e->call++;
	cluster_comm_enter(cluster_of(s), s, &op);
	cluster_aim(cluster_of(s), s, 100);
}

bool sim_comm_commit_again(struct sim *s, const struct engine_command *c)
{
	struct cluster_engine *e = cluster_engine(s);
	const enum go_comm comm = cluster_standing(s, c->comm_term, c->comm);
	const struct apply_verdict v = apply_judge(&s->d.r, &e->apply, &e->gathered, comm, c);
	switch (v.ruling) {
	case APPLY_IS_NEW:
		return false;
	case APPLY_DONE:
		sim_commit_answer(s, c);
		break;
	case APPLY_JOINS:
		answer(s, &e->apply.command, ST_CANCELLED, 0);
		e->apply.command = *c;
		break;
	case APPLY_REFUSED:
		answer(s, c, v.status, 0);
		break;
	case APPLY_GOES_ON:
	case APPLY_SERVES:
		cluster_apply_end(s, ST_CANCELLED, 0);
		e->serves = v.ruling == APPLY_SERVES;
		e->apply = (struct apply_at_hand){ APPLY_CONNECTS, *c };
		cluster_apply_if_due(s);
		break;
	}
	return true;
}

/* The record has it. */
void sim_comm_share(struct sim *s, const struct engine_command *c)
{
	struct control_record *r = &s->d.r;
	sim_comm_commit(s, c);
	if (member_of(s)->share > c->window)
		sim_fail(s, "I35: part %u updates its share for window %llu, and it is of a later one", cluster_part(s),
			 (unsigned long long)c->window);
	r->seq++;
	r->phase = WINDOW_APPLYING;
	r->commit_window = c->window;
	r->commit_term = c->term;
	r->commit_attempt = c->attempt;
	r->commit_outcome = c->outcome;
	member_of(s)->share = c->window + 1;
	sim_comm_commit_again(s, c);
}

/* I35: the shares that a part takes together are all of the same step. */
void cluster_apply_finish(struct sim *s)
{
	struct cluster *c = cluster_of(s);
	struct cluster_engine *e = cluster_engine(s);
	const struct engine_command commit = e->apply.command;
	const struct cluster_op *op = &c->comm[e->comm - 1].op;
	e->apply.stage = APPLY_NONE;
	e->gathered = (struct apply_gathered){ commit.comm_term, commit.comm, commit.window };
	for (uint32_t p = 0; p < c->n_parts; p++)
		if (op->shares[p] != commit.window + 1)
			sim_fail(s,
				 "I35: part %u takes the share of part %u, of the step of window %llu, for window %llu",
				 cluster_part(s), p, (unsigned long long)op->shares[p] - 1,
				 (unsigned long long)commit.window);
	c->n.serves += e->serves;
	cluster_aim(c, NULL, 300); /* while others have not got them */
	if (e->serves)
		sim_commit_answer(s, &commit);
	else
		sim_commit_open(s, &commit);
}
