/* SPDX-License-Identifier: Apache-2.0 */
/* A job's parked calls, its start, the ends of its windows, and what happens when its engine comes up or dies. Orders
 * are job_order.c's, the engine's answers job_answers.c's. Part of struct job; pure; loop thread. */
#include "control/job_impl.h"

#include "base/array.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- parked calls ---- */

struct waiter *waiter_add(struct job *j, uint64_t call, enum waiter_kind kind, uint32_t rank)
{
	struct waiter *w = array_grow(j->waiter, j->n_waiters, &j->waiters_capacity, sizeof(*w));
	if (!w) {
		reply_error(j, call, ST_NO_MEMORY, "repeat the call later", "no memory to park this call");
		return NULL;
	}
	j->waiter = w;
	w = &j->waiter[j->n_waiters++];
	*w = (struct waiter){ .call = call, .kind = kind, .rank = rank };
	j->rank[rank].n_puts += kind == WAIT_PUT;
	return w;
}

void waiter_remove(struct job *j, struct waiter *w)
{
	j->rank[w->rank].n_puts -= w->kind == WAIT_PUT;
	j->rank[w->rank].n_last_puts -= w->last;
	*w = j->waiter[--j->n_waiters];
}

void job_on_call_gone(struct job *j, uint64_t call, uint32_t rank)
{
	for (uint32_t i = j->n_waiters; i-- > 0;)
		if (j->waiter[i].call == call && !j->waiter[i].sent)
			waiter_remove(j, &j->waiter[i]);
	struct rank *r = job_rank(j, rank);
	for (int i = 0; i < RANK_MAX_PUSHES && r; i++) {
		struct parked_push *p = &r->push[i];
		for (int k = 0; k < p->n_calls; k++)
			if (p->call[k] == call)
				p->call[k] = p->call[--p->n_calls];
	}
}

void job_end_calls(struct job *j, enum status st, const char *hint, const char *text)
{
	struct reply left = { .kind = REPLY_EMPTY };
	while (j->n_waiters) {
		struct waiter *w = &j->waiter[j->n_waiters - 1];
		if (w->kind == WAIT_DETACH || w->kind == WAIT_ACK)
			j->ports.reply(j->ports.ctx, w->call, &left);
		else if (!stream_of(&j->rank[w->rank], w->call))
			reply_error(j, w->call, st, hint, "%s", text);
		waiter_remove(j, w);
	}
	EACH_RANK(j, r)
	{
		streams_end(j, r, st, hint, text);
		for (int i = 0; i < RANK_MAX_PUSHES; i++)
			if (r->push[i].used)
				push_fail(j, r, &r->push[i], st, text);
	}
}

/* ---- what a window's end means to trainers ---- */

uint32_t job_micro_size(const struct job *j)
{
	return j->engine_seen ? j->mirror.r.micro_size : j->spec->micro_size;
}

void step_reply(struct job *j, uint64_t call, const struct commit *k)
{
	struct reply rep = { .kind = REPLY_STEP };
	rep.step.commit = *k;
	rep.step.micro_size = k->next_micro_size;
	rep.step.accum_half = job_reduced_half(j);
	rep.step.done = k->final || j->ended;
	j->ports.reply(j->ports.ctx, call, &rep);
}

/* A step whose parameters are lost is not reported as a step: the end of the job, which follows, tells the trainers. */
static void answer_steps(struct job *j)
{
	for (uint32_t i = j->n_waiters; i-- > 0;) {
		struct waiter *w = &j->waiter[i];
		const struct past_window *p = w->kind == WAIT_STEP ? past_find(j, w->window) : NULL;
		if (!p || w->window >= j->mirror.r.window || is_lost(j, w->window))
			continue;
		step_reply(j, w->call, &p->commit);
		waiter_remove(j, w);
	}
}

bool past_final(const struct job *j)
{
	const struct past_window *p = j->mirror.r.window ? past_find(j, j->mirror.r.window - 1) : NULL;
	return p && p->commit.final;
}

/* The rank has not acknowledged the reduced gradient of client_window. */
static bool must_apply(const struct job *j, const struct rank *r)
{
	return j->mirror.r.client_pending && !j->mirror.rank[r->index].session.step_acked;
}

/* After the last window a trainer is to hear of the job's end, not of a window that never closes; but one that applies
 * steps itself may have the last one to apply. A step that it has not applied is not put off until the next window
 * opens, because that window may wait for it: the half that it reads is needed. */
