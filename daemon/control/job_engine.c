/* SPDX-License-Identifier: Apache-2.0 */
/* Sends a job's engine what is wanted and not yet under way: compares the coordinator's order and the ranks' calls with
 * what the control record says. Answers are job_answers.c's. Part of struct job; pure; loop thread. */
#include "control/job_impl.h"

static void send_commit(struct job *j)
{
	const struct commit *k = &j->order.commit;
	struct engine_command c = { .op = ENGINE_COMMIT, .window = k->window, .term = k->term, .attempt = k->attempt };
	commit_fill_command(k, &c);
	job_send(j, &c, &j->commit_command, NULL);
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
	reconcile_order(j, now);
	for (uint32_t i = 0; i < j->n_waiters; i++)
		ack_send(j, &j->waiter[i]);
	ack_last_send(j);
}
