/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of an in-process communicator. Each member fetches what it needs from the others' memory, piece by
 * piece, into its own; sums and products of a piece are made by callbacks. On the members' communication threads. */
#include "coll/local_impl.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BROADCAST_PIECE (1u << 20) /* bytes */

static uint64_t bit(uint32_t part)
{
	return UINT64_C(1) << part;
}

static uint64_t others(const struct local_member *m)
{
	uint32_t n = m->comm->n_parts;
	return (n == 64 ? UINT64_MAX : bit(n) - 1) & ~bit(m->base.part);
}

/* ---- begin and end of an operation ---- */

static uint64_t not_entered(const struct local_member *m)
{
	uint64_t parts = 0;
	for (uint32_t s = 0; s < m->comm->n_parts; s++)
		parts |= m->comm->peer[s].entered < m->me->entered ? bit(s) : 0;
	return parts;
}

static uint64_t not_finished(const struct local_member *m)
{
	uint64_t parts = 0;
	for (uint32_t s = 0; s < m->comm->n_parts; s++)
		parts |= m->comm->peer[s].finished < m->me->finished ? bit(s) : 0;
	return parts;
}

/* Whether all others have called the same: the first says what it is. */
static enum status compare_shape(struct local_member *m, const struct local_shape *shape)
{
	struct local_comm *c = m->comm;
	if (c->shape_of != m->me->entered) {
		assert(c->shape_of + 1 == m->me->entered);
		c->shape_of = m->me->entered;
		c->shape_by = m->base.part;
		c->shape = *shape;
		return ST_OK;
	}
	if (!memcmp(&c->shape, shape, sizeof(*shape)))
		return ST_OK;
	return local_break(
		m, LOCAL_FAILED, ST_INVALID_ARGUMENT, bit(c->shape_by),
		"the call differs from another part's in its kind, bounds, piece, element, division or root");
}

/* Takes the mutex; keeps it if the answer is ST_OK: all have entered. */
static enum status enter(struct local_member *m, const struct local_shape *shape, const void *memory)
{
	struct local_comm *c = m->comm;
	enum status st = ST_OK;
	pthread_mutex_lock(&c->mutex);
	if (c->broken)
		st = local_broken(m);
	else if (m->phase != COLL_READY)
		st = local_break(m, LOCAL_FAILED, ST_INVALID_ARGUMENT, 0, "an operation before coll_join");
	if (st == ST_OK) {
		m->me->entered++;
		m->me->memory = memory;
		m->me->ready = 0;
		memset(m->got, 0, sizeof(m->got));
		st = compare_shape(m, shape);
	}
	if (st == ST_OK) {
		local_changed(m);
		st = local_wait(m, not_entered, 0);
	}
	if (st != ST_OK)
		pthread_mutex_unlock(&c->mutex);
	return st;
}

/* Gives the mutex back once nobody reads this member's memory. `st`: how the operation went so far. */
static enum status leave(struct local_member *m, enum status st)
{
	struct local_comm *c = m->comm;
	if (st == ST_OK) {
		m->me->finished = m->me->entered;
		local_changed(m);
		st = local_wait(m, not_finished, 0);
	}
	/* Broken: copies that have begun end soon, no new ones begin. */
	for (uint32_t s = 0; s < c->n_parts; s++)
		while (c->peer[s].reading & bit(m->base.part))
			pthread_cond_wait(&c->changed, &c->mutex);
	pthread_mutex_unlock(&c->mutex);
	return st;
}

/* Gives the mutex up for a copy from these parts' memory. */
static enum status begin_copy(struct local_member *m, uint64_t from)
{
	if (m->comm->broken)
		return local_broken(m);
	m->me->reading = from;
	pthread_mutex_unlock(&m->comm->mutex);
	return ST_OK;
}

static void end_copy(struct local_member *m, uint32_t n_pieces)
{
	pthread_mutex_lock(&m->comm->mutex);
	m->me->reading = 0;
	m->pieces += n_pieces;
	local_changed(m);
}

/* A callback has failed, outside the mutex. */
static enum status callback_failed(struct local_member *m, enum status st)
{
	char text[sizeof(m->failure.text)];
	snprintf(text, sizeof(text), "the engine could not use or make a piece: %s", status_info(st)->text);
	return local_break(m, LOCAL_FAILED, st, 0, text);
}

