/* SPDX-License-Identifier: Apache-2.0 */
/* Decides which jobs of several parts may exchange now, by the slots of their nodes and the order in which they have
 * asked. For the coordinators' ports in daemon/edge; the table is in exchanges.h. Pure; loop thread. */
#include "control/exchanges.h"

#include "base/array.h"
#include "base/node_name.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct node {
	char name[NODE_NAME_MAX + 1];
	uint32_t jobs; /* that are added and have parts there; 0: the place is free for another node */
	uint32_t held;
	uint64_t kept_in; /* the last look in which it was kept for a job that waits */
};

struct list {
	struct exchanger *first, *last;
};

struct exchanges {
	uint32_t limit;
	struct node *node;
	uint32_t n_nodes, capacity;
	uint64_t look;
	struct list waits, granted, holds; /* waits: in the order in which they have asked */
};

/* ---- lists ---- */

static void put(struct list *l, struct exchanger *x)
{
	x->next = NULL;
	x->prev = l->last;
	*(l->last ? &l->last->next : &l->first) = x;
	l->last = x;
}

static void take(struct list *l, struct exchanger *x)
{
	*(x->prev ? &x->prev->next : &l->first) = x->next;
	*(x->next ? &x->next->prev : &l->last) = x->prev;
	x->next = x->prev = NULL;
}

/* ---- jobs and nodes ---- */

enum status exchanges_new(struct exchanges **out, uint32_t limit)
{
	assert(limit);
	*out = calloc(1, sizeof(**out));
	if (!*out)
		return ST_NO_MEMORY;
	(*out)->limit = limit;
	return ST_OK;
}

void exchanges_free(struct exchanges *e)
{
	if (!e)
		return;
	assert(!e->waits.first && !e->granted.first && !e->holds.first);
	free(e->node);
	free(e);
}

/* The index of the node with this name, else of a free place, else n_nodes. */
static uint32_t place_of(const struct exchanges *e, const char *name)
{
	uint32_t place = e->n_nodes;
	for (uint32_t i = 0; i < e->n_nodes; i++) {
		if (e->node[i].jobs && !strncmp(e->node[i].name, name, NODE_NAME_MAX))
			return i;
		if (!e->node[i].jobs)
			place = i;
	}
	return place;
}

static bool has(const struct exchanger *x, uint32_t node)
{
	for (uint32_t i = 0; i < x->n_nodes; i++)
		if (x->node[i] == node)
			return true;
	return false;
}

enum status exchanges_add(struct exchanges *e, struct exchanger *x, uint64_t job, const char *const *node, uint32_t n)
{
	*x = (struct exchanger){ .job = job, .node = malloc((n + !n) * sizeof(*x->node)) };
	enum status st = x->node ? ST_OK : ST_NO_MEMORY;
	for (uint32_t i = 0; i < n && !st; i++) {
		const uint32_t at = place_of(e, node[i]);
		if (at == e->n_nodes) {
			struct node *grown = array_grow(e->node, e->n_nodes, &e->capacity, sizeof(*grown));
			if (!grown) {
				st = ST_NO_MEMORY;
				break;
			}
			e->node = grown;
			e->node[e->n_nodes++].jobs = 0;
		}
		struct node *is = &e->node[at];
		if (!is->jobs) {
			*is = (struct node){ .jobs = 0 };
			snprintf(is->name, sizeof(is->name), "%s", node[i]);
		}
		if (has(x, at))
			continue;
		is->jobs++;
		x->node[x->n_nodes++] = at;
	}
	if (st)
		exchanges_remove(e, x, 0);
	return st;
}

void exchanges_remove(struct exchanges *e, struct exchanger *x, int64_t now_ns)
{
	if (!x->node)
		return;
	exchanges_give(e, x, now_ns);
	for (uint32_t i = 0; i < x->n_nodes; i++)
		e->node[x->node[i]].jobs--;
	free(x->node);
	*x = (struct exchanger){ .node = NULL };
}

/* ---- who may go ---- */

static bool may_go(const struct exchanges *e, const struct exchanger *x)
{
	for (uint32_t i = 0; i < x->n_nodes; i++) {
		const struct node *is = &e->node[x->node[i]];
		if (is->held >= e->limit || is->kept_in == e->look)
			return false;
	}
	return true;
}

