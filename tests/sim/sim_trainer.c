/* SPDX-License-Identifier: Apache-2.0 */
/* Fake trainers: what libgacc does, over a network that loses, repeats and delays, with processes that die or stop. */
#include "sim.h"

#include <string.h>

#define RETRY_NS (300 * MS)

void trainer_nonce(struct sim *s, struct proc *p)
{
	for (int i = 0; i < 16; i++)
		p->nonce[i] = (uint8_t)sim_random(s, 256);
}

void trainer_wake(struct sim *s, struct proc *p, int64_t delay)
{
	sim_event(s, delay, EV_PROC)->proc = (uint32_t)(p - s->proc);
}

static struct sim_slot *slot_of(struct sim *s, const struct proc *p, uint32_t slot)
{
	return &s->slot[(p->spare ? s->spec.ranks : p->rank) * s->spec.slots_per_rank + slot];
}

/* A request leaves: lost, once or twice. */
static void send(struct sim *s, struct proc *p)
{
	if (p->call && p->server_call && s->gaccd_up && sim_chance(s, 700))
		job_on_call_gone(s->job, p->server_call,
				 sim_rank(s, p)); /* the deadline of the call before has passed */
	p->server_call = 0;
	p->call = ++s->last_call;
	p->retry_at = s->now + RETRY_NS;
	int copies = !s->faults ? 1 : sim_chance(s, 60) ? 0 : sim_chance(s, 60) ? 2 : 1;
	for (int i = 0; i < copies; i++) {
		struct event *e = sim_event(s, sim_net_delay(s), EV_REQUEST);
		e->proc = (uint32_t)(p - s->proc);
		e->call = p->call;
		e->order.window = p->window; /* what it says is fixed when it is sent */
		e->order.attempt = p->at < p->n_todo ? p->todo[p->at] : 0;
		e->order.want = (enum want)p->state;
		e->order.commit.window = p->ack_window;
		memcpy(e->missing, p->token, 16);
	}
	trainer_wake(s, p, RETRY_NS + 1);
}

static struct session_key key_of(const struct sim *s, const struct event *e)
{
	struct session_key k = { .rank = sim_rank(s, &s->proc[e->proc]), .uid = 1000 };
	memcpy(k.token, e->missing, 16);
	return k;
}

double sim_lr_of(const struct sim *s, uint64_t window)
{
	return (s->seed + window) % 3 ? 0 : 10 + (double)window;
}

uint64_t sim_key_of(const struct proc *p, uint64_t window, uint32_t micro)
{
	return 1 + window * 1000 + p->rank * 100 + micro;
}

double sim_weight_of(const struct sim *s, uint32_t micro)
{
	static const double extreme[] = { 1, 1e-300, 1e300, 1e-30 };
	return s->extreme ? extreme[micro % 4] : 1 + micro;
}