bool ready_now(const struct job *j, const struct rank *r)
{
	if (!j->run || !j->engine_up || !j->mirror.r.params_ready || j->mirror.r.params_nonfinite)
		return false;
	if (must_apply(j, r))
		return true;
	return j->mirror.r.phase == WINDOW_OPEN && (!past_final(j) || j->spec->optim.type == OPTIM_CLIENT);
}

void ready_reply(struct job *j, const struct rank *r, uint64_t call)
{
	struct reply rep = { .kind = REPLY_READY };
	uint32_t n = 0, size = job_micro_size(j);
	bool flushed = j->mirror.rank[r->index].flushed != 0, takes_more = !flushed && j->mirror.r.phase == WINDOW_OPEN;
	for (uint32_t m = 0; m < size && takes_more; m++)
		if (!rank_settled(j, r, m))
			j->missing[n++] = m;
	rep.ready.window = j->mirror.r.window;
	rep.ready.applied_step = j->mirror.r.applied_step;
	rep.ready.micro_size = size;
	rep.ready.missing = j->missing;
	rep.ready.n_missing = n;
	rep.ready.loss_scale = j->mirror.r.loss_scale;
	rep.ready.flushed = flushed;
	rep.ready.pending_apply = must_apply(j, r);
	rep.ready.pending_window = j->mirror.r.client_window;
	if (j->n_past)
		rep.ready.last = j->past[j->n_past - 1].commit;
	j->ports.reply(j->ports.ctx, call, &rep);
}

void job_answer_ready(struct job *j)
{
	for (uint32_t i = j->n_waiters; i-- > 0;) {
		struct waiter *w = &j->waiter[i];
		if (w->kind != WAIT_READY || !ready_now(j, &j->rank[w->rank]))
			continue;
		ready_reply(j, &j->rank[w->rank], w->call);
		waiter_remove(j, w);
	}
}

void past_add(struct job *j, const struct commit *k, const uint64_t *counted)
{
	struct past_window *p;
	if (j->n_past == JOB_HISTORY) {
		uint64_t *reuse = j->past[0].counted;
		memmove(&j->past[0], &j->past[1], (JOB_HISTORY - 1) * sizeof(j->past[0]));
		p = &j->past[JOB_HISTORY - 1];
		p->counted = reuse;
	} else {
		p = &j->past[j->n_past++];
	}
	p->commit = *k;
	memcpy(p->counted, counted, j->mirror.n_words * sizeof(*counted));
}

/* A window's parameter digest is in the journal only with the next commit; for the newest window the engine's record
 * has it. */
static void learn_digest(struct job *j)
{
	for (uint32_t i = 0; i < j->n_past; i++)
		if (j->past[i].commit.window + 1 == j->mirror.r.window)
			j->past[i].commit.params_digest = j->mirror.r.params_digest;
}

void job_window_changed(struct job *j, struct now now)
{
	const struct commit *k = &j->order.commit;
	if (j->have_order && j->order.want == WANT_COMMIT && k->window + 1 == j->mirror.r.window &&
	    !past_find(j, k->window))
		past_add(j, k, j->closed_counted);
	learn_digest(j);
	EACH_RANK(j, r)
	{
		r->ready_ns = 0;
		r->weight = 0;
		r->nonfinite = 0;
		if (r->flush_wanted && !r->leave_wanted) { /* the window has closed without it */
			r->flush_wanted = r->flush_sent = false;
			answer_flush(j, r, ST_OK, NULL);
		}
		for (int p = 0; p < RANK_MAX_PUSHES; p++)
			if (r->push[p].used && !r->push[p].sent)
				push_settle(j, r, &r->push[p]);
	}
	job_recount(j);
	j->n_late = 0;
	j->vote_status = j->refused = ST_OK;
	j->vote_term = j->vote_attempt = 0;
	answer_steps(j);
	job_answer_ready(j);
	job_report(j, now);
	job_reconcile(j, now);
}

/* ---- start ---- */

static void registered_reply(struct job *j, uint64_t call, struct layout_part part)
{
	struct reply rep = { .kind = REPLY_REGISTER };
	rep.registered.params_needed = !j->mirror.r.params_ready && !j->spec->n_init && !j->restore;
	rep.registered.slots = j->spec->slots_per_rank;
	rep.registered.part = part;
	j->ports.reply(j->ports.ctx, call, &rep);
}