static void grant(struct exchanges *e, struct exchanger *x)
{
	for (uint32_t i = 0; i < x->n_nodes; i++)
		e->node[x->node[i]].held++;
	take(&e->waits, x);
	put(&e->granted, x);
	x->state = EXCHANGER_GRANTED;
}

/* Time alone lets nobody go, so this is called when somebody asks or gives. */
static void look(struct exchanges *e, int64_t now_ns)
{
	e->look++;
	for (struct exchanger *x = e->waits.first, *next; x; x = next) {
		next = x->next;
		if (may_go(e, x)) {
			grant(e, x);
			continue;
		}
		for (uint32_t i = 0; i < x->n_nodes && now_ns - x->since_ns > EXCHANGES_PASS_NS; i++)
			e->node[x->node[i]].kept_in = e->look;
	}
}

static void hold(struct exchanges *e, struct exchanger *x)
{
	take(&e->granted, x);
	put(&e->holds, x);
	x->state = EXCHANGER_HOLDS;
}

bool exchanges_ask(struct exchanges *e, struct exchanger *x, int64_t now_ns)
{
	assert(x->node);
	if (x->state == EXCHANGER_IDLE) {
		x->state = EXCHANGER_WAITS;
		x->since_ns = now_ns;
		put(&e->waits, x);
		look(e, now_ns);
	}
	if (x->state == EXCHANGER_GRANTED)
		hold(e, x);
	return x->state == EXCHANGER_HOLDS;
}

void exchanges_give(struct exchanges *e, struct exchanger *x, int64_t now_ns)
{
	if (x->state == EXCHANGER_IDLE)
		return;
	take(x->state == EXCHANGER_WAITS ? &e->waits : x->state == EXCHANGER_GRANTED ? &e->granted : &e->holds, x);
	for (uint32_t i = 0; i < x->n_nodes && x->state != EXCHANGER_WAITS; i++) {
		assert(e->node[x->node[i]].held);
		e->node[x->node[i]].held--;
	}
	x->state = EXCHANGER_IDLE;
	look(e, now_ns);
}

struct exchanger *exchanges_next(struct exchanges *e)
{
	struct exchanger *x = e->granted.first;
	if (x)
		hold(e, x);
	return x;
}

bool exchanges_granted(const struct exchanges *e)
{
	return e->granted.first;
}

/* ---- in words ---- */

/* "job 3 exchanges", "jobs 3 and 4 exchange", "jobs 3, 4, 5 and 2 more exchange". */
static void name_holders(const struct exchanges *e, uint32_t node, char *text, size_t n)
{
	uint64_t job[3];
	uint32_t named = 0, held = e->node[node].held;
	const struct list *of[] = { &e->holds, &e->granted };
	for (int l = 0; l < 2; l++)
		for (const struct exchanger *x = of[l]->first; x && named < 3; x = x->next)
			if (has(x, node))
				job[named++] = x->job;
	size_t at = (size_t)snprintf(text, n, "job%s ", held > 1 ? "s" : "");
	for (uint32_t i = 0; i < named && at < n; i++)
		at += (size_t)snprintf(text + at, n - at, "%s%llu",
				       !i	       ? ""
				       : i + 1 == held ? " and "
						       : ", ",
				       (unsigned long long)job[i]);
	if (held > named && at < n)
		at += (size_t)snprintf(text + at, n - at, " and %u more", held - named);
	if (at < n)
		snprintf(text + at, n - at, " exchange%s", held > 1 ? "" : "s");
}

void exchanges_describe(const struct exchanges *e, const struct exchanger *x, char *text, size_t n, int64_t now_ns)
{
	char who[160];
	text[0] = '\0';
	if (x->state != EXCHANGER_WAITS)
		return;
	for (uint32_t i = 0; i < x->n_nodes; i++) {
		const struct node *is = &e->node[x->node[i]];
		if (is->held < e->limit)
			continue;
		name_holders(e, x->node[i], who, sizeof(who));
		snprintf(text, n, "an exchange slot on node %s: %s", is->name, who);
		return;
	}
	for (const struct exchanger *b = e->waits.first; b != x; b = b->next)
		for (uint32_t i = 0; i < x->n_nodes && now_ns - b->since_ns > EXCHANGES_PASS_NS; i++)
			if (has(b, x->node[i])) {
				snprintf(text, n, "an exchange slot on node %s: job %llu waits for one for longer",
					 e->node[x->node[i]].name, (unsigned long long)b->job);
				return;
			}
}
