/* SPDX-License-Identifier: Apache-2.0 */
/* Queues the pushes that wait for their turn in a window, and picks those that the next pass adds. For push.c; the
 * engine's main thread. */
#include "engine/accum.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum status accum_init(struct accum *a, uint32_t capacity, uint32_t max_micro_size, bool canonical)
{
	struct accum_entry *entry = calloc(capacity ? capacity : 1, sizeof(*entry));
	struct accum_lacking *lacking = calloc(max_micro_size, sizeof(*lacking));
	if (!entry || !lacking) {
		free(entry);
		free(lacking);
		return ST_NO_MEMORY;
	}
	*a = (struct accum){ .entry = entry,
			     .capacity = capacity,
			     .canonical = canonical,
			     .lacking = lacking,
			     .n_lacking = max_micro_size };
	accum_restart(a);
	return ST_OK;
}

void accum_fini(struct accum *a)
{
	if (!a)
		return;
	for (uint32_t i = 0; i < a->n; i++)
		free(a->entry[i].present);
	free(a->entry);
	free(a->lacking);
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

void accum_queue(struct accum *a, const struct accum_entry *e)
{
	assert(a->n < a->capacity && e->n_askers == 1);
	a->entry[a->n++] = *e;
}

void accum_join(struct accum_entry *e, uint64_t asker)
{
	assert(e->n_askers < ACCUM_MAX_ASKERS);
	e->asker[e->n_askers++] = asker;
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
	for (uint32_t i = 0; i < a->n_lacking; i++)
		a->lacking[i].window = UINT64_MAX;
}

/* ---- whose turn it is ---- */

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

/* Moves the two cursors of this micro-batch index on to the first two ranks that lack it. Within a window ranks only
 * ever give more, so the cursors never go back. */
static struct accum_lacking find_lacking(struct accum *a, const struct control_state *s, uint32_t micro)
{
	struct accum_lacking *l = &a->lacking[micro];
	if (l->window != s->r.window)
		*l = (struct accum_lacking){ .window = s->r.window };
	while (l->first < s->r.ranks && is_done(s, l->first, micro))
		l->first++;
	if (l->second <= l->first)
		l->second = l->first + 1;
	while (l->second < s->r.ranks && is_done(s, l->second, micro))
		l->second++;
	return *l;
}

uint32_t accum_blocked_by(struct accum *a, const struct control_state *s, uint32_t rank, uint32_t micro)
{
	if (!a->canonical)
		return rank;
	struct accum_lacking l = find_lacking(a, s, micro);
	if (l.first < rank)
		return l.first;
	if (!micro) /* a rank with a higher number comes before this one only with an earlier micro-batch */
		return rank;
	l = find_lacking(a, s, micro - 1);
	uint32_t other = l.first == rank ? l.second : l.first;
	return other < s->r.ranks ? other : rank;
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

const struct accum_entry *accum_oldest(const struct accum *a, uint32_t rank)
{
	for (uint32_t i = 0; i < a->n; i++)
		if (a->entry[i].rank == rank)
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
