/* SPDX-License-Identifier: Apache-2.0 */
/* Decides what becomes of a push by the table of accum.h, row by row, queues those that wait for their turn, and picks
 * those that the next pass adds. For push.c; the engine's main thread. */
#include "engine/accum.h"

#include "engine/commit.h"

#include <assert.h>
#include <float.h>
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

/* ---- what becomes of a push ---- */

static const struct control_rank *rank_of(const struct window_state *w, const struct push *p)
{
	return &w->record->rank[p->rank];
}

static bool is_set(const struct window_state *w, const uint64_t *map, const struct push *p)
{
	return control_bit(map, w->record->r.max_micro_size, p->rank, p->micro);
}

uint32_t accum_first_slot(const struct window_state *w, uint32_t rank)
{
	return (w->record->rank[rank].session.spare ? w->plan->ranks : rank) * w->plan->slots_per_rank;
}

/* ---- of a window that is over, or to come ---- */

bool accum_knows_last(const struct control_record *r)
{
	return r->commit_outcome && r->commit_window + 1 == r->window;
}

bool accum_has_ended(const struct control_record *r)
{
	return accum_knows_last(r) && r->commit_result.final;
}

static enum ruling judge_other_window(const struct window_state *w, const struct push *p)
{
	const struct control_record *r = &w->record->r;
	if (p->window > r->window)
		return PUSH_EARLY;
	if (p->window + 1 < r->window || !accum_knows_last(r))
		return PUSH_FORGOTTEN;
	return p->micro < r->max_micro_size && is_set(w, w->record->last_counted, p) ? PUSH_IS_COMMITTED : PUSH_LATE;
}

/* ---- of the open window ---- */

static bool has_bits_behind(const struct plan *p, const unsigned char *present, uint32_t n)
{
	return p->n_tensors % 8 && present[n - 1] >> p->n_tensors % 8;
}

/* What needs no look at other pushes. */
static enum ruling judge_form(const struct window_state *w, const struct push *p)
{
	const uint64_t bitmap = (w->plan->n_tensors + 7) / 8;
	if (p->micro >= w->record->r.micro_size)
		return PUSH_PAST_END;
	if (!(p->weight >= DBL_MIN && p->weight <= DBL_MAX)) /* engines take subnormal numbers for 0 */
		return PUSH_BAD_WEIGHT;
	if (!commit_is_lr(p->lr))
		return PUSH_BAD_LR;
	if (p->n_present && p->n_present != bitmap)
		return PUSH_BITMAP_SIZE;
	if (p->n_present && has_bits_behind(w->plan, p->present, p->n_present))
		return PUSH_BITMAP_END;
	return (p->loss_scale == 0 ? 1 : p->loss_scale) == w->record->r.loss_scale ? PUSH_QUEUES : PUSH_LOSS_SCALE;
}

/* A repeat of one that is in the sum, or void. */
static enum ruling judge_repeat(const struct window_state *w, const struct push *p, bool is_void)
{
	uint64_t counted_key = w->ledger[(uint64_t)p->rank * w->record->r.max_micro_size + p->micro].data_key;
	if (p->data_key && counted_key && p->data_key != counted_key)
		return PUSH_OTHER_KEY;
	return is_void ? PUSH_IS_VOID : PUSH_IS_COUNTED;
}

static enum ruling judge_join(const struct push *p, const struct accum_entry *e)
{
	if (p->data_key != e->data_key)
		return PUSH_QUEUED_KEY;
	if (p->lr != e->window_lr)
		return PUSH_QUEUED_LR;
	return e->n_askers == ACCUM_MAX_ASKERS ? PUSH_QUEUED_ASKERS : PUSH_JOINS;
}

#define NO_ENTRY UINT32_MAX

/* What the queue holds that a push has to do with. */
struct queued {
	uint32_t same, in_slot; /* entries; NO_ENTRY: none */
	uint32_t before;	/* of its rank, with lower micro-batch indices */
};

static struct queued look_at_queue(const struct window_state *w, const struct push *p)
{
	struct queued q = { NO_ENTRY, NO_ENTRY, 0 };
	const uint64_t slot = (uint64_t)accum_first_slot(w, p->rank) + p->slot;
	for (uint32_t i = 0; i < w->queue->n; i++) {
		const struct accum_entry *e = &w->queue->entry[i];
		if (e->slot == slot)
			q.in_slot = i;
		if (e->rank == p->rank && e->micro == p->micro)
			q.same = i;
		q.before += e->rank == p->rank && e->micro < p->micro;
	}
	return q;
}

/* All micro-batches of its rank before this one are counted, void or queued. */
static bool is_next(const struct window_state *w, const struct push *p, uint32_t n_queued_before)
{
	const struct control_state *s = w->record;
	const uint32_t max = s->r.max_micro_size;
	return control_count(s->counted, max, p->rank, p->micro) + control_count(s->voided, max, p->rank, p->micro) +
		       n_queued_before ==
	       p->micro;
}

