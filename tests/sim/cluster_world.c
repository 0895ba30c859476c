/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes, gaccds and coordinators that live and die, and the network between them. For cluster.c. */
#include "cluster.h"

#include "cluster/board_message.h"
#include "cluster/order_message.h"
#include "cluster/report_message.h"

#include <stdlib.h>
#include <string.h>

/* ---- the network ---- */

/* Copies of a message between a job and a coordinator: none, one or two. A node that is cut off in this direction gets,
 * or sends, none; within a node nothing is cut. */
static int copies(struct cluster *c, uint32_t from, uint32_t to)
{
	struct sim *s = &c->whole;
	if (!s->faults)
		return 1;
	if (from != to && (c->node[from].mute_until > s->now || c->node[to].deaf_until > s->now))
		return 0;
	return sim_chance(s, 100) ? 0 : sim_chance(s, 100) ? 2 : 1;
}

/* A message on its way: the bytes that gaccds send each other. */
static struct item *put(struct sim *part, enum item_kind kind, const void *bytes, size_t n)
{
	struct item *i = cluster_item(cluster_of(part), sim_net_delay(part), kind);
	i->of = part;
	i->bytes = malloc(n);
	i->n_bytes = n;
	memcpy(i->bytes, bytes, n);
	return i;
}

/* Tells whether a message can be read. One for which there is no memory is lost. */
static bool is_readable(struct cluster *c, enum status st, const char *what, const char *why)
{
	if (st && st != ST_NO_MEMORY)
		sim_fail(&c->whole, "%s is refused: %s", what, why);
	return !st;
}

static void port_report(void *ctx, const struct report *r)
{
	struct sim *s = ctx;
	struct cluster *c = cluster_of(s);
	size_t n = 0;
	void *bytes = report_pack(r, &n);
	cluster_check_report(c, s, r);
	sim_note_report(s, r);
	for (uint32_t k = 0; k < CLUSTER_COORDS && bytes; k++) {
		struct coordinator *to = &c->coord[k];
		for (int i = to->c ? copies(c, c->node_of[cluster_part(s)], to->node) : 0; i > 0; i--)
			put(s, ITEM_REPORT, bytes, n)->e.life = to->term;
	}
	free(bytes);
}

void sim_port_blob(void *ctx, const struct part_blob *b)
{
	struct sim *s = ctx;
	struct cluster *c = cluster_of(s);
	size_t n = 0;
	void *bytes = blob_pack(b, &n);
	for (uint32_t k = 0; k < CLUSTER_COORDS && bytes; k++) {
		struct coordinator *to = &c->coord[k];
		for (int i = to->c ? copies(c, c->node_of[cluster_part(s)], to->node) : 0; i > 0; i--)
			put(s, ITEM_BLOB, bytes, n)->e.life = to->term;
	}
	free(bytes);
}

static struct message_bounds bounds_of(const struct cluster *c)
{
	struct message_bounds b = message_bounds_of(&c->whole.spec);
	b.parts = c->n_parts;
	return b;
}

/* Those that were overtaken tell it nothing. */
static void note_report(struct coordinator *k, const struct report *r)
{
	struct cluster_said *is = &k->said[r->part];
	bool newer = r->incarnation != is->incarnation ? r->incarnation > is->incarnation : r->number > is->number;
	if (newer && r->term <= k->term)
		*is = (struct cluster_said){ r->incarnation, r->number, r->life, r->comm, r->term };
}

void cluster_on_report(struct cluster *c, const struct item *i)
{
	struct coordinator *to = cluster_find(c, i->e.life);
	const struct part_ranks *ranks = &c->ranks[cluster_part(i->of)];
	struct report r;
	char why[200];
	const struct message_bounds bounds = bounds_of(c);
	enum status st = report_unpack(i->bytes, i->n_bytes, ranks, &bounds, &r, why, sizeof(why));
	if (!is_readable(c, st, "a report", why))
		return;
	if (to)
		note_report(to, &r);
	if (to)
		coord_on_report(to->c, &r, sim_now(&c->whole));
	report_release(&r);
}

void cluster_on_blob(struct cluster *c, const struct item *i)
{
	struct coordinator *to = cluster_find(c, i->e.life);
	struct held_blob b;
	char why[200];
	enum status st = blob_unpack(i->bytes, i->n_bytes, c->n_parts, &b, why, sizeof(why));
	if (!is_readable(c, st, "an address", why))
		return;
	st = to ? coord_on_blob(to->c, &b.blob, sim_now(&c->whole)) : ST_OK;
	if (st == ST_MALFORMED || st == ST_INVALID_ARGUMENT)
		sim_fail(&c->whole, "the address of part %u is refused: %s", b.blob.part, status_info(st)->name);
	if (!st)
		cluster_aim(c, NULL, 20); /* with the board half full */
	blob_release(&b);
}

