/* Fake trainers: what libgacc does, over a network that loses, repeats and delays, with processes that die or stop. */
#include "sim.h"

#include <string.h>

#define RETRY_NS (300 * MS)

static void random16(struct sim *s, uint8_t out[16])
{
	for (int i = 0; i < 16; i++)
		out[i] = (uint8_t)sim_random(s, 256);
}

static void wake(struct sim *s, struct proc *p, int64_t delay)
{
	sim_event(s, delay, EV_PROC)->proc = (uint32_t)(p - s->proc);
}

void trainer_spawn(struct sim *s, uint32_t rank)
{
	if (s->n_procs == SIM_MAX_PROCS) {
		s->faults = false; /* enough deaths for one run */
		return;
	}
	struct proc *p = &s->proc[s->n_procs++];
	*p = (struct proc){ .state = PROC_ATTACH, .rank = rank, .windows_left = 4 + (int)sim_random(s, 10) };
	random16(s, p->nonce);
	wake(s, p, (int64_t)sim_random(s, 30 * MS));
}

static struct tag *slot_of(struct sim *s, const struct proc *p, uint32_t slot)
{
	return &s->slot[(p->spare ? s->spec.ranks : p->rank) * 2 + slot];
}

/* A request leaves: lost, once or twice. */
static void send(struct sim *s, struct proc *p)
{
	if (p->call && p->server_call && s->gaccd_up && sim_chance(s, 700))
		job_on_call_gone(s->job, p->server_call); /* the deadline of the call before has passed */
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
		memcpy(e->missing, p->token, 16);
	}
	wake(s, p, RETRY_NS + 1);
}

static struct session_key key_of(const struct sim *s, const struct event *e)
{
	struct session_key k = { .rank = s->proc[e->proc].rank, .uid = 1000 };
	memcpy(k.token, e->missing, 16);
	return k;
}

/* A request arrives at gaccd. */
void trainer_request(struct sim *s, const struct event *e)
{
	struct proc *p = &s->proc[e->proc];
	if (!s->gaccd_up)
		return;
	uint64_t call = e->call << 8 | sim_random(s, 256); /* every copy is a call of its own */
	p->server_call = call;
	struct session_key k = key_of(s, e);
	struct now now = sim_now(s);
	uint64_t window = e->order.window;
	switch ((enum proc_state)e->order.want) {
	case PROC_ATTACH: {
		struct attach_args a = { .rank = p->rank, .world_size = s->spec.ranks, .uid = 1000,
					 .pid = e->proc + 1, .start_time = 1, .shared_memory = true };
		memcpy(a.nonce, p->nonce, 16);
		job_attach(s->job, call, &a, now);
		break;
	}
	case PROC_READY:
		job_wait_ready(s->job, call, &k, 0, now);
		break;
	case PROC_PUSH: {
		uint32_t micro = (uint32_t)e->order.attempt;
		struct push_args a = { .window = window, .micro = micro, .slot = micro % 2, .weight = 1 + micro,
				       .loss_scale = p->loss_scale,
				       .data_key = 1 + window * 1000 + p->rank * 100 + micro };
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
	default:
		break;
	}
}

static uint32_t slots_of_call(const struct sim *s, uint64_t call)
{
	uint32_t n;
	for (uint32_t i = 0; i < s->n_procs; i++)
		if (s->proc[i].call == call)
			return job_session_slots(s->job, s->proc[i].rank, &n) / 2;
	return 0;
}

/* gaccd answers a call. */
void trainer_reply(struct sim *s, uint64_t call, const struct reply *r)
{
	if (s->faults && sim_chance(s, 60))
		return;
	struct event *e = sim_event(s, sim_net_delay(s), EV_REPLY);
	e->call = call >> 8;
	e->reply = *r;
	if (r->status == ST_OK && r->kind == REPLY_ATTACH) /* the slots are mapped under this session, not a later one */
		e->coord = slots_of_call(s, e->call) == s->spec.ranks;
	if (r->status == ST_OK && r->kind == REPLY_READY)
		memcpy(e->missing, r->ready.missing, r->ready.n_missing * sizeof *e->missing);
}

static void told(struct sim *s, const struct proc *p, uint32_t result)
{
	if (s->n_told < sizeof s->told / sizeof *s->told) {
		s->told[s->n_told].window = p->window;
		s->told[s->n_told].rank = p->rank;
		s->told[s->n_told].micro = p->todo[p->at];
		s->told[s->n_told++].result = result;
	}
}

static void next(struct sim *s, struct proc *p, enum proc_state state)
{
	p->state = state;
	p->call = 0;
	wake(s, p, (int64_t)sim_random(s, 10 * MS) + 1);
}

/* After a window, or an attach: ask where we are. */
static void begin_window(struct sim *s, struct proc *p, const struct event *e)
{
	p->window = e->reply.ready.window;
	p->loss_scale = e->reply.ready.loss_scale;
	p->n_todo = e->reply.ready.n_missing;
	memcpy(p->todo, e->missing, p->n_todo * sizeof *p->todo);
	p->at = 0;
	/* now and then a rank has fewer micro-batches than micro_size */
	next(s, p, p->n_todo == 0 ? PROC_WAIT : sim_chance(s, 150) ? PROC_FLUSH : PROC_COMPUTE);
}

static void after_push(struct sim *s, struct proc *p)
{
	p->at++;
	if (p->at < p->n_todo)
		next(s, p, sim_chance(s, 50) ? PROC_FLUSH : PROC_COMPUTE);
	else
		next(s, p, PROC_WAIT);
}

/* The launcher looks after the newest process of a rank only. */
static bool is_newest(const struct sim *s, const struct proc *p)
{
	for (const struct proc *q = p + 1; q < s->proc + s->n_procs; q++)
		if (q->rank == p->rank)
			return false;
	return true;
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
		if (p->generation >= s->d.rank[p->rank].sgen) /* nobody has fenced it */
			sim_fail(s, "rank %u's session is forgotten", p->rank);
		random16(s, p->nonce);
		next(s, p, PROC_ATTACH);
		break;
	case ST_JOB_ENDED:
		p->state = PROC_DONE;
		break;
	case ST_WINDOW_CLOSED:
		if (p->state == PROC_PUSH)
			told(s, p, 100);
		next(s, p, PROC_WAIT);
		break;
	case ST_WINDOW_FORGOTTEN: /* neither promised nor denied */
	case ST_FLUSHED:
		next(s, p, PROC_WAIT);
		break;
	case ST_NOT_READY:
		sim_fail(s, "rank %u has been told that the job runs, and now that it does not", p->rank);
		break;
	case ST_NOT_CURRENT_WINDOW:
		next(s, p, PROC_READY);
		break;
	case ST_NO_SLOT: /* the operator does what the hint says */
		for (uint32_t i = 0; i < s->n_procs; i++)
			if (s->proc[i].stopped)
				s->proc[i].state = PROC_DEAD;
		p->call = 0;
		wake(s, p, 50 * MS);
		break;
	case ST_UNAVAILABLE:
	case ST_ENGINE_DOWN:
	case ST_SLOT_BUSY:
	case ST_RESOURCE_EXHAUSTED:
	case ST_NO_MEMORY:
		p->call = 0;
		wake(s, p, 50 * MS);
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
		next(s, p, PROC_READY);
		break;
	case PROC_READY:
		begin_window(s, p, e);
		break;
	case PROC_PUSH:
		told(s, p, r->push.result);
		after_push(s, p);
		break;
	case PROC_FLUSH:
		next(s, p, PROC_WAIT);
		break;
	case PROC_WAIT:
		if (r->step.done)
			p->state = PROC_DONE;
		else
			next(s, p, --p->windows_left <= 0 ? PROC_DETACH : PROC_READY);
		break;
	case PROC_DETACH:
		p->state = PROC_DONE;
		if (sim_chance(s, 100)) { /* it comes back, as another process */
			p->state = PROC_DEAD;
			struct event *again = sim_event(s, 20 * MS, EV_START_PROC);
			again->proc = p->rank;
		}
		break;
	default:
		break;
	}
}

