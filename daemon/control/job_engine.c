/* SPDX-License-Identifier: Apache-2.0 */
/* Decides which command a job's engine is sent next: compares what is wanted with what the control record says.
 * Answers are job_answers.c's, reports job_report.c's. Part of struct job; pure; loop thread. */
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
	struct engine_command c = { .op = ENGINE_ATTACH, .rank = r->index, .sgen = r->next_sgen, .session = r->next };
	r->attach_sent = job_send(j, &c, &r->attach_command, NULL);
}

static void send_add(struct job *j, struct rank *r, struct parked_push *p)
{
	uint32_t n, first = session_slots(j, r, &n);
	struct engine_command c = { .op = ENGINE_ADD,
				    .rank = r->index,
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
				    .rank = r->index,
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
		return; /* what the old session asked for waits for the fence */
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
		      (r->phase == WINDOW_PREPARED && !prepared_at_least(j, o->term, o->attempt));
	bool failed = j->vote_status && j->vote_term == o->term && j->vote_attempt == o->attempt;
	/* a GO that is on its way may wait for other nodes; a later attempt replaces it */
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

/* Each acknowledgement is written to the control record before the call returns: a trainer sends it only once. */
static void send_ack(struct job *j, struct waiter *w)
{
	const struct rank *r = &j->rank[w->rank];
	struct engine_command c = { .op = ENGINE_ACK_STEP, .rank = w->rank, .sgen = r->sgen, .window = w->window };
	if (w->kind == WAIT_ACK && !w->sent && !r->attaching) /* after the fence it would count for the new session */
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