/* ---- exchange ---- */

/* Room for one piece of each other part; a small sum may be of nothing, and points somewhere all the same. */
static enum status make_scratch(struct local_member *m, size_t n)
{
	if (m->scratch && n <= m->n_scratch)
		return ST_OK;
	free(m->scratch);
	m->n_scratch = 0;
	m->scratch = malloc(n ? n : 1);
	if (!m->scratch) {
		pthread_mutex_lock(&m->comm->mutex);
		enum status st =
			local_break(m, LOCAL_FAILED, ST_NO_MEMORY, 0, "no memory for the pieces of the others");
		pthread_mutex_unlock(&m->comm->mutex);
		return st;
	}
	m->n_scratch = n;
	return ST_OK;
}

/* One piece of the own share: fetched from all others, then summed. Copied first, so that a callback that hangs keeps
 * no other member in its call. */
static enum status sum_piece(struct local_member *m, const struct coll_exchange *x, const struct coll_piece *p)
{
	struct local_comm *c = m->comm;
	const void *source[COLL_MAX_PARTS];
	unsigned char *to = m->scratch;
	enum status st = begin_copy(m, others(m));
	if (st != ST_OK)
		return st;
	for (uint32_t s = 0; s < c->n_parts; s++) {
		if (s == m->base.part) {
			source[s] = (const unsigned char *)x->in + p->from;
			continue;
		}
		memcpy(to, c->peer[s].memory + p->from, p->n);
		source[s] = to;
		to += p->n;
	}
	end_copy(m, c->n_parts - 1);
	pthread_mutex_unlock(&c->mutex);
	st = x->sum(x->arg, p, source, c->n_parts);
	pthread_mutex_lock(&c->mutex);
	if (st != ST_OK)
		return callback_failed(m, st);
	local_changed(m);
	return ST_OK;
}

static void divide(struct local_shape *shape, const struct coll *base, const uint64_t *bounds,
		   const struct coll_division *d)
{
	memcpy(shape->bounds, bounds, ((d ? d->n_shares : base->n_parts) + 1) * sizeof(*bounds));
	shape->divided = d != NULL;
	if (d)
		shape->division = *d;
}

enum status local_exchange(struct coll *base, const struct coll_exchange *x)
{
	struct local_member *m = (struct local_member *)base;
	struct local_shape shape = { .operation = LOCAL_EXCHANGE, .piece = x->piece, .element = x->element };
	divide(&shape, base, x->bounds, x->division);
	const uint32_t own = coll_share_of(x->division, base->part);
	uint64_t n = coll_n_pieces(x->bounds, own, x->piece);
	size_t first = n ? coll_piece_at(x->bounds, own, x->piece, 0).n : 0;
	enum status st = make_scratch(m, first * (base->n_parts - 1));
	if (st == ST_OK)
		st = enter(m, &shape, x->in);
	if (st != ST_OK)
		return st;
	for (uint64_t i = 0; i < n && st == ST_OK; i++) {
		struct coll_piece p = coll_piece_at(x->bounds, own, x->piece, i);
		st = sum_piece(m, x, &p);
	}
	return leave(m, st);
}

/* As an exchange in which everybody has the share of all. */
enum status local_sum_small(struct coll *base, const struct coll_sum_small *x)
{
	struct local_member *m = (struct local_member *)base;
	const struct local_shape shape = { .operation = LOCAL_SUM_SMALL, .piece = x->n, .element = x->element };
	const struct coll_exchange all = { .in = x->in, .sum = x->sum, .arg = x->arg };
	const struct coll_piece piece = { .from = 0, .n = x->n };
	enum status st = make_scratch(m, x->n * (base->n_parts - 1));
	if (st == ST_OK)
		st = enter(m, &shape, x->in);
	return st == ST_OK ? leave(m, sum_piece(m, &all, &piece)) : st;
}

/* ---- gather, broadcast ---- */

/* How many pieces this member gets from part s. */
static uint64_t wanted_from(const struct local_member *m, uint32_t s)
{
	const struct local_shape *shape = &m->comm->shape;
	const struct coll_division *d = shape->divided ? &shape->division : NULL;
	if (s == m->base.part || !coll_is_same_group(d, s, m->base.part))
		return 0;
	return coll_n_pieces(shape->bounds, coll_share_of(d, s), shape->piece);
}

