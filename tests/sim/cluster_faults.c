/* SPDX-License-Identifier: Apache-2.0 */
/* What goes wrong in a run of the cluster, and what operators want meanwhile. For cluster.c. */
#include "cluster.h"

#include <string.h>

#define FAULTY_NS (3000 * MS) /* then the faults stop, and the job must end */

/* ---- operators: they speak with the coordinator in force ---- */

static void operator_holds(struct cluster *c, bool hold)
{
	struct coordinator *k = cluster_newest(c);
	if (k)
		cluster_write(k, EV_HELD)->e.hold = hold;
}

static void operator_updates(struct cluster *c)
{
	struct coordinator *k = cluster_newest(c);
	const char *field;
	char why[256];
	struct update u;
	if (!k)
		return;
	sim_draw_update(&c->whole, coord_window(k->c), &u);
	enum status st = coord_prepare_update(k->c, &u, &field, why, sizeof(why));
	if (st == ST_WINDOW_BEGUN || st == ST_JOB_ENDED || st == ST_NO_MEMORY)
		return;
	if (st) {
		sim_fail(&c->whole, "an update is refused: %s", why);
		return;
	}
	cluster_write(k, EV_UPDATED)->e.update = u;
	coord_take_update(k->c, &u);
}

static void operator_acts(struct cluster *c)
{
	struct sim *s = &c->whole;
	if (sim_chance(s, 600)) {
		operator_updates(c);
	} else {
		s->hold_until = s->now + (int64_t)sim_random(s, 400 * MS);
		operator_holds(c, true);
	}
}

void cluster_resume(struct cluster *c)
{
	struct sim *s = &c->whole;
	struct coordinator *k = cluster_newest(c);
	if (k && s->now >= s->hold_until && s->now >= s->store_at && coord_held(k->c))
		operator_holds(c, false);
}

static void flush(struct cluster *c)
{
	struct coordinator *k = cluster_newest(c);
	uint64_t window;
	if (!k || coord_flush(k->c, &window, sim_now(&c->whole)))
		return;
	cluster_say(c, "an operator closes window %llu", (unsigned long long)window);
	c->n.flushes++;
	if (window + 1 > c->flushed_window) /* the one of a coordinator that has just started may be over */
		c->flushed_window = window + 1;
}

/* ---- ranks that give parameters ---- */

/* The newest process of the part that may give some. */
static const struct proc *giver(const struct sim *s)
{
	for (uint32_t i = s->n_procs; i-- > 0;)
		if (s->proc[i].state == PROC_READY && !s->proc[i].stopped)
			return &s->proc[i];
	return NULL;
}

static void give(struct sim *s)
{
	const struct proc *p = giver(s);
	struct session_key k = { .uid = 1000 };
	if (!p)
		return;
	k.rank = sim_rank(s, p);
	memcpy(k.token, p->token, sizeof(k.token));
	job_put_params(s->job, ++s->last_call << 8 | SIM_PUT, &k, 0, 0, job_arena(s->job)->param_bytes, true,
		       sim_now(s));
}

void cluster_give_params(struct cluster *c)
{
	for (uint32_t p = 0; p < c->n_parts; p++) {
		struct sim *s = &c->part[p];
		bool may = c->whole.puts && c->givers >> p & 1 && s->gaccd_up && !s->d.r.window;
		if (may && !job_params_ready(s->job) && sim_chance(s, 500))
			give(s);
	}
}

/* ---- faults ---- */

static void kill_engine(struct cluster *c, struct sim *s)
{
	if (!s->engine_up)
		return;
	cluster_say(c, "part %u: its engine dies", cluster_part(s));
	c->n.engines++;
	engine_dies(s);
}

/* The memory of all its parts goes with it once in a run, and in few. */
static void kill_node(struct cluster *c, uint32_t node)
{
	bool lose = c->whole.seed % 16 == 5 && !c->memory_lost && sim_chance(&c->whole, 300);
	if (!c->node[node].up)
		return;
	cluster_say(c, "node %u dies%s", node, lose ? ", and its memory is lost" : "");
	c->n.nodes++;
	cluster_kill_node(c, node, lose);
	c->n.lost += lose && c->memory_lost;
}

/* Another node's gaccd takes over, whether or not the one before is alive. */
static void take_over(struct cluster *c, uint32_t node)
{
	if (!c->node[node].gaccd_up)
		return;
	c->n.takeovers++;
	cluster_start_coordinator(c, node);
}

/* In one direction, or in both. */
static void cut(struct cluster *c, uint32_t node)
{
	struct sim *s = &c->whole;
	int64_t until = s->now + (int64_t)sim_random(s, 2000 * MS);
	uint64_t how = sim_random(s, 3);
	cluster_say(c, "node %u is cut off until %.3f: %s", node, (double)until / 1e9,
		    how == 0   ? "it hears nothing"
		    : how == 1 ? "it is not heard"
			       : "both ways");
	c->n.cuts++;
	if (how != 1)
		c->node[node].deaf_until = until;
	if (how != 0)
		c->node[node].mute_until = until;
}

static void end_faults(struct cluster *c)
{
	c->whole.faults = false;
	for (uint32_t p = 0; p < c->n_parts; p++) {
		c->part[p].faults = false;
		if (c->whole.deserted)
			trainers_desert(&c->part[p]);
	}
}

static void one_fault(struct cluster *c)
{
	struct sim *s = &c->whole, *part = &c->part[sim_random(s, c->n_parts)];
	uint32_t node = (uint32_t)sim_random(s, c->n_nodes);
	uint64_t what = sim_random(s, 100), before = part->n_kills;
	if (what < 32) {
		trainer_fault(part);
		c->n.trainers += part->n_kills - before;
	} else if (what < 54) {
		kill_engine(c, part);
	} else if (what < 66) {
		cluster_kill_gaccd(c, node);
	} else if (what < 74) {
		kill_node(c, node);
	} else if (what < 82) {
		take_over(c, node);
	} else if (what < 88) {
		flush(c);
	} else if (what < 95) {
		cut(c, node);
	} else {
		cluster_break_comm(c);
	}
}

void cluster_fault(struct cluster *c)
{
	struct sim *s = &c->whole;
	if (!s->faults || s->now > FAULTY_NS || s->ended) {
		if (s->faults || s->deserted)
			end_faults(c);
		return;
	}
	if (s->operators && sim_chance(s, 300))
		operator_acts(c);
	one_fault(c);
	cluster_item(c, (int64_t)sim_random(s, (uint64_t)c->fault_every) + 1, ITEM_FAULT);
}

void cluster_aim(struct cluster *c, struct sim *part, int per_mille)
{
	struct sim *s = &c->whole;
	if (s->faults && sim_chance(s, per_mille))
		cluster_item(c, (int64_t)sim_random(s, 12 * MS) + 1, ITEM_AIMED)->of = part;
}

void cluster_aimed(struct cluster *c, struct sim *part)
{
	struct sim *s = &c->whole;
	uint64_t what = sim_random(s, 100);
	if (!s->faults || s->ended)
		return;
	if (part) {
		kill_engine(c, part);
		return;
	}
	part = &c->part[sim_random(s, c->n_parts)];
	if (what < 60)
		kill_engine(c, part);
	else if (what < 80)
		cluster_kill_gaccd(c, c->node_of[cluster_part(part)]);
	else if (what < 90)
		take_over(c, (uint32_t)sim_random(s, c->n_nodes));
	else
		cluster_break_comm(c);
}
