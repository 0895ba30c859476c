/* A job and its engine: what to send next, what answers mean, what to report. */
#include "control/job_impl.h"

#include "engine/accum.h"
#include "math/optim.h"

#include <stdio.h>
#include <string.h>

/* ---- sending ---- */

static bool send(struct job *j, struct engine_command *c, uint64_t *out_id, const void *present)
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
	r->attach_sent = send(j, &c, &r->attach_command, NULL);
}

static void send_add(struct job *j, struct rank *r, struct parked_push *p)
{
	uint32_t n, first = job_session_slots(j, r->rank, &n);
	struct engine_command c = { .op = ENGINE_ADD, .rank = r->rank, .sgen = r->sgen, .window = p->window,
				    .micro = p->micro, .slot = p->slot == REPEAT ? first : p->slot,
				    .weight = p->weight, .loss = p->loss, .data_key = p->data_key,
				    .unix_nanos = p->unix_ns, .zero_after = p->zero_after, .n_present = p->n_present };
	c.coefficient = reduce_coefficient(j->spec->reduction, j->spec->grad_of, p->weight);
	p->sent = send(j, &c, &p->command_id, p->present);
}

static void send_flush(struct job *j, struct rank *r)
{
	struct engine_command c = { .op = ENGINE_FLUSH, .rank = r->rank, .sgen = r->sgen,
				    .window = j->mirror.r.window, .leave = r->leave_wanted };
	r->leave_sent = r->leave_wanted;
	r->flush_sent = send(j, &c, &r->flush_command, NULL);
}

static void send_put(struct job *j, struct waiter *w)
{
	struct engine_command c = { .op = ENGINE_PUT_PARAMS, .rank = w->rank, .slot = w->slot, .offset = w->offset,
				    .bytes = w->bytes, .last = w->last };
	w->sent = send(j, &c, &w->command_id, NULL);
}

static void send_commit(struct job *j)
{
	const struct commit *k = &j->order.commit;
	struct engine_command c = { .op = ENGINE_COMMIT, .window = k->window, .term = k->term, .attempt = k->attempt,
				    .applied_step = k->applied_step, .outcome = k->outcome,
				    .next_micro_size = k->next_micro_size, .scale = k->scale,
				    .clip_value = k->clip_value, .lr = k->lr, .next_loss_scale = k->next.scale.scale };
	send(j, &c, &j->commit_command, NULL);
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

/* Parameters that are there already; also those of a call whose engine died between taking them and saying so. */
static void answer_puts(struct job *j)
{
	struct reply rep = { .kind = REPLY_PUT };
	rep.put.ready = true;
	for (uint32_t i = j->n_waiters; i-- > 0;)
		if (j->waiter[i].kind == WAIT_PUT && !j->waiter[i].sent) {
			j->ports.reply(j->ports.ctx, j->waiter[i].call, &rep);
			waiter_remove(j, &j->waiter[i]);
		}
}

static void reconcile_start(struct job *j)
{
	if (j->mirror.r.params_ready) {
		answer_puts(j);
		return;
	}
	if (j->restore) {
		struct engine_command c = { .op = ENGINE_RESTORE, .n_present = j->n_restore };
		if (!j->restore_command)
			send(j, &c, &j->restore_command, j->restore);
		return;
	}
	if (j->spec->n_init && !j->init_command) {
		struct engine_command c = { .op = ENGINE_INIT_PARAMS };
		send(j, &c, &j->init_command, NULL);
	}
	for (uint32_t i = 0; i < j->n_waiters; i++)
		if (j->waiter[i].kind == WAIT_PUT && !j->waiter[i].sent)
			send_put(j, &j->waiter[i]);
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
		send(j, &c, &j->close_command, NULL);
	}
	bool can_go = r->phase < WINDOW_PREPARED || (r->phase == WINDOW_PREPARED && !attempt_at_least(j, o->term, o->attempt));
	bool failed = j->vote_status && j->vote_term == o->term && j->vote_attempt == o->attempt;
	if (o->want == WANT_GO && can_go && !failed && !j->go_command) {
		struct engine_command c = { .op = ENGINE_GO, .window = o->window, .term = o->term, .attempt = o->attempt,
					    .close = r->phase == WINDOW_OPEN, .want_norms = o->norms };
		j->go_term = o->term;
		send(j, &c, &j->go_command, NULL);
	}
	if (o->want == WANT_COMMIT && r->phase == WINDOW_PREPARED && !j->commit_command &&
	    r->prepared_term == o->commit.term && r->prepared_attempt == o->commit.attempt)
		send_commit(j);
}