/* A request arrives at gaccd. */
void trainer_request(struct sim *s, const struct event *e)
{
	struct proc *p = &s->proc[e->proc];
	if (!s->gaccd_up)
		return;
	engine_hear(s);
	uint64_t call = e->call << 8 | sim_random(s, SIM_PUT); /* every copy is a call of its own */
	p->server_call = call;
	struct session_key k = key_of(s, e);
	struct now now = sim_now(s);
	uint64_t window = e->order.window;
	switch ((enum proc_state)e->order.want) {
	case PROC_ATTACH: {
		struct attach_args a = { .rank = sim_rank(s, p),
					 .world_size = s->part.world,
					 .uid = 1000,
					 .pid = e->proc + 1,
					 .start_time = 1,
					 .shared_memory = !p->streams,
					 .resume_generation = p->generation };
		memcpy(a.nonce, p->nonce, 16);
		job_attach(s->job, call, &a, now);
		break;
	}
	case PROC_READY:
		job_wait_ready(s->job, call, &k, 0, now);
		break;
	case PROC_PUSH:
	case PROC_OTHER_KEY: {
		uint32_t micro = (uint32_t)e->order.attempt;
		struct push_args a = { .window = window,
				       .micro = micro,
				       .slot = micro % s->spec.slots_per_rank,
				       .weight = sim_weight_of(s, micro),
				       .loss_scale = p->loss_scale,
				       .lr = sim_lr_of(s, window),
				       .data_key = sim_key_of(p, window, micro) };
		if ((enum proc_state)e->order.want == PROC_OTHER_KEY)
			a.data_key += 50;
		job_push(s->job, call, &k, &a, now);
		break;
	}
	case PROC_FLUSH:
		job_flush(s->job, call, &k, window, now);
		break;
	case PROC_WAIT:
		job_wait_step(s->job, call, &k, window, 0, now);
		break;
	case PROC_DETACH:
		job_detach(s->job, call, &k, true, now);
		break;
	case PROC_PAUSE:
		job_detach(s->job, call, &k, false, now);
		break;
	case PROC_ACK:
		job_ack_step(s->job, call, &k, e->order.commit.window, now);
		break;
	default:
		break;
	}
}

static const struct proc *caller(const struct sim *s, uint64_t call)
{
	for (uint32_t i = 0; i < s->n_procs; i++)
		if (s->proc[i].call == call)
			return &s->proc[i];
	return NULL;
}

/* gaccd answers a call. */
void trainer_reply(struct sim *s, uint64_t call, const struct reply *r)
{
	if (s->faults && sim_chance(s, 60))
		return;
	struct event *e = sim_event(s, sim_net_delay(s), EV_REPLY);
	e->call = call >> 8;
	e->reply = *r;
	const struct proc *p = caller(s, e->call);
	uint32_t n;
	if (r->status == ST_OK &&
	    r->kind == REPLY_ATTACH) /* the slots are mapped under this session, not a later one */
		e->coord = p && job_session_slots(s->job, sim_rank(s, p), &n) / s->spec.slots_per_rank == s->spec.ranks;
	if (p && r->status == ST_OK && r->kind == REPLY_FLUSH)
		sim_check_flush(s, p, r->flush.counted);
	if (r->status == ST_OK && r->kind == REPLY_READY)
		memcpy(e->missing, r->ready.missing, r->ready.n_missing * sizeof(*e->missing));
}

void trainer_told(struct sim *s, uint64_t window, uint32_t rank, uint32_t micro, uint32_t result)
{
	if (s->n_told < sizeof(s->told_push) / sizeof(*s->told_push)) {
		s->told_push[s->n_told].window = window;
		s->told_push[s->n_told].rank = rank;
		s->told_push[s->n_told].micro = micro;
		s->told_push[s->n_told++].result = result;
	}
}

/* By RPC. */
static void told(struct sim *s, struct proc *p, uint32_t result)
{
	trainer_told(s, p->window, p->rank, p->todo[p->at], result);
	box_settled(p, p->window, p->todo[p->at]);
}

void trainer_next(struct sim *s, struct proc *p, enum proc_state state)
{
	p->state = state;
	p->call = 0;
	trainer_wake(s, p, (int64_t)sim_random(s, 10 * MS) + 1);
}

/* What a trainer may do at any point of a window instead of what comes next. */
enum proc_state trainer_or_else(struct sim *s, enum proc_state usual)
{
	if (!s->restless)
		return usual;
	uint64_t luck = sim_random(s, 1000);
	return luck < 50 ? PROC_DETACH : luck < 80 ? PROC_PAUSE : luck < 150 ? PROC_FLUSH : usual;
}

/* In order of arrival micro-batches may come in any order. */
static void shuffle(struct sim *s, struct proc *p)
{
	for (uint32_t i = p->n_todo; i > 1 && s->spec.ordering == ORDER_ARRIVAL; i--) {
		uint32_t k = (uint32_t)sim_random(s, i), t = p->todo[k];
		p->todo[k] = p->todo[i - 1];
		p->todo[i - 1] = t;
	}
}

