/* SPDX-License-Identifier: Apache-2.0 */
/* Queues the pushes that wait for their turn in a window, decides which of them are accepted, and picks those that the
 * next pass adds. For window.c; the engine's main thread. */
#include "engine/accum.h"

#include <stdlib.h>
#include <string.h>

enum status accum_init(struct accum *a, uint32_t capacity, bool canonical)
{
	struct accum_entry *entry = calloc(capacity ? capacity : 1, sizeof(*entry));
	if (!entry)
		return ST_NO_MEMORY;
	*a = (struct accum){ .entry = entry, .capacity = capacity, .canonical = canonical, .window = UINT64_MAX };
	return ST_OK;
}

void accum_fini(struct accum *a)
{
	if (!a)
		return;
	for (uint32_t i = 0; i < a->n; i++)
		free(a->entry[i].present);
	free(a->entry);
	memset(a, 0, sizeof(*a));
}

static bool is_in(const struct control_state *s, const uint64_t *map, uint32_t rank, uint32_t micro)
{
	return control_bit(map, s->r.max_micro_size, rank, micro);
}

/* No push of this pair is expected: it is counted or void, or its rank has flushed or left. */
static bool is_done(const struct control_state *s, uint32_t rank, uint32_t micro)
{
	return s->rank[rank].flushed || is_in(s, s->counted, rank, micro) || is_in(s, s->voided, rank, micro);
}

static enum status judge(const struct accum *a, const struct control_state *s, const struct ledger_cell *cell,
			 const struct accum_entry *e, bool *voided)
{
	const struct control_rank *rank = &s->rank[e->rank];
	bool is_void = is_in(s, s->voided, e->rank, e->micro);
	if (e->sgen != rank->sgen)
		return e->sgen < rank->sgen ? ST_SESSION_FENCED : ST_SESSION_UNKNOWN;
	if (is_void || is_in(s, s->counted, e->rank, e->micro)) {
		if (e->data_key && cell->data_key && e->data_key != cell->data_key)
			return ST_DATA_KEY_MISMATCH;
		*voided = is_void;
		return ST_ALREADY_EXISTS;
	}
	if (s->r.phase != WINDOW_OPEN)
		return ST_WINDOW_CLOSED;
	if (rank->flushed)
		return ST_FLUSHED;
	if (s->r.count && e->window_lr != s->r.window_lr)
		return ST_LR_MISMATCH;
	for (uint32_t i = 0; i < a->n; i++)
		if (a->entry[i].slot == e->slot || (a->entry[i].rank == e->rank && a->entry[i].micro == e->micro))
			return ST_SLOT_BUSY;
	return a->n < a->capacity ? ST_OK : ST_RESOURCE_EXHAUSTED;
}

enum status accum_offer(struct accum *a, const struct control_state *s, const struct ledger_cell *cell,
			struct accum_entry *take, bool *voided)
{
	enum status st = judge(a, s, cell, take, voided);
	if (st == ST_OK)
		a->entry[a->n++] = *take;
	return st;
}

struct accum_entry *accum_find(const struct accum *a, uint32_t rank, uint32_t micro)
{
	for (uint32_t i = 0; i < a->n; i++)
		if (a->entry[i].rank == rank && a->entry[i].micro == micro)
			return &a->entry[i];
	return NULL;
}

void accum_restart(struct accum *a)
{
	a->window = UINT64_MAX;
}

/* A pair, in canonical order. */
struct pair {
	uint32_t micro, rank;
};

static bool is_pair(const struct control_state *s, struct pair p)
{
	return p.micro < s->r.micro_size;
}

static struct pair behind(const struct control_state *s, struct pair p)
{
	return p.rank + 1 < s->r.ranks ? (struct pair){ p.micro, p.rank + 1 } : (struct pair){ p.micro + 1, 0 };
}

/* The first pair from p on that may still be pushed; behind the last pair if there is none. */
static struct pair skip_done(struct accum *a, const struct control_state *s, struct pair p)
{
	while (is_pair(s, p) && ++a->visited && is_done(s, p.rank, p.micro))
		p = behind(s, p);
	return p;
}

static struct pair first_missing(struct accum *a, const struct control_state *s)
{
	struct pair p = { a->first_micro, a->first_rank };
	if (a->window != s->r.window)
		p = (struct pair){ 0, 0 };
	p = skip_done(a, s, p);
	a->window = s->r.window;
	a->first_micro = p.micro;
	a->first_rank = p.rank;
	return p;
}

uint32_t accum_next(struct accum *a, const struct control_state *s, struct accum_entry **out, uint32_t max)
{
	uint32_t n = 0;
	if (!a->canonical) {
		for (; n < a->n && n < max && a->entry[n].window_lr == a->entry[0].window_lr; n++)
			out[n] = &a->entry[n];
		return n;
	}
	if (!a->n)
		return 0;
	for (struct pair p = first_missing(a, s); is_pair(s, p) && n < max; p = skip_done(a, s, behind(s, p))) {
		struct accum_entry *e = accum_find(a, p.rank, p.micro);
		if (!e || (n && e->window_lr != out[0]->window_lr))
			return n;
		out[n++] = e;
	}
	return n;
}

void accum_remove(struct accum *a, struct accum_entry *e)
{
	free(e->present);
	size_t behind = (size_t)(a->entry + a->n - (e + 1));
	memmove(e, e + 1, behind * sizeof(*e));
	a->n--;
}

struct accum_entry *accum_find_stale(struct accum *a, uint32_t rank, uint64_t sgen)
{
	for (uint32_t i = 0; i < a->n; i++)
		if ((rank == UINT32_MAX || a->entry[i].rank == rank) && a->entry[i].sgen < sgen)
			return &a->entry[i];
	return NULL;
}

struct accum_entry *accum_find_other_lr(const struct accum *a, const struct control_state *s)
{
	for (uint32_t i = 0; s->r.count && i < a->n; i++)
		if (a->entry[i].window_lr != s->r.window_lr)
			return &a->entry[i];
	return NULL;
}

static bool is_among(struct pair p, struct accum_entry *const *e, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (e[i]->rank == p.rank && e[i]->micro == p.micro)
			return true;
	return false;
}

bool accum_completes(struct accum *a, const struct control_state *s, struct accum_entry *const *e, uint32_t n)
{
	struct pair p = first_missing(a, s);
	while (is_pair(s, p) && is_among(p, e, n))
		p = skip_done(a, s, behind(s, p));
	return !is_pair(s, p);
}
