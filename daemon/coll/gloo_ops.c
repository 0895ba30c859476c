/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of a member over Gloo: pieces go from part to part, digests of them follow, and callbacks sum or make
 * what is here. On the communication thread.
 *
 * All that a part has to give is posted at once; Gloo sends a piece when the other side has posted its receive. So who
 * waits for one part holds up no other: the part that is waited for in vain is the one to blame. */
#include "coll/gloo_impl.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BROADCAST_PIECE (1u << 20) /* bytes */
#define AT(field) offsetof(typeof(((struct gloo_peer *)0)->memory), field)

/* ---- begin ---- */

enum status gloo_count_begin(struct gloo_member *m)
{
	uint32_t gone = COLL_MAX_PARTS;
	pthread_mutex_lock(&m->mutex);
	enum status st = m->failure.status;
	bool early = st == ST_OK && m->phase != COLL_READY;
	m->begun++;
	for (uint32_t s = 0; s < m->base.n_parts; s++)
		gone = m->peer[s].gone ? s : gone;
	pthread_mutex_unlock(&m->mutex);
	if (early)
		return gloo_break(m, GLOO_FAILED, ST_INVALID_ARGUMENT, 0, "an operation before coll_join");
	return st == ST_OK && gone < COLL_MAX_PARTS ? gloo_blame(m, gone) : st;
}

static uint64_t slot_of(const struct gloo_member *m, unsigned i)
{
	return GLOO_SLOT_OPERATIONS + m->begun * GLOO_SLOTS + i;
}

/* Exchanges headers with all; where nothing but digests can come later, their receives are posted, too. */
static enum status begin(struct gloo_member *m, const struct gloo_shape *shape, bool whole)
{
	enum status st = gloo_count_begin(m);
	for (uint32_t i = 0; i + 1 < m->base.n_parts && st == ST_OK; i++) {
		uint32_t s = gloo_other(m, i);
		struct gloo_peer *p = &m->peer[s];
		size_t n = sizeof(p->memory.header_in);
		p->memory.header_out = (struct gloo_header){ *shape, whole };
		p->sent = p->received = p->n_out = 0;
		bool closes = shape->operation != GLOO_BARRIER && !whole;
		if (shim_recv(p->words, s, slot_of(m, 0), AT(header_in), n) ||
		    shim_send(p->words, s, slot_of(m, 0), AT(header_out), n) ||
		    (closes && shim_recv(p->words, s, slot_of(m, 1), AT(digest_in), sizeof(p->memory.digest_in))))
			st = gloo_cut(m, s);
	}
	return st;
}

/* Waits until all have called, and called the same. */
static enum status meet(struct gloo_member *m)
{
	enum status st = ST_OK;
	for (uint32_t i = 0; i + 1 < m->base.n_parts && st == ST_OK; i++) {
		uint32_t s = gloo_other(m, i);
		struct gloo_peer *p = &m->peer[s];
		st = gloo_wait(m, s, p->words, shim_wait_recv);
		if (st == ST_OK &&
		    memcmp(&p->memory.header_in.shape, &p->memory.header_out.shape, sizeof(p->memory.header_in.shape)))
			st = gloo_break(m, GLOO_FAILED, ST_INVALID_ARGUMENT, gloo_bit(s),
					"the call differs from another part's in its kind, bounds, piece, element, "
					"division or root");
	}
	return st;
}

/* ---- end ---- */

/* Tells each other member the digest of what it was sent: as soon as it is known, so that nobody waits for it behind
 * this member's callbacks. */
static enum status send_digests(struct gloo_member *m)
{
	for (uint32_t i = 0; i + 1 < m->base.n_parts; i++) {
		uint32_t s = gloo_other(m, i);
		struct gloo_peer *p = &m->peer[s];
		p->memory.digest_out = p->sent;
		if (!p->memory.header_in.whole &&
		    shim_send(p->words, s, slot_of(m, 1), AT(digest_out), sizeof(p->memory.digest_out)))
			return gloo_cut(m, s);
	}
	return ST_OK;
}