/* After a window, or an attach: ask where we are. */
static void begin_window(struct sim *s, struct proc *p, const struct event *e)
{
	p->window = e->reply.ready.window;
	p->loss_scale = e->reply.ready.loss_scale;
	p->n_todo = e->reply.ready.n_missing;
	memcpy(p->todo, e->missing, p->n_todo * sizeof(*p->todo));
	p->at = 0;
	box_new_todo(p);
	shuffle(s, p);
	if (e->reply.ready.pending_apply) { /* an earlier process of this rank has not read it, or has not said so */
		p->ack_window = e->reply.ready.pending_window;
		trainer_next(s, p, PROC_ACK);
		return;
	}
	/* now and then a rank has fewer micro-batches than micro_size */
	trainer_next(s, p,
		     trainer_or_else(s, p->n_todo == 0	     ? PROC_WAIT
					: sim_chance(s, 150) ? PROC_FLUSH
							     : PROC_COMPUTE));
}

void trainer_after_push(struct sim *s, struct proc *p)
{
	if (p->repeats) {
		box_go_on(s, p);
		return;
	}
	p->at++;
	if (p->at < p->n_todo)
		trainer_next(s, p, trainer_or_else(s, sim_chance(s, 50) ? PROC_FLUSH : PROC_COMPUTE));
	else
		trainer_next(s, p, trainer_or_else(s, PROC_WAIT));
}

/* It has flushed: most wait; some flush again, leave, or push what is not wanted any more. */
static void after_flush(struct sim *s, struct proc *p)
{
	bool pushes = s->restless && p->at < p->n_todo && sim_chance(s, 100);
	trainer_next(s, p, pushes ? PROC_COMPUTE : trainer_or_else(s, PROC_WAIT));
}

/* With the next window, which gaccd may not have heard of. */
static void begin_at_once(struct sim *s, struct proc *p, const struct reply *r)
{
	p->ahead = ++p->window;
	p->windows_left--;
	p->loss_scale = r->step.commit.next.scale.scale;
	p->n_todo = r->step.micro_size;
	for (uint32_t i = 0; i < p->n_todo; i++)
		p->todo[i] = i;
	p->at = 0;
	box_new_todo(p);
	trainer_next(s, p, trainer_or_else(s, PROC_COMPUTE));
}

void trainer_after_wait(struct sim *s, struct proc *p, const struct reply *r)
{
	bool by_cell = p->waited,
	     acks = s->spec.optim.type == OPTIM_CLIENT && r->step.commit.outcome == OUTCOME_APPLIED;
	p->ack_window = p->window;
	p->waited = false;
	if (s->d.r.params_nonfinite && r->step.commit.window == s->lost_window)
		sim_fail(s, "I17: rank %u is told that window %llu is a step, and its parameters are lost", p->rank,
			 (unsigned long long)s->lost_window);
	if (r->step.done && s->restless && sim_chance(s, 300)) { /* it does not listen, and goes on */
		p->window++;
		p->loss_scale = r->step.commit.next.scale.scale;
		p->n_todo = 1;
		p->at = p->todo[0] = 0;
		box_new_todo(p);
		trainer_next(s, p, PROC_COMPUTE);
	} else if (r->step.done) {
		p->state = PROC_DONE;
	} else if (acks) {
		trainer_next(s, p, PROC_ACK);
	} else if (by_cell && p->windows_left > 1 && sim_chance(s, 500)) {
		begin_at_once(s, p, r);
	} else {
		trainer_next(s, p, --p->windows_left <= 0 ? PROC_DETACH : PROC_READY);
	}
}

/* It is gone by its own will; another process of its rank begins. */
static void replace(struct sim *s, struct proc *p, int64_t within)
{
	p->state = PROC_DEAD;
	sim_event(s, (int64_t)sim_random(s, (uint64_t)within) + 1, EV_START_PROC)->proc = p->rank;
}

