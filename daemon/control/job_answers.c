/* SPDX-License-Identifier: Apache-2.0 */
/* Handles the engine's answers: updates the job's copy of the control record (the mirror), then answers the trainers'
 * calls that waited for them. Part of struct job; pure; loop thread. */
#include "control/job_impl.h"

#include "math/optim.h"

#include <stdio.h>
#include <string.h>

static void on_attach(struct job *j, const struct engine_answer *a, struct now now)
{
	struct rank *r = &j->rank[a->rank];
	if (!r->attaching || r->attach_command != a->id)
		return;
	struct control_rank *c = &j->mirror.rank[a->rank];
	uint32_t step_acked = c->session.step_acked;
	c->sgen = r->next_sgen;
	c->session = r->next;
	c->session.step_acked = step_acked;
	if (c->flushed == RANK_LEFT)
		c->flushed = RANK_FLUSHED;
	attach_done(j, r, now);
}

static void on_void(struct job *j, struct rank *r, const struct parked_push *p, const struct engine_answer *a)
{
	char text[200];
	snprintf(text, sizeof(text), "micro-batch %u of window %llu has %u non-finite gradient elements: not counted",
		 p->micro, (unsigned long long)p->window, a->nonfinite_count);
	j->ports.event(j->ports.ctx, j->id, true, "MicroRejected", r->global, text);
}

/* A rank's contribution has changed. The coordinator is told at once what it acts on; the rest is only shown to users
 * and waits for the tick, because a report looks at every rank. */
static void report_rank(struct job *j, bool at_once, struct now now)
{
	j->report_due = true;
	if (at_once || !j->n_owing)
		job_report(j, now);
}

/* Answers come in the order of counting: the first one's learning rate is the window's. */
static void count_push(struct job *j, struct rank *r, const struct parked_push *p)
{
	r->weight += p->weight;
	if (j->mirror.r.count)
		return;
	j->mirror.r.window_lr = p->lr;
	j->mirror.r.lr_rank = r->index;
}

/* Why the engine refuses a push; it names ranks by the part's numbers. */
static const char *refusal_of(const struct job *j, const struct parked_push *p, const struct engine_answer *a,
			      char *text, size_t n)
{
	const struct control_record *m = &j->mirror.r;
	if (a->status != ST_LR_MISMATCH || !m->count)
		return a->text;
	snprintf(text, n, "learning rate %g; rank %u, whose push was counted first, gave the window %g%s", p->lr,
		 j->rank[m->lr_rank].global, m->window_lr, m->window_lr == 0 ? " (the schedule's)" : "");
	return text;
}

static void on_add(struct job *j, const struct engine_answer *a, struct now now)
{
	struct rank *r = &j->rank[a->rank];
	char text[200];
	for (int i = 0; i < RANK_MAX_PUSHES; i++) {
		struct parked_push *p = &r->push[i];
		if (!p->used || !p->sent || p->command_id != a->id)
			continue;
		if (a->status) {
			push_fail(j, r, p, a->status, refusal_of(j, p, a, text, sizeof(text)));
			break;
		}
		if (a->result != PUSH_VOID && !rank_settled(j, r, p->micro))
			count_push(j, r, p);
		if (a->result == PUSH_COUNTED && a->nonfinite_count && !r->nonfinite++)
			r->first_nonfinite = p->micro;
		rank_settle(j, r, p->micro, a->result == PUSH_VOID);
		if (a->result == PUSH_VOID)
			on_void(j, r, p, a);
		push_answer(j, r, p, a->result);
		break;
	}
	report_rank(j, a->result == PUSH_VOID && j->spec->nonfinite == NONFINITE_ERROR, now);
}

static void answer_waiter(struct job *j, struct rank *r, struct waiter *w, enum status st, const char *why)
{
	struct reply rep = { .kind = w->kind == WAIT_FLUSH ? REPLY_FLUSH : REPLY_EMPTY };
	if (w->kind == WAIT_FLUSH)
		rep.flush.counted = rank_counted_in(j, r, w->window);
	if (st)
		reply_error(j, w->call, st, NULL, "flush of rank %u: %s", r->global, why);
	else
		j->ports.reply(j->ports.ctx, w->call, &rep);
	waiter_remove(j, w);
}

