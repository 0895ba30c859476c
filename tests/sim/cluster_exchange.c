/* SPDX-License-Identifier: Apache-2.0 */
/* GO where a job has several parts: a collective of their engines, one for each attempt. It needs all of them, has no
 * time limit of its own, and breaks when one of them dies or leaves. For cluster.c. */
#include "cluster.h"

static struct exchange *find(struct cluster *c, uint64_t term, uint64_t attempt)
{
	for (uint32_t i = c->n_exchanges; i-- > 0;)
		if (c->exchange[i].term == term && c->exchange[i].attempt == attempt)
			return &c->exchange[i];
	if (c->n_exchanges == CLUSTER_EXCHANGES) {
		sim_fail(&c->whole, "I9: %u attempts are not enough", CLUSTER_EXCHANGES);
		return &c->exchange[0];
	}
	c->n.exchanges++;
	c->exchange[c->n_exchanges] = (struct exchange){ .term = term, .attempt = attempt };
	return &c->exchange[c->n_exchanges++];
}

static void tell(struct cluster *c, uint32_t part, const struct exchange *x, enum status st, int64_t within)
{
	struct item *i = cluster_item(c, (int64_t)sim_random(&c->whole, (uint64_t)within) + 1, ITEM_EXCHANGE);
	i->of = &c->part[part];
	i->exchange = (uint32_t)(x - c->exchange) + 1;
	i->e.life = c->part[part].engine_life;
	i->e.status = st;
}

/* Those that are in it and have not finished hear it; some of them have had all that they need. */
static void break_it(struct cluster *c, struct exchange *x)
{
	bool full = x->entered == (UINT32_C(1) << c->n_parts) - 1;
	if (x->broken)
		return;
	x->broken = true;
	for (uint32_t p = 0; p < c->n_parts; p++)
		if (c->member[p].exchange == (uint32_t)(x - c->exchange) + 1 && !(full && sim_chance(&c->whole, 500)))
			tell(c, p, x, ST_ATTEMPT_FAILED, 30 * MS);
}

void sim_exchange_left(struct sim *s)
{
	struct cluster *c = cluster_of(s);
	uint32_t p = cluster_part(s), i = c->member[p].exchange;
	c->member[p].exchange = 0;
	if (i && !(c->exchange[i - 1].finished & UINT32_C(1) << p)) {
		c->n.broken += !c->exchange[i - 1].broken;
		break_it(c, &c->exchange[i - 1]);
	}
}

void sim_exchange(struct sim *s, const struct engine_command *go)
{
	struct cluster *c = cluster_of(s);
	uint32_t p = cluster_part(s), bit = UINT32_C(1) << p;
	cluster_check_entry(c, go);
	sim_exchange_left(s);
	struct exchange *x = find(c, go->term, go->attempt);
	if (x->entered & bit) /* its connections are those of an earlier life */
		break_it(c, x);
	if (x->broken) {
		engine_exchanged(s, go, ST_ATTEMPT_FAILED, NULL);
		return;
	}
	x->entered |= bit;
	x->sums[p] = engine_sums(s);
	cluster_aim(c);
	c->member[p].go = *go;
	c->member[p].exchange = (uint32_t)(x - c->exchange) + 1;
	for (uint32_t i = 0; i < c->n_parts && x->entered == (UINT32_C(1) << c->n_parts) - 1; i++)
		tell(c, i, x, ST_OK, 8 * MS);
}

/* In order of the parts, so that all find the same bits. */
static struct sim_sums sum_up(const struct cluster *c, const struct exchange *x)
{
	struct sim_sums all = { 0, 0 };
	for (uint32_t i = 0; i < c->n_parts; i++) {
		all.weight += x->sums[i].weight;
		all.digest = all.digest * UINT64_C(0x100000001B3) + x->sums[i].digest;
	}
	return all;
}

/* This part has what it needs, or cannot have it. */
void cluster_on_exchange(struct cluster *c, const struct item *i)
{
	struct sim *s = i->of;
	uint32_t p = cluster_part(s);
	struct exchange *x = &c->exchange[i->exchange - 1];
	if (!s->engine_up || i->e.life != s->engine_life || c->member[p].exchange != i->exchange)
		return;
	struct sim_sums all = sum_up(c, x);
	if (!i->e.status)
		x->finished |= UINT32_C(1) << p;
	c->member[p].exchange = 0;
	engine_exchanged(s, &c->member[p].go, i->e.status, &all);
}

/* The network between two engines breaks. */
void cluster_break_exchange(struct cluster *c)
{
	if (!c->n_exchanges)
		return;
	c->n.broken += !c->exchange[c->n_exchanges - 1].broken;
	break_it(c, &c->exchange[c->n_exchanges - 1]);
}