/* The launcher looks after the newest process of a rank only. */
static bool is_newest(const struct sim *s, const struct proc *p)
{
	for (const struct proc *q = p + 1; q < s->proc + s->n_procs; q++)
		if (q->rank == p->rank)
			return false;
	return true;
}

static void attach_anew(struct sim *s, struct proc *p)
{
	trainer_nonce(s, p);
	box_forget(p);
	trainer_next(s, p, PROC_ATTACH);
}

/* A micro-batch is out of order if those before it lie in a mailbox that no engine reads any more. */
static void out_of_order(struct sim *s, struct proc *p)
{
	if (!p->box || !(p->box->mem->header.closed || p->hung_up))
		sim_fail(s, "rank %u is told that micro-batch %u is out of order", p->rank, p->todo[p->at]);
	trainer_next(s, p, PROC_READY);
}

static void on_error(struct sim *s, struct proc *p, enum status st)
{
	switch (st) {
	case ST_SESSION_FENCED: /* it ends with an error, and is started again if it is the one that should run */
		p->state = PROC_DEAD;
		if (is_newest(s, p))
			sim_event(s, 20 * MS, EV_START_PROC)->proc = p->rank;
		break;
	case ST_SESSION_UNKNOWN:
		if (p->generation >= s->d.rank[p->rank].sgen && !s->lost) /* nobody has fenced it */
			sim_fail(s, "rank %u's session is forgotten", p->rank);
		attach_anew(s, p);
		break;
	case ST_JOB_ENDED:
		p->state = PROC_DONE;
		break;
	case ST_WINDOW_CLOSED:
	case ST_FLUSHED:
		if (p->state == PROC_PUSH || p->state == PROC_OTHER_KEY)
			told(s, p, 100);
		trainer_next(s, p, PROC_WAIT);
		break;
	case ST_WINDOW_FORGOTTEN: /* neither promised nor denied */
		trainer_next(s, p, PROC_WAIT);
		break;
	case ST_DATA_KEY_MISMATCH:
		if (p->state != PROC_OTHER_KEY)
			sim_fail(s, "rank %u has one key for micro-batch %u, and is told that it has two", p->rank,
				 p->todo[p->at]);
		trainer_after_push(s, p);
		break;
	case ST_NONFINITE: /* the job ends */
		if (s->spec.nonfinite != NONFINITE_ERROR)
			sim_fail(s, "rank %u is told NONFINITE", p->rank);
		box_settled(p, p->window, p->todo[p->at]);
		trainer_after_push(s, p);
		break;
	case ST_OUT_OF_ORDER:
		out_of_order(s, p);
		break;
	case ST_NOT_READY:
		sim_fail(s, "rank %u has been told that the job runs, and now that it does not", p->rank);
		break;
	case ST_NOT_CURRENT_WINDOW:
		if (p->window == p->ahead)
			sim_fail(s, "rank %u was told in a cell that window %llu is over, and now that it is open",
				 p->rank, (unsigned long long)p->window - 1);
		trainer_next(s, p, PROC_READY);
		break;
	case ST_NO_SLOT: /* the operator does what the hint says */
		trainers_kill_stopped(s);
		p->call = 0;
		trainer_wake(s, p, 50 * MS);
		break;
	case ST_UNAVAILABLE:
	case ST_ENGINE_DOWN:
	case ST_SLOT_BUSY:
	case ST_RESOURCE_EXHAUSTED:
	case ST_NO_MEMORY:
		p->call = 0;
		trainer_wake(s, p, 50 * MS);
		break;
	default:
		sim_fail(s, "rank %u in state %d is told %s", p->rank, p->state, status_info(st)->name);
	}
}

