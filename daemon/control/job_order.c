/* SPDX-License-Identifier: Apache-2.0 */
/* Takes the coordinator's orders: ignores those that are older, and does at once what the others ask for. Part of
 * struct job; pure; loop thread. */
#include "control/job_impl.h"

#include <stdio.h>
#include <string.h>

static void take_late(struct job *j, const struct order *o)
{
	j->n_late = o->n_late < REPLY_MAX_MISSING ? o->n_late : REPLY_MAX_MISSING;
	if (j->n_late)
		memcpy(j->late, o->late, j->n_late * sizeof(*j->late));
}

static void end_calls(struct job *j, enum status st, const char *hint, const char *text)
{
	struct reply left = { .kind = REPLY_EMPTY };
	while (j->n_waiters) {
		struct waiter *w = &j->waiter[j->n_waiters - 1];
		if (w->kind == WAIT_DETACH || w->kind == WAIT_ACK)
			j->ports.reply(j->ports.ctx, w->call, &left);
		else if (!stream_of(&j->rank[w->rank], w->call))
			reply_error(j, w->call, st, hint, "%s", text);
		waiter_remove(j, w);
	}
	EACH_RANK(j, r)
	{
		mailbox_end(j, r);
		streams_end(j, r, st, hint, text);
		for (int i = 0; i < RANK_MAX_PUSHES; i++)
			if (r->push[i].used)
				push_fail(j, r, &r->push[i], st, text);
	}
}

static void end_job(struct job *j, const struct order *o)
{
	if (j->ended)
		return;
	j->ended = true;
	j->end_status = o->end_status;
	snprintf(j->end_reason, sizeof(j->end_reason), "%s", o->end_reason);
	end_calls(j, ST_JOB_ENDED, NULL, j->end_reason);
}

/* Of an earlier epoch or coordinator, or of the same one and overtaken: windows and wants only go forward. */
static bool is_older(const struct job *j, const struct order *o)
{
	const struct order *last = &j->order;
	if (o->epoch < j->epoch || (j->have_order && o->term < last->term))
		return true;
	if (!j->have_order || o->epoch > last->epoch || o->term > last->term || o->window > last->window)
		return false;
	return o->window < last->window || o->want < last->want || o->number < last->number ||
	       (o->want == WANT_GO && o->attempt < last->attempt);
}

void job_on_order(struct job *j, const struct order *o, struct now now)
{
	j->clock_ns = now.mono_ns;
	if (o->job_id != j->id || is_older(j, o))
		return;
	bool repeated =
		j->have_order && o->epoch == j->order.epoch && o->term == j->order.term && o->number == j->order.number;
	j->order = *o;
	j->epoch = o->epoch;
	j->order.late = NULL;
	j->have_order = true;
	take_late(j, o);
	if (o->run && !j->run) {
		j->run = true;
		job_recount(j); /* from now on the time at which a rank gets ready is recorded */
		job_answer_ready(j);
	}
	if (o->want == WANT_END) {
		end_job(j, o);
		comm_send(j, now);
		job_report(j,
			   now); /* each time: the coordinator repeats it until it hears that the job has ended here */
		return;
	}
	job_reconcile(j, now);
	if (!repeated || o->want != WANT_NOTHING)
		j->report_due = true; /* the coordinator may have missed our report; the tick repeats it */
	if (o->want == WANT_CLOSE && j->mirror.r.phase >= WINDOW_CLOSED)
		job_report(j, now);
}

void job_on_board(struct job *j, const struct part_board *b, struct now now)
{
	j->clock_ns = now.mono_ns;
	if (!j->engine_up)
		return;
	comm_take_board(j, b);
	job_reconcile(j, now);
}