static void answer_registered(struct job *j)
{
	for (uint32_t i = j->n_waiters; i-- > 0;) {
		struct waiter *w = &j->waiter[i];
		if (w->kind != WAIT_REGISTER)
			continue;
		registered_reply(j, w->call, w->part);
		waiter_remove(j, w);
	}
}

void job_params_changed(struct job *j, struct now now)
{
	if (j->mirror.r.params_ready)
		job_report(j, now);
	job_answer_ready(j);
}

/* false: the call is answered. Equal sets have equal fingerprints. */
static bool declare_or_compare(struct job *j, uint64_t call, uint32_t rank, struct tensor_set *set)
{
	char why[256] = "";
	if (!j->has_tensors && !set) {
		reply_error(j, call, ST_NOT_READY, "register the tensors", "no rank has declared the tensor set yet");
		return false;
	}
	if (!j->has_tensors) {
		job_take_tensors(j, set);
	} else if (set && set->arena.fingerprint != j->set.arena.fingerprint) {
		tensor_set_differs(j->set.tensor, j->set.n, set->tensor, set->n, why, sizeof(why));
		reply_error(j, call, ST_LAYOUT_MISMATCH, JOB_SAME_TENSORS, "rank %u: %s", rank, why);
		return false;
	}
	return true;
}

void job_register(struct job *j, uint64_t call, const struct session_key *k, struct tensor_set *set,
		  struct layout_part part, struct now now)
{
	const struct rank *r = call_allowed(j, call, k);
	bool ok = r && declare_or_compare(j, call, k->rank, set);
	if (set)
		tensor_set_fini(set);
	if (!ok)
		return;
	if (j->engine_seen) {
		registered_reply(j, call, part);
		return;
	}
	struct waiter *w = waiter_add(j, call, WAIT_REGISTER, r->index);
	if (!w)
		return;
	w->part = part;
	job_allocate(j);
}

void job_allocate(struct job *j)
{
	if (j->engine_seen || j->allocating)
		return;
	j->allocating = true;
	j->ports.allocate(j->ports.ctx, j->id);
}

void job_take_over(struct job *j)
{
	j->taken_over = true;
	job_allocate(j);
}

void job_on_allocate_failed(struct job *j, enum status st, const char *why, struct now now)
{
	j->allocating = false;
	for (uint32_t i = j->n_waiters; i-- > 0;) {
		struct waiter *w = &j->waiter[i];
		if (w->kind != WAIT_REGISTER)
			continue;
		reply_error(j, w->call, st, "raise limits.host_memory, end other jobs, or use a smaller model", "%s",
			    why);
		waiter_remove(j, w);
	}
}

void job_begin_with(struct job *j, void *tail, uint32_t n)
{
	free(j->restore);
	j->restore = tail;
	j->n_restore = n;
}

void job_on_restored(struct job *j, const struct control_state *state, struct now now)
{
	struct control_state *m = &j->mirror;
	j->clock_ns = now.mono_ns;
	m->r = state->r;
	memcpy(m->counted, state->counted, m->n_words * sizeof(*m->counted));
	memcpy(m->voided, state->voided, m->n_words * sizeof(*m->voided));
	for (uint32_t i = 0; i < j->spec->ranks; i++) { /* sessions are as they were */
		m->rank[i].counted = state->rank[i].counted;
		m->rank[i].flushed = state->rank[i].flushed;
	}
	job_recount(j);
	job_params_changed(j, now);
	job_reconcile(j, now); /* answers the ranks that gave parameters meanwhile */
}

/* Recovers the sessions from the control record after a restart of gaccd; their tokens stay valid. If there are many,
 * the tick finds out later which of them are dead. */
static void restore_sessions(struct job *j)
{
	int n = 0;
	EACH_RANK(j, r)
	{
		const struct control_rank *c = &j->mirror.rank[r->index];
		if (c->sgen <= r->sgen)
			continue;
		r->sgen = c->sgen;
		r->session = c->session;
		r->has_session = true;
		r->watched = true;
		r->heard_ns = j->clock_ns;
		/* it may have mapped its slots through an earlier gaccd, which left no other trace */
		r->mapped = r->session.pid && !r->session.no_memory;
		r->lost = n++ < LOOKS_AT_ONCE && session_is_dead(j, &r->session);
		r->lost_ns = j->clock_ns;
	}
}

