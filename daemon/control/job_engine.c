/* SPDX-License-Identifier: Apache-2.0 */
/* A job and its engine: which command to send next, and what to report. Answers: job_answers.c. */
#include "control/job_impl.h"

#include "math/optim.h"

#include <string.h>

/* ---- sending ---- */

bool job_send(struct job *j, struct engine_command *c, uint64_t *out_id, const void *present)
{
	c->id = ++j->next_command;
	c->job_id = j->id;
	if (!j->ports.engine_send(j->ports.ctx, j->id, c, present))
		return false;
	*out_id = c->id;
	return true;
}

static void send_attach(struct job *j, struct rank *r)
{
	struct engine_command c = { .op = ENGINE_ATTACH, .rank = r->rank, .sgen = r->next_sgen, .session = r->next };
	r->attach_sent = job_send(j, &c, &r->attach_command, NULL);
}

static void send_add(struct job *j, struct rank *r, struct parked_push *p)
{
	uint32_t n, first = job_session_slots(j, r->rank, &n);
	struct engine_command c = { .op = ENGINE_ADD,
				    .rank = r->rank,
				    .sgen = r->sgen,
				    .window = p->window,
				    .micro = p->micro,
				    .slot = p->slot == REPEAT ? first : p->slot,
				    .weight = p->weight,
				    .loss = p->loss,
				    .data_key = p->data_key,
				    .unix_nanos = p->unix_ns,
				    .zero_after = p->zero_after,
				    .n_present = p->n_present,
				    .window_lr = p->lr };
	c.coefficient = reduce_coefficient(j->spec->reduction, j->spec->grad_of, p->weight);
	p->sent = job_send(j, &c, &p->command_id, p->present);
}

static void send_flush(struct job *j, struct rank *r)
{
	struct engine_command c = { .op = ENGINE_FLUSH,
				    .rank = r->rank,
				    .sgen = r->sgen,
				    .window = j->mirror.r.window,
				    .leave = r->leave_wanted };
	r->leave_sent = r->leave_wanted;
	r->flush_sent = job_send(j, &c, &r->flush_command, NULL);
}

static void send_commit(struct job *j)
{
	const struct commit *k = &j->order.commit;
	struct engine_command c = { .op = ENGINE_COMMIT, .window = k->window, .term = k->term, .attempt = k->attempt };
	commit_fill_command(k, &c);
	job_send(j, &c, &j->commit_command, NULL);
}

/* ---- reconcile: everything that is wanted and not yet under way ---- */

static bool has_unanswered_push(const struct rank *r)
{
	for (int i = 0; i < RANK_MAX_PUSHES; i++)
		if (r->push[i].used)
			return true;
	return false;
}

static void reconcile_rank(struct job *j, struct rank *r)
{
	if (r->attaching) {
		if (!r->attach_sent)
			send_attach(j, r);
		return; /* the old session's words wait for the fence */
	}
	if (!r->has_session)
		return;
	for (int i = 0; i < RANK_MAX_PUSHES; i++) {
		struct parked_push *p = &r->push[i];
		if (p->used && !p->sent && !push_settle(j, r, p))
			send_add(j, r, p);
	}
	/* a flush must not overtake the pushes before it */
	if (r->flush_wanted && !r->flush_sent && !has_unanswered_push(r))
		send_flush(j, r);
}

static void reconcile_start(struct job *j)
{
	if (j->mirror.r.params_ready) {
		puts_answer(j);
		return;
	}
	if (j->restore) {
		struct engine_command c = { .op = ENGINE_RESTORE, .n_present = j->n_restore };
		if (!j->restore_command)
			job_send(j, &c, &j->restore_command, j->restore);
		return;
	}
	if (j->spec->n_init && !j->init_command) {
		struct engine_command c = { .op = ENGINE_INIT_PARAMS };
		job_send(j, &c, &j->init_command, NULL);
	}
	puts_send(j);
}

static bool attempt_at_least(const struct job *j, uint64_t term, uint64_t attempt)
{
	const struct control_record *r = &j->mirror.r;
	return r->prepared_term > term || (r->prepared_term == term && r->prepared_attempt >= attempt);
}

static void reconcile_order(struct job *j, struct now now)
{
	const struct order *o = &j->order;
	const struct control_record *r = &j->mirror.r;
	if (!j->have_order || o->window != r->window)
		return;
	if (o->want == WANT_CLOSE && r->phase == WINDOW_OPEN && !j->close_command) {
		struct engine_command c = { .op = ENGINE_CLOSE, .window = o->window };
		job_send(j, &c, &j->close_command, NULL);
	}
	bool can_go = r->phase < WINDOW_PREPARED ||
		      (r->phase == WINDOW_PREPARED && !attempt_at_least(j, o->term, o->attempt));
	bool failed = j->vote_status && j->vote_term == o->term && j->vote_attempt == o->attempt;
	/* one that is out may wait for other nodes, and is given up for a later attempt */
	bool superseded = o->term > j->go_term || (o->term == j->go_term && o->attempt > j->go_attempt);
	if (o->want == WANT_GO && can_go && !failed && (!j->go_command || superseded)) {
		struct engine_command c = { .op = ENGINE_GO,
					    .window = o->window,
					    .term = o->term,
					    .attempt = o->attempt,
					    .close = r->phase == WINDOW_OPEN,
					    .want_norms = o->norms };
		j->go_term = o->term;
		j->go_attempt = o->attempt;
		job_send(j, &c, &j->go_command, NULL);
	}
	if (o->want == WANT_COMMIT && r->phase == WINDOW_PREPARED && !j->commit_command &&
	    r->prepared_term == o->commit.term && r->prepared_attempt == o->commit.attempt)
		send_commit(j);
}