static bool still_reads(const struct job *j, const struct rank *r)
{
	const struct control_rank *c = &j->mirror.rank[r->rank];
	return r->has_session && !r->detached && c->flushed != RANK_LEFT && !c->session.step_acked;
}

/* Who has read the reduced gradient is in the record before it is answered: a trainer says it once. */
static void reconcile_ack(struct job *j)
{
	for (uint32_t i = 0; i < j->n_waiters; i++) {
		struct waiter *w = &j->waiter[i];
		struct engine_command c = { .op = ENGINE_ACK_STEP, .rank = w->rank, .window = w->window };
		if (w->kind == WAIT_ACK && !w->sent)
			w->sent = send(j, &c, &w->command_id, NULL);
	}
	if (!j->mirror.r.client_pending || j->ack_command)
		return;
	for (uint32_t i = 0; i < j->spec->ranks; i++)
		if (still_reads(j, &j->rank[i]))
			return;
	struct engine_command c = { .op = ENGINE_ACK_STEP, .window = j->mirror.r.client_window, .last = true };
	send(j, &c, &j->ack_command, NULL);
}

void job_reconcile(struct job *j, struct now now)
{
	if (!j->engine_up)
		return;
	reconcile_start(j);
	for (uint32_t i = 0; i < j->spec->ranks; i++)
		reconcile_rank(j, &j->rank[i]);
	reconcile_order(j, now);
	reconcile_ack(j);
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

static void fill_progress(struct job *j, struct now now)
{
	for (uint32_t i = 0; i < j->spec->ranks; i++) {
		struct rank *r = &j->rank[i];
		const struct control_rank *c = &j->mirror.rank[i];
		struct rank_progress *p = &j->progress[i];
		bool left_over = c->flushed == RANK_LEFT;
		*p = (struct rank_progress){ .rank = i, .counted = c->counted, .voided = rank_count_voided(j, r),
					     .first_void = rank_first_voided(j, r), .flushed = (uint8_t)c->flushed,
					     .attached = r->has_session && !r->detached && !r->lost, .lost = r->lost, .known = r->has_session,
					     .lost_ns = r->lost ? r->lost_ns : 0,
					     .pid = r->session.pid, .weight = r->weight,
					     .last_push_unix_ns = r->last_push_unix_ns };
		if (!rank_owes(j, r) && !r->ready_ns && !left_over && j->run)
			r->ready_ns = now.mono_ns;
		p->ready_ns = r->ready_ns;
		p->waiting_ns = r->ready_ns;
		if (!p->waiting_ns && j->run)
			is_blocked(j, r, &p->waiting_ns);
	}
}

static bool all_left(const struct job *j)
{
	for (uint32_t i = 0; i < j->spec->ranks; i++)
		if (j->mirror.rank[i].flushed != RANK_LEFT)
			return false;
	return true;
}

void job_report(struct job *j, struct now now)
{
	const struct control_record *m = &j->mirror.r;
	fill_progress(j, now);
	struct report r = { .job_id = j->id, .epoch = 1, .incarnation = j->incarnation,
			    .term = j->have_order ? j->order.term : 0, .window = m->window, .phase = m->phase,
			    .rank = j->progress, .n_ranks = j->spec->ranks, .params_digest = m->params_digest };
	r.start = !j->engine_seen ? START_DECLARED : m->params_ready ? START_PARAMS : START_ALLOCATED;
	r.complete = j->engine_seen && accum_complete(&j->mirror);
	r.all_left = j->engine_seen && all_left(j);
	if (m->phase >= WINDOW_CLOSED) {
		r.count = m->count;
		r.sum_weight = m->sum_weight;
		r.sum_loss = m->sum_loss;
		r.counted = j->mirror.counted;
		r.n_words = (uint32_t)j->mirror.n_words;
	}
	if (j->vote_status) {
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
	j->reported_ns = now.mono_ns;
	j->report_due = false;
	j->ports.report(j->ports.ctx, &r);
}

/* ---- answers ---- */

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

static void on_counted(struct job *j, struct rank *r, struct parked_push *p, const struct engine_answer *a)
{
	bool was = rank_settled(j, r, p->micro);
	if (a->result == PUSH_VOID && !was)
		control_set_bit(j->mirror.voided, j->spec->max_micro_size, r->rank, p->micro);
	if (a->result != PUSH_VOID && !was) {
		control_set_bit(j->mirror.counted, j->spec->max_micro_size, r->rank, p->micro);
		j->mirror.rank[r->rank].counted++;
		r->weight += p->weight;
	}
}

static void on_void(struct job *j, struct rank *r, const struct parked_push *p, const struct engine_answer *a)
{
	char text[200];
	snprintf(text, sizeof text, "micro-batch %u of window %llu has %u non-finite gradient elements: not counted",
		 p->micro, (unsigned long long)p->window, a->nonfinite_count);
	j->ports.event(j->ports.ctx, j->id, true, "MicroRejected", r->rank, text);
}

static void on_add(struct job *j, const struct engine_answer *a, struct now now)
{
	struct rank *r = &j->rank[a->rank];
	for (int i = 0; i < RANK_MAX_PUSHES; i++) {
		struct parked_push *p = &r->push[i];
		if (!p->used || !p->sent || p->command_id != a->id)
			continue;
		if (a->status) {
			push_fail(j, r, p, a->status, a->text);
			break;
		}
		on_counted(j, r, p, a);
		if (a->result == PUSH_VOID)
			on_void(j, r, p, a);
		push_answer(j, r, p, a->result);
		break;
	}
	j->report_due = true;
	if (!rank_owes(j, r) || a->result == PUSH_VOID)
		job_report(j, now);
}

static void answer_waiter(struct job *j, struct rank *r, struct waiter *w, enum status st, const char *why)
{
	struct reply rep = { .kind = w->kind == WAIT_FLUSH ? REPLY_FLUSH : REPLY_EMPTY };
	if (w->kind == WAIT_FLUSH)
		rep.flush.counted = rank_counted_in(j, r, w->window);
	if (st)
		reply_error(j, w->call, st, NULL, "flush of rank %u: %s", r->rank, why);
	else
		j->ports.reply(j->ports.ctx, w->call, &rep);
	waiter_remove(j, w);
}

static void answer_waiters(struct job *j, struct rank *r, bool also_detach, enum status st, const char *why)
{
	for (uint32_t i = j->n_waiters; i-- > 0;) {
		struct waiter *w = &j->waiter[i];
		if (w->rank == r->rank && (w->kind == WAIT_FLUSH || (also_detach && w->kind == WAIT_DETACH)))
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
	bool must_leave = r->leave_wanted && !r->leave_sent; /* a Detach came while a plain FLUSH was out */
	r->flush_sent = false;
	if (a->status == ST_WINDOW_CLOSED && r->leave_wanted) {
		job_reconcile(j, now); /* the window went by: leave from the one that is open */
		return;
	}
	if (!a->status) {
		struct control_rank *c = &j->mirror.rank[a->rank];
		c->flushed = r->leave_sent || c->flushed == RANK_LEFT ? RANK_LEFT : RANK_FLUSHED;
	}
	if (!must_leave)
		r->flush_wanted = r->leave_wanted = false;
	bool closed = a->status == ST_WINDOW_CLOSED; /* before it: the rank owes nothing any more */
	answer_waiters(j, r, !must_leave, closed ? ST_OK : (enum status)a->status, a->text);
	if (must_leave)
		job_reconcile(j, now);
	job_report(j, now);
}

/* The engine says that the window is frozen, and what it holds. */
static void mirror_closed(struct job *j, const struct engine_answer *a)
{
	struct control_record *m = &j->mirror.r;
	m->phase = m->phase < WINDOW_CLOSED ? WINDOW_CLOSED : m->phase;
	m->count = a->count;
	m->sum_weight = a->sum_weight;
	m->sum_loss = a->sum_loss;
	memcpy(j->closed_counted, j->mirror.counted, j->mirror.n_words * sizeof *j->closed_counted);
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
	m->x = a->x;
	if (j->spec->optim.type == OPTIM_CLIENT && k->outcome == OUTCOME_APPLIED) {
		m->client_pending = 1; /* and stays so over windows without a step, until all have read it */
		m->client_window = k->window;
		for (uint32_t i = 0; i < j->spec->ranks; i++)
			j->mirror.rank[i].session.step_acked = 0;
	}
	m->count = 0;
	memset(j->mirror.counted, 0, j->mirror.n_words * sizeof *j->mirror.counted);
	memset(j->mirror.voided, 0, j->mirror.n_words * sizeof *j->mirror.voided);
	for (uint32_t i = 0; i < j->spec->ranks; i++) {
		j->mirror.rank[i].counted = 0;
		if (j->mirror.rank[i].flushed == RANK_FLUSHED)
			j->mirror.rank[i].flushed = RANK_OPEN;
	}
}

static void on_commit(struct job *j, const struct engine_answer *a, struct now now)
{
	if (a->id != j->commit_command)
		return;
	j->commit_command = 0;
	if (a->status == ST_NOT_READY) /* optimizer CLIENT: the last reduced gradients are still read; sent again at the tick */
		return;
	if (a->status) {
		j->ports.event(j->ports.ctx, j->id, true, "CommitRefused", -1, a->text);
		return;
	}
	mirror_next_window(j, a);
	job_window_changed(j, now);
}

static void on_put(struct job *j, const struct engine_answer *a, struct now now)
{
	for (uint32_t i = 0; i < j->n_waiters; i++) {
		struct waiter *w = &j->waiter[i];
		if (w->kind != WAIT_PUT || !w->sent || w->command_id != a->id)
			continue;
		struct reply rep = { .kind = REPLY_PUT };
		if (a->status)
			reply_error(j, w->call, a->status, NULL, "parameters at byte %llu: %s",
				    (unsigned long long)w->offset, a->text);
		if (!a->status && (w->last || a->result))
			j->mirror.r.params_ready = 1;
		rep.put.ready = j->mirror.r.params_ready;
		if (!a->status)
			j->ports.reply(j->ports.ctx, w->call, &rep);
		waiter_remove(j, w);
		break;
	}
	job_params_changed(j, now);
}

static void on_init(struct job *j, const struct engine_answer *a, struct now now)
{
	if (a->id != j->init_command)
		return;
	if (a->status) {
		j->ports.event(j->ports.ctx, j->id, true, "InitFailed", -1, a->text);
		return;
	}
	j->init_command = 0;
	j->mirror.r.params_ready = 1;
	job_params_changed(j, now);
}

static void on_ack(struct job *j, const struct engine_answer *a, struct now now)
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
		if (w->window == j->mirror.r.client_window)
			j->mirror.rank[w->rank].session.step_acked = 1;
		j->ports.reply(j->ports.ctx, w->call, &rep);
		waiter_remove(j, w);
		break;
	}
	job_reconcile(j, now);
}

void job_on_answer(struct job *j, const struct engine_answer *a, struct now now)
{
	j->clock_ns = now.mono_ns;
	if (!j->engine_up || a->rank >= j->spec->ranks)
		return;
	switch ((enum engine_op)a->op) {
	case ENGINE_ATTACH:
		on_attach(j, a, now);
		job_reconcile(j, now);
		break;
	case ENGINE_ADD:
		on_add(j, a, now);
		if (j->rank[a->rank].flush_wanted)
			job_reconcile(j, now);
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
		on_put(j, a, now);
		break;
	case ENGINE_INIT_PARAMS:
		on_init(j, a, now);
		break;
	case ENGINE_ACK_STEP:
		on_ack(j, a, now);
		break;
	case ENGINE_START:
	case ENGINE_STOP:
	case ENGINE_PING:
	case ENGINE_CHECKPOINT: /* the edge's */
	case ENGINE_RESTORE:
		break;
	}
}
