/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the trainers' own states: takes them in portions, and holds those of a checkpoint's window while it is written.
 * For runtime/part_states.c. Pure; loop thread. */
#include "control/rank_states.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct state {
	uint32_t holders;
	uint64_t window;
	size_t n, got; /* got < n: it is coming */
	unsigned char data[];
};

struct slot {
	struct state *newest, *coming, *captured; /* NULL: none */
	bool gives;				  /* it has put one */
};

struct rank_states {
	uint32_t ranks;
	struct rank_states_limits limits;
	size_t bytes; /* of all states */
	size_t sum;   /* of what each rank has, or is bringing */
	bool capturing;
	uint64_t window; /* that is captured */
	struct slot slot[];
};

struct rank_states *rank_states_new(uint32_t ranks, struct rank_states_limits limits)
{
	struct rank_states *s = calloc(1, sizeof(*s) + ranks * sizeof(s->slot[0]));
	if (s) {
		s->ranks = ranks;
		s->limits = limits;
	}
	return s;
}

size_t rank_states_bytes(const struct rank_states *s)
{
	return s->bytes;
}

/* ---- one state ---- */

static struct state *make(struct rank_states *s, uint64_t window, size_t n)
{
	struct state *t = malloc(sizeof(*t) + n);
	if (!t)
		return NULL;
	*t = (struct state){ .holders = 1, .window = window, .n = n };
	s->bytes += n;
	return t;
}

static struct state *hold(struct state *t)
{
	t->holders++;
	return t;
}

static void drop(struct rank_states *s, struct state **t)
{
	if (*t && --(*t)->holders == 0) {
		s->bytes -= (*t)->n;
		free(*t);
	}
	*t = NULL;
}

void rank_states_free(struct rank_states *s)
{
	for (uint32_t i = 0; s && i < s->ranks; i++) {
		drop(s, &s->slot[i].newest);
		drop(s, &s->slot[i].coming);
		drop(s, &s->slot[i].captured);
	}
	free(s);
}

/* ---- a rank's ---- */

/* What counts for the limit of all: what comes takes the place of what is there. */
static size_t size_of(const struct slot *r)
{
	return r->coming ? r->coming->n : r->newest ? r->newest->n : 0;
}

static void forget_coming(struct rank_states *s, struct slot *r)
{
	s->sum -= size_of(r);
	drop(s, &r->coming);
	s->sum += size_of(r);
}

static void forget(struct rank_states *s, struct slot *r)
{
	s->sum -= size_of(r);
	drop(s, &r->coming);
	drop(s, &r->newest);
}

static void capture_one(struct rank_states *s, struct slot *r)
{
	if (!s->capturing || !r->newest || r->newest->window != s->window)
		return;
	drop(s, &r->captured);
	r->captured = hold(r->newest);
}

static void finish(struct rank_states *s, struct slot *r)
{
	struct state *t = r->coming;
	r->coming = NULL;
	drop(s, &r->newest);
	r->newest = t;
	r->gives = true;
	capture_one(s, r);
}

/* ---- portions ---- */

static bool is_of(const struct state *t, const struct state_portion *q)
{
	return t && t->window == q->window && t->n == q->total;
}

size_t rank_states_need(const struct rank_states *s, const struct state_portion *q)
{
	return q->offset || q->rank >= s->ranks ? 0 : q->total;
}

static enum status check(const struct rank_states *s, const struct state_portion *q, char *why, size_t n_why)
{
	if (q->rank >= s->ranks) {
		snprintf(why, n_why, "rank %u, of %u", q->called, s->ranks);
		return ST_RANK_OUT_OF_RANGE;
	}
	if (q->total > s->limits.rank) {
		snprintf(why, n_why, "the state of rank %u has %llu bytes, and a rank's may have %zu", q->called,
			 (unsigned long long)q->total, s->limits.rank);
		return ST_RESOURCE_EXHAUSTED;
	}
	if (q->offset > q->total || q->n > q->total - q->offset || (q->total && !q->n)) {
		snprintf(why, n_why, "%zu bytes from offset %llu on are no portion of a state of %llu bytes", q->n,
			 (unsigned long long)q->offset, (unsigned long long)q->total);
		return ST_INVALID_ARGUMENT;
	}
	return ST_OK;
}

