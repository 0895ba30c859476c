/* SPDX-License-Identifier: Apache-2.0 */
/* Where each rank stands in the open window: whether it owes micro-batches, what the status page shows of it, and what
 * gaccd has to be told. For push.c, window.c and step.c; the engine's main thread. */
#include "engine/process.h"

#include "engine/progress.h"

#include <assert.h>

bool standing_owes(const struct engine *e, uint32_t rank)
{
	const struct control_state *s = &e->state;
	const struct control_rank *r = &s->rank[rank];
	return !r->flushed && r->counted < s->r.micro_size &&
	       r->counted + control_count(s->voided, s->r.max_micro_size, rank, s->r.micro_size) < s->r.micro_size;
}

static bool has_given_all(const struct engine *e, uint32_t rank)
{
	return e->state.rank[rank].flushed != RANK_LEFT && !standing_owes(e, rank);
}

void standing_show(struct engine *e, uint32_t rank)
{
	struct status_rank *row = &e->mem.progress->rank[rank];
	const struct accum_entry *p = accum_oldest(&e->accum, rank);
	progress_ready(row, has_given_all(e, rank));
	progress_park(row, p ? &(struct progress_parked){ p->since_ns, p->micro, p->blocked_by } : NULL);
}

static uint32_t count_owing(const struct engine *e)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < e->state.r.ranks; i++)
		n += standing_owes(e, i);
	return n;
}

void standing_show_all(struct engine *e)
{
	for (uint32_t i = 0; i < e->state.r.ranks; i++)
		standing_show(e, i);
	e->owing = count_owing(e);
}

void standing_tell(struct engine *e, enum progress_kind kind, const struct accum_entry *p, uint32_t nonfinite)
{
	struct engine_answer a = engine_answer_to(e, &(struct engine_command){ .op = ENGINE_PROGRESS }, ST_OK);
	a.result = kind;
	a.rank = p ? p->rank : 0;
	a.micro = p ? p->micro : 0;
	a.nonfinite_count = nonfinite;
	engine_send(e, &a);
}

/* Also after the last mailbox is gone: gaccd may not know yet what came in it. An armed GO's answer says more. */
void standing_owe_nothing(struct engine *e, uint32_t n_ranks)
{
	e->owing -= n_ranks;
	assert(e->owing == count_owing(e));
	if (n_ranks && !e->owing && e->boxes.n && !go_is_due(&e->state.r, &e->armed, e->owing))
		standing_tell(e, PROGRESS_COMPLETE, NULL, 0);
}
