/* SPDX-License-Identifier: Apache-2.0 */
/* Says to people why a push is refused: the sentence that a trainer reads, and the hint beside it. Ranks have the job's
 * numbers. For push.c; no state, any thread. */
#include "engine/refusal.h"

#include "engine/commit.h"

#include <float.h>
#include <inttypes.h>
#include <stdio.h>

static const char *const hints[N_RULINGS] = {
	[PUSH_LATE] = "go on with the open window",
	[PUSH_FORGOTTEN] = "send it as a call: gaccd may know",
	[PUSH_EARLY] = "call WaitStep for the window before first",
	[PUSH_PAST_END] = "call WaitStep after micro_size micro-batches, then push into the next window",
	[PUSH_BAD_WEIGHT] = "send the number of samples or tokens of the micro-batch",
	[PUSH_BAD_LR] = "send the window's learning rate, or 0 for the schedule's",
	[PUSH_BITMAP_SIZE] = "one bit for each tensor in the order of registration",
	[PUSH_BITMAP_END] = "one bit for each tensor in the order of registration",
	[PUSH_LOSS_SCALE] = "use the loss_scale that WaitReady or WaitStep gave",
	[PUSH_QUEUED_KEY] = "a micro-batch index names one set of samples",
	[PUSH_QUEUED_ASKERS] = "wait for the earlier calls",
	[PUSH_FLUSHED] = "wait for the window's outcome, then push into the next one",
	[PUSH_CLOSED] = "go on with the next window",
	[PUSH_OUT_OF_ORDER] = "push the micro-batches of a window in ascending order",
	[PUSH_NO_SLOT] = "slots are numbered from 0",
	[PUSH_SLOT_BUSY] = "wait for that push to be acknowledged, or use the other slot",
	[PUSH_QUEUE_FULL] = "wait for earlier pushes of this rank",
};

static const char *lr_words(double lr, char *buf, size_t n)
{
	if (lr == 0)
		return "the schedule's";
	snprintf(buf, n, "%g", lr);
	return buf;
}

/* ---- of a push that is judged ---- */

/* About its session or its window. */
static void describe_place(const struct window_state *w, const struct push *p, const struct verdict *v, char *text,
			   size_t n)
{
	const uint64_t job = w->plan->job_id, open = w->record->r.window;
	const uint32_t size = w->record->r.micro_size;
	if (v->ruling == PUSH_NO_RANK) {
		snprintf(text, n, "rank %u of an engine with %u ranks", p->rank, w->plan->ranks);
		return;
	}
	const uint32_t rank = plan_rank_number(w->plan, p->rank);
	if (v->ruling == PUSH_FENCED)
		snprintf(text, n, "a newer process has attached as rank %u of job %" PRIu64 " (pid %" PRId64 ")", rank,
			 job, w->record->rank[p->rank].session.pid);
	else if (v->ruling == PUSH_UNKNOWN)
		snprintf(text, n, "%s (rank %u of job %" PRIu64 ")", status_info(v->status)->text, rank, job);
	else if (v->ruling == PUSH_LATE)
		snprintf(text, n,
			 "window %" PRIu64 " closed without micro-batch %u of rank %u: not counted (window %" PRIu64
			 " is open)",
			 p->window, p->micro, rank, open);
	else if (v->ruling == PUSH_FORGOTTEN)
		snprintf(text, n,
			 "window %" PRIu64 " is too long ago for the engine (window %" PRIu64
			 " is open): ask gaccd whether micro-batch %u of rank %u is in it",
			 p->window, open, p->micro, rank);
	else if (v->ruling == PUSH_EARLY)
		snprintf(text, n, "window %" PRIu64 " is open, not %" PRIu64, open, p->window);
	else if (v->ruling == PUSH_ENDED)
		snprintf(text, n, "job %" PRIu64 " is ending: window %" PRIu64 " was its last", job, open - 1);
	else
		snprintf(text, n, "micro-batch index %u: a rank contributes %u to a window (0..%u)", p->micro, size,
			 size - 1);
}

/* About what it says of itself. */
static void describe_form(const struct window_state *w, const struct push *p, const struct verdict *v, char *text,
			  size_t n)
{
	const struct control_record *r = &w->record->r;
	char is[40], said[40];
	if (v->ruling == PUSH_BAD_WEIGHT)
		snprintf(text, n, "weight is %g: it must be %g..%g", p->weight, DBL_MIN, DBL_MAX);
	else if (v->ruling == PUSH_BAD_LR)
		snprintf(text, n, "lr is %g: it must be 0..%g", p->lr, COMMIT_MAX);
	else if (v->ruling == PUSH_BITMAP_SIZE)
		snprintf(text, n, "present has %u bytes, %" PRIu64 " tensors need %" PRIu64, p->n_present,
			 w->plan->n_tensors, (w->plan->n_tensors + 7) / 8);
	else if (v->ruling == PUSH_BITMAP_END)
		snprintf(text, n, "present has bits past tensor %" PRIu64, w->plan->n_tensors - 1);
	else if (v->ruling == PUSH_LOSS_SCALE)
		snprintf(text, n, "gradients carry loss scale %g, the window's is %g",
			 p->loss_scale == 0 ? 1 : p->loss_scale, r->loss_scale);
	else
		snprintf(text, n,
			 "rank %u gives window %" PRIu64
			 " the learning rate %s; rank %u, whose push was counted first, gave it %s",
			 plan_rank_number(w->plan, p->rank), p->window, lr_words(p->lr, said, sizeof(said)),
			 plan_rank_number(w->plan, r->lr_rank), lr_words(r->window_lr, is, sizeof(is)));
}