static enum status start(struct rank_states *s, struct slot *r, const struct state_portion *q, char *why, size_t n_why)
{
	forget_coming(s, r);
	const size_t others = s->sum - size_of(r);
	if (others + q->total > s->limits.all) {
		snprintf(why, n_why, "the states of %s would have %zu bytes with the %llu of rank %u, and may have %zu",
			 s->limits.whose, others + (size_t)q->total, (unsigned long long)q->total, q->called,
			 s->limits.all);
		return ST_RESOURCE_EXHAUSTED;
	}
	struct state *t = make(s, q->window, q->total);
	if (!t)
		return ST_NO_MEMORY;
	r->coming = t;
	s->sum = others + t->n;
	return ST_OK;
}

enum status rank_states_put(struct rank_states *s, const struct state_portion *q, uint64_t *out_received, char *why,
			    size_t n_why)
{
	enum status st = check(s, q, why, n_why);
	struct slot *r = st ? NULL : &s->slot[q->rank];
	if (st)
		return st;
	if (!q->total) {
		forget(s, r);
		r->gives = false;
		*out_received = 0;
		return ST_OK;
	}
	if (q->offset && !is_of(r->coming, q) && is_of(r->newest, q)) { /* the answer to its last portion was lost */
		*out_received = q->total;
		return ST_OK;
	}
	if (!q->offset)
		st = start(s, r, q, why, n_why);
	if (st)
		return st;
	const size_t got = is_of(r->coming, q) ? r->coming->got : 0;
	if (!r->coming || !is_of(r->coming, q) || q->offset > got) {
		snprintf(why, n_why, "the portion of rank %u's state at offset %llu comes before that at %zu",
			 q->called, (unsigned long long)q->offset, got);
		return ST_OUT_OF_ORDER;
	}
	if (q->offset + q->n > got) {
		memcpy(r->coming->data + q->offset, q->data, q->n);
		r->coming->got = q->offset + q->n;
	}
	*out_received = r->coming->got;
	if (r->coming->got == r->coming->n)
		finish(s, r);
	return ST_OK;
}

enum status rank_states_restore(struct rank_states *s, uint32_t rank, uint64_t window, const void *data, size_t n)
{
	struct slot *r = rank < s->ranks ? &s->slot[rank] : NULL;
	if (!r || r->newest)
		return ST_OK;
	struct state *t = make(s, window, n);
	if (!t)
		return ST_NO_MEMORY;
	memcpy(t->data, data, n);
	t->got = n;
	s->sum -= size_of(r);
	r->newest = t;
	s->sum += size_of(r);
	return ST_OK;
}

/* ---- looking ---- */

static bool show(const struct state *t, struct rank_state *out)
{
	if (t)
		*out = (struct rank_state){ t->window, t->data, t->n };
	return t != NULL;
}

bool rank_states_get(const struct rank_states *s, uint32_t rank, struct rank_state *out)
{
	return rank < s->ranks && show(s->slot[rank].newest, out);
}

/* ---- a checkpoint ---- */

void rank_states_capture(struct rank_states *s, uint64_t window)
{
	rank_states_release(s);
	s->capturing = true;
	s->window = window;
	for (uint32_t i = 0; i < s->ranks; i++)
		capture_one(s, &s->slot[i]);
}

uint32_t rank_states_awaited(const struct rank_states *s, bool (*can_come)(const void *ctx, uint32_t rank),
			     const void *ctx, uint32_t *out_first)
{
	uint32_t n = 0;
	for (uint32_t i = 0; s->capturing && i < s->ranks; i++) {
		const struct slot *r = &s->slot[i];
		if (r->captured || !r->gives || !can_come(ctx, i))
			continue;
		if (!n++)
			*out_first = i;
	}
	return n;
}

bool rank_states_captured(const struct rank_states *s, uint32_t rank, struct rank_state *out)
{
	return rank < s->ranks && show(s->slot[rank].captured, out);
}

void rank_states_release(struct rank_states *s)
{
	s->capturing = false;
	for (uint32_t i = 0; i < s->ranks; i++)
		drop(s, &s->slot[i].captured);
}
