/* SPDX-License-Identifier: Apache-2.0 */
/* Pushes: checks each, runs the passes that add those whose turn it is, and answers them; also attaches sessions,
 * flushes ranks and closes the window. For engine.c, and window_freeze for step.c; the engine's main thread. */
#include "engine/process.h"

#include "engine/commit.h"
#include "base/log.h"
#include "proto/failpoint.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(SEGMENT_MAX_ZERO == KERNEL_MAX_SLOTS, "a record names all slots of a pass");

/* The pushes of one pass; copies, because the queue moves when entries leave it. */
struct batch {
	struct accum_entry entry[KERNEL_MAX_SLOTS];
	uint64_t nonfinite[KERNEL_MAX_SLOTS];
	bool is_void[KERNEL_MAX_SLOTS];
	uint32_t n, n_good;
	bool completes;
};

static void answer_push(struct engine *e, const struct accum_entry *p, enum status st, uint32_t result,
			uint64_t nonfinite)
{
	struct engine_answer a = { .op = ENGINE_ADD,
				   .status = st,
				   .id = p->command_id,
				   .rank = p->rank,
				   .window = e->state.r.window,
				   .result = result };
	a.nonfinite_count = nonfinite < UINT32_MAX ? (uint32_t)nonfinite : UINT32_MAX;
	engine_send(e, &a);
}

/* Why a push with another learning rate than the window's is refused, and which rank set that one. */
static void describe_lr(const struct engine *e, double lr, char *why, size_t n)
{
	snprintf(why, n, "learning rate %g; rank %u, whose push was counted first, gave the window %g%s", lr,
		 e->state.r.lr_rank, e->state.r.window_lr, e->state.r.window_lr == 0 ? " (the schedule's)" : "");
}

/* The first counted push has set the window's learning rate: queued pushes with another one are refused now, not when
 * their turn comes. */
static void refuse_other_lr(struct engine *e)
{
	struct accum_entry *p;
	while ((p = accum_find_other_lr(&e->accum, &e->state))) {
		struct engine_answer a = { .op = ENGINE_ADD,
					   .status = ST_LR_MISMATCH,
					   .id = p->command_id,
					   .rank = p->rank,
					   .window = e->state.r.window };
		describe_lr(e, p->window_lr, a.text, sizeof(a.text));
		engine_send(e, &a);
		accum_remove(&e->accum, p);
	}
}

static void refuse_queued(struct engine *e, uint32_t rank, uint64_t below_sgen, enum status st)
{
	struct accum_entry *p;
	while ((p = accum_find_stale(&e->accum, rank, below_sgen))) {
		answer_push(e, p, st, 0, 0);
		accum_remove(&e->accum, p);
	}
}

void window_refuse_all(struct engine *e, enum status st)
{
	refuse_queued(e, UINT32_MAX, UINT64_MAX, st);
}

/* A rank that had left takes part from the next window on: in this one it counts as flushed. */
void window_attach(struct engine *e, const struct engine_command *c)
{
	struct control_rank *rank = c->rank < e->state.r.ranks ? &e->state.rank[c->rank] : NULL;
	if (!rank) {
		engine_reply(e, c, ST_RANK_OUT_OF_RANGE, NULL);
		return;
	}
	if (c->sgen < rank->sgen) {
		engine_reply(e, c, ST_SESSION_FENCED, NULL);
		return;
	}
	if (c->sgen > rank->sgen) {
		uint32_t step_acked = rank->session.step_acked;
		rank->sgen = c->sgen;
		rank->session = c->session;
		rank->session.step_acked = step_acked;
		if (rank->flushed == RANK_LEFT)
			rank->flushed = RANK_FLUSHED;
		FAILPOINT(engine_attach_before);
		engine_publish(e);
	}
	refuse_queued(e, c->rank, c->sgen, ST_SESSION_FENCED);
	engine_reply(e, c, ST_OK, NULL);
}

static enum status check_add(const struct engine *e, const struct engine_command *c, char *why, size_t n_why)
{
	const struct plan *p = e->mem.plan;
	if (c->rank >= p->ranks)
		return ST_RANK_OUT_OF_RANGE;
	if (!isfinite(c->weight) || c->weight <= 0)
		return ST_BAD_WEIGHT;
	if (c->slot >= p->slots)
		return ST_BAD_SLOT;
	if (c->n_present && c->n_present != (p->n_tensors + 7) / 8) {
		snprintf(why, n_why, "a bitmap of %u bytes for %" PRIu64 " tensors", c->n_present, p->n_tensors);
		return ST_INVALID_ARGUMENT;
	}
	if (!commit_is_lr(c->window_lr)) {
		snprintf(why, n_why, "learning rate %g", c->window_lr);
		return ST_INVALID_ARGUMENT;
	}
	if (!isfinite(c->coefficient) || c->micro >= p->max_micro_size) {
		snprintf(why, n_why, "coefficient %g, micro-batch %u", c->coefficient, c->micro);
		return ST_INVALID_ARGUMENT;
	}
	enum status st = engine_check_window(e, c->window);
	if (st == ST_OK && c->micro >= e->state.r.micro_size)
		return ST_WINDOW_FULL;
	return st;
}