static void on_reply(struct sim *s, struct proc *p, const struct event *e)
{
	const struct reply *r = &e->reply;
	if (r->status) {
		on_error(s, p, r->status);
		return;
	}
	switch (p->state) {
	case PROC_ATTACH:
		memcpy(p->token, r->attach.token, 16);
		p->generation = r->attach.generation;
		p->spare = e->coord;
		if (!p->streams && s->gaccd_up)
			job_on_mapped(s->job, sim_rank(s, p), p->generation);
		if (p->wants_box && sim_chance(s, 900))
			sim_box_give(s, p);
		trainer_next(s, p, PROC_READY);
		break;
	case PROC_READY:
		begin_window(s, p, e);
		break;
	case PROC_PUSH:
		told(s, p, r->push.result);
		if (s->restless && sim_chance(s, 50))
			trainer_next(s, p, PROC_OTHER_KEY);
		else
			trainer_after_push(s, p);
		break;
	case PROC_OTHER_KEY:
		if (r->push.result == PUSH_COUNTED)
			sim_fail(s, "rank %u micro %u is counted with two data keys", p->rank, p->todo[p->at]);
		trainer_after_push(s, p);
		break;
	case PROC_FLUSH:
		after_flush(s, p);
		break;
	case PROC_WAIT:
		trainer_after_wait(s, p, r);
		break;
	case PROC_ACK:
		trainer_next(s, p, --p->windows_left <= 0 ? PROC_DETACH : PROC_READY);
		break;
	case PROC_DETACH:
		p->state = PROC_DONE;
		if (sim_chance(s, 100)) /* it comes back, as another process */
			replace(s, p, 20 * MS);
		break;
	case PROC_PAUSE:
		replace(s, p, 100 * MS);
		break;
	default:
		break;
	}
}

static void act(struct sim *s, struct proc *p)
{
	if (p->state == PROC_DEAD || p->state == PROC_DONE || p->stopped)
		return;
	if (p->hung_up) {
		p->hung_up = false;
		attach_anew(s, p);
		return;
	}
	if (box_act(s, p))
		return;
	if (p->streams && p->state == PROC_COMPUTE)
		p->state = PROC_PUSH;
	if (p->streams && p->state == PROC_PUSH) {
		stream_act(s, p);
		return;
	}
	if (p->call && s->now < p->retry_at)
		return;
	if (p->state == PROC_COMPUTE) {
		/* half written, then whole, then pushed: three events, so that deaths and passes fall between */
		struct tag *t = slot_of(s, p, p->todo[p->at] % s->spec.slots_per_rank)->piece;
		const struct tag mine = { p->window, p->rank, p->todo[p->at], (uint32_t)(p - s->proc), 1 };
		bool half = !memcmp(&t[SIM_PIECES / 2 - 1], &mine, sizeof(mine));
		for (uint32_t i = half ? SIM_PIECES / 2 : 0; i < (half ? SIM_PIECES : SIM_PIECES / 2); i++)
			t[i] = mine;
		if (!half) {
			trainer_wake(s, p, (int64_t)sim_random(s, 5 * MS) + 1);
			return;
		}
		p->state = PROC_PUSH;
		if (box_act(s, p))
			return;
	}
	if (p->state == PROC_FLUSH)
		p->flushed_window = p->window + 1;
	send(s, p);
}

void trainer_event(struct sim *s, const struct event *e)
{
	if (e->type == EV_START_PROC) {
		if (s->faults || !s->deserted)
			trainer_spawn(s, e->proc);
		return;
	}
	if (e->type == EV_PROC) {
		act(s, &s->proc[e->proc]);
		return;
	}
	for (uint32_t i = 0; i < s->n_procs; i++) {
		struct proc *p = &s->proc[i];
		if (p->call != e->call || p->state == PROC_DEAD || p->state == PROC_DONE)
			continue;
		if (p->stopped)
			return; /* lost: the retry asks again */
		on_reply(s, p, e);
		return;
	}
}
