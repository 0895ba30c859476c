/* SPDX-License-Identifier: Apache-2.0 */
/* A push in the engine, from its command or its cell to its answer: has it judged, queues it, runs the passes that add
 * those whose turn it is, records what they add, and answers. For engine.c and window.c; the engine's main thread. */
#include "engine/process.h"

#include "base/log.h"
#include "engine/refusal.h"
#include "engine/progress.h"
#include "proto/failpoint.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

_Static_assert(SEGMENT_MAX_ZERO == KERNEL_MAX_SLOTS, "a record names all slots of a pass");

/* The pushes of one pass; copies, because the queue moves when entries leave it. */
struct batch {
	struct accum_entry entry[KERNEL_MAX_SLOTS];
	uint64_t nonfinite[KERNEL_MAX_SLOTS];
	bool is_void[KERNEL_MAX_SLOTS];
	uint32_t n, n_good;
	uint32_t n_done; /* ranks that owe nothing any more with it */
	bool completes;
};

/* Who is answered, and what a push says that it is not judged by. */
struct origin {
	uint64_t asker; /* a command's id, or boxes_asker */
	int64_t unix_nanos;
	bool zero_after;
};

static struct window_state window_of(const struct engine *e)
{
	return (struct window_state){ .plan = e->mem.plan,
				      .record = &e->state,
				      .ledger = control_page_ledger(&e->mem.page, 0, 0),
				      .queue = &e->accum };
}

/* ---- answers ---- */

/* Nothing if the mailbox is gone. */
static void answer_cell(struct engine *e, const struct accum_entry *p, uint64_t asker, const struct engine_answer *a)
{
	const struct box *b = boxes_of(e, p->rank);
	uint32_t cell = (uint32_t)asker % GACC_BOX_CELLS;
	if (!b || !b->mail.cells.open[cell])
		return;
	assert(b->sgen == p->sgen); /* a newer session's ATTACH has refused what was queued */
	bool fails = a->result == PUSH_VOID && e->mem.plan->void_is_error; /* gaccd says so to whoever calls it */
	engine_answer_cell(e, p->rank, cell,
			   (struct gacc_box_answer){ .status = fails ? ST_NONFINITE : a->status,
						     .result = fails ? 0 : a->result,
						     .window = a->window,
						     .parked_ns = a->parked_ns,
						     .waited_for = plan_rank_number(e->mem.plan, a->blocked_by) });
}

static void answer_one(struct engine *e, const struct accum_entry *p, uint64_t asker, struct engine_answer *a)
{
	a->id = asker;
	if (boxes_is_asker(asker))
		answer_cell(e, p, asker, a);
	else
		engine_send(e, a);
}

/* To all who asked: a repeat of what is counted is a duplicate. gaccd hears once of values that are not finite. */
static void answer_push(struct engine *e, const struct accum_entry *p, struct engine_answer *a)
{
	a->op = ENGINE_ADD;
	a->rank = p->rank;
	a->window = e->state.r.window;
	a->rank_counted = e->state.rank[p->rank].counted;
	a->blocked_by = p->blocked_by;
	for (uint32_t i = 0; i < p->n_askers; i++) {
		answer_one(e, p, p->asker[i], a);
		a->result = a->result == PUSH_COUNTED ? PUSH_DUPLICATE : a->result;
		if (!boxes_is_asker(p->asker[i]))
			a->nonfinite_count = 0;
	}
}

/* Takes a queued push out of the queue, and says why. What the status page shows is there before the answer. */
static void refuse(struct engine *e, struct accum_entry *p, enum status st)
{
	const struct window_state w = window_of(e);
	struct engine_answer a = { .status = st, .parked_ns = progress_clock() - p->since_ns };
	const struct accum_entry gone = *p;
	const char *hint = refusal_describe_queued(&w, p, st, a.text, sizeof(a.text));
	snprintf(a.hint, sizeof(a.hint), "%s", hint ? hint : "");
	accum_remove(&e->accum, p);
	engine_show_rank(e, gone.rank);
	answer_push(e, &gone, &a);
}

void push_refuse(struct engine *e, uint32_t rank, uint64_t below_sgen, enum status st)
{
	struct accum_entry *p;
	while ((p = accum_find_stale(&e->accum, rank, below_sgen)))
		refuse(e, p, st);
}

/* The first counted push has set the window's learning rate: queued pushes with another one are refused now, not when
 * their turn comes. */
