/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's answers: updates the job's copy of the control record (the mirror), and does what follows, above all
 * when a window is over. Part of struct job; pure; loop thread. */
#include "control/job_impl.h"

#include <stdio.h>
#include <string.h>

/* ---- a window is over ---- */

/* A window's parameter digest is in the journal only with the next commit; for the newest window the engine's record
 * has it. */
void job_learn_digest(struct job *j)
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
	job_learn_digest(j);
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
	job_answer_steps(j);
	job_answer_ready(j);
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

/* ---- orders ---- */

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

/* The mirror has every push that the frozen window counts. If it cannot catch up now, the command goes out once more
 * with the next tick: the engine answers it again. */
static bool knows_all(struct job *j, const struct engine_answer *a)
{
	if (!j->has_boxes || a->status || a->window != j->mirror.r.window)
		return true;
	return job_catch_up(j) && j->mirror.r.count == a->count;
}

static void on_close(struct job *j, const struct engine_answer *a, struct now now)
{
	if (a->id != j->close_command)
		return;
	j->close_command = 0;
	if (!knows_all(j, a))
		return;
	if (!a->status && a->window == j->mirror.r.window)
		mirror_closed(j, a);
	job_reconcile(j, now); /* what had not been sent is now settled as not counted */
	job_report(j, now);
}

/* Taken back, or refused: the coordinator orders a GO once the part is complete. */
static void on_unarmed(struct job *j, const struct engine_answer *a, struct now now)
{
	if (a->status != ST_CANCELLED) {
		j->unarmed_term = j->go_term;
		j->unarmed_attempt = j->go_attempt;
	}
	job_reconcile(j, now);
	job_report(j, now);
}

/* NOT_READY: it is sent again with the tick. CANCELLED: gaccd itself has left the communicator, or a later GO has taken
 * its place. */
static bool is_no_vote(const struct job *j, const struct engine_answer *a)
{
	return has_parts(j) && (a->status == ST_NOT_READY || a->status == ST_CANCELLED);
}

static void vote_failed(struct job *j, const struct engine_answer *a)
{
	j->vote_status = a->status;
	j->vote_term = j->go_term;
	j->vote_attempt = j->go_attempt;
	j->vote_text[0] = '\0';
	if (!has_parts(j))
		return;
	snprintf(j->vote_text, sizeof(j->vote_text), "%s", a->text);
	j->vote_suspects = a->suspects & part_mask(j);
	/* the vote has failed, but the window is frozen */
	if (a->window == j->mirror.r.window && a->result == WINDOW_CLOSED && j->mirror.r.phase == WINDOW_OPEN &&
	    (!j->has_boxes || (job_catch_up(j) && j->mirror.r.count == a->count)))
		mirror_closed(j, a);
	comm_go_failed(j, a);
}

static void on_go(struct job *j, const struct engine_answer *a, struct now now)
{
	if (a->id != j->go_command)
		return;
	const bool was_armed = j->go_armed;
	j->go_command = 0;
	j->go_armed = false;
	if (a->status == ST_PARAMS_ALTERED)
		job_fail(j, ST_PARAMS_ALTERED, a->text, now);
	if (was_armed && a->status) {
		on_unarmed(j, a, now);
		return;
	}
	if (is_no_vote(j, a) || !knows_all(j, a))
		return;
	if (a->status) {
		vote_failed(j, a);
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

static void on_disarm(struct job *j, const struct engine_answer *a, struct now now)
{
	if (a->id != j->disarm_command)
		return;
	j->disarm_command = 0;
	job_reconcile(j, now); /* the order may have changed meanwhile */
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
	if (a->status && is_sharded(j) && (a->result == WINDOW_APPLYING || a->window > j->order.commit.window)) {
		/* it is recorded, or has been applied: what is missing comes in another communicator */
		if (a->window == j->mirror.r.window)
			j->mirror.r.phase = a->result;
		comm_commit_failed(j, a, now);
		return;
	}
	if (a->status) {
		note_refusal(j, a, now);
		return;
	}
	if (is_in_orders_comm(j) && j->member.k == j->commit_comm)
		j->member.gathered = true;
	if (j->mirror.r.window > j->order.commit.window) /* it has given its share once more */
		return;
	mirror_next_window(j, a);
	job_window_changed(j, now);
}

static void on_init(struct job *j, const struct engine_answer *a, struct now now)
{
	if (a->id != j->init_command)
		return;
	if (has_parts(j) && a->status == ST_NOT_READY) { /* another part's were coming: the tick sends it again */
		j->init_command = 0;
		return;
	}
	if (a->status) {
		j->ports.event(j->ports.ctx, j->id, true, "InitFailed", -1, a->text);
		note_refusal(j, a, now);
		return;
	}
	j->init_command = 0;
	job_params_given(j, a);
	job_params_changed(j, now);
}

/* Unasked, of pushes that came in mailboxes. Without memory to catch up, the tick tries again. */
static void on_progress(struct job *j, const struct engine_answer *a, struct now now)
{
	struct rank *r = &j->rank[a->rank];
	if (a->result == PROGRESS_COMM) {
		comm_progress(j, a, now);
		job_reconcile(j, now);
		return;
	}
	if (a->window != j->mirror.r.window)
		return;
	job_catch_up(j);
	if (a->result == PROGRESS_VOID)
		push_note_void(j, r, a->micro, a->nonfinite_count);
	else if (a->result == PROGRESS_NONFINITE)
		push_note_nonfinite(r, a->micro);
	job_report_rank(j, a->result == PROGRESS_VOID && j->spec->nonfinite == NONFINITE_ERROR, now);
}

void job_on_joining(struct job *j, const struct engine_answer *a, const void *blob, struct now now)
{
	j->clock_ns = now.mono_ns;
	if (j->engine_up)
		comm_join_answered(j, a, blob, now);
}

void job_on_answer(struct job *j, const struct engine_answer *a, struct now now)
{
	j->clock_ns = now.mono_ns;
	if (!j->engine_up || a->rank >= j->spec->ranks)
		return;
	switch ((enum engine_op)a->op) {
	case ENGINE_ATTACH:
		attach_answered(j, a, now);
		job_reconcile_rank(j, &j->rank[a->rank]);
		ack_last_send(j);
		break;
	case ENGINE_ADD:
		push_answered(j, a, now);
		if (j->rank[a->rank].flush_wanted)
			job_reconcile_rank(j, &j->rank[a->rank]);
		break;
	case ENGINE_FLUSH:
		flush_answered(j, a, now);
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
		ack_answered(j, a);
		if (has_parts(j)) /* with the last one the part is complete */
			job_report_rank(j, false, now);
		break;
	case ENGINE_JOIN:
		job_on_joining(j, a, NULL, now);
		break;
	case ENGINE_ADDRESS:
		comm_address_answered(j, a, now);
		break;
	case ENGINE_FILL:
		comm_fill_answered(j, a, now);
		initial_send(j); /* the calls that bring more parameters */
		break;
	case ENGINE_ABORT:
	case ENGINE_START:
	case ENGINE_STOP:
	case ENGINE_PING:
	case ENGINE_CHECKPOINT: /* runtime/part_saving.c */
	case ENGINE_RESTORE:
	case ENGINE_SLOTS: /* runtime/part_slots.c */
	case ENGINE_MAKE_SLOTS:
	case ENGINE_ALLOCATE:
		break;
	case ENGINE_DISARM: /* the GO has been answered before */
		on_disarm(j, a, now);
		break;
	case ENGINE_MAILBOX:
		mailbox_answered(j, a);
		break;
	case ENGINE_PROGRESS:
		on_progress(j, a, now);
		break;
	}
}
