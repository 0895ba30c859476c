/* SPDX-License-Identifier: Apache-2.0 */
/* Fake trainers with a mailbox: they publish pushes store by store, may die between any two, wait for bells, and go
 * over to RPC when they must or like, in the middle of a window too. */
#include "sim.h"

#include <string.h>
#include <zlib.h>

#define NOT_AGAIN UINT32_MAX

/* ---- cells ---- */

static bool is_closed(const struct proc *p)
{
	return p->box->mem->header.closed;
}

/* GACC_BOX_CELLS: none is. */
static uint32_t free_cell(const struct proc *p)
{
	const struct gacc_box *m = p->box->mem;
	uint32_t i = 0;
	while (i < GACC_BOX_CELLS && (p->open[i].seq || m->request[i].seq != m->answer[i].seq))
		i++;
	return i;
}

static struct open_push *any_open(struct proc *p)
{
	for (uint32_t i = 0; i < GACC_BOX_CELLS; i++)
		if (p->open[i].seq && !p->open[i].wait)
			return &p->open[i];
	return NULL;
}

/* The engine may still read the slot of this micro-batch for another one. */
static bool slot_is_open(const struct sim *s, const struct proc *p, uint32_t micro)
{
	for (uint32_t i = 0; i < GACC_BOX_CELLS; i++)
		if (p->open[i].seq && !p->open[i].wait &&
		    (p->open[i].micro != micro || p->open[i].window != p->window) &&
		    p->open[i].micro % s->spec.slots_per_rank == micro % s->spec.slots_per_rank)
			return true;
	return false;
}

void box_forget(struct proc *p)
{
	p->box = NULL;
	p->publishing = 0;
	p->again = 0;
	p->repeats = p->hung_up = p->bell = p->waited = p->waits_by_rpc = false;
	memset(p->open, 0, sizeof(p->open));
}

void box_settled(struct proc *p, uint64_t window, uint32_t micro)
{
	for (uint32_t i = 0; i < GACC_BOX_CELLS; i++)
		if (!p->open[i].wait && p->open[i].window == window && p->open[i].micro == micro)
			p->open[i].seq = 0;
}

void box_new_todo(struct proc *p)
{
	p->again = 0;
	p->repeats = p->waited = p->waits_by_rpc = false;
	for (uint32_t i = 0; i < GACC_BOX_CELLS; i++)
		p->open[i].at = NOT_AGAIN;
}

/* ---- answers ---- */

static void repeat(struct proc *p, struct open_push *o)
{
	if (o->at != NOT_AGAIN)
		p->again |= 1u << o->at;
	o->at = NOT_AGAIN;
}

/* A block that is not whole, or of another window, means RPC like every other status. */
static void take_wait(struct proc *p, struct open_push *o, const struct gacc_box_answer *a)
{
	p->step = p->box->mem->step;
	o->seq = 0;
	if (o->window != p->window || p->state != PROC_WAIT)
		return;
	p->waited = !a->status && p->step.window == p->window &&
		    p->step.check == (uint32_t)crc32(0, (const unsigned char *)&p->step, GACC_BOX_STEP_CHECKED);
	p->waits_by_rpc = !p->waited;
}

static void take_answer(struct sim *s, struct proc *p, struct open_push *o, const struct gacc_box_answer *a)
{
	if (a->status == ST_FLUSHED && !o->flushed)
		sim_fail(s, "I22: rank %u published micro-batch %u of window %llu, then flushed, and is told FLUSHED",
			 p->rank, o->micro, (unsigned long long)o->window);
	if (!a->status)
		trainer_told(s, o->window, p->rank, o->micro, a->result);
	if (a->status || (s->restless && sim_chance(s, 50))) /* it may say everything twice */
		repeat(p, o);
	o->seq = 0;
}