/* Commands died with the engine; whatever is still wanted is sent again. */
static void forget_commands(struct job *j)
{
	j->close_command = j->go_command = j->commit_command = j->init_command = j->ack_command = j->restore_command =
		0;
	for (uint32_t i = 0; i < j->n_waiters; i++)
		j->waiter[i].sent = false;
	EACH_RANK(j, r)
	{
		r->attach_sent = r->flush_sent = false;
		for (int p = 0; p < RANK_MAX_PUSHES; p++)
			r->push[p].sent = false;
	}
}

static void copy_state(struct control_state *dst, const struct control_state *src)
{
	dst->r = src->r;
	memcpy(dst->rank, src->rank, src->r.ranks * sizeof(*src->rank));
	memcpy(dst->counted, src->counted, src->n_words * sizeof(*src->counted));
	memcpy(dst->voided, src->voided, src->n_words * sizeof(*src->voided));
}

/* Sessions attached before there was an engine: their generations must reach the control record. */
static void attach_again(struct job *j)
{
	EACH_RANK(j, r)
	{
		struct control_rank *m = &j->mirror.rank[r->index];
		if (!r->has_session || r->attaching || r->sgen <= m->sgen)
			continue;
		struct engine_command c = { .op = ENGINE_ATTACH,
					    .id = ++j->next_command,
					    .job_id = j->id,
					    .rank = r->index,
					    .sgen = r->sgen,
					    .session = r->session };
		if (j->ports.engine_send(j->ports.ctx, j->id, &c, NULL)) {
			m->sgen = r->sgen;
			m->session = r->session;
		}
	}
}

/* Every later record has what the engine has told before: a record without it is an older one, taken because the newest
 * is damaged. */
static bool lacks_what_was_told(const struct job *j, const struct control_state *s)
{
	if (s->r.window != j->mirror.r.window)
		return s->r.window < j->mirror.r.window;
	for (uint32_t i = 0; i < s->n_words; i++)
		if ((j->mirror.counted[i] & ~s->counted[i]) | (j->mirror.voided[i] & ~s->voided[i]))
			return true;
	return false;
}

enum status job_on_engine_up(struct job *j, const struct control_state *state, struct now now)
{
	j->clock_ns = now.mono_ns;
	if (state->r.ranks != j->spec->ranks || state->r.max_micro_size != j->spec->max_micro_size ||
	    state->n_words != j->mirror.n_words)
		return ST_SEGMENT_CORRUPT;
	if (j->engine_seen && lacks_what_was_told(j, state))
		return ST_SEGMENT_CORRUPT;
	uint64_t before = j->mirror.r.window;
	bool seen = j->engine_seen;
	copy_state(&j->mirror, state);
	learn_digest(j);
	if (state->r.phase >= WINDOW_CLOSED)
		memcpy(j->closed_counted, j->mirror.counted, j->mirror.n_words * sizeof(*j->closed_counted));
	j->engine_up = j->engine_seen = true;
	j->allocating = false;
	forget_commands(j);
	restore_sessions(j);
	attach_again(j);
	job_recount(j);
	answer_registered(j);
	if (seen && j->mirror.r.window != before) {
		job_window_changed(j, now);
		return ST_OK;
	}
	job_answer_ready(j);
	job_report(j, now);
	job_reconcile(j, now);
	return ST_OK;
}

void job_restore_pushes(struct job *j, uint32_t rank, double weight, int64_t last_unix_ns)
{
	struct rank *r = &j->rank[rank];
	r->weight = weight;
	if (last_unix_ns > r->last_push_unix_ns)
		r->last_push_unix_ns = last_unix_ns;
	j->report_due = true;
}

void job_on_engine_down(struct job *j, struct now now)
{
	if (!j->engine_up)
		return;
	j->engine_up = false;
	if (j->go_command && j->spec->ranks < j->part.world) {
		/* the other parts are in an exchange with the dead engine, which its successor cannot continue */
		j->vote_status = ST_ENGINE_DOWN;
		j->vote_term = j->go_term;
		j->vote_attempt = j->go_attempt;
		job_report(j, now);
	}
	forget_commands(j);
	if (!j->ended)
		j->ports.event(j->ports.ctx, j->id, true, "EngineLost", -1,
			       "the engine has died and is being restarted");
}
