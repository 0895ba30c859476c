/* SPDX-License-Identifier: Apache-2.0 */
/* Mailboxes of sessions, as gaccd keeps them and the fake engine reads them: the real cells (engine/mailbox_cells.h) in
 * plain memory, bells that are lost with the process that rings or listens, and the record in which gaccd finds what
 * has come in them. */
#include "sim.h"

#include "engine/boxes.h"

#include <stdlib.h>
#include <string.h>

/* ---- gaccd ---- */

void sim_box_give(struct sim *s, struct proc *p)
{
	if (!s->gaccd_up || job_ended(s->job) || !job_session_is(s->job, sim_rank(s, p), p->generation))
		return;
	struct sim_box *b = calloc(1, sizeof(*b));
	b->mem = calloc(1, gacc_box_bytes(1));
	b->rank = p->rank;
	b->proc = (uint32_t)(p - s->proc);
	b->sgen = p->generation;
	b->next = s->boxes;
	s->boxes = s->given[p->rank] = p->box = b;
	job_on_mailbox(s->job, sim_rank(s, p), p->generation);
}

void sim_boxes_gone(struct sim *s)
{
	for (uint32_t i = 0; i < s->n_procs; i++) {
		struct proc *p = &s->proc[i];
		if (!p->box)
			continue;
		p->hung_up = true;
		trainer_wake(s, p, (int64_t)sim_random(s, 4 * MS));
	}
	memset(s->given, 0, sizeof(s->given));
	s->runs = false;
	s->looked = UINT64_MAX;
}

void sim_boxes_free(struct sim *s)
{
	while (s->boxes) {
		struct sim_box *b = s->boxes;
		s->boxes = b->next;
		free(b->mem);
		free(b);
	}
}

/* A process hears its bell, unless it has another mailbox, or none, by now. */
static void ring(struct sim *s, const struct sim_box *b)
{
	struct proc *p = &s->proc[b->proc];
	if (p->box != b)
		return;
	p->bell = true;
	trainer_wake(s, p, (int64_t)sim_random(s, MS / 2));
}

void sim_port_mailbox_over(void *ctx, uint32_t rank)
{
	struct sim *s = ctx;
	struct sim_box *b = s->given[rank];
	if (!b || b->mem->header.closed)
		return;
	b->mem->header.closed = 1;
	ring(s, b);
}

static void note_told(struct sim *s)
{
	s->told = s->d.r.seq > s->told ? s->d.r.seq : s->told;
}

/* Now and then it cannot be read. */
bool sim_port_record(void *ctx, uint64_t newer_than, struct record_view *out)
{
	struct sim *s = ctx;
	if (!s->durable || (s->faults && sim_chance(s, 50))) {
		s->unread_until = s->now + TICK_NS;
		return false;
	}
	*out = (struct record_view){ .ledger = s->ledger, .rank = s->row };
	if (s->d.r.seq > newer_than) {
		out->state = &s->d;
		note_told(s);
	}
	if (job_window(s->job) == s->d.r.window)
		s->looked = s->d.r.seq;
	return true;
}

void sim_on_order(struct sim *s, const struct order *o)
{
	s->runs |= o->run;
	job_on_order(s->job, o, sim_now(s));
}

void sim_note_report(struct sim *s, const struct report *r)
{
	if (r->complete)
		s->complete_said = r->window + 1;
}

/* ---- the engine ---- */

struct sim_box *sim_box_sent(struct sim *s, const struct engine_command *c)
{
	struct sim_box *b = s->given[c->rank];
	if (!s->runs)
		sim_fail(s, "I23: the engine gets a mailbox of rank %u, and the job does not run yet", c->rank);
	return b && b->sgen == c->sgen && !b->mem->header.closed ? b : NULL;
}

/* As the engine's push.c does. */
static enum status judge_box(const struct sim *s, const struct engine_command *c, const struct sim_box *b)
{
	const struct control_rank *r = &s->d.rank[c->rank];
	if (!b)
		return ST_INVALID_ARGUMENT;
	if (c->epoch != s->d.r.epoch)
		return ST_STALE_EPOCH;
	if (c->sgen != r->sgen)
		return c->sgen < r->sgen ? ST_SESSION_FENCED : ST_SESSION_UNKNOWN;
	return s->d.r.params_ready ? ST_OK : ST_NOT_READY;
}

static void bell_due(struct sim *s, uint32_t rank)
{
	struct event *e = sim_event(s, (int64_t)sim_random(s, MS / 2), EV_BOX_RING);
	e->life = s->engine_life;
	e->proc = rank;
}

enum status sim_box_take(struct sim *s, const struct engine_command *c, struct sim_box *b)
{
	enum status st = judge_box(s, c, b);
	struct sim_open_box *to = &s->box[c->rank];
	if (!st && s->faults && sim_chance(s, 30))
		st = ST_NO_MEMORY;
	if (st)
		return st;
	s->had_box = true;
	*to = (struct sim_open_box){ .of = b };
	box_take_over(&to->cells, b->mem, 1, s->spec.slots_per_rank);
	bell_due(s, c->rank);
	sim_box_look(s, c->rank);
	return ST_OK;
}

/* ---- WAITs, as the engine's boxes_wait.c does ---- */