static void port_board(void *ctx, uint32_t part, const struct part_board *b)
{
	struct coordinator *k = ctx;
	struct cluster *c = k->cluster;
	size_t n = 0;
	void *bytes = board_pack(b, &n);
	cluster_check_board(k, b);
	for (int i = bytes ? copies(c, k->node, c->node_of[part]) : 0; i > 0; i--)
		put(&c->part[part], ITEM_BOARD, bytes, n);
	free(bytes);
}

void cluster_on_board(struct cluster *c, const struct item *i)
{
	struct held_board b;
	char why[200];
	enum status st = board_unpack(i->bytes, i->n_bytes, c->n_parts, &b, why, sizeof(why));
	if (!is_readable(c, st, "a board", why))
		return;
	if (i->of->gaccd_up)
		job_on_board(i->of->job, &b.board, sim_now(&c->whole));
	board_release(&b);
}

static void port_order(void *ctx, uint32_t part, const struct order *o)
{
	struct coordinator *k = ctx;
	struct cluster *c = k->cluster;
	size_t n = 0;
	void *bytes = order_pack(o, &n);
	cluster_check_order(k, o);
	for (int i = bytes ? copies(c, k->node, c->node_of[part]) : 0; i > 0; i--)
		put(&c->part[part], ITEM_ORDER, bytes, n);
	free(bytes);
}

void cluster_on_order(struct cluster *c, const struct item *i)
{
	const struct message_bounds bounds = bounds_of(c);
	struct held_order o;
	char why[200];
	enum status st = order_unpack(i->bytes, i->n_bytes, &bounds, &o, why, sizeof(why));
	if (is_readable(c, st, "an order", why) && i->of->gaccd_up)
		sim_on_order(i->of, &o.order);
}

/* ---- what a part says ---- */

static void port_event(void *ctx, uint64_t job, bool warning, const char *reason, int64_t rank, const char *text)
{
	struct sim *s = ctx;
	cluster_say(cluster_of(s), "part %u: %s, rank %lld: %s", cluster_part(s), reason, (long long)rank, text);
}

/* ---- coordinators ---- */

static void port_coord_event(void *ctx, uint64_t job, bool warning, const char *reason, int64_t rank, const char *text)
{
	const struct coordinator *k = ctx;
	cluster_say(k->cluster, "coordinator %llu on node %u: %s, rank %lld: %s", (unsigned long long)k->term, k->node,
		    reason, (long long)rank, text);
	if (!strcmp(reason, "AttemptFailed"))
		cluster_check_failure(k, text);
}

struct coordinator *cluster_find(struct cluster *c, uint64_t term)
{
	for (uint32_t i = 0; i < CLUSTER_COORDS; i++)
		if (c->coord[i].c && c->coord[i].term == term)
			return &c->coord[i];
	return NULL;
}

struct coordinator *cluster_newest(struct cluster *c)
{
	return cluster_find(c, c->whole.term);
}

static enum status restore(const struct cluster *c, struct coord *k)
{
	const struct sim *s = &c->whole;
	enum status st = ST_OK;
	if (s->held)
		coord_restore_hold(k, "held");
	for (uint32_t i = 0; i < s->n_updates && !st; i++)
		st = coord_restore_update(k, &s->update[i]);
	if (!st && s->n_windows)
		coord_restore(k, &c->log[s->n_windows - 1].commit);
	return st;
}

/* Takes a term first, then reads the log. The earlier ones go on as zombies. A gaccd that has no memory for it exits,
 * and is started again. */
void cluster_start_coordinator(struct cluster *c, uint32_t node)
{
	struct sim *s = &c->whole;
	struct coordinator *k = c->coord;
	while (k < c->coord + CLUSTER_COORDS && k->c)
		k++;
	if (k == c->coord + CLUSTER_COORDS || s->ended)
		return;
	*k = (struct coordinator){ .cluster = c, .term = ++s->term, .node = node };
	struct coord_ports ports = { .ctx = k,
				     .order = port_order,
				     .board = port_board,
				     .event = port_coord_event,
				     .changed = sim_port_changed,
				     .norms = sim_port_norms };
	cluster_store_ports(&ports);
	c->home = node;
	cluster_say(c, "node %u: a coordinator starts with term %llu", node, (unsigned long long)k->term);
	enum status st = coord_new(&k->c, 1, &s->spec, k->term, c->n_parts, c->ranks, &ports);
	if (!st && c->n_parts > 1)
		st = coord_set_collectives(k->c, CLUSTER_STALL_NS);
	if (!st)
		st = restore(c, k->c);
	if (st == ST_NO_MEMORY)
		cluster_kill_gaccd(c, node);
	else if (st)
		sim_fail(s, "cannot make a coordinator");
}

