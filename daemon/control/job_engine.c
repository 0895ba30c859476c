/* SPDX-License-Identifier: Apache-2.0 */
/* Sends a job's engine what is wanted and not yet under way: compares the coordinator's order and the ranks' calls with
 * what the control record says. Answers are job_answers.c's. Part of struct job; pure; loop thread. */
#include "control/job_impl.h"

/* The engine votes for the order's COMMIT, or has it in its record and lacks other parts' shares. */
static bool waits_for_commit(const struct job *j)
{
	const struct order *o = &j->order;
	const struct control_record *r = &j->mirror.r;
	return o->window == r->window && r->phase >= WINDOW_PREPARED && r->prepared_term == o->commit.term &&
	       r->prepared_attempt == o->commit.attempt;
}

/* It has applied it; in a communicator that was formed since other parts need its share. */
static bool may_serve(const struct job *j)
{
	return is_gathering(j) && j->order.window + 1 == j->mirror.r.window && !j->member.gathered;
}

static void send_commit(struct job *j)
{
	const struct commit *k = &j->order.commit;
	struct engine_command c = { .op = ENGINE_COMMIT, .window = k->window, .term = k->term, .attempt = k->attempt };
	if (is_gathering(j)) {
		c.comm_term = j->order.term;
		c.comm = j->order.comm;
	}
	if (j->order.want != WANT_COMMIT || j->commit_command || !(waits_for_commit(j) || may_serve(j)) ||
	    (is_gathering(j) && !comm_can_go(j)))
		return;
	commit_fill_command(k, &c);
	if (job_send(j, &c, &j->commit_command, NULL))
		j->commit_comm = c.comm;
}

/* The attempt for which the order lets the open window's vote begin without another order; 0: none. */
static uint64_t armed_attempt(const struct job *j)
{
	const struct order *o = &j->order;
	bool of_this = o->want == WANT_NOTHING && o->window == j->mirror.r.window;
	bool of_next = o->want == WANT_COMMIT && o->window + 1 == j->mirror.r.window;
	return of_this || of_next ? o->armed : 0;
}

/* Sends the GO that the engine keeps until nobody owes anything, or takes it back. One that is to be replaced is taken
 * back by its successor. */
static void arm(struct job *j)
{
	const struct control_record *r = &j->mirror.r;
	const uint64_t attempt = armed_attempt(j);
	const bool refused = j->unarmed_term == j->order.term && j->unarmed_attempt == attempt;
	if (attempt && !refused && r->phase == WINDOW_OPEN && !j->go_command) {
		struct engine_command c = {
			.op = ENGINE_GO, .window = r->window, .term = j->order.term, .attempt = attempt, .armed = true
		};
		j->go_term = j->order.term;
		j->go_attempt = attempt;
		j->go_armed = job_send(j, &c, &j->go_command, NULL);
	}
	const bool replaced = j->order.want == WANT_CLOSE || j->order.want == WANT_GO;
	if (j->go_armed && !attempt && !replaced && !j->disarm_command) {
		struct engine_command c = { .op = ENGINE_DISARM, .window = r->window };
		job_send(j, &c, &j->disarm_command, NULL);
	}
}

static void reconcile_order(struct job *j, struct now now)
{
	const struct order *o = &j->order;
	const struct control_record *r = &j->mirror.r;
	if (!j->have_order)
		return;
	arm(j);
	send_commit(j);
	if (o->window != r->window)
		return;
	if (o->want == WANT_CLOSE && r->phase == WINDOW_OPEN && !j->close_command) {
		struct engine_command c = { .op = ENGINE_CLOSE, .window = o->window };
		job_send(j, &c, &j->close_command, NULL);
	}
	bool can_go = r->phase < WINDOW_PREPARED ||
		      (r->phase == WINDOW_PREPARED && !prepared_at_least(j, o->term, o->attempt));
	bool failed = j->vote_status && j->vote_term == o->term && j->vote_attempt == o->attempt;
	/* a GO that is on its way may wait for other nodes; a later attempt replaces it */
	bool superseded =
		o->term > j->go_term || (o->term == j->go_term && (o->attempt > j->go_attempt || j->go_armed));
	const bool may = !has_parts(j) || comm_can_go(j);
	if (o->want == WANT_GO && can_go && may && !failed && (!j->go_command || superseded)) {
		struct engine_command c = { .op = ENGINE_GO,
					    .window = o->window,
					    .term = o->term,
					    .attempt = o->attempt,
					    .comm = o->comm,
					    .close = r->phase == WINDOW_OPEN,
					    .want_norms = o->norms };
		if (job_send(j, &c, &j->go_command, NULL)) { /* else the next tick tries again */
			j->go_term = o->term;
			j->go_attempt = o->attempt;
			j->go_comm = o->comm;
			j->go_armed = false;
		}
	}
}

void job_reconcile_rank(struct job *j, struct rank *r)
{
	attach_send(j, r);
	pushes_send(j, r);
	flush_send(j, r);
}

void job_reconcile(struct job *j, struct now now)
{
	if (!j->engine_up)
		return;
	initial_send(j);
	EACH_RANK(j, r)
	job_reconcile_rank(j, r);
	comm_send(j, now);
	reconcile_order(j, now);
	for (uint32_t i = 0; i < j->n_waiters; i++)
		ack_send(j, &j->waiter[i]);
	ack_last_send(j);
}
