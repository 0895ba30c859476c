/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer's calls WaitReady, WaitStep, Flush, AckStep and Detach, and the lifelines of its session. Attach is
 * session.c's, pushes are pushes.c's, register is job.c's. Part of struct job; pure; loop thread. */
#include "control/job_impl.h"

#include <stdio.h>
#include <string.h>

struct rank *call_allowed(struct job *j, uint64_t call, const struct session_key *k)
{
	struct rank *r = session_check(j, k, call);
	if (!r || !j->ended)
		return r;
	reply_error(j, call, ST_JOB_ENDED, NULL, "job %llu has ended: %s", (unsigned long long)j->id, j->end_reason);
	return NULL;
}

struct rank *call_in_window(struct job *j, uint64_t call, const struct session_key *k)
{
	struct rank *r = call_allowed(j, call, k);
	if (!r)
		return NULL;
	if (past_final(j)) { /* nothing taken now would ever be committed */
		reply_error(j, call, ST_JOB_ENDED, NULL, "job %llu is ending: window %llu was its last",
			    (unsigned long long)j->id, (unsigned long long)j->mirror.r.window - 1);
		return NULL;
	}
	if (j->run && j->engine_seen)
		return r;
	reply_error(j, call, ST_NOT_READY, "call WaitReady first", "job %llu is not running yet",
		    (unsigned long long)j->id);
	return NULL;
}

/* 0: no deadline; so is a time beyond the clock's end. */
static int64_t deadline(int64_t timeout_ns, struct now now)
{
	return timeout_ns > 0 && timeout_ns <= INT64_MAX - now.mono_ns ? now.mono_ns + timeout_ns : 0;
}

void job_wait_ready(struct job *j, uint64_t call, const struct session_key *k, int64_t timeout_ns, struct now now)
{
	const struct rank *r = call_allowed(j, call, k);
	if (!r)
		return;
	if (ready_now(j, r)) {
		ready_reply(j, r, call);
		return;
	}
	struct waiter *w = waiter_add(j, call, WAIT_READY, r->index);
	if (w)
		w->deadline_ns = deadline(timeout_ns, now);
}

const struct past_window *past_find(const struct job *j, uint64_t window)
{
	for (uint32_t i = 0; i < j->n_past; i++)
		if (j->past[i].commit.window == window)
			return &j->past[i];
	return NULL;
}

uint32_t rank_counted_in(const struct job *j, const struct rank *r, uint64_t window)
{
	const struct past_window *p = past_find(j, window);
	uint32_t n = 0, size = j->spec->max_micro_size;
	if (window == j->mirror.r.window)
		return j->mirror.rank[r->index].counted;
	for (uint32_t m = 0; p && m < size; m++)
		n += control_bit(p->counted, size, r->index, m);
	return n;
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
	job_reconcile_rank(j, r);
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
	job_reconcile_waiter(j, w);
}

void job_detach(struct job *j, uint64_t call, const struct session_key *k, bool done, struct now now)
{
	struct rank *r = session_check(j, k, call);
	if (!r)
		return;
	r->detached = true;
	r->lost = false;
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
	job_reconcile_rank(j, r);
	job_reconcile_ack(j);
}

void job_on_link(struct job *j, uint32_t rank, uint64_t generation, bool up, struct now now)
{
	struct rank *r = job_rank(j, rank);
	if (!r || r->sgen != generation || r->detached)
		return;
	r->n_links += up ? 1 : r->n_links ? -1u : 0;
	bool lost = !r->n_links;
	if (lost && !r->lost && !j->ended) {
		char text[160];
		snprintf(text, sizeof(text),
			 "the trainer (pid %lld) is gone with %u of %u micro-batches counted in window %llu",
			 (long long)r->session.pid, j->mirror.rank[r->index].counted, job_micro_size(j),
			 (unsigned long long)j->mirror.r.window);
		j->ports.event(j->ports.ctx, j->id, true, "RankLost", rank, text);
	}
	if (lost && !r->lost)
		r->lost_ns = now.mono_ns;
	r->lost = lost;
	/* with the tick, as of an attach: a node that dies breaks the lifelines of all its ranks */
	j->report_due = true;
}
