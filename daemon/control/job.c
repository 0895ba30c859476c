/* SPDX-License-Identifier: Apache-2.0 */
/* A job's tensors and memory, and what happens when its engine comes up or dies. Part of struct job; pure; loop thread.
 */
#include "control/job_impl.h"

#include <string.h>

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

void job_allocate(struct job *j)
{
	if (j->engine_seen || j->allocating)
		return;
	j->allocating = true;
	j->ports.allocate(j->ports.ctx, j->id);
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
		reply_error(
			j, w->call, st,
			st == ST_LAYOUT_MISMATCH ? JOB_SAME_TENSORS
			: j->spec->device != DEVICE_HOST
				? "use device: host, end other jobs on this GPU, or see what gaccctl health --gpus says"
				: "raise limits.host_memory, end other jobs, or use a smaller model",
			"%s", why);
		waiter_remove(j, w);
	}
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

/* ---- the engine comes up ---- */

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
	comm_forget(j);
	j->go_armed = false;
	j->close_command = j->go_command = j->disarm_command = j->commit_command = j->init_command = j->ack_command =
		j->restore_command = 0;
	for (uint32_t i = 0; i < j->n_waiters; i++)
		j->waiter[i].sent = false;
	EACH_RANK(j, r)
	{
		r->attach_sent = r->flush_sent = r->box_sent = false;
		for (int p = 0; p < RANK_MAX_PUSHES; p++) {
			r->push[p].resent |= r->push[p].sent;
			r->push[p].sent = false;
		}
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

enum status job_on_engine_up(struct job *j, const struct control_state *state, uint64_t life, struct now now)
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
	j->caught_up = state->r.seq;
	j->behind = false;
	job_learn_digest(j);
	if (state->r.phase >= WINDOW_CLOSED)
		memcpy(j->closed_counted, j->mirror.counted, j->mirror.n_words * sizeof(*j->closed_counted));
	j->engine_up = j->engine_seen = true;
	j->allocating = false;
	forget_commands(j);
	j->life = life;
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

/* ---- the engine dies ---- */

void job_on_engine_down(struct job *j, struct now now)
{
	if (!j->engine_up)
		return;
	const bool in_go = j->go_command && j->order.want == WANT_GO && j->go_term == j->order.term &&
			   j->go_attempt == j->order.attempt;
	j->engine_up = false;
	j->life = 0;
	forget_commands(j);
	if (in_go && has_parts(j)) {
		/* the other parts are in an exchange with the dead engine, which its successor cannot continue */
		j->vote_status = ST_ENGINE_DOWN;
		j->vote_term = j->go_term;
		j->vote_attempt = j->go_attempt;
		j->vote_suspects = 0;
		j->vote_text[0] = '\0';
		job_report(j, now);
	}
	if (!j->ended)
		j->ports.event(j->ports.ctx, j->id, true, "EngineLost", -1,
			       "the engine has died and is being restarted");
}