/* Who has read the reduced gradient is in the record before it is answered: a trainer says it once. */
static void send_ack(struct job *j, struct waiter *w)
{
	const struct rank *r = &j->rank[w->rank];
	struct engine_command c = { .op = ENGINE_ACK_STEP, .rank = w->rank, .sgen = r->sgen, .window = w->window };
	if (w->kind == WAIT_ACK && !w->sent && !r->attaching) /* behind the fence, it would be the successor's */
		w->sent = job_send(j, &c, &w->command_id, NULL);
}

void job_reconcile_ack(struct job *j)
{
	if (!j->engine_up || !j->mirror.r.client_pending || j->ack_command || j->n_reading)
		return;
	struct engine_command c = { .op = ENGINE_ACK_STEP, .window = j->mirror.r.client_window, .last = true };
	job_send(j, &c, &j->ack_command, NULL);
}

void job_reconcile_start(struct job *j)
{
	if (j->engine_up)
		reconcile_start(j);
}

void job_reconcile_waiter(struct job *j, struct waiter *w)
{
	if (j->engine_up)
		send_ack(j, w);
}

void job_reconcile_rank(struct job *j, struct rank *r)
{
	if (j->engine_up)
		reconcile_rank(j, r);
}

void job_reconcile(struct job *j, struct now now)
{
	if (!j->engine_up)
		return;
	reconcile_start(j);
	EACH_RANK(j, r)
	reconcile_rank(j, r);
	reconcile_order(j, now);
	for (uint32_t i = 0; i < j->n_waiters; i++)
		send_ack(j, &j->waiter[i]);
	job_reconcile_ack(j);
}

/* ---- reporting ---- */

static bool is_blocked(const struct job *j, const struct rank *r, int64_t *since)
{
	int64_t oldest = 0;
	for (int i = 0; i < RANK_MAX_PUSHES; i++) {
		const struct parked_push *p = &r->push[i];
		if (p->used && rank_blocked_by(j, r, p->micro) != r->rank && (!oldest || p->since_ns < oldest))
			oldest = p->since_ns;
	}
	*since = oldest;
	return oldest != 0;
}

static void fill_progress(struct job *j)
{
	for (uint32_t i = 0; i < j->n_waiters; i++) /* who waits for an answer is there */
		j->rank[j->waiter[i].rank].heard_ns = j->clock_ns;
	EACH_RANK(j, r)
	{
		const struct control_rank *c = &j->mirror.rank[r->rank];
		struct rank_progress *p = &j->progress[r->rank];
		*p = (struct rank_progress){ .rank = r->rank,
					     .counted = c->counted,
					     .voided = r->voided,
					     .first_void = r->first_void,
					     .nonfinite = r->nonfinite,
					     .first_nonfinite = r->first_nonfinite,
					     .flushed = (uint8_t)c->flushed,
					     .attached = r->has_session && !r->detached && !r->lost,
					     .lost = r->lost,
					     .known = r->has_session,
					     .unwatched = r->session.no_memory && !r->n_links,
					     .silent = session_is_silent(j, r),
					     .lost_ns = r->lost ? r->lost_ns : 0,
					     .pid = r->session.pid,
					     .weight = r->weight,
					     .last_push_unix_ns = r->last_push_unix_ns };
		p->ready_ns = r->ready_ns;
		p->waiting_ns = r->ready_ns;
		if (!p->waiting_ns && j->run)
			is_blocked(j, r, &p->waiting_ns);
	}
}

void job_report(struct job *j, struct now now)
{
	const struct control_record *m = &j->mirror.r;
	fill_progress(j);
	struct report r = { .job_id = j->id,
			    .epoch = 1,
			    .incarnation = j->incarnation,
			    .term = j->have_order ? j->order.term : 0,
			    .window = m->window,
			    .phase = m->phase,
			    .rank = j->progress,
			    .n_ranks = j->spec->ranks,
			    .params_digest = m->params_digest };
	r.start = !j->engine_seen ? START_DECLARED : m->params_ready ? START_PARAMS : START_ALLOCATED;
	if (r.start < START_PARAMS)
		job_start_waits(j, r.start_waits, sizeof(r.start_waits));
	r.complete = j->engine_seen && !j->n_owing;
	r.all_left = j->engine_seen && j->n_left == j->spec->ranks;
	if (m->phase >= WINDOW_CLOSED) {
		r.count = m->count;
		r.sum_weight = m->sum_weight;
		r.sum_loss = m->sum_loss;
		r.lr = m->window_lr;
		r.lr_rank = m->lr_rank;
		r.counted = j->mirror.counted;
		r.n_words = (uint32_t)j->mirror.n_words;
	}
	/* the record knows better than a vote of an attempt before the one that it is prepared for */
	bool stale = m->phase == WINDOW_PREPARED && attempt_at_least(j, j->vote_term, j->vote_attempt);
	if (j->vote_status && !stale) {
		r.vote_term = j->vote_term;
		r.vote_attempt = j->vote_attempt;
		r.vote_status = j->vote_status;
	} else if (m->phase >= WINDOW_PREPARED) {
		r.vote_term = m->prepared_term;
		r.vote_attempt = m->prepared_attempt;
		r.sumsq = m->prepared_sumsq;
		r.nonfinite = m->prepared_nonfinite;
		r.digest = m->prepared_digest;
	}
	describe_lost(j, r.params_lost, sizeof(r.params_lost));
	r.refused = j->refused;
	memcpy(r.refusal, j->refusal, sizeof(r.refusal));
	j->reported_ns = now.mono_ns;
	j->report_due = false;
	j->ports.report(j->ports.ctx, &r);
}