static enum status check_digests(struct gloo_member *m)
{
	enum status st = ST_OK;
	for (uint32_t i = 0; i + 1 < m->base.n_parts && st == ST_OK; i++) {
		uint32_t s = gloo_other(m, i);
		struct gloo_peer *p = &m->peer[s];
		if (p->memory.header_out.whole)
			break; /* nobody has sent it anything */
		st = gloo_wait(m, s, p->words, shim_wait_recv);
		if (st == ST_OK && p->memory.digest_in != p->received)
			st = gloo_break(m, GLOO_FAILED, ST_CHECKSUM, gloo_bit(s),
					"bytes from another part were changed on the way");
	}
	return st;
}

/* Waits until the words of the operation have been sent. */
static enum status flush_words(struct gloo_member *m, bool digests)
{
	enum status st = ST_OK;
	for (uint32_t i = 0; i + 1 < m->base.n_parts && st == ST_OK; i++) {
		struct gloo_peer *p = &m->peer[gloo_other(m, i)];
		unsigned words = digests && !p->memory.header_in.whole ? 2 : 1;
		for (; words && st == ST_OK; words--)
			st = gloo_wait(m, p->part, p->words, shim_wait_send);
	}
	return st;
}

/* Waits until all pieces have been sent, then for the others' digests. */
static enum status close_operation(struct gloo_member *m)
{
	enum status st = ST_OK;
	for (uint32_t i = 0; i + 1 < m->base.n_parts && st == ST_OK; i++) {
		struct gloo_peer *p = &m->peer[gloo_other(m, i)];
		for (; p->n_out && st == ST_OK; p->n_out--)
			st = gloo_wait(m, p->part, p->out, shim_wait_send);
	}
	if (st == ST_OK)
		st = check_digests(m);
	return st == ST_OK ? flush_words(m, true) : st;
}

enum status gloo_finish(struct gloo_member *m, enum status st)
{
	for (uint32_t s = 0; s < m->base.n_parts; s++) {
		struct gloo_peer *p = &m->peer[s];
		shim_buffer_free(p->out);
		if (p->in != p->out)
			shim_buffer_free(p->in);
		p->out = p->in = NULL;
	}
	pthread_mutex_lock(&m->mutex);
	m->completed = st == ST_OK ? m->begun : m->completed;
	pthread_mutex_unlock(&m->mutex);
	return st;
}

void gloo_count_piece(struct gloo_member *m)
{
	pthread_mutex_lock(&m->mutex);
	m->pieces++;
	pthread_mutex_unlock(&m->mutex);
}

enum status gloo_callback_failed(struct gloo_member *m, enum status st)
{
	char text[SHIM_TEXT];
	snprintf(text, sizeof(text), "the engine could not use or make a piece: %s", status_info(st)->text);
	return gloo_break(m, GLOO_FAILED, st, 0, text);
}

static enum status no_memory(struct gloo_member *m)
{
	return gloo_break(m, GLOO_FAILED, ST_NO_MEMORY, 0, "no memory for an operation");
}

/* Piece i from part s is here. */
static enum status take(struct gloo_member *m, uint32_t s, const void *bytes, size_t n, uint64_t i)
{
	struct gloo_peer *p = &m->peer[s];
	enum status st = gloo_wait(m, s, p->in, shim_wait_recv);
	if (st != ST_OK)
		return st;
	p->received += gloo_digest_of(m, gloo_digest(m, bytes, n), s, m->base.part, i);
	gloo_count_piece(m);
	return ST_OK;
}

/* ---- exchange ---- */

struct exchange {
	struct gloo_member *m;
	const struct coll_exchange *x;
	uint64_t slot, n, most; /* pieces of the own share; of the longest one */
	size_t piece;		/* bytes of the longest piece of the own share */
};

static uint64_t pieces_of(const struct exchange *e, uint32_t s)
{
	return coll_n_pieces(e->x->bounds, coll_share_of(e->x->division, s), e->x->piece);
}

