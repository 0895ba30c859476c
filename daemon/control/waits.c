/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer's calls WaitReady and WaitStep: answers them, at once or when what they wait for has happened. Part of
 * struct job; pure; loop thread. */
#include "control/job_impl.h"

/* 0: no deadline; so is a time beyond the clock's end. */
static int64_t deadline(int64_t timeout_ns, struct now now)
{
	return timeout_ns > 0 && timeout_ns <= INT64_MAX - now.mono_ns ? now.mono_ns + timeout_ns : 0;
}

/* ---- WaitReady ---- */

/* The rank has not acknowledged the reduced gradient of client_window. */
static bool must_apply(const struct job *j, const struct rank *r)
{
	return j->mirror.r.client_pending && !j->mirror.rank[r->index].session.step_acked;
}

/* After the last window a trainer is to hear of the job's end, not of a window that never closes; but one that applies
 * steps itself may have the last one to apply. A step that it has not applied is not put off until the next window
 * opens, because that window may wait for it: the half that it reads is needed. */
static bool ready_now(const struct job *j, const struct rank *r)
{
	if (!j->run || !j->engine_up || !j->mirror.r.params_ready || j->mirror.r.params_nonfinite)
		return false;
	if (j->mirror.r.window && past_is_due(j, j->mirror.r.window - 1))
		return false; /* it may have been the last one */
	if (must_apply(j, r))
		return true;
	return j->mirror.r.phase == WINDOW_OPEN && (!past_final(j) || j->spec->optim.type == OPTIM_CLIENT);
}

static void ready_reply(struct job *j, const struct rank *r, uint64_t call)
{
	struct reply rep = { .kind = REPLY_READY };
	uint32_t n = 0, size = job_micro_size(j);
	bool flushed = j->mirror.rank[r->index].flushed != 0, takes_more = !flushed && j->mirror.r.phase == WINDOW_OPEN;
	for (uint32_t m = 0; m < size && takes_more; m++)
		if (!rank_settled(j, r, m))
			j->missing[n++] = m;
	rep.ready.window = j->mirror.r.window;
	rep.ready.applied_step = j->mirror.r.applied_step;
	rep.ready.micro_size = size;
	rep.ready.missing = j->missing;
	rep.ready.n_missing = n;
	rep.ready.loss_scale = j->mirror.r.loss_scale;
	rep.ready.flushed = flushed;
	rep.ready.pending_apply = must_apply(j, r);
	rep.ready.pending_window = j->mirror.r.client_window;
	if (j->n_past)
		rep.ready.last = j->past[j->n_past - 1].commit;
	j->ports.reply(j->ports.ctx, call, &rep);
}

void job_answer_ready(struct job *j)
{
	for (uint32_t i = j->n_waiters; i-- > 0;) {
		struct waiter *w = &j->waiter[i];
		if (w->kind != WAIT_READY || !ready_now(j, &j->rank[w->rank]))
			continue;
		ready_reply(j, &j->rank[w->rank], w->call);
		waiter_remove(j, w);
	}
}

void job_wait_ready(struct job *j, uint64_t call, const struct session_key *k, int64_t timeout_ns, struct now now)
{
	const struct rank *r = call_allowed(j, call, k);
	if (!r)
		return;
	job_catch_up(j);
	if (ready_now(j, r)) {
		ready_reply(j, r, call);
		return;
	}
	struct waiter *w = waiter_add(j, call, WAIT_READY, r->index);
	if (w)
		w->deadline_ns = deadline(timeout_ns, now);
}

/* ---- WaitStep ---- */

static void step_reply(struct job *j, uint64_t call, const struct commit *k)
{
	struct reply rep = { .kind = REPLY_STEP };
	rep.step.commit = *k;
	rep.step.micro_size = k->next_micro_size;
	rep.step.accum_half = job_reduced_half(j);
	rep.step.done = k->final || j->ended;
	j->ports.reply(j->ports.ctx, call, &rep);
}

/* A step whose parameters are lost is not reported as a step: the end of the job, which follows, tells the trainers. */
void job_answer_steps(struct job *j)
{
	for (uint32_t i = j->n_waiters; i-- > 0;) {
		struct waiter *w = &j->waiter[i];
		const struct past_window *p = w->kind == WAIT_STEP ? past_find(j, w->window) : NULL;
		if (!p || w->window >= j->mirror.r.window || is_lost(j, w->window))
			continue;
		step_reply(j, w->call, &p->commit);
		waiter_remove(j, w);
	}
}

void job_wait_step(struct job *j, uint64_t call, const struct session_key *k, uint64_t window, int64_t timeout_ns,
		   struct now now)
{
	const struct rank *r = session_check(j, k, call);
	if (!r)
		return;
	const struct past_window *p = past_find(j, window);
	if (p && window < j->mirror.r.window && !is_lost(j, window)) {
		step_reply(j, call, &p->commit);
		return;
	}
	bool ends_it = is_lost(j, window) && past_final(j); /* the end is on its way to the journal, and says why */
	if (ends_it ? !call_allowed(j, call, k) : !call_in_window(j, call, k))
		return;
	if (past_is_due(j, window)) {
		reply_past_due(j, call, window);
		return;
	}
	if (window != j->mirror.r.window && !is_lost(j, window)) {
		reply_error(j, call, ST_NOT_CURRENT_WINDOW, "wait for the open window",
			    "window %llu is open, not %llu%s", (unsigned long long)j->mirror.r.window,
			    (unsigned long long)window,
			    window < j->mirror.r.window ? "; its outcome is no longer kept" : "");
		return;
	}
	struct waiter *w = waiter_add(j, call, WAIT_STEP, r->index);
	if (!w)
		return;
	w->window = window;
	w->deadline_ns = deadline(timeout_ns, now);
}