static void look(struct sim *s, struct proc *p)
{
	p->bell = p->looks = false;
	for (uint32_t i = 0; i < GACC_BOX_CELLS; i++) {
		const struct gacc_box_answer a = p->box->mem->answer[i];
		struct open_push *o = &p->open[i];
		if (o->seq && a.seq == o->seq &&
		    a.check == (uint32_t)crc32(0, (const unsigned char *)&a, GACC_BOX_ANSWER_CHECKED))
			o->wait ? take_wait(p, o, &a) : take_answer(s, p, o, &a);
		if (o->seq && is_closed(p)) {
			if (o->wait)
				p->waits_by_rpc = true;
			else
				repeat(p, o);
			o->seq = 0;
		}
	}
}

/* ---- waiting ---- */

static void begin_wait(struct sim *s, struct proc *p, enum proc_state then)
{
	p->then = then;
	p->looks = true;
	p->box_until = p->box_limit ? s->now + p->box_limit : INT64_MAX;
	trainer_next(s, p, PROC_BOX);
}

void box_go_on(struct sim *s, struct proc *p)
{
	if (p->repeats)
		p->again &= ~(1u << p->at);
	else
		p->resume_at = p->at;
	p->repeats = p->again != 0;
	p->at = p->repeats ? (uint32_t)__builtin_ctz(p->again) : p->resume_at;
	trainer_next(s, p, p->repeats ? PROC_PUSH : p->then);
}

static void wait(struct sim *s, struct proc *p)
{
	if (p->bell || p->looks)
		look(s, p);
	if (any_open(p) && s->now < p->box_until) {
		if (p->box_until < INT64_MAX)
			trainer_wake(s, p, p->box_until - s->now);
		return;
	}
	for (uint32_t i = 0; i < GACC_BOX_CELLS; i++)
		if (p->open[i].seq && !p->open[i].wait)
			repeat(p, &p->open[i]);
	box_go_on(s, p);
}

/* ---- publishing ---- */

static struct gacc_box_request push_request(const struct sim *s, const struct proc *p)
{
	uint32_t micro = p->todo[p->at];
	return (struct gacc_box_request){ .seq = p->box_seq,
					  .kind = GACC_BOX_PUSH,
					  .window = p->window,
					  .micro = micro,
					  .slot = micro % s->spec.slots_per_rank,
					  .weight = sim_weight_of(s, micro),
					  .loss_scale = p->loss_scale,
					  .data_key = sim_key_of(p, p->window, micro),
					  .lr = sim_lr_of(s, p->window) };
}

static void prepare(struct sim *s, struct proc *p)
{
	struct gacc_box_request *q = &p->request;
	p->box_seq++;
	*q = p->state == PROC_WAIT
		     ? (struct gacc_box_request){ .seq = p->box_seq, .kind = GACC_BOX_WAIT, .window = p->window }
		     : push_request(s, p);
	q->check = (uint32_t)crc32(0, (const unsigned char *)q, GACC_BOX_REQUEST_CHECKED);
	p->cell = free_cell(p);
	p->cut = sim_chance(s, 700) ? 0 : 8 * (uint32_t)sim_random(s, sizeof(*q) / 8);
	p->call = 0;
}

/* The words from `from` to `to` of the request. */
static void store(struct proc *p, size_t from, size_t to)
{
	unsigned char *cell = (unsigned char *)&p->box->mem->request[p->cell];
	memcpy(cell + from, (const unsigned char *)&p->request + from, to - from);
}

/* In three events, or fewer: half of the words, all of them, the bell. */
static bool publish(struct sim *s, struct proc *p)
{
	bool tail_first = p->request.seq % 2;
	if (p->publishing == 0) {
		prepare(s, p);
		tail_first = p->request.seq % 2;
		store(p, tail_first ? p->cut : 0, tail_first ? sizeof(p->request) : p->cut);
		p->publishing = 1;
		if (p->cut)
			return false;
	}
	if (p->publishing == 1) {
		store(p, tail_first ? 0 : p->cut, tail_first ? p->cut : sizeof(p->request));
		p->open[p->cell] = (struct open_push){ .seq = p->request.seq,
						       .window = p->window,
						       .micro = p->request.micro,
						       .at = p->at,
						       .wait = p->request.kind == GACC_BOX_WAIT,
						       .flushed = p->flushed_window == p->window + 1 };
		p->publishing = 2;
		if (sim_chance(s, 200))
			return false;
	}
	p->publishing = 0;
	struct event *e = sim_event(s, (int64_t)sim_random(s, MS / 2), EV_BOX_BELL);
	e->life = s->engine_life;
	e->proc = p->rank;
	return true;
}