static void act(struct sim *s, struct proc *p)
{
	if (p->state == PROC_DEAD || p->state == PROC_DONE || p->stopped)
		return;
	if (p->call && s->now < p->retry_at)
		return;
	if (p->state == PROC_COMPUTE) {
		/* half written, then whole, then pushed: three events, so that deaths and passes fall between */
		struct tag *t = slot_of(s, p, p->todo[p->at] % 2);
		struct tag whole = { p->window, p->rank, p->todo[p->at], (uint32_t)(p - s->proc), true };
		if (t->complete || t->proc != whole.proc || t->micro != whole.micro || t->window != whole.window) {
			*t = whole;
			t->complete = false;
			wake(s, p, (int64_t)sim_random(s, 5 * MS) + 1);
			return;
		}
		t->complete = true;
		p->state = PROC_PUSH;
	}
	send(s, p);
}

void trainer_event(struct sim *s, const struct event *e)
{
	if (e->type == EV_START_PROC) {
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

/* Kills or stops a random live trainer; a stopped one wakes up later, when a new process may have its rank. */
void trainer_fault(struct sim *s)
{
	uint32_t i = (uint32_t)sim_random(s, s->n_procs);
	struct proc *p = &s->proc[i];
	if (p->state == PROC_DEAD || p->state == PROC_DONE)
		return;
	s->n_kills++;
	if (p->stopped) {
		p->stopped = false;
		wake(s, p, 1);
		return;
	}
	bool stop = sim_chance(s, 300);
	if (stop)
		p->stopped = true;
	else
		p->state = PROC_DEAD;
	if (stop && sim_chance(s, 500)) { /* only slept */
		p->stopped = false;
		wake(s, p, 400 * MS);
		return;
	}
	struct event *e = sim_event(s, (int64_t)sim_random(s, 100 * MS) + 1, EV_START_PROC);
	e->proc = p->rank;
	if (s->gaccd_up)
		job_on_link(s->job, p->rank, p->generation, false, sim_now(s));
}