/* ---- gaccd ---- */

/* What the edge does for a part of which the memory is gone: it says so, and the job ends. False: gaccd has no memory
 * for it. */
static bool begin_part(struct cluster *c, struct sim *s)
{
	struct sim *w = &c->whole;
	s->gaccd_up = true;
	s->gaccd_life++;
	enum status st = sim_job_new(s, port_report, port_event);
	if (st && st != ST_NO_MEMORY)
		sim_fail(w, "cannot make a part of the job");
	if (st)
		return false;
	for (uint32_t i = 0; i < w->n_windows; i++)
		job_restore_window(s->job, &c->log[i].commit, s->window[i].counted, (uint32_t)s->d.n_words);
	if (s->lost)
		job_fail(s->job, ST_SEGMENT_CORRUPT, "its memory is gone", sim_now(s));
	else if (s->gaccd_life == 1)
		job_allocate(s->job);
	else
		job_take_over(s->job);
	return true;
}

void cluster_start_gaccd(struct cluster *c, uint32_t node)
{
	struct node *n = &c->node[node];
	if (!n->up || n->gaccd_up)
		return;
	n->gaccd_up = true;
	n->gaccd_life++;
	for (uint32_t p = 0; p < c->n_parts; p++)
		if (c->node_of[p] == node && !begin_part(c, &c->part[p])) {
			cluster_kill_gaccd(c, node);
			return;
		}
	if (c->home == node)
		cluster_start_coordinator(c, node);
}

/* gaccd and the engines of its parts die; the coordinators that are in it, too. */
static void end_gaccd(struct cluster *c, uint32_t node)
{
	c->node[node].gaccd_up = false;
	for (uint32_t i = 0; i < CLUSTER_COORDS; i++)
		if (c->coord[i].node == node) {
			coord_free(c->coord[i].c);
			c->coord[i].c = NULL;
		}
	for (uint32_t p = 0; p < c->n_parts; p++) {
		struct sim *s = &c->part[p];
		if (c->node_of[p] != node || !s->gaccd_up)
			continue;
		engine_kill(s);
		s->engine_starting = false;
		s->gaccd_up = false;
		sim_boxes_gone(s);
		job_free(s->job);
		s->job = NULL;
	}
}

void cluster_kill_gaccd(struct cluster *c, uint32_t node)
{
	if (!c->node[node].gaccd_up)
		return;
	c->n.gaccds++;
	cluster_say(c, "node %u: gaccd dies", node);
	end_gaccd(c, node);
	cluster_item(c, (int64_t)sim_random(&c->whole, 300 * MS) + 1, ITEM_GACCD_UP)->node = node;
}

/* ---- whole nodes ---- */

/* The trainers of a part die; for each rank that had not finished one is started again when the node is back. */
static void kill_trainers(struct sim *s, int64_t back_in)
{
	for (uint32_t i = 0; i < s->n_procs; i++) {
		struct proc *p = &s->proc[i];
		bool newest = true;
		for (uint32_t k = i + 1; k < s->n_procs; k++)
			newest &= s->proc[k].rank != p->rank || s->proc[k].state == PROC_DEAD ||
				  s->proc[k].state == PROC_DONE;
		if (p->state == PROC_DEAD || p->state == PROC_DONE)
			continue;
		p->state = PROC_DEAD;
		p->stopped = false;
		if (newest)
			sim_event(s, back_in + (int64_t)sim_random(s, 50 * MS) + 1, EV_START_PROC)->proc = p->rank;
	}
}

/* All that runs on it dies at once, and is back after a while. Its memory stays, or is lost for good. */
void cluster_kill_node(struct cluster *c, uint32_t node, bool memory_too)
{
	struct node *n = &c->node[node];
	int64_t back_in = (int64_t)sim_random(&c->whole, 1000 * MS) + 1;
	if (!n->up)
		return;
	n->up = false;
	end_gaccd(c, node);
	for (uint32_t p = 0; p < c->n_parts; p++) {
		struct sim *s = &c->part[p];
		if (c->node_of[p] != node)
			continue;
		kill_trainers(s, back_in);
		s->lost |= memory_too && s->durable;
		c->memory_lost |= s->lost;
	}
	cluster_item(c, back_in, ITEM_NODE_UP)->node = node;
}

void cluster_node_up(struct cluster *c, uint32_t node)
{
	c->node[node].up = true;
	cluster_start_gaccd(c, node);
}
