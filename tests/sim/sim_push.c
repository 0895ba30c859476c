/* SPDX-License-Identifier: Apache-2.0 */
/* Pushes in the fake engine: the real judge and the real queue for all of them, whichever way they came. A pass records
 * first and answers later; the engine may die in between. */
#include "sim.h"

#include "engine/boxes.h"
#include "engine/accum.h"
#include "engine/progress.h"

/* ---- where a rank stands ---- */

static bool owes(const struct sim *s, uint32_t rank)
{
	const struct control_rank *r = &s->d.rank[rank];
	return !r->flushed && r->counted + control_count(s->d.voided, s->spec.max_micro_size, rank, s->d.r.micro_size) <
				      s->d.r.micro_size;
}

uint32_t sim_owing(const struct sim *s)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < s->spec.ranks; i++)
		n += owes(s, i);
	return n;
}

void sim_push_progress(struct sim *s, uint32_t rank)
{
	struct status_rank *row = &s->row[rank];
	const struct accum_entry *p = accum_oldest(&s->accum, rank);
	bool done = s->d.rank[rank].flushed != RANK_LEFT && !owes(s, rank);
	if (!done || !row->ready_mono_ns)
		row->ready_mono_ns = done ? s->now : 0;
	progress_park(row, p ? &(struct progress_parked){ p->since_ns, p->micro, p->blocked_by } : NULL);
}

static void tell_progress(struct sim *s, enum progress_kind kind, const struct accum_entry *p)
{
	struct engine_answer a = { .op = ENGINE_PROGRESS, .window = s->d.r.window, .result = kind };
	a.rank = p ? p->rank : 0;
	a.micro = p ? p->micro : 0;
	a.nonfinite_count = p != NULL;
	engine_answer(s, &a);
}

void sim_push_owe_nothing(struct sim *s, uint32_t owing_before)
{
	if (owing_before && !sim_owing(s) && s->had_box && !go_is_due(&s->d.r, &s->armed, 0))
		tell_progress(s, PROGRESS_COMPLETE, NULL);
}

/* ---- answers ---- */

/* To all who asked, as the engine's push.c does. */
static void answer_push(struct sim *s, const struct accum_entry *p, enum status st, uint32_t result, bool bad)
{
	for (uint32_t i = 0; i < p->n_askers; i++) {
		struct engine_answer a = { .op = ENGINE_ADD,
					   .id = p->asker[i],
					   .rank = p->rank,
					   .window = s->d.r.window,
					   .rank_counted = s->d.rank[p->rank].counted,
					   .blocked_by = p->blocked_by,
					   .nonfinite_count = bad,
					   .status = st,
					   .result = result };
		if (boxes_is_asker(p->asker[i]))
			sim_box_answer(s, p, &a);
		else
			engine_answer(s, &a);
		bad = bad && boxes_is_asker(p->asker[i]);
		result = result == PUSH_COUNTED ? PUSH_DUPLICATE : result;
	}
}

static bool has_command(const struct accum_entry *p)
{
	bool any = false;
	for (uint32_t i = 0; i < p->n_askers; i++)
		any = any || !boxes_is_asker(p->asker[i]);
	return any;
}

void sim_push_drop(struct sim *s, uint32_t rank, uint64_t below_sgen, enum status st)
{
	struct accum_entry *p;
	while ((p = accum_find_stale(&s->accum, rank, below_sgen))) {
		const struct accum_entry gone = *p;
		accum_remove(&s->accum, p);
		sim_push_progress(s, gone.rank);
		answer_push(s, &gone, st, 0, false);
	}
}

/* ---- a push comes ---- */

void sim_schedule_pass(struct sim *s)
{
	if (s->pass_scheduled)
		return;
	s->pass_scheduled = true;
	sim_event(s, (int64_t)sim_random(s, 4 * MS) + 1, EV_PASS)->life = s->engine_life;
}

static void queue(struct sim *s, const struct window_state *w, const struct push *p, uint64_t asker)
{
	struct accum_entry e = { .asker = { asker },
				 .n_askers = 1,
				 .sgen = p->sgen,
				 .rank = p->rank,
				 .micro = p->micro,
				 .slot = accum_first_slot(w, p->rank) + p->slot,
				 .blocked_by = accum_blocked_by(&s->accum, &s->d, p->rank, p->micro),
				 .since_ns = s->now,
				 .weight = p->weight,
				 .data_key = p->data_key,
				 .window_lr = p->lr };
	accum_queue(&s->accum, &e);
	s->row[p->rank].last_push_unix_ns = sim_now(s).unix_ns;
	sim_push_progress(s, p->rank);
	sim_schedule_pass(s);
}

/* What no trainer sends, or sends in another order. */
static void check_ruling(struct sim *s, const struct push *p, uint64_t asker, enum ruling ruling)
{
	bool disorder = ruling == PUSH_OUT_OF_ORDER && boxes_is_asker(asker);
	if ((ruling >= PUSH_BAD_WEIGHT && ruling <= PUSH_BITMAP_END) || disorder)
		sim_fail(s, "micro-batch %u of rank %u is ruled %d by the engine: no trainer sent that", p->micro,
			 p->rank, (int)ruling);
}