static void answer_waiters(struct job *j, struct rank *r, bool also_detach, enum status st, const char *why)
{
	for (uint32_t i = j->n_waiters; i-- > 0;) {
		struct waiter *w = &j->waiter[i];
		if (w->rank == r->index && (w->kind == WAIT_FLUSH || (also_detach && w->kind == WAIT_DETACH)))
			answer_waiter(j, r, w, st, why);
	}
}

void answer_flush(struct job *j, struct rank *r, enum status st, const char *why)
{
	answer_waiters(j, r, true, st, why);
}

static void on_flush(struct job *j, const struct engine_answer *a, struct now now)
{
	struct rank *r = &j->rank[a->rank];
	if (!r->flush_sent || r->flush_command != a->id)
		return;
	bool must_leave = r->leave_wanted && !r->leave_sent; /* a Detach came while a plain FLUSH was on its way */
	r->flush_sent = false;
	if (a->status == ST_WINDOW_CLOSED && r->leave_wanted) {
		job_reconcile_rank(j, r); /* the window went by: leave from the one that is open */
		return;
	}
	if (!a->status) {
		struct control_rank *c = &j->mirror.rank[a->rank];
		c->flushed = r->leave_sent || c->flushed == RANK_LEFT ? RANK_LEFT : RANK_FLUSHED;
		rank_changed(j, r);
	}
	if (!must_leave)
		r->flush_wanted = r->leave_wanted = false;
	bool closed = a->status == ST_WINDOW_CLOSED; /* the window closed before the flush: the rank owes it nothing */
	answer_waiters(j, r, !must_leave, closed ? ST_OK : (enum status)a->status, a->text);
	if (must_leave)
		job_reconcile_rank(j, r);
	job_reconcile_ack(j);
	report_rank(j, false, now);
}

/* The engine says that the window is frozen, and what it holds. */
static void mirror_closed(struct job *j, const struct engine_answer *a)
{
	struct control_record *m = &j->mirror.r;
	m->phase = m->phase < WINDOW_CLOSED ? WINDOW_CLOSED : m->phase;
	m->count = a->count;
	m->sum_weight = a->sum_weight;
	m->sum_loss = a->sum_loss;
	m->window_lr = a->window_lr;
	m->lr_rank = a->lr_rank;
	memcpy(j->closed_counted, j->mirror.counted, j->mirror.n_words * sizeof(*j->closed_counted));
}

static void on_close(struct job *j, const struct engine_answer *a, struct now now)
{
	if (a->id != j->close_command)
		return;
	j->close_command = 0;
	if (!a->status && a->window == j->mirror.r.window)
		mirror_closed(j, a);
	job_reconcile(j, now); /* what had not been sent is now settled as not counted */
	job_report(j, now);
}

static void on_go(struct job *j, const struct engine_answer *a, struct now now)
{
	if (a->id != j->go_command)
		return;
	j->go_command = 0;
	if (a->status) {
		j->vote_status = a->status;
		j->vote_term = j->go_term;
		j->vote_attempt = a->attempt;
	} else if (a->window == j->mirror.r.window) {
		struct control_record *m = &j->mirror.r;
		mirror_closed(j, a);
		j->vote_status = ST_OK;
		m->phase = WINDOW_PREPARED;
		m->prepared_term = j->go_term;
		m->prepared_attempt = a->attempt;
		m->prepared_sumsq = a->sumsq;
		m->prepared_nonfinite = a->nonfinite;
		m->prepared_digest = a->digest;
	}
	job_report(j, now);
	job_reconcile(j, now);
}

/* The engine has opened the next window: the mirror follows. */
static void mirror_next_window(struct job *j, const struct engine_answer *a)
{
	struct control_record *m = &j->mirror.r;
	const struct commit *k = &j->order.commit;
	m->window = k->window + 1;
	m->applied_step = k->applied_step;
	m->phase = WINDOW_OPEN;
	m->micro_size = k->next_micro_size;
	m->loss_scale = k->next.scale.scale;
	m->params_digest = a->digest;
	m->params_nonfinite = a->nonfinite;
	m->nonfinite_tensor = a->nonfinite_tensor;
	m->x = a->x;
	if (j->spec->optim.type == OPTIM_CLIENT && k->outcome == OUTCOME_APPLIED) {
		m->client_pending = 1; /* stays set across windows without a step, until all have read it */
		m->client_window = k->window;
		EACH_RANK(j, r)
		j->mirror.rank[r->index].session.step_acked = 0;
	}
	m->count = 0;
	m->window_lr = 0;
	memset(j->mirror.counted, 0, j->mirror.n_words * sizeof(*j->mirror.counted));
	memset(j->mirror.voided, 0, j->mirror.n_words * sizeof(*j->mirror.voided));
	EACH_RANK(j, r)
	{
		struct control_rank *c = &j->mirror.rank[r->index];
		c->counted = 0;
		c->flushed = c->flushed == RANK_FLUSHED ? RANK_OPEN : c->flushed;
	}
}