/* A push of the previous window that was counted there. */
static bool was_committed(const struct engine *e, const struct engine_command *c)
{
	const struct control_record *r = &e->state.r;
	return c->window + 1 == r->window && c->rank < r->ranks && c->micro < r->max_micro_size &&
	       control_bit(e->state.last_counted, r->max_micro_size, c->rank, c->micro);
}

static void answer_add(struct engine *e, const struct engine_command *c, enum status st, uint32_t result)
{
	struct engine_answer a = engine_answer_to(e, c, st);
	a.result = result;
	engine_send(e, &a);
}

static enum status copy_bitmap(unsigned char **out, const unsigned char *present, uint32_t n)
{
	*out = n ? malloc(n) : NULL;
	if (n && !*out)
		return ST_NO_MEMORY;
	if (n)
		memcpy(*out, present, n);
	return ST_OK;
}

void window_add(struct engine *e, const struct engine_command *c, const unsigned char *present)
{
	char why[sizeof(((struct engine_answer *)0)->text)] = "";
	bool voided = false;
	struct accum_entry p = { .command_id = c->id,
				 .sgen = c->sgen,
				 .rank = c->rank,
				 .micro = c->micro,
				 .slot = c->slot,
				 .coefficient = c->coefficient,
				 .weight = c->weight,
				 .loss = c->loss,
				 .data_key = c->data_key,
				 .unix_nanos = c->unix_nanos,
				 .zero_after = c->zero_after,
				 .window_lr = c->window_lr };
	if (was_committed(e, c)) {
		answer_add(e, c, ST_OK, PUSH_ALREADY_COMMITTED);
		return;
	}
	enum status st = check_add(e, c, why, sizeof(why));
	if (st == ST_OK)
		st = copy_bitmap(&p.present, present, c->n_present);
	if (st) {
		engine_reply(e, c, st, why);
		return;
	}
	st = accum_offer(&e->accum, &e->state, control_page_ledger(&e->mem.page, c->rank, c->micro), &p, &voided);
	if (st == ST_OK)
		return; /* answered after its pass */
	free(p.present);
	if (st == ST_LR_MISMATCH)
		describe_lr(e, c->window_lr, why, sizeof(why));
	if (st == ST_ALREADY_EXISTS)
		answer_add(e, c, ST_OK, voided ? PUSH_VOID : PUSH_DUPLICATE);
	else
		engine_reply(e, c, st, *why ? why : NULL);
}

static enum status check_session(const struct engine *e, const struct engine_command *c)
{
	if (c->rank >= e->state.r.ranks)
		return ST_RANK_OUT_OF_RANGE;
	uint64_t sgen = e->state.rank[c->rank].sgen;
	if (c->sgen != sgen)
		return c->sgen < sgen ? ST_SESSION_FENCED : ST_SESSION_UNKNOWN;
	return engine_check_window(e, c->window);
}

void window_flush(struct engine *e, const struct engine_command *c)
{
	enum status st = check_session(e, c);
	if (st == ST_OK) {
		while (window_has_work(e))
			window_pass(e);
		struct control_rank *rank = &e->state.rank[c->rank];
		uint32_t flushed = c->leave ? RANK_LEFT : rank->flushed ? rank->flushed : RANK_FLUSHED;
		if (e->state.r.phase != WINDOW_OPEN && !c->leave && !rank->flushed)
			st = ST_WINDOW_CLOSED;
		else if (flushed != rank->flushed) {
			rank->flushed = flushed;
			engine_publish(e);
			refuse_queued(e, c->rank, UINT64_MAX, ST_FLUSHED);
		}
	}
	answer_add(e, c, st, 0);
}

void window_freeze(struct engine *e)
{
	struct control_record *r = &e->state.r;
	while (window_has_work(e))
		window_pass(e);
	if (r->phase != WINDOW_OPEN)
		return;
	r->phase = WINDOW_CLOSED;
	engine_publish(e);
	FAILPOINT(engine_closed);
	window_refuse_all(e, ST_WINDOW_CLOSED);
}

void window_close(struct engine *e, const struct engine_command *c)
{
	enum status st = engine_check_window(e, c->window);
	if (st == ST_OK)
		window_freeze(e);
	engine_reply(e, c, st, NULL);
}

static uint32_t next_entries(struct engine *e, struct accum_entry **out, uint32_t max)
{
	const struct control_record *r = &e->state.r;
	if (r->phase != WINDOW_OPEN || (r->client_pending && r->filled))
		return 0;
	return accum_next(&e->accum, &e->state, out, max);
}

bool window_has_work(struct engine *e)
{
	struct accum_entry *one;
	return next_entries(e, &one, 1) > 0;
}

static void take_batch(struct engine *e, struct batch *b)
{
	struct accum_entry *entry[KERNEL_MAX_SLOTS] = { NULL };
	memset(b, 0, sizeof(*b));
	b->n = b->n_good = next_entries(e, entry, KERNEL_MAX_SLOTS);
	b->completes = accum_completes(&e->accum, &e->state, entry, b->n);
	for (uint32_t i = 0; i < b->n; i++)
		b->entry[i] = *entry[i];
}