static struct coll_piece piece_of(const struct exchange *e, uint32_t s, uint64_t i)
{
	return coll_piece_at(e->x->bounds, coll_share_of(e->x->division, s), e->x->piece, i);
}

/* Where piece i from the i-th other part lies. */
static unsigned char *place(const struct exchange *e, uint32_t at, uint64_t i)
{
	return e->m->scratch + (at * GLOO_DEPTH + i % GLOO_DEPTH) * e->piece;
}

static bool make_scratch(struct gloo_member *m, size_t n)
{
	if (n <= m->n_scratch)
		return true;
	free(m->scratch);
	m->scratch = malloc(n);
	m->n_scratch = m->scratch ? n : 0;
	return m->scratch != NULL;
}

static bool make_exchange(struct exchange *e)
{
	struct gloo_member *m = e->m;
	uint32_t n_parts = m->base.n_parts;
	e->n = pieces_of(e, m->base.part);
	e->piece = e->n ? piece_of(e, m->base.part, 0).n : 0;
	for (uint32_t s = 0; s < n_parts; s++)
		e->most = pieces_of(e, s) > e->most ? pieces_of(e, s) : e->most;
	bool made = make_scratch(m, (n_parts - 1) * GLOO_DEPTH * e->piece + 1);
	for (uint32_t i = 0; i + 1 < n_parts && made; i++) {
		struct gloo_peer *p = &m->peer[gloo_other(m, i)];
		p->out = shim_buffer_new(m->context, (void *)e->x->in, e->x->bounds[n_parts]); /* only read */
		p->in = shim_buffer_new(m->context, place(e, i, 0), GLOO_DEPTH * e->piece);
		made = p->out && p->in;
	}
	return made;
}

/* Posts the receives of piece i from all others. */
static enum status post_receives(struct exchange *e, uint64_t i)
{
	struct gloo_member *m = e->m;
	struct coll_piece p = piece_of(e, m->base.part, i);
	for (uint32_t at = 0; at + 1 < m->base.n_parts; at++)
		if (shim_recv(m->peer[gloo_other(m, at)].in, gloo_other(m, at), e->slot, i % GLOO_DEPTH * e->piece,
			      p.n))
			return gloo_cut(m, gloo_other(m, at));
	return ST_OK;
}

static enum status post_sends(struct exchange *e)
{
	struct gloo_member *m = e->m;
	for (uint64_t i = 0; i < e->most; i++)
		for (uint32_t at = 0; at + 1 < m->base.n_parts; at++) {
			uint32_t s = gloo_other(m, at);
			if (i >= pieces_of(e, s))
				continue;
			struct coll_piece p = piece_of(e, s, i);
			if (shim_send(m->peer[s].out, s, e->slot, p.from, p.n))
				return gloo_cut(m, s);
			m->peer[s].n_out++;
		}
	return ST_OK;
}

/* Digests of piece i of the others' shares, while they are on the wire. */
static void note_sent(struct exchange *e, uint64_t i)
{
	struct gloo_member *m = e->m;
	for (uint32_t s = 0; s < m->base.n_parts; s++) {
		if (s == m->base.part || i >= pieces_of(e, s))
			continue;
		struct coll_piece p = piece_of(e, s, i);
		uint64_t digest = gloo_digest(m, (const unsigned char *)e->x->in + p.from, p.n);
		m->peer[s].sent += gloo_digest_of(m, digest, m->base.part, s, i);
	}
}

/* Piece i of the own share: from all others, then summed. */
static enum status sum_piece(struct exchange *e, uint64_t i)
{
	struct gloo_member *m = e->m;
	const void *source[COLL_MAX_PARTS];
	struct coll_piece p = piece_of(e, m->base.part, i);
	enum status st = ST_OK;
	source[m->base.part] = (const unsigned char *)e->x->in + p.from;
	for (uint32_t at = 0; at + 1 < m->base.n_parts && st == ST_OK; at++) {
		uint32_t s = gloo_other(m, at);
		source[s] = place(e, at, i);
		st = take(m, s, source[s], p.n, i);
	}
	if (st == ST_OK)
		st = gloo_status(m);
	if (st != ST_OK)
		return st;
	st = e->x->sum(e->x->arg, &p, source, m->base.n_parts);
	if (st != ST_OK)
		return gloo_callback_failed(m, st);
	return i + GLOO_DEPTH < e->n ? post_receives(e, i + GLOO_DEPTH) : ST_OK;
}

