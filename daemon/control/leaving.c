/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer's calls Flush and Detach, and AckStep of optimizer CLIENT: what each asks of the engine, and the answers.
 * Part of struct job; pure; loop thread. */
#include "control/job_impl.h"

/* ---- Flush and Detach ---- */

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

static bool has_unanswered_push(const struct rank *r)
{
	for (int i = 0; i < RANK_MAX_PUSHES; i++)
		if (r->push[i].used)
			return true;
	return false;
}

void flush_send(struct job *j, struct rank *r)
{
	bool may = j->engine_up && r->has_session && !r->attaching && mailbox_send(j, r);
	/* a flush must not overtake the pushes before it */
	if (may && r->flush_wanted && !r->flush_sent && !has_unanswered_push(r))
		send_flush(j, r);
}

void job_flush(struct job *j, uint64_t call, const struct session_key *k, uint64_t window, struct now now)
{
	struct rank *r = call_in_window(j, call, k);
	if (!r)
		return;
	if (window > j->mirror.r.window) {
		reply_error(j, call, ST_NOT_CURRENT_WINDOW, "flush the open window", "window %llu is open, not %llu",
			    (unsigned long long)j->mirror.r.window, (unsigned long long)window);
		return;
	}
	if (past_is_due(j, window)) {
		reply_past_due(j, call, window);
		return;
	}
	if (window < j->mirror.r.window || j->mirror.rank[r->index].flushed || j->mirror.r.phase != WINDOW_OPEN) {
		struct reply rep = { .kind = REPLY_FLUSH };
		rep.flush.counted = rank_counted_in(j, r, window);
		j->ports.reply(j->ports.ctx, call, &rep);
		return;
	}
	struct waiter *w = waiter_add(j, call, WAIT_FLUSH, r->index);
	if (!w)
		return;
	w->window = window;
	r->flush_wanted = true;
	flush_send(j, r);
}

void flush_answered(struct job *j, const struct engine_answer *a, struct now now)
{
	struct rank *r = &j->rank[a->rank];
	if (!r->flush_sent || r->flush_command != a->id)
		return;
	bool must_leave = r->leave_wanted && !r->leave_sent; /* a Detach came while a plain FLUSH was on its way */
	r->flush_sent = false;
	if (a->status == ST_WINDOW_CLOSED && r->leave_wanted) {
		flush_send(j, r); /* the window went by: leave from the one that is open */
		return;
	}
	if (!a->status) {
		struct control_rank *c = &j->mirror.rank[a->rank];
		c->flushed = r->leave_sent || c->flushed == RANK_LEFT ? RANK_LEFT : RANK_FLUSHED;
		rank_changed(j, r);
	}
	if (!must_leave)
		r->flush_wanted = r->leave_wanted = false;
	job_catch_up(j);			     /* the answer says how much is counted */
	bool closed = a->status == ST_WINDOW_CLOSED; /* the window closed before the flush: the rank owes it nothing */
	answer_waiters(j, r, !must_leave, closed ? ST_OK : (enum status)a->status, a->text);
	if (must_leave)
		flush_send(j, r);
	ack_last_send(j);
	job_report_rank(j, false, now);
}

/* ---- AckStep ---- */

/* Each acknowledgement is written to the control record before the call returns: a trainer sends it only once. */
void ack_send(struct job *j, struct waiter *w)
{
	const struct rank *r = &j->rank[w->rank];
	struct engine_command c = { .op = ENGINE_ACK_STEP, .rank = w->rank, .sgen = r->sgen, .window = w->window };
	/* after the fence it would count for the new session */
	if (j->engine_up && w->kind == WAIT_ACK && !w->sent && !r->attaching)
		w->sent = job_send(j, &c, &w->command_id, NULL);
}

void ack_last_send(struct job *j)
{
	if (!j->engine_up || !j->mirror.r.client_pending || j->ack_command || j->n_reading)
		return;
	struct engine_command c = { .op = ENGINE_ACK_STEP, .window = j->mirror.r.client_window, .last = true };
	job_send(j, &c, &j->ack_command, NULL);
}

void job_ack_step(struct job *j, uint64_t call, const struct session_key *k, uint64_t window, struct now now)
{
	const struct rank *r = session_check(j, k, call);
	if (!r)
		return;
	if (!j->mirror.r.client_pending || window != j->mirror.r.client_window || j->ended) {
		struct reply rep = { .kind = REPLY_EMPTY };
		j->ports.reply(j->ports.ctx, call, &rep);
		return;
	}
	struct waiter *w = waiter_add(j, call, WAIT_ACK, r->index);
	if (!w)
		return;
	w->window = window;
	ack_send(j, w);
}

void ack_answered(struct job *j, const struct engine_answer *a)
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
	ack_last_send(j);
}

void job_detach(struct job *j, uint64_t call, const struct session_key *k, bool done, struct now now)
{
	struct rank *r = session_check(j, k, call);
	if (!r)
		return;
	r->detached = true;
	r->lost = false;
	mailbox_end(j, r);
	rank_changed(j, r);
	streams_end(j, r, ST_CANCELLED, "detach when all streams have been answered",
		    "the session has detached: the stream ends with it");
	j->report_due = true;
	if (!done || j->ended || !j->engine_seen || j->mirror.rank[r->index].flushed == RANK_LEFT) {
		struct reply rep = { .kind = REPLY_EMPTY };
		j->ports.reply(j->ports.ctx, call, &rep);
	} else if (waiter_add(j, call, WAIT_DETACH, r->index)) {
		r->flush_wanted = r->leave_wanted = true;
	}
	flush_send(j, r);
	ack_last_send(j);
}