static void refuse_other_lr(struct engine *e)
{
	struct accum_entry *p;
	while ((p = accum_find_other_lr(&e->accum, &e->state)))
		refuse(e, p, ST_LR_MISMATCH);
}

/* ---- a push comes ---- */

/* slot: of the session; what is none of it is far behind its last one. */
static struct push push_of(const struct window_state *w, const struct engine_command *c, const unsigned char *present)
{
	return (struct push){ .rank = c->rank,
			      .micro = c->micro,
			      .slot = c->slot - (c->rank < w->plan->ranks ? accum_first_slot(w, c->rank) : 0),
			      .sgen = c->sgen,
			      .window = c->window,
			      .data_key = c->data_key,
			      .weight = c->weight,
			      .loss = c->loss,
			      .lr = c->window_lr,
			      .loss_scale = c->loss_scale,
			      .present = present,
			      .n_present = c->n_present };
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

/* Answered after its pass. */
static enum status queue_push(struct engine *e, const struct window_state *w, const struct push *p,
			      const struct origin *o)
{
	struct accum_entry n = {
		.asker = { o->asker },
		.n_askers = 1,
		.sgen = p->sgen,
		.rank = p->rank,
		.micro = p->micro,
		.slot = accum_first_slot(w, p->rank) + p->slot,
		.blocked_by = accum_blocked_by(&e->accum, &e->state, p->rank, p->micro),
		.since_ns = progress_clock(),
		.coefficient = reduce_coefficient(w->plan->reduction, w->plan->grad_of, p->weight),
		.weight = p->weight,
		.loss = p->loss,
		.window_lr = p->lr,
		.data_key = p->data_key,
		.unix_nanos = o->unix_nanos,
		.zero_after = o->zero_after,
	};
	enum status st = copy_bitmap(&n.present, p->present, p->n_present);
	if (st)
		return st;
	accum_queue(&e->accum, &n);
	atomic_store_explicit(&e->mem.progress->rank[n.rank].last_push_unix_ns, n.unix_nanos, memory_order_relaxed);
	engine_show_rank(e, n.rank);
	return ST_OK;
}

/* Why, for people. A push that was to be queued has only lacked memory. */
static void describe(const struct window_state *w, const struct push *p, const struct verdict *v,
		     struct engine_answer *a)
{
	const char *hint = NULL;
	if (v->ruling == PUSH_QUEUES)
		snprintf(a->text, sizeof(a->text), "%s", status_info(v->status)->text);
	else
		hint = refusal_describe(w, p, v, a->text, sizeof(a->text));
	snprintf(a->hint, sizeof(a->hint), "%s", hint ? hint : "");
}

static void answer_at_once(struct engine *e, const struct window_state *w, const struct push *p, uint64_t asker,
			   const struct verdict *v)
{
	bool known = p->rank < e->state.r.ranks;
	struct engine_answer a = { .op = ENGINE_ADD,
				   .status = v->status,
				   .rank = p->rank,
				   .window = p->window,
				   .result = v->result,
				   .rank_counted = known ? e->state.rank[p->rank].counted : 0,
				   .blocked_by = p->rank };
	if (v->status && !boxes_is_asker(asker)) /* a cell has no room for words */
		describe(w, p, v, &a);
	answer_one(e, &(struct accum_entry){ .rank = p->rank, .sgen = p->sgen }, asker, &a);
}

/* Judges a push, and queues it or answers it at once. Its bitmap is copied. */
static void offer(struct engine *e, const struct push *p, const struct origin *o)
{
	const struct window_state w = window_of(e);
	struct verdict v = accum_judge(&w, p);
	if (v.ruling == PUSH_JOINS) {
		accum_join(&e->accum.entry[v.entry], o->asker);
		return;
	}
	v.status = v.ruling == PUSH_QUEUES ? queue_push(e, &w, p, o) : v.status;
	if (v.ruling != PUSH_QUEUES || v.status)
		answer_at_once(e, &w, p, o->asker, &v);
}

void push_add(struct engine *e, const struct engine_command *c, const unsigned char *present)
{
	const struct window_state w = window_of(e);
	const struct push p = push_of(&w, c, present);
	offer(e, &p, &(struct origin){ .asker = c->id, .unix_nanos = c->unix_nanos, .zero_after = c->zero_after });
}

/* ---- from cells ---- */

static int64_t unix_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void offer_request(struct engine *e, uint32_t rank, const struct box_request *r)
{
	const struct gacc_box_request *q = &r->q;
	const struct push p = { .rank = rank,
				.micro = q->micro,
				.slot = q->slot,
				.sgen = e->boxes.rank[rank].sgen,
				.window = q->window,
				.data_key = q->data_key,
				.weight = q->weight,
				.loss = q->loss,
				.lr = q->lr,
				.loss_scale = q->loss_scale,
				.present = r->present,
				.n_present = q->n_present };
	offer(e, &p,
	      &(struct origin){ .asker = boxes_asker(r->cell),
				.unix_nanos = unix_ns(),
				.zero_after = q->flags & GACC_BOX_ZERO_AFTER });
}

void push_look(struct engine *e, uint32_t rank)
{
	struct box *b = boxes_of(e, rank);
	struct box_request request[GACC_BOX_CELLS];
	uint32_t unready = 0, n = b ? box_look_all(&b->mail.cells, request, &unready) : 0;
	if (!b)
		return;
	b->unready = unready != 0;
	if (unready)
		boxes_list(&e->boxes, rank, LIST_LOOK);
	if (b->mail.cells.bell_due) /* it has refused some */
		boxes_list(&e->boxes, rank, LIST_RING);
	for (uint32_t i = 0; i < n; i++) {
		if (request[i].q.kind == GACC_BOX_PUSH)
			offer_request(e, rank, &request[i]);
		else
			boxes_wait(e, rank, request[i].cell, request[i].q.window);
		free(request[i].present);
	}
}

void push_look_again(struct engine *e)
{
	struct boxes *b = &e->boxes;
	uint32_t n = 0;
	for (uint32_t i = 0; i < b->n_listed[LIST_LOOK]; i++) {
		uint32_t rank = b->list[LIST_LOOK][i];
		if (b->rank[rank].unready)
			push_look(e, rank);
		b->rank[rank].listed[LIST_LOOK] = b->rank[rank].unready;
		if (b->rank[rank].unready)
			b->list[LIST_LOOK][n++] = rank;
	}
	b->n_listed[LIST_LOOK] = n;
}

/* ---- a pass ---- */

static uint32_t next_entries(struct engine *e, struct accum_entry **out, uint32_t max)
{
	const struct control_record *r = &e->state.r;
	if (r->phase != WINDOW_OPEN || (r->client_pending && r->filled))
		return 0;
	return accum_next(&e->accum, &e->state, out, max);
}

bool push_has_work(struct engine *e)
{
	struct accum_entry *one;
	return next_entries(e, &one, 1) > 0;
}

static void take_batch(struct engine *e, struct batch *b)
{
	struct accum_entry *entry[KERNEL_MAX_SLOTS] = { NULL };
	memset(b, 0, sizeof(*b));
	b->n = b->n_good = next_entries(e, entry, KERNEL_MAX_SLOTS);
	/* several parts look at the sum of all of them, later */
	b->completes = e->mem.plan->n_parts == 1 && accum_completes(&e->accum, &e->state, entry, b->n);
	for (uint32_t i = 0; i < b->n; i++)
		b->entry[i] = *entry[i];
}

/* Of a job without accumulators: its one micro-batch becomes the sum. */
static void take_only(struct engine *e, const struct arith_source *s, struct batch *b, uint64_t *nonfinite)
{
	arith_need("looking at a slot", e->arith->ops->take(e->arith, s, nonfinite, &e->norm));
	assert(b->n == 1 && b->completes);
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
	if (e->mem.plan->in_slot)
		take_only(e, source, b, nonfinite);
	else
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

/* Of the good ones of a pass into half dst. A sum that stays in its slot has the half that the record names. */
static void note_touched(struct engine *e, const struct batch *b, uint32_t dst)
{
	const struct control_record *r = &e->state.r;
	const unsigned char *present[KERNEL_MAX_SLOTS];
	uint32_t n = 0;
	if (!e->touched.plan || !b->n_good)
		return;
	for (uint32_t i = 0; i < b->n; i++)
		if (!b->is_void[i])
			present[n++] = b->entry[i].present;
	touched_add(&e->touched, e->mem.plan->in_slot ? r->x : dst, r->x, !r->filled, present, n);
}

static void write_ledger(const struct engine *e, const struct batch *b)
{
	for (uint32_t i = 0; i < b->n; i++) {
		const struct accum_entry *p = &b->entry[i];
		*control_page_ledger(&e->mem.page, p->rank, p->micro) =
			(struct ledger_cell){ p->weight, p->loss, p->data_key, p->unix_nanos };
	}
}

static void record_counted(struct control_state *s, const struct accum_entry *p)
{
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

/* All that the batch changes, in one record: sums in the order of adding. What is queued is owed. */
static void record_batch(struct engine *e, struct batch *b, uint32_t dst)
{
	struct control_state *s = &e->state;
	for (uint32_t i = 0; i < b->n; i++) {
		const struct accum_entry *p = &b->entry[i];
		if (p->zero_after)
			s->r.zero_slot[s->r.n_zero++] = p->slot;
		if (b->is_void[i])
			control_set_bit(s->voided, s->r.max_micro_size, p->rank, p->micro);
		else
			record_counted(s, p);
		b->n_done += !engine_rank_owes(e, p->rank);
	}
	if (b->n_good && e->mem.plan->in_slot) {
		s->r.filled = 1 + b->entry[0].slot;
	} else if (b->n_good) {
		s->r.x = dst;
		s->r.filled = 1;
	}
	engine_publish(e);
	atomic_store_explicit(&e->mem.status->counted, s->r.count, memory_order_relaxed);
}

void push_zero_slots(struct engine *e)
{
	struct control_record *r = &e->state.r;
	if (!r->n_zero || (e->mem.plan->in_slot && r->filled)) /* the latter: when the window is over */
		return;
	for (uint32_t i = 0; i < r->n_zero; i++) {
		FAILPOINT(engine_zero_before);
		arith_need("zeroing a slot", e->arith->ops->zero_slot(e->arith, r->zero_slot[i]));
	}
	FAILPOINT(engine_zero_after);
	r->n_zero = 0;
	engine_publish(e);
}

/* Somebody in gaccd waits for it, and learns from the answer what has become of it. */
static bool has_command(const struct accum_entry *p)
{
	bool any = false;
	for (uint32_t i = 0; i < p->n_askers; i++)
		any = any || !boxes_is_asker(p->asker[i]);
	return any;
}

static void answer_batch(struct engine *e, const struct batch *b)
{
	const int64_t now_ns = progress_clock();
	for (uint32_t i = 0; i < b->n; i++) {
		const struct accum_entry *p = &b->entry[i];
		struct engine_answer a = { .result = b->is_void[i] ? PUSH_VOID : PUSH_COUNTED,
					   .parked_ns = now_ns - p->since_ns };
		a.nonfinite_count = b->nonfinite[i] < UINT32_MAX ? (uint32_t)b->nonfinite[i] : UINT32_MAX;
		if (b->is_void[i])
			log_line(LOG_WARN,
				 (struct log_fields){ e->mem.plan->job_id, p->rank, e->state.r.window, "MicroVoid" },
				 "micro-batch %u is void: %" PRIu64 " non-finite values", p->micro, b->nonfinite[i]);
		accum_remove(&e->accum, accum_find(&e->accum, p->rank, p->micro));
		engine_show_rank(e, p->rank);
		if (a.nonfinite_count && !has_command(p))
			engine_tell(e, b->is_void[i] ? PROGRESS_VOID : PROGRESS_NONFINITE, p, a.nonfinite_count);
		answer_push(e, p, &a);
	}
}

void push_pass(struct engine *e)
{
	struct batch b;
	uint32_t x = e->state.r.x, dst = e->state.r.client_pending ? x : 1 - x, n_bad = 0;
	take_batch(e, &b);
	if (!b.n)
		return;
	FAILPOINT(engine_pass_before);
	if (!e->mem.plan->in_slot)
		arith_before_write(e->arith, dst ? SEG_ACCUM1 : SEG_ACCUM0);
	do
		b.n_good -= n_bad;
	while (b.n_good && (n_bad = add_good(e, &b, dst)));
	if (b.n_good)
		e->norm_known = b.completes;
	FAILPOINT(engine_pass_filled);
	note_touched(e, &b, dst);
	write_ledger(e, &b);
	FAILPOINT(engine_ledger_written);
	record_batch(e, &b, dst);
	FAILPOINT(engine_pass_published);
	push_zero_slots(e);
	FAILPOINT(engine_answer_push);
	answer_batch(e, &b);
	refuse_other_lr(e);
	engine_note_done(e, b.n_done);
}