/* Optimizer CLIENT: while ranks still read the last reduced gradients, the COMMIT is sent again with each tick. Every
 * other refusal is final. */
static void note_refusal(struct job *j, const struct engine_answer *a, struct now now)
{
	bool waits = a->status == ST_NOT_READY && j->mirror.r.client_pending;
	enum status st = waits ? ST_NOT_READY : a->status == ST_NOT_READY ? ST_INTERNAL : (enum status)a->status;
	if (j->refused == st)
		return;
	j->refused = st;
	snprintf(j->refusal, sizeof(j->refusal), "%s", *a->text ? a->text : status_info(st)->text);
	job_report(j, now);
}

static void on_commit(struct job *j, const struct engine_answer *a, struct now now)
{
	if (a->id != j->commit_command)
		return;
	j->commit_command = 0;
	if (a->status) {
		note_refusal(j, a, now);
		return;
	}
	mirror_next_window(j, a);
	job_window_changed(j, now);
}

static void on_init(struct job *j, const struct engine_answer *a, struct now now)
{
	if (a->id != j->init_command)
		return;
	if (a->status) {
		j->ports.event(j->ports.ctx, j->id, true, "InitFailed", -1, a->text);
		note_refusal(j, a, now);
		return;
	}
	j->init_command = 0;
	j->mirror.r.params_ready = 1;
	job_params_changed(j, now);
}

static void on_ack(struct job *j, const struct engine_answer *a)
{
	struct reply rep = { .kind = REPLY_EMPTY };
	if (a->id == j->ack_command) {
		j->ack_command = 0;
		if (!a->status)
			j->mirror.r.client_pending = 0;
		return;
	}
	for (uint32_t i = 0; i < j->n_waiters; i++) {
		struct waiter *w = &j->waiter[i];
		if (w->kind != WAIT_ACK || !w->sent || w->command_id != a->id)
			continue;
		if (!a->status && w->window == j->mirror.r.client_window)
			j->mirror.rank[w->rank].session.step_acked = 1;
		rank_changed(j, &j->rank[w->rank]);
		if (a->status)
			reply_error(j, w->call, a->status, NULL, "window %llu of rank %u: %s",
				    (unsigned long long)w->window, j->rank[w->rank].global, a->text);
		else
			j->ports.reply(j->ports.ctx, w->call, &rep);
		waiter_remove(j, w);
		break;
	}
	job_reconcile_ack(j);
}

void job_on_answer(struct job *j, const struct engine_answer *a, struct now now)
{
	j->clock_ns = now.mono_ns;
	if (!j->engine_up || a->rank >= j->spec->ranks)
		return;
	switch ((enum engine_op)a->op) {
	case ENGINE_ATTACH:
		on_attach(j, a, now);
		job_reconcile_rank(j, &j->rank[a->rank]);
		job_reconcile_ack(j);
		break;
	case ENGINE_ADD:
		on_add(j, a, now);
		if (j->rank[a->rank].flush_wanted)
			job_reconcile_rank(j, &j->rank[a->rank]);
		break;
	case ENGINE_FLUSH:
		on_flush(j, a, now);
		break;
	case ENGINE_CLOSE:
		on_close(j, a, now);
		break;
	case ENGINE_GO:
		on_go(j, a, now);
		break;
	case ENGINE_COMMIT:
		on_commit(j, a, now);
		break;
	case ENGINE_PUT_PARAMS:
		put_answered(j, a, now);
		break;
	case ENGINE_INIT_PARAMS:
		on_init(j, a, now);
		break;
	case ENGINE_ACK_STEP:
		on_ack(j, a);
		break;
	case ENGINE_START:
	case ENGINE_STOP:
	case ENGINE_PING:
	case ENGINE_CHECKPOINT: /* handled by daemon/edge */
	case ENGINE_RESTORE:
		break;
	}
}