/* About an earlier push of the same micro-batch. */
static void describe_repeat(const struct window_state *w, const struct push *p, const struct verdict *v, char *text,
			    size_t n)
{
	const uint32_t rank = plan_rank_number(w->plan, p->rank);
	if (v->ruling == PUSH_OTHER_KEY) {
		snprintf(text, n, "rank %u, window %" PRIu64 ", micro-batch %u: %s", rank, p->window, p->micro,
			 status_info(v->status)->text);
		return;
	}
	const struct accum_entry *e = &w->queue->entry[v->entry];
	if (v->ruling == PUSH_QUEUED_KEY)
		snprintf(text, n, "micro-batch %u is parked with data_key %016" PRIx64 ", this one has %016" PRIx64,
			 p->micro, e->data_key, p->data_key);
	else if (v->ruling == PUSH_QUEUED_LR)
		snprintf(text, n, "micro-batch %u of rank %u is parked with lr %g, this one has %g", p->micro, rank,
			 e->window_lr, p->lr);
	else
		snprintf(text, n, "micro-batch %u is parked with %u calls already", p->micro, e->n_askers);
}

/* The first micro-batch of the rank that is neither counted, void nor queued. */
static uint32_t expected(const struct window_state *w, uint32_t rank)
{
	const struct control_state *s = w->record;
	uint32_t i = 0;
	while (i < s->r.micro_size &&
	       (control_bit(s->counted, s->r.max_micro_size, rank, i) ||
		control_bit(s->voided, s->r.max_micro_size, rank, i) || accum_find(w->queue, rank, i)))
		i++;
	return i;
}

/* About its turn and its slot. */
static void describe_turn(const struct window_state *w, const struct push *p, const struct verdict *v, char *text,
			  size_t n)
{
	const uint32_t rank = plan_rank_number(w->plan, p->rank);
	if (v->ruling == PUSH_FLUSHED)
		snprintf(text, n, "rank %u has flushed window %" PRIu64, rank, p->window);
	else if (v->ruling == PUSH_CLOSED)
		snprintf(text, n, "window %" PRIu64 " closed without micro-batch %u of rank %u: not counted", p->window,
			 p->micro, rank);
	else if (v->ruling == PUSH_OUT_OF_ORDER)
		snprintf(text, n, "micro-batch %u of rank %u: %u of %u is expected next", p->micro, rank,
			 expected(w, p->rank), w->record->r.micro_size);
	else if (v->ruling == PUSH_NO_SLOT)
		snprintf(text, n, "slot %u: this session has %u", p->slot, w->plan->slots_per_rank);
	else if (v->ruling == PUSH_SLOT_BUSY)
		snprintf(text, n, "slot %u holds another micro-batch of rank %u that is not counted yet", p->slot,
			 rank);
	else
		snprintf(text, n, "%u pushes are under way", w->queue->n);
}

const char *refusal_describe(const struct window_state *w, const struct push *p, const struct verdict *v, char *text,
			     size_t n)
{
	if (v->ruling <= PUSH_PAST_END)
		describe_place(w, p, v, text, n);
	else if (v->ruling <= PUSH_OTHER_LR)
		describe_form(w, p, v, text, n);
	else if (v->ruling <= PUSH_JOINS)
		describe_repeat(w, p, v, text, n);
	else
		describe_turn(w, p, v, text, n);
	return hints[v->ruling];
}

/* ---- of one that was queued ---- */

const char *refusal_describe_queued(const struct window_state *w, const struct accum_entry *e, enum status st,
				    char *text, size_t n)
{
	const struct control_record *r = &w->record->r;
	int at = snprintf(text, n, "rank %u, window %" PRIu64 ", micro-batch %u: ", plan_rank_number(w->plan, e->rank),
			  r->window, e->micro);
	if (st == ST_LR_MISMATCH)
		snprintf(text + at, n - (size_t)at,
			 "learning rate %g; rank %u, whose push was counted first, gave the window %g%s", e->window_lr,
			 plan_rank_number(w->plan, r->lr_rank), r->window_lr,
			 r->window_lr == 0 ? " (the schedule's)" : "");
	else
		snprintf(text + at, n - (size_t)at, "%s",
			 st == ST_SESSION_FENCED ? "a newer process has attached as this rank" : status_info(st)->text);
	return st == ST_WINDOW_CLOSED ? hints[PUSH_CLOSED] : NULL;
}
