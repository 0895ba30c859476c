/* A job and its engine: what to send next, what answers mean, what to report. */
#include "control/job_impl.h"

#include "math/optim.h"

#include <stdio.h>
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
	struct engine_command c = { .op = ENGINE_ADD, .rank = r->rank, .sgen = r->sgen, .window = p->window,
				    .micro = p->micro, .slot = p->slot == REPEAT ? first : p->slot,
				    .weight = p->weight, .loss = p->loss, .data_key = p->data_key,
				    .unix_nanos = p->unix_ns, .zero_after = p->zero_after, .n_present = p->n_present,
				    .window_lr = p->lr };
	c.coefficient = reduce_coefficient(j->spec->reduction, j->spec->grad_of, p->weight);
	p->sent = job_send(j, &c, &p->command_id, p->present);
}

static void send_flush(struct job *j, struct rank *r)
{
	struct engine_command c = { .op = ENGINE_FLUSH, .rank = r->rank, .sgen = r->sgen,
				    .window = j->mirror.r.window, .leave = r->leave_wanted };
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
	bool can_go = r->phase < WINDOW_PREPARED || (r->phase == WINDOW_PREPARED && !attempt_at_least(j, o->term, o->attempt));
	bool failed = j->vote_status && j->vote_term == o->term && j->vote_attempt == o->attempt;
	/* one that is out may wait for other nodes, and is given up for a later attempt */
	bool superseded = o->term > j->go_term || (o->term == j->go_term && o->attempt > j->go_attempt);
	if (o->want == WANT_GO && can_go && !failed && (!j->go_command || superseded)) {
		struct engine_command c = { .op = ENGINE_GO, .window = o->window, .term = o->term, .attempt = o->attempt,
					    .close = r->phase == WINDOW_OPEN, .want_norms = o->norms };
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
	EACH_RANK (j, r)
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
	EACH_RANK (j, r) {
		const struct control_rank *c = &j->mirror.rank[r->rank];
		struct rank_progress *p = &j->progress[r->rank];
		*p = (struct rank_progress){ .rank = r->rank, .counted = c->counted, .voided = r->voided,
					     .first_void = r->first_void, .nonfinite = r->nonfinite,
					     .first_nonfinite = r->first_nonfinite, .flushed = (uint8_t)c->flushed,
					     .attached = r->has_session && !r->detached && !r->lost, .lost = r->lost, .known = r->has_session,
					     .unwatched = r->session.no_memory && !r->n_links, .silent = session_is_silent(j, r),
					     .lost_ns = r->lost ? r->lost_ns : 0,
					     .pid = r->session.pid, .weight = r->weight,
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
	struct report r = { .job_id = j->id, .epoch = 1, .incarnation = j->incarnation,
			    .term = j->have_order ? j->order.term : 0, .window = m->window, .phase = m->phase,
			    .rank = j->progress, .n_ranks = j->spec->ranks, .params_digest = m->params_digest };
	r.start = !j->engine_seen ? START_DECLARED : m->params_ready ? START_PARAMS : START_ALLOCATED;
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
	describe_lost(j, r.params_lost, sizeof r.params_lost);
	r.refused = j->refused;
	memcpy(r.refusal, j->refusal, sizeof r.refusal);
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

static void on_void(struct job *j, struct rank *r, const struct parked_push *p, const struct engine_answer *a)
{
	char text[200];
	snprintf(text, sizeof text, "micro-batch %u of window %llu has %u non-finite gradient elements: not counted",
		 p->micro, (unsigned long long)p->window, a->nonfinite_count);
	j->ports.event(j->ports.ctx, j->id, true, "MicroRejected", r->rank, text);
}

/* A rank's part has changed. The coordinator hears at once what it acts on; the rest is for people, and goes with the tick, as a report costs
 * a look at every rank. */
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
	j->mirror.r.lr_rank = r->rank;
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
	bool closed = a->status == ST_WINDOW_CLOSED; /* before it: the rank owes nothing any more */
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
	m->params_nonfinite = a->nonfinite;
	m->nonfinite_tensor = a->nonfinite_tensor;
	m->x = a->x;
	if (j->spec->optim.type == OPTIM_CLIENT && k->outcome == OUTCOME_APPLIED) {
		m->client_pending = 1; /* and stays so over windows without a step, until all have read it */
		m->client_window = k->window;
		EACH_RANK (j, r)
			j->mirror.rank[r->rank].session.step_acked = 0;
	}
	m->count = 0;
	m->window_lr = 0;
	memset(j->mirror.counted, 0, j->mirror.n_words * sizeof *j->mirror.counted);
	memset(j->mirror.voided, 0, j->mirror.n_words * sizeof *j->mirror.voided);
	EACH_RANK (j, r) {
		struct control_rank *c = &j->mirror.rank[r->rank];
		c->counted = 0;
		c->flushed = c->flushed == RANK_FLUSHED ? RANK_OPEN : c->flushed;
	}
}

/* Optimizer CLIENT: the last reduced gradients are still being read, and the COMMIT is sent again at the tick. Nothing else passes. */
static void note_refusal(struct job *j, const struct engine_answer *a, struct now now)
{
	bool waits = a->status == ST_NOT_READY && j->mirror.r.client_pending;
	enum status st = waits ? ST_NOT_READY : a->status == ST_NOT_READY ? ST_INTERNAL : (enum status)a->status;
	if (j->refused == st)
		return;
	j->refused = st;
	snprintf(j->refusal, sizeof j->refusal, "%s", *a->text ? a->text : status_info(st)->text);
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
			reply_error(j, w->call, a->status, NULL, "window %llu of rank %u: %s", (unsigned long long)w->window, w->rank, a->text);
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
	case ENGINE_CHECKPOINT: /* the edge's */
	case ENGINE_RESTORE:
		break;
	}
}