static void offer(struct sim *s, const struct window_state *w, const struct push *p, uint64_t asker)
{
	const struct verdict v = accum_judge(w, p);
	check_ruling(s, p, asker, v.ruling);
	if (v.ruling == PUSH_JOINS)
		accum_join(&s->accum.entry[v.entry], asker);
	else if (v.ruling == PUSH_QUEUES)
		queue(s, w, p, asker);
	else if (boxes_is_asker(asker))
		sim_box_answer(s, &(struct accum_entry){ .rank = p->rank, .sgen = p->sgen },
			       &(struct engine_answer){
				       .id = asker, .window = p->window, .status = v.status, .result = v.result });
	else
		engine_answer(s, &(struct engine_answer){ .op = ENGINE_ADD,
							  .id = asker,
							  .rank = p->rank,
							  .window = p->window,
							  .blocked_by = p->rank,
							  .status = v.status,
							  .result = v.result });
}

static struct plan plan_of(const struct sim *s)
{
	return (struct plan){ .job_id = 1,
			      .ranks = s->spec.ranks,
			      .slots = (s->spec.ranks + 1) * s->spec.slots_per_rank,
			      .slots_per_rank = s->spec.slots_per_rank,
			      .n_tensors = 1 };
}

void sim_push_offer(struct sim *s, const struct push *p, uint64_t asker)
{
	const struct plan plan = plan_of(s);
	offer(s, &(struct window_state){ &plan, &s->d, s->ledger, &s->accum }, p, asker);
}

void sim_push_add(struct sim *s, const struct engine_command *c)
{
	const struct plan plan = plan_of(s);
	const struct window_state w = { &plan, &s->d, s->ledger, &s->accum };
	const struct push p = { .rank = c->rank,
				.micro = c->micro,
				.slot = c->slot - accum_first_slot(&w, c->rank),
				.sgen = c->sgen,
				.window = c->window,
				.data_key = c->data_key,
				.weight = c->weight,
				.lr = c->window_lr,
				.loss_scale = c->loss_scale };
	sim_box_look(s, c->rank); /* the micro-batch before this one may lie in a cell */
	offer(s, &w, &p, c->id);
}

/* ---- a pass ---- */

/* One micro-batch in thirty is not finite, and refused when the spec says so. */
static bool is_bad(const struct accum_entry *p)
{
	return (p->data_key * UINT64_C(0x9E3779B97F4A7C15) >> 40) % 30 == 7;
}

static void record(struct sim *s, const struct accum_entry *p, bool reject)
{
	uint32_t max = s->spec.max_micro_size;
	if (p->sgen != s->d.rank[p->rank].sgen)
		sim_fail(s, "I6: a pass adds a push of session %llu of rank %u, %llu is in force",
			 (unsigned long long)p->sgen, p->rank, (unsigned long long)s->d.rank[p->rank].sgen);
	s->ledger[p->rank * max + p->micro] = (struct ledger_cell){ .weight = p->weight, .data_key = p->data_key };
	if (reject) {
		control_set_bit(s->d.voided, max, p->rank, p->micro);
		return;
	}
	s->acc[s->n_acc++] = s->slot[p->slot];
	control_set_bit(s->d.counted, max, p->rank, p->micro);
	s->d.rank[p->rank].counted++;
	if (!s->d.r.count)
		s->d.r.window_lr = p->window_lr;
	s->d.r.count++;
	s->d.r.sum_weight += p->weight;
}

/* Reads the slots as they are now, and flips. */
void sim_push_pass(struct sim *s)
{
	struct accum_entry *e[2];
	s->pass_scheduled = false;
	s->passed_owing = sim_owing(s);
	s->n_passed = accum_next(&s->accum, &s->d, e, 2);
	for (uint32_t i = 0; i < s->n_passed; i++) {
		s->passed[i] = *e[i];
		record(s, e[i], s->spec.nonfinite != NONFINITE_SKIP_STEP && is_bad(e[i]));
	}
	if (!s->n_passed)
		return;
	s->d.r.seq++;
	sim_event(s, (int64_t)sim_random(s, MS / 2), EV_PASSED)->life = s->engine_life;
}

void sim_push_answer_pass(struct sim *s)
{
	uint32_t n = s->n_passed;
	s->n_passed = 0;
	for (uint32_t i = 0; i < n; i++) {
		const struct accum_entry *p = &s->passed[i];
		bool bad = is_bad(p), is_void = bad && s->spec.nonfinite != NONFINITE_SKIP_STEP;
		accum_remove(&s->accum, accum_find(&s->accum, p->rank, p->micro));
		sim_push_progress(s, p->rank);
		if (bad && !has_command(p))
			tell_progress(s, is_void ? PROGRESS_VOID : PROGRESS_NONFINITE, p);
		answer_push(s, p, ST_OK, is_void ? PUSH_VOID : PUSH_COUNTED, bad);
	}
	if (!n)
		return;
	sim_push_owe_nothing(s, s->passed_owing);
	sim_schedule_pass(s);
}
