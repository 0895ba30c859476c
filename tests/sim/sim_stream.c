/* SPDX-License-Identifier: Apache-2.0 */
/* Trainers that send their gradients in streams: in pieces that are delayed, cut off between any two, and arrive after
 * their session was fenced. A connection keeps order; that its client is gone may be noticed much later. */
#include "sim.h"

#include <string.h>

#define LATE_NS (5000 * MS)
#define RETRY_NS (300 * MS)
enum { CHUNK_END = SIM_PIECES, CHUNK_GONE }; /* behind the last piece: the client has sent all; its end is noticed */

/* Behind what this stream has sent before. */
static void deliver(struct sim *s, struct proc *p, uint32_t chunk, int64_t delay)
{
	p->stream_at = s->now + delay > p->stream_at ? s->now + delay : p->stream_at + 1;
	struct event *e = sim_event(s, p->stream_at - s->now, EV_CHUNK);
	e->proc = (uint32_t)(p - s->proc);
	e->call = p->call;
	e->life = p->stream_life;
	e->coord = chunk;
	e->order.window = p->window;
	e->order.attempt = p->todo[p->at];
	memcpy(e->missing, p->token, 16);
}

static void give_up(struct sim *s, struct proc *p)
{
	deliver(s, p, CHUNK_GONE, s->faults && sim_chance(s, 300) ? (int64_t)sim_random(s, LATE_NS) : sim_net_delay(s));
	p->call = 0;
}

static void begin(struct sim *s, struct proc *p)
{
	if (p->call)
		give_up(s, p);
	p->call = ++s->last_call;
	p->chunk = 0;
	p->stream_at = s->now;
	p->stream_life = s->gaccd_life;
	p->retry_at = s->now + RETRY_NS;
}

void stream_act(struct sim *s, struct proc *p)
{
	int64_t next = (int64_t)sim_random(s, 5 * MS) + 1;
	if (!p->call || s->now >= p->retry_at)
		begin(s, p);
	if (p->chunk > CHUNK_END) {
		next = p->retry_at - s->now;
	} else if (s->faults && sim_chance(s, 30)) {
		give_up(s, p);
	} else {
		deliver(s, p, p->chunk++, sim_net_delay(s));
		p->retry_at = s->now + RETRY_NS;
	}
	sim_event(s, next, EV_PROC)->proc = (uint32_t)(p - s->proc);
}

static void open_stream(struct sim *s, const struct event *e, uint64_t call, const struct session_key *k,
			const struct push_args *a)
{
	uint32_t slot;
	if (job_stream_open(s->job, call, k, a, &slot, sim_now(s)))
		s->stream[e->call % SIM_STREAMS] = (struct sim_stream){ .call = e->call, .slot = slot };
}

/* A piece arrives at gaccd: what daemon/edge/inline.c does. */
void stream_event(struct sim *s, const struct event *e)
{
	const struct proc *p = &s->proc[e->proc];
	uint64_t call = e->call << 8;
	struct session_key k = { .rank = sim_rank(s, p), .uid = 1000 };
	struct push_args a = { .window = e->order.window,
			       .micro = (uint32_t)e->order.attempt,
			       .weight = 1 + (double)e->order.attempt,
			       .loss_scale = p->loss_scale,
			       .lr = sim_lr_of(s, e->order.window) };
	if (!s->gaccd_up || e->life != s->gaccd_life)
		return;
	engine_hear(s);
	memcpy(k.token, e->missing, 16);
	a.data_key = 1 + a.window * 1000 + p->rank * 100 + a.micro;
	if (e->coord == 0)
		open_stream(s, e, call, &k, &a);
	const struct sim_stream *t = &s->stream[e->call % SIM_STREAMS];
	if (e->coord == CHUNK_GONE) {
		job_stream_gone(s->job, call, sim_rank(s, p));
		job_on_call_gone(s->job, call, sim_rank(s, p));
	} else if (t->call == e->call && e->coord == CHUNK_END) {
		job_stream_push(s->job, call, &k, &a, sim_now(s));
	} else if (t->call == e->call && job_stream_admits(s->job, call, sim_rank(s, p), 8 * e->coord, 8)) {
		struct reply why;
		if (!job_session_ok(s->job, &k, &why))
			sim_fail(s, "I16: a piece of process %u is copied, and its session is fenced", e->proc);
		s->slot[t->slot].piece[e->coord] = (struct tag){ a.window, p->rank, a.micro, e->proc, 1 };
		job_stream_took(s->job, call, sim_rank(s, p), 8 * e->coord, 8);
	}
}