/* Whether a piece from part s could be copied now. */
static bool can_fetch(const struct local_member *m, uint32_t s)
{
	return m->got[s] < m->comm->peer[s].ready && m->got[s] < wanted_from(m, s);
}

/* Those whose next piece is not there yet. 0: one can be fetched, or all have been. */
static uint64_t not_ready(const struct local_member *m)
{
	uint64_t parts = 0;
	for (uint32_t s = 0; s < m->comm->n_parts; s++) {
		if (can_fetch(m, s))
			return 0;
		parts |= m->got[s] < wanted_from(m, s) ? bit(s) : 0;
	}
	return parts;
}

/* Whether all shares that this member gets are here. */
static bool has_all(const struct local_member *m)
{
	for (uint32_t s = 0; s < m->comm->n_parts; s++)
		if (m->got[s] < wanted_from(m, s))
			return false;
	return true;
}

/* Makes piece i of the own share and lets the others have it. Without a callback the share is there: all pieces at
 * once. */
static enum status produce(struct local_member *m, const struct coll_gather *g, uint64_t i, uint64_t n)
{
	if (!g->produce) {
		m->me->ready = n;
		local_changed(m);
		return ST_OK;
	}
	struct coll_piece p = coll_piece_at(g->bounds, coll_share_of(g->division, m->base.part), g->piece, i);
	pthread_mutex_unlock(&m->comm->mutex);
	enum status st = g->produce(g->arg, &p);
	pthread_mutex_lock(&m->comm->mutex);
	if (st != ST_OK)
		return callback_failed(m, st);
	if (m->comm->broken)
		return local_broken(m);
	m->me->ready++;
	m->pieces++;
	local_changed(m);
	return ST_OK;
}

/* Fetches all pieces of the others that are ready. */
static enum status fetch(struct local_member *m, const struct coll_gather *g)
{
	const struct local_comm *c = m->comm;
	for (uint32_t s = 0; s < c->n_parts; s++)
		while (can_fetch(m, s)) {
			struct coll_piece p =
				coll_piece_at(g->bounds, coll_share_of(g->division, s), g->piece, m->got[s]);
			enum status st = begin_copy(m, bit(s));
			if (st != ST_OK)
				return st;
			memcpy((unsigned char *)g->buffer + p.from, c->peer[s].memory + p.from, p.n);
			end_copy(m, 1);
			m->got[s]++;
		}
	return ST_OK;
}

static enum status gather(struct local_member *m, const struct coll_gather *g, const struct local_shape *shape)
{
	uint64_t n = coll_n_pieces(g->bounds, coll_share_of(g->division, m->base.part), g->piece);
	enum status st = enter(m, shape, g->buffer);
	if (st != ST_OK)
		return st;
	while (st == ST_OK && (m->me->ready < n || !(g->whole || has_all(m)))) {
		if (m->me->ready < n)
			st = produce(m, g, m->me->ready, n);
		else
			st = local_wait(m, not_ready, 0);
		if (st == ST_OK && !g->whole)
			st = fetch(m, g);
	}
	return leave(m, st);
}

enum status local_gather(struct coll *base, const struct coll_gather *g)
{
	struct local_shape shape = { .operation = LOCAL_GATHER, .piece = g->piece };
	divide(&shape, base, g->bounds, g->division);
	return gather((struct local_member *)base, g, &shape);
}

/* A gather in which the root owns everything. */
enum status local_broadcast(struct coll *base, void *buffer, size_t n, uint32_t root)
{
	struct local_shape shape = { .operation = LOCAL_BROADCAST, .piece = BROADCAST_PIECE };
	for (uint32_t s = root + 1; s <= base->n_parts; s++)
		shape.bounds[s] = n;
	struct coll_gather g = { .buffer = buffer, .bounds = shape.bounds, .piece = BROADCAST_PIECE };
	return gather((struct local_member *)base, &g, &shape);
}

enum status local_barrier(struct coll *base)
{
	struct local_shape shape = { .operation = LOCAL_BARRIER };
	struct local_member *m = (struct local_member *)base;
	enum status st = enter(m, &shape, NULL);
	return st == ST_OK ? leave(m, ST_OK) : st;
}