static enum status judge_wait(const struct control_record *r, uint64_t window, bool *later)
{
	*later = window == r->window && !(accum_knows_last(r) && r->commit_result.final);
	if (window >= r->window)
		return window > r->window ? ST_NOT_CURRENT_WINDOW : ST_JOB_ENDED;
	if (window + 1 < r->window || !accum_knows_last(r))
		return ST_WINDOW_FORGOTTEN;
	return r->params_nonfinite ? ST_NONFINITE : ST_OK;
}

static void answer_wait(struct sim *s, uint32_t rank, uint32_t cell, uint64_t window, enum status st)
{
	struct box_cells *c = &s->box[rank].cells;
	const struct control_record *r = &s->d.r;
	if (!st)
		box_write_step(c, &(struct gacc_box_step){ .window = r->commit_window,
							   .outcome = r->commit_outcome,
							   .final = r->commit_result.final,
							   .next_loss_scale = r->commit_next_loss_scale,
							   .next_micro_size = r->commit_micro_size });
	note_told(s);
	box_answer(c, cell, c->open[cell], &(struct gacc_box_answer){ .status = st, .result = !st, .window = window });
	s->n_sure = s->n_sent;
	bell_due(s, rank);
}

static void take_wait(struct sim *s, uint32_t rank, uint32_t cell, uint64_t window)
{
	bool later;
	enum status st = judge_wait(&s->d.r, window, &later);
	if (later)
		s->box[rank].waits |= 1u << cell;
	else
		answer_wait(s, rank, cell, window, st);
}

void sim_box_end_waits(struct sim *s)
{
	bool later;
	uint64_t window = s->d.r.commit_window;
	enum status st = judge_wait(&s->d.r, window, &later);
	for (uint32_t i = 0; i < s->spec.ranks; i++) {
		for (uint32_t cell = 0; s->box[i].of && s->box[i].waits >> cell; cell++)
			if (s->box[i].waits >> cell & 1)
				answer_wait(s, i, cell, window, st);
		s->box[i].waits = 0;
	}
}

/* ---- a look ---- */

void sim_box_look(struct sim *s, uint32_t rank)
{
	struct sim_open_box *b = &s->box[rank];
	struct box_request request[GACC_BOX_CELLS];
	uint32_t unready, n = b->of ? box_look_all(&b->cells, request, &unready) : 0;
	for (uint32_t i = 0; i < n; i++) {
		const struct gacc_box_request *q = &request[i].q;
		const struct push p = { .rank = rank,
					.micro = q->micro,
					.slot = q->slot,
					.sgen = b->of->sgen,
					.window = q->window,
					.data_key = q->data_key,
					.weight = q->weight,
					.lr = q->lr,
					.loss_scale = q->loss_scale };
		if (q->kind == GACC_BOX_WAIT)
			take_wait(s, rank, request[i].cell, q->window);
		else
			sim_push_offer(s, &p, boxes_asker(request[i].cell));
	}
}

/* Nothing that is not in the record may be said to be. */
static void check_answer(struct sim *s, const struct accum_entry *p, const struct engine_answer *a, uint32_t micro)
{
	bool says = a->result == PUSH_COUNTED || a->result == PUSH_DUPLICATE;
	if (says && !control_bit(s->d.counted, s->spec.max_micro_size, p->rank, micro))
		sim_fail(s, "I4: a cell of rank %u is answered %u for micro-batch %u, which is not in the record",
			 p->rank, a->result, micro);
}

void sim_box_answer(struct sim *s, const struct accum_entry *p, const struct engine_answer *a)
{
	struct sim_open_box *b = &s->box[p->rank];
	uint32_t cell = (uint32_t)a->id % GACC_BOX_CELLS;
	bool fails = a->result == PUSH_VOID && s->spec.nonfinite == NONFINITE_ERROR;
	if (!b->of || !b->cells.open[cell])
		return;
	if (b->of->sgen != p->sgen)
		sim_fail(s, "I6: a push of session %llu of rank %u is answered in the mailbox of session %llu",
			 (unsigned long long)p->sgen, p->rank, (unsigned long long)b->of->sgen);
	check_answer(s, p, a, b->of->mem->request[cell].micro);
	note_told(s);
	box_answer(&b->cells, cell, b->cells.open[cell],
		   &(struct gacc_box_answer){ .status = fails ? ST_NONFINITE : a->status,
					      .result = fails ? 0 : a->result,
					      .window = a->window,
					      .counted = s->d.rank[p->rank].counted,
					      .micro_size = s->d.r.micro_size });
	bell_due(s, p->rank);
}

void sim_box_ring(struct sim *s, uint32_t rank)
{
	struct sim_open_box *b = &s->box[rank];
	if (!b->of || !b->cells.bell_due)
		return;
	b->cells.bell_due = false;
	ring(s, b->of);
}

void sim_box_fence(struct sim *s, uint32_t rank, uint64_t sgen)
{
	struct sim_open_box *b = &s->box[rank];
	if (!b->of || b->of->sgen >= sgen)
		return;
	if (b->flush.id)
		engine_answer(
			s, &(struct engine_answer){
				   .op = ENGINE_FLUSH, .id = b->flush.id, .rank = rank, .status = ST_SESSION_FENCED });
	*b = (struct sim_open_box){ 0 };
}
