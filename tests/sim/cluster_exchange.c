/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators of the fake engines, as the network has them: who has joined, what they do together, and how that
 * fails. A call takes a while and comes back as an ITEM_CALL. For cluster_comm.c. */
#include "cluster.h"

static uint32_t all_parts(const struct cluster *c)
{
	return (UINT32_C(1) << c->n_parts) - 1;
}

static struct cluster_comm *comm_of(struct cluster *c, const struct sim *part)
{
	uint32_t i = c->member[cluster_part(part)].engine.comm;
	return i ? &c->comm[i - 1] : NULL;
}

static bool is_calling(struct cluster *c, uint32_t part, const struct cluster_comm *x)
{
	const struct cluster_engine *e = &c->member[part].engine;
	return e->comm && x == &c->comm[e->comm - 1] && (e->state == COMM_JOINING || e->state == COMM_BUSY);
}

void cluster_comm_back(struct cluster *c, struct sim *part, enum status st, int64_t delay)
{
	struct item *i = cluster_item(c, delay, ITEM_CALL);
	i->of = part;
	i->e.life = part->engine_life;
	i->e.call = c->member[cluster_part(part)].engine.call;
	i->e.status = st;
}

static void soon(struct cluster *c, uint32_t part, enum status st, int64_t within)
{
	cluster_comm_back(c, &c->part[part], st, (int64_t)sim_random(&c->whole, (uint64_t)within) + 1);
}

uint32_t cluster_comm_open(struct cluster *c, uint64_t term, uint64_t k)
{
	for (uint32_t i = c->n_comms; i-- > 0;)
		if (c->comm[i].term == term && c->comm[i].k == k)
			return i + 1;
	if (c->n_comms == CLUSTER_COMMS) {
		sim_fail(&c->whole, "I9: %u communicators are not enough", CLUSTER_COMMS);
		return 1;
	}
	c->n.comms++;
	c->comm[c->n_comms] = (struct cluster_comm){ .term = term, .k = k };
	return ++c->n_comms;
}

/* Those that are in a call hear it; some have had all that they need, and their call has just come back. */
static void break_it(struct cluster *c, struct cluster_comm *x)
{
	bool full = x->op.kind ? x->op.entered == all_parts(c) : x->joined;
	if (x->broken)
		return;
	x->broken = true;
	c->n.broken++;
	for (uint32_t p = 0; p < c->n_parts; p++)
		if (is_calling(c, p, x) && !(full && sim_chance(&c->whole, 500)))
			soon(c, p, ST_UNAVAILABLE, 30 * MS);
}

void cluster_comm_leave(struct cluster *c, struct sim *part)
{
	struct cluster_comm *x = comm_of(c, part);
	uint32_t bit = UINT32_C(1) << cluster_part(part);
	if (!x || x->gone & bit)
		return;
	x->gone |= bit;
	if (x->joined) {
		break_it(c, x);
		return;
	}
	for (uint32_t p = 0; p < c->n_parts; p++) /* some had a connection to it */
		if (is_calling(c, p, x) && sim_chance(&c->whole, 500))
			soon(c, p, ST_UNAVAILABLE, 30 * MS);
}

void cluster_comm_join(struct cluster *c, struct sim *part)
{
	struct cluster_comm *x = comm_of(c, part);
	x->joining |= UINT32_C(1) << cluster_part(part);
	cluster_comm_back(c, part, ST_STALLED, c->member[cluster_part(part)].engine.join_ns);
	if (x->gone && sim_chance(&c->whole, 500))
		soon(c, cluster_part(part), ST_UNAVAILABLE, 30 * MS);
	if (x->joining != all_parts(c) || x->gone)
		return;
	x->joined = true;
	c->n.joined++;
	for (uint32_t p = 0; p < c->n_parts; p++)
		soon(c, p, ST_OK, 8 * MS);
}

/* ---- together ---- */

static bool is_same(const struct cluster_op *a, const struct cluster_op *b)
{
	return a->kind == b->kind && a->window == b->window && a->attempt == b->attempt && a->root == b->root;
}

/* I27 again: what has not ended for all is followed by nothing else. */
static void take_up(struct cluster *c, struct cluster_comm *x, const struct cluster_op *op, uint32_t part)
{
	if (x->op.kind && x->op.finished != all_parts(c) && !is_same(&x->op, op))
		sim_fail(&c->whole, "I27: part %u begins attempt %llu in communicator %llu, where others are in %llu",
			 part, (unsigned long long)op->attempt, (unsigned long long)x->k,
			 (unsigned long long)x->op.attempt);
	if (is_same(&x->op, op))
		return;
	c->n.sums += op->kind == OP_SUM;
	c->n.fills += op->kind == OP_FILL;
	c->n.gathers += op->kind == OP_GATHER;
	x->op = *op;
}

/* The sum of one window is slow in some runs, and its pieces come one by one. */
static void go_slowly(struct cluster *c)
{
	for (uint32_t p = 0; p < c->n_parts; p++) {
		c->member[p].engine.moved_ns = c->whole.now;
		for (int i = 1; i < 8; i++)
			cluster_comm_back(c, &c->part[p], ST_NOT_READY, i * 500 * MS);
		cluster_comm_back(c, &c->part[p], ST_OK, 4000 * MS);
	}
}

/* Who takes parameters needs only the one that gives them; a sum needs all. */
static void serve(struct cluster *c, struct cluster_comm *x, uint32_t part)
{
	struct cluster_op *op = &x->op;
	bool full = op->entered == all_parts(c);
	if (op->kind == OP_SUM && full && op->window == c->slow_window) {
		go_slowly(c);
		return;
	}
	for (uint32_t p = 0; p < c->n_parts; p++) {
		bool filled = op->kind == OP_FILL && op->entered & UINT32_C(1) << op->root &&
			      (p == part || part == op->root) && op->entered & UINT32_C(1) << p;
		/* some have all shares long before others */
		const int64_t within = op->kind == OP_GATHER && sim_chance(&c->whole, 300) ? 80 * MS : 8 * MS;
		if (filled || (op->kind != OP_FILL && full))
			soon(c, p, ST_OK, within);
	}
}

void cluster_comm_enter(struct cluster *c, struct sim *s, const struct cluster_op *op)
{
	struct cluster_comm *x = comm_of(c, s);
	uint32_t p = cluster_part(s);
	cluster_check_life(c, x, p, sim_life(s));
	if (x->broken || x->gone) {
		soon(c, p, ST_UNAVAILABLE, 30 * MS);
		return;
	}
	take_up(c, x, op, p);
	x->op.entered |= UINT32_C(1) << p;
	x->op.sums[p] = engine_sums(s);
	x->op.shares[p] = c->member[p].share;
	if (op->kind == OP_FILL && op->root == p)
		x->op.digest = s->d.r.params_digest;
	cluster_comm_back(c, s, ST_STALLED, CLUSTER_STALL_NS);
	cluster_aim(c, NULL, 200);
	serve(c, x, p);
}

struct sim_sums cluster_sum_up(const struct cluster *c, const struct cluster_op *op)
{
	struct sim_sums all = { 0, 0 };
	for (uint32_t i = 0; i < c->n_parts; i++) {
		all.weight += op->sums[i].weight;
		all.digest = all.digest * UINT64_C(0x100000001B3) + op->sums[i].digest;
	}
	return all;
}

void cluster_break_comm(struct cluster *c)
{
	if (c->n_comms && c->comm[c->n_comms - 1].joined)
		break_it(c, &c->comm[c->n_comms - 1]);
}