static enum status run_exchange(struct exchange *e)
{
	struct gloo_member *m = e->m;
	enum status st = ST_OK;
	bool told = false;
	for (uint64_t i = 0; i < GLOO_DEPTH && i < e->n && st == ST_OK; i++)
		st = post_receives(e, i);
	if (st == ST_OK)
		st = post_sends(e);
	if (st == ST_OK)
		st = meet(m);
	for (uint64_t i = 0, noted = 0; i <= e->n && st == ST_OK; i++) {
		/* Ahead of the sums, and all the rest when these are done. */
		for (; st == ST_OK && noted < e->most && (noted < i + GLOO_DEPTH || i >= e->n); noted++) {
			note_sent(e, noted);
			st = gloo_status(m); /* the rest may be long */
		}
		if (st == ST_OK && noted == e->most && !told)
			st = send_digests(m);
		told = told || noted == e->most;
		if (st == ST_OK && i < e->n)
			st = sum_piece(e, i);
	}
	return st == ST_OK ? close_operation(m) : st;
}

enum status gloo_exchange(struct coll *base, const struct coll_exchange *x)
{
	struct gloo_member *m = (struct gloo_member *)base;
	struct gloo_shape shape = { GLOO_EXCHANGE, x->piece, x->element,
				    gloo_digest_shares(m, x->bounds, x->division) };
	struct exchange e = { .m = m, .x = x };
	enum status st = begin(m, &shape, false);
	e.slot = gloo_data_slot(m, &shape);
	if (st == ST_OK && !make_exchange(&e))
		st = no_memory(m);
	if (st == ST_OK)
		st = run_exchange(&e);
	return gloo_finish(m, st);
}

/* ---- gather, broadcast ---- */

struct gather {
	struct gloo_member *m;
	const struct coll_gather *g;
	uint64_t slot;
};

static uint64_t pieces_in(const struct gather *t, uint32_t s)
{
	return coll_n_pieces(t->g->bounds, coll_share_of(t->g->division, s), t->g->piece);
}

static struct coll_piece piece_in(const struct gather *t, uint32_t s, uint64_t i)
{
	return coll_piece_at(t->g->bounds, coll_share_of(t->g->division, s), t->g->piece, i);
}

/* How many pieces this member gets from part s. */
static uint64_t given_by(const struct gather *t, uint32_t s)
{
	return coll_is_same_group(t->g->division, s, t->m->base.part) ? pieces_in(t, s) : 0;
}

static uint64_t bytes_in(const struct gather *t)
{
	return t->g->bounds[t->g->division ? t->g->division->n_shares : t->m->base.n_parts];
}

/* One buffer for each other part; receives of all its pieces, unless they are here already. */
static enum status post_gather(struct gather *t)
{
	struct gloo_member *m = t->m;
	uint32_t n_parts = m->base.n_parts;
	for (uint32_t at = 0; at + 1 < n_parts; at++) {
		uint32_t s = gloo_other(m, at);
		struct gloo_peer *peer = &m->peer[s];
		uint64_t n = t->g->whole ? 0 : given_by(t, s);
		peer->out = peer->in = shim_buffer_new(m->context, t->g->buffer, bytes_in(t));
		if (!peer->out)
			return no_memory(m);
		for (uint64_t i = 0; i < n; i++) {
			struct coll_piece p = piece_in(t, s, i);
			if (shim_recv(peer->in, s, t->slot, p.from, p.n))
				return gloo_cut(m, s);
		}
	}
	return ST_OK;
}

static enum status make_piece(struct gather *t, const struct coll_piece *p)
{
	if (!t->g->produce)
		return ST_OK;
	enum status st = gloo_status(t->m);
	if (st != ST_OK)
		return st;
	st = t->g->produce(t->g->arg, p);
	if (st != ST_OK)
		return gloo_callback_failed(t->m, st);
	gloo_count_piece(t->m);
	return ST_OK;
}