static enum ruling judge_new(const struct window_state *w, const struct push *p, const struct queued *q)
{
	const uint64_t slot = (uint64_t)accum_first_slot(w, p->rank) + p->slot;
	if (rank_of(w, p)->flushed)
		return PUSH_FLUSHED;
	if (w->record->r.phase != WINDOW_OPEN)
		return PUSH_CLOSED;
	if (w->queue->canonical && !is_next(w, p, q->before))
		return PUSH_OUT_OF_ORDER;
	if (p->slot >= w->plan->slots_per_rank || slot >= w->plan->slots)
		return PUSH_NO_SLOT;
	if (q->in_slot != NO_ENTRY)
		return PUSH_SLOT_BUSY;
	return w->queue->n < w->queue->capacity ? PUSH_QUEUES : PUSH_QUEUE_FULL;
}

static enum ruling judge_open_window(const struct window_state *w, const struct push *p, uint32_t *entry)
{
	const struct control_record *r = &w->record->r;
	if (accum_has_ended(r))
		return PUSH_ENDED;
	enum ruling form = judge_form(w, p);
	if (form != PUSH_QUEUES)
		return form;
	if (r->count && p->lr != r->window_lr)
		return PUSH_OTHER_LR;
	bool is_void = is_set(w, w->record->voided, p);
	if (is_void || is_set(w, w->record->counted, p))
		return judge_repeat(w, p, is_void);
	struct queued q = look_at_queue(w, p);
	*entry = q.same != NO_ENTRY ? q.same : q.in_slot;
	return q.same != NO_ENTRY ? judge_join(p, &w->queue->entry[q.same]) : judge_new(w, p, &q);
}

static enum ruling rule(const struct window_state *w, const struct push *p, uint32_t *entry)
{
	if (p->rank >= w->record->r.ranks)
		return PUSH_NO_RANK;
	if (p->sgen != rank_of(w, p)->sgen)
		return p->sgen < rank_of(w, p)->sgen ? PUSH_FENCED : PUSH_UNKNOWN;
	if (p->window != w->record->r.window)
		return judge_other_window(w, p);
	return judge_open_window(w, p, entry);
}

struct verdict accum_judge(const struct window_state *w, const struct push *p)
{
	static const struct {
		enum status status;
		enum push_result result;
	} rows[N_RULINGS] = {
		[PUSH_NO_RANK] = { .status = ST_RANK_OUT_OF_RANGE },
		[PUSH_FENCED] = { .status = ST_SESSION_FENCED },
		[PUSH_UNKNOWN] = { .status = ST_SESSION_UNKNOWN },
		[PUSH_IS_COMMITTED] = { .result = PUSH_ALREADY_COMMITTED },
		[PUSH_LATE] = { .status = ST_WINDOW_CLOSED },
		[PUSH_FORGOTTEN] = { .status = ST_WINDOW_FORGOTTEN },
		[PUSH_EARLY] = { .status = ST_NOT_CURRENT_WINDOW },
		[PUSH_ENDED] = { .status = ST_JOB_ENDED },
		[PUSH_PAST_END] = { .status = ST_WINDOW_FULL },
		[PUSH_BAD_WEIGHT] = { .status = ST_BAD_WEIGHT },
		[PUSH_BAD_LR] = { .status = ST_INVALID_ARGUMENT },
		[PUSH_BITMAP_SIZE] = { .status = ST_INVALID_ARGUMENT },
		[PUSH_BITMAP_END] = { .status = ST_INVALID_ARGUMENT },
		[PUSH_LOSS_SCALE] = { .status = ST_LOSS_SCALE_MISMATCH },
		[PUSH_OTHER_LR] = { .status = ST_LR_MISMATCH },
		[PUSH_OTHER_KEY] = { .status = ST_DATA_KEY_MISMATCH },
		[PUSH_IS_COUNTED] = { .result = PUSH_DUPLICATE },
		[PUSH_IS_VOID] = { .result = PUSH_VOID },
		[PUSH_QUEUED_KEY] = { .status = ST_DATA_KEY_MISMATCH },
		[PUSH_QUEUED_LR] = { .status = ST_LR_MISMATCH },
		[PUSH_QUEUED_ASKERS] = { .status = ST_RESOURCE_EXHAUSTED },
		[PUSH_JOINS] = { .status = ST_OK },
		[PUSH_FLUSHED] = { .status = ST_FLUSHED },
		[PUSH_CLOSED] = { .status = ST_WINDOW_CLOSED },
		[PUSH_OUT_OF_ORDER] = { .status = ST_OUT_OF_ORDER },
		[PUSH_NO_SLOT] = { .status = ST_BAD_SLOT },
		[PUSH_SLOT_BUSY] = { .status = ST_SLOT_BUSY },
		[PUSH_QUEUE_FULL] = { .status = ST_RESOURCE_EXHAUSTED },
		[PUSH_QUEUES] = { .status = ST_OK },
	};
	struct verdict v = { .entry = NO_ENTRY };
	v.ruling = rule(w, p, &v.entry);
	v.status = rows[v.ruling].status;
	v.result = rows[v.ruling].result;
	return v;
}
