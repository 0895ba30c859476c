#include "engine/accum.h"

#include <stdlib.h>
#include <string.h>

enum status accum_init(struct accum *a, uint32_t capacity, bool canonical)
{
	struct accum_entry *entry = calloc(capacity ? capacity : 1, sizeof(*entry));
	if (!entry)
		return ST_NO_MEMORY;
	*a = (struct accum){ .entry = entry, .capacity = capacity, .canonical = canonical };
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

/* Nothing more is expected of this pair. */
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

uint32_t accum_next(const struct accum *a, const struct control_state *s, struct accum_entry **out, uint32_t max)
{
	uint32_t n = 0;
	if (!a->canonical) {
		for (; n < a->n && n < max && a->entry[n].window_lr == a->entry[0].window_lr; n++)
			out[n] = &a->entry[n];
		return n;
	}
	for (uint32_t micro = 0; a->n && micro < s->r.micro_size; micro++)
		for (uint32_t rank = 0; rank < s->r.ranks; rank++) {
			if (is_done(s, rank, micro))
				continue;
			struct accum_entry *e = accum_find(a, rank, micro);
			if (!e || n == max || (n && e->window_lr != out[0]->window_lr))
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

static uint64_t n_missing(const struct control_state *s)
{
	uint64_t n = 0;
	for (uint32_t rank = 0; rank < s->r.ranks; rank++)
		for (uint32_t micro = 0; micro < s->r.micro_size; micro++)
			n += !is_done(s, rank, micro);
	return n;
}

bool accum_complete(const struct control_state *s)
{
	return n_missing(s) == 0;
}

bool accum_completes(const struct control_state *s, struct accum_entry *const *e, uint32_t n)
{
	uint64_t missing = n_missing(s);
	for (uint32_t i = 0; i < n; i++)
		missing -= !is_done(s, e[i]->rank, e[i]->micro);
	return missing == 0;
}