/* Adds the good ones into half dst; how many more turned out void. */
static uint32_t add_good(struct engine *e, struct batch *b, uint32_t dst)
{
	const struct control_record *r = &e->state.r;
	struct arith_source source[KERNEL_MAX_SLOTS];
	uint64_t nonfinite[KERNEL_MAX_SLOTS];
	uint32_t which[KERNEL_MAX_SLOTS], n = 0, n_bad = 0;
	bool reject = e->mem.plan->reject_nonfinite;
	for (uint32_t i = 0; i < b->n; i++) {
		const struct accum_entry *p = &b->entry[i];
		if (b->is_void[i])
			continue;
		source[n] = (struct arith_source){ p->slot, p->coefficient, p->present };
		which[n++] = i;
	}
	arith_need("adding", e->arith->ops->add(e->arith, dst, r->x, !r->filled, source, n, nonfinite,
						b->completes ? &e->norm : NULL));
	for (uint32_t i = 0; i < n; i++) {
		b->nonfinite[which[i]] = nonfinite[i];
		if (nonfinite[i] && reject) {
			b->is_void[which[i]] = true;
			n_bad++;
		}
	}
	return n_bad;
}

static void write_ledger(const struct engine *e, const struct batch *b)
{
	for (uint32_t i = 0; i < b->n; i++) {
		const struct accum_entry *p = &b->entry[i];
		*control_page_ledger(&e->mem.page, p->rank, p->micro) =
			(struct ledger_cell){ p->weight, p->loss, p->data_key, p->unix_nanos };
	}
}

/* All that the batch changes, in one record: sums in the order of adding. */
static void record_batch(struct engine *e, const struct batch *b, uint32_t dst)
{
	struct control_state *s = &e->state;
	for (uint32_t i = 0; i < b->n; i++) {
		const struct accum_entry *p = &b->entry[i];
		if (p->zero_after)
			s->r.zero_slot[s->r.n_zero++] = p->slot;
		if (b->is_void[i]) {
			control_set_bit(s->voided, s->r.max_micro_size, p->rank, p->micro);
			continue;
		}
		control_set_bit(s->counted, s->r.max_micro_size, p->rank, p->micro);
		s->rank[p->rank].counted++;
		if (!s->r.count) {
			s->r.window_lr = p->window_lr;
			s->r.lr_rank = p->rank;
		}
		s->r.count++;
		s->r.sum_weight += p->weight;
		s->r.sum_loss += p->weight * p->loss;
		s->r.last_rank = p->rank;
	}
	if (b->n_good) {
		s->r.x = dst;
		s->r.filled = 1;
	}
	engine_publish(e);
	atomic_store_explicit(&e->mem.status->counted, s->r.count, memory_order_relaxed);
}

void window_zero_slots(struct engine *e)
{
	struct control_record *r = &e->state.r;
	if (!r->n_zero)
		return;
	for (uint32_t i = 0; i < r->n_zero; i++) {
		FAILPOINT(engine_zero_before);
		arith_need("zeroing a slot", e->arith->ops->zero_slot(e->arith, r->zero_slot[i]));
	}
	FAILPOINT(engine_zero_after);
	r->n_zero = 0;
	engine_publish(e);
}

static void answer_batch(struct engine *e, const struct batch *b)
{
	for (uint32_t i = 0; i < b->n; i++) {
		const struct accum_entry *p = &b->entry[i];
		if (b->is_void[i])
			log_line(LOG_WARN,
				 (struct log_fields){ e->mem.plan->job_id, p->rank, e->state.r.window, "MicroVoid" },
				 "micro-batch %u is void: %" PRIu64 " non-finite values", p->micro, b->nonfinite[i]);
		answer_push(e, p, ST_OK, b->is_void[i] ? PUSH_VOID : PUSH_COUNTED, b->nonfinite[i]);
		accum_remove(&e->accum, accum_find(&e->accum, p->rank, p->micro));
	}
}

void window_pass(struct engine *e)
{
	struct batch b;
	uint32_t x = e->state.r.x, dst = e->state.r.client_pending ? x : 1 - x, n_bad = 0;
	take_batch(e, &b);
	if (!b.n)
		return;
	FAILPOINT(engine_pass_before);
	snapshot_protect(e->snapshot, dst ? SEG_ACCUM1 : SEG_ACCUM0);
	do
		b.n_good -= n_bad;
	while (b.n_good && (n_bad = add_good(e, &b, dst)));
	if (b.n_good)
		e->norm_known = b.completes;
	FAILPOINT(engine_pass_filled);
	write_ledger(e, &b);
	FAILPOINT(engine_ledger_written);
	record_batch(e, &b, dst);
	FAILPOINT(engine_pass_published);
	window_zero_slots(e);
	FAILPOINT(engine_answer_push);
	answer_batch(e, &b);
	refuse_other_lr(e);
}