/* Gives piece i of the own share to all who want it. */
static enum status give(struct gather *t, const struct coll_piece *p, uint64_t i)
{
	struct gloo_member *m = t->m;
	enum status st = ST_OK;
	for (uint32_t at = 0; at + 1 < m->base.n_parts && st == ST_OK; at++) {
		struct gloo_peer *peer = &m->peer[gloo_other(m, at)];
		if (peer->memory.header_in.whole || !coll_is_same_group(t->g->division, peer->part, m->base.part))
			continue;
		peer->n_out++;
		if (shim_send(peer->out, peer->part, t->slot, p->from, p->n))
			st = gloo_cut(m, peer->part);
	}
	uint64_t digest = m->base.n_parts > 1 ? gloo_digest(m, (const unsigned char *)t->g->buffer + p->from, p->n) : 0;
	for (uint32_t s = 0; s < m->base.n_parts; s++)
		if (coll_is_same_group(t->g->division, s, m->base.part))
			m->peer[s].sent += gloo_digest_of(m, digest, m->base.part, s, i);
	return st;
}

static enum status take_share(struct gather *t, uint32_t s)
{
	enum status st = ST_OK;
	uint64_t n = given_by(t, s);
	for (uint64_t i = 0; i < n && st == ST_OK; i++) {
		struct coll_piece p = piece_in(t, s, i);
		st = take(t->m, s, (const unsigned char *)t->g->buffer + p.from, p.n, i);
	}
	return st;
}

static enum status run_gather(struct gather *t)
{
	struct gloo_member *m = t->m;
	uint64_t n = pieces_in(t, m->base.part);
	enum status st = post_gather(t);
	if (st == ST_OK && !n)
		st = meet(m);
	for (uint64_t i = 0; i < n && st == ST_OK; i++) {
		struct coll_piece p = piece_in(t, m->base.part, i);
		st = make_piece(t, &p);
		if (st == ST_OK && i == 0)
			st = meet(m);
		if (st == ST_OK)
			st = give(t, &p, i);
	}
	if (st == ST_OK)
		st = send_digests(m);
	for (uint32_t at = 0; at + 1 < m->base.n_parts && st == ST_OK && !t->g->whole; at++)
		st = take_share(t, gloo_other(m, at));
	if (st == ST_OK)
		st = close_operation(m);
	return st;
}

static enum status gather(struct gloo_member *m, const struct coll_gather *g, enum gloo_operation operation)
{
	struct gloo_shape shape = { operation, g->piece, 0, gloo_digest_shares(m, g->bounds, g->division) };
	struct gather t = { .m = m, .g = g };
	enum status st = begin(m, &shape, g->whole);
	t.slot = gloo_data_slot(m, &shape);
	if (st == ST_OK)
		st = run_gather(&t);
	return gloo_finish(m, st);
}

enum status gloo_gather(struct coll *base, const struct coll_gather *g)
{
	return gather((struct gloo_member *)base, g, GLOO_GATHER);
}

/* A gather in which the root owns everything. */
enum status gloo_broadcast(struct coll *base, void *buffer, size_t n, uint32_t root)
{
	uint64_t bounds[COLL_MAX_PARTS + 1] = { 0 };
	for (uint32_t s = root + 1; s <= base->n_parts; s++)
		bounds[s] = n;
	struct coll_gather g = { .buffer = buffer, .bounds = bounds, .piece = BROADCAST_PIECE };
	return gather((struct gloo_member *)base, &g, GLOO_BROADCAST);
}

enum status gloo_barrier(struct coll *base)
{
	struct gloo_member *m = (struct gloo_member *)base;
	struct gloo_shape shape = { .operation = GLOO_BARRIER };
	enum status st = begin(m, &shape, false);
	if (st == ST_OK)
		st = meet(m);
	if (st == ST_OK)
		st = flush_words(m, false);
	return gloo_finish(m, st);
}