/* It has published one: it waits for its answer, or goes on with the next one before. */
static void after_publish(struct sim *s, struct proc *p)
{
	p->at++;
	bool last = p->at == p->n_todo;
	enum proc_state then = trainer_or_else(s, last ? PROC_WAIT : PROC_COMPUTE);
	if (last ? sim_chance(s, 100) : sim_chance(s, 600))
		trainer_next(s, p, then);
	else
		begin_wait(s, p, then);
}

/* Nothing new is written or asked before what cells have not taken is repeated: it lies in its slot still. */
static bool must_repeat(const struct proc *p, bool idle)
{
	bool waits = p->state == PROC_WAIT, may = p->state == PROC_COMPUTE || p->state == PROC_PUSH;
	return p->again && !p->repeats && !p->publishing && (waits || (may && idle));
}

static bool goes_into_cell(struct sim *s, const struct proc *p)
{
	return p->publishing || (!is_closed(p) && free_cell(p) < GACC_BOX_CELLS && sim_chance(s, 800));
}

/* All of the request, or a part of it; true: it is there, and the bell has rung. */
static bool publishes(struct sim *s, struct proc *p)
{
	if (publish(s, p))
		return true;
	if (s->faults && sim_chance(s, 10))
		trainer_dies(s, p);
	else
		trainer_wake(s, p, 1 + (int64_t)sim_random(s, MS));
	return false;
}

static bool has_open_wait(const struct proc *p)
{
	bool any = false;
	for (uint32_t i = 0; i < GACC_BOX_CELLS; i++)
		any = any || (p->open[i].seq && p->open[i].wait && p->open[i].window == p->window);
	return any;
}

/* Waits for the window's end in a cell. false: by RPC. */
static bool wait_in_cell(struct sim *s, struct proc *p, bool idle)
{
	if (p->waited) {
		struct reply r = { .kind = REPLY_STEP };
		r.step.commit.window = p->step.window;
		r.step.commit.outcome = p->step.outcome;
		r.step.commit.next.scale.scale = p->step.next_loss_scale;
		r.step.micro_size = p->step.next_micro_size;
		r.step.done = p->step.final;
		trainer_after_wait(s, p, &r);
		return true;
	}
	if (!p->publishing && has_open_wait(p)) {
		p->waits_by_rpc |= s->now >= p->box_until;
		return !p->waits_by_rpc;
	}
	if (p->waits_by_rpc || !idle || !goes_into_cell(s, p)) {
		p->waits_by_rpc = true;
		return false;
	}
	if (!publishes(s, p))
		return true;
	p->box_until = p->box_limit ? s->now + p->box_limit : INT64_MAX;
	look(s, p); /* the bell may have rung before */
	if (p->waited || p->waits_by_rpc || p->box_limit)
		trainer_wake(s, p, p->waited || p->waits_by_rpc ? 1 : p->box_limit);
	return true;
}

bool box_act(struct sim *s, struct proc *p)
{
	bool idle = !p->call || s->now >= p->retry_at;
	if (!p->box)
		return false;
	if (p->bell && p->state != PROC_BOX)
		look(s, p);
	if (must_repeat(p, idle)) {
		p->then = p->state;
		box_go_on(s, p);
		return true;
	}
	if (p->state == PROC_COMPUTE && slot_is_open(s, p, p->todo[p->at])) {
		begin_wait(s, p, PROC_COMPUTE);
		return true;
	}
	if (p->state == PROC_BOX) {
		wait(s, p);
		return true;
	}
	if (p->state == PROC_WAIT)
		return wait_in_cell(s, p, idle);
	if (p->state != PROC_PUSH || p->repeats || !idle || !goes_into_cell(s, p))
		return false;
	if (publishes(s, p))
		after_publish(s, p);
	return true;
}
