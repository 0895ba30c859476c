/* What a session's trainer asks of its job, attach and pushes (session.c) and register (job.c) excepted. */
#include "control/job_impl.h"

#include <stdio.h>
#include <string.h>

bool call_allowed(struct job *j, uint64_t call, const struct session_key *k)
{
	if (!session_check(j, k, call))
		return false;
	if (!j->ended)
		return true;
	reply_error(j, call, ST_JOB_ENDED, NULL, "job %llu has ended: %s", (unsigned long long)j->id, j->end_reason);
	return false;
}

bool call_in_window(struct job *j, uint64_t call, const struct session_key *k)
{
	if (!call_allowed(j, call, k))
		return false;
	if (j->run && j->engine_seen)
		return true;
	reply_error(j, call, ST_NOT_READY, "call WaitReady first", "job %llu is not running yet", (unsigned long long)j->id);
	return false;
}

void job_put_params(struct job *j, uint64_t call, const struct session_key *k, uint32_t slot, uint64_t offset,
		    uint64_t bytes, bool last, struct now now)
{
	if (!call_allowed(j, call, k))
		return;
	if (!j->engine_seen) {
		reply_error(j, call, ST_NOT_READY, "call RegisterTensors first", "the job has no memory yet");
		return;
	}
	if (j->mirror.r.params_ready) {
		struct reply rep = { .kind = REPLY_PUT };
		rep.put.ready = true;
		j->ports.reply(j->ports.ctx, call, &rep);
		return;
	}
	if (slot >= j->spec->slots_per_rank || bytes > j->arena.slot_bytes || offset > j->arena.param_bytes ||
	    bytes > j->arena.param_bytes - offset) {
		reply_error(j, call, ST_INVALID_ARGUMENT, "offset + bytes must lie in the parameter layout",
			    "slot %u, offset %llu, bytes %llu: slots hold %llu bytes, parameters %llu", slot,
			    (unsigned long long)offset, (unsigned long long)bytes, (unsigned long long)j->arena.slot_bytes,
			    (unsigned long long)j->arena.param_bytes);
		return;
	}
	struct waiter *w = waiter_add(j, call, WAIT_PUT, k->rank);
	if (!w)
		return;
	uint32_t n, first = job_session_slots(j, k->rank, &n);
	w->slot = first + slot;
	w->offset = offset;
	w->bytes = bytes;
	w->last = last;
	job_reconcile(j, now);
}

/* 0: none, which is also what a time beyond the clock's end comes to. */
static int64_t deadline(int64_t timeout_ns, struct now now)
{
	return timeout_ns > 0 && timeout_ns <= INT64_MAX - now.mono_ns ? now.mono_ns + timeout_ns : 0;
}

void job_wait_ready(struct job *j, uint64_t call, const struct session_key *k, int64_t timeout_ns, struct now now)
{
	if (!call_allowed(j, call, k))
		return;
	if (ready_now(j)) {
		ready_reply(j, &j->rank[k->rank], call);
		return;
	}
	struct waiter *w = waiter_add(j, call, WAIT_READY, k->rank);
	if (w)
		w->deadline_ns = deadline(timeout_ns, now);
}

uint32_t rank_counted_in(const struct job *j, const struct rank *r, uint64_t window)
{
	const struct past_window *p = past_find(j, window);
	uint32_t n = 0, size = j->spec->max_micro_size;
	if (window == j->mirror.r.window)
		return j->mirror.rank[r->rank].counted;
	for (uint32_t m = 0; p && m < size; m++)
		n += control_bit(p->counted, size, r->rank, m);
	return n;
}

void job_flush(struct job *j, uint64_t call, const struct session_key *k, uint64_t window, struct now now)
{
	if (!call_in_window(j, call, k))
		return;
	struct rank *r = &j->rank[k->rank];
	if (window > j->mirror.r.window) {
		reply_error(j, call, ST_NOT_CURRENT_WINDOW, "flush the open window", "window %llu is open, not %llu",
			    (unsigned long long)j->mirror.r.window, (unsigned long long)window);
		return;
	}
	if (window < j->mirror.r.window || j->mirror.rank[k->rank].flushed || j->mirror.r.phase != WINDOW_OPEN) {
		struct reply rep = { .kind = REPLY_FLUSH };
		rep.flush.counted = rank_counted_in(j, r, window);
		j->ports.reply(j->ports.ctx, call, &rep);
		return;
	}
	struct waiter *w = waiter_add(j, call, WAIT_FLUSH, k->rank);
	if (!w)
		return;
	w->window = window;
	r->flush_wanted = true;
	job_reconcile(j, now);
}

void job_wait_step(struct job *j, uint64_t call, const struct session_key *k, uint64_t window, int64_t timeout_ns,
		   struct now now)
{
	if (!session_check(j, k, call))
		return;
	const struct past_window *p = past_find(j, window);
	if (p && window < j->mirror.r.window) {
		step_reply(j, call, &p->commit);
		return;
	}
	if (!call_in_window(j, call, k))
		return;
	if (window != j->mirror.r.window) {
		reply_error(j, call, ST_NOT_CURRENT_WINDOW, "wait for the open window", "window %llu is open, not %llu%s",
			    (unsigned long long)j->mirror.r.window, (unsigned long long)window,
			    window < j->mirror.r.window ? "; its outcome is no longer kept" : "");
		return;
	}
	struct waiter *w = waiter_add(j, call, WAIT_STEP, k->rank);
	if (!w)
		return;
	w->window = window;
	w->deadline_ns = deadline(timeout_ns, now);
}

void job_ack_step(struct job *j, uint64_t call, const struct session_key *k, uint64_t window, struct now now)
{
	if (!session_check(j, k, call))
		return;
	if (!j->mirror.r.client_pending || window != j->mirror.r.client_window || j->ended) {
		struct reply rep = { .kind = REPLY_EMPTY };
		j->ports.reply(j->ports.ctx, call, &rep);
		return;
	}
	struct waiter *w = waiter_add(j, call, WAIT_ACK, k->rank);
	if (!w)
		return;
	w->window = window;
	job_reconcile(j, now);
}

void job_detach(struct job *j, uint64_t call, const struct session_key *k, bool done, struct now now)
{
	if (!session_check(j, k, call))
		return;
	struct rank *r = &j->rank[k->rank];
	r->detached = true;
	r->lost = false;
	j->report_due = true;
	if (!done || j->ended || !j->engine_seen || j->mirror.rank[k->rank].flushed == RANK_LEFT) {
		struct reply rep = { .kind = REPLY_EMPTY };
		j->ports.reply(j->ports.ctx, call, &rep);
	} else if (waiter_add(j, call, WAIT_DETACH, k->rank)) {
		r->flush_wanted = r->leave_wanted = true;
	}
	job_reconcile(j, now);
}

void job_on_link(struct job *j, uint32_t rank, uint64_t generation, bool up, struct now now)
{
	if (rank >= j->spec->ranks || j->rank[rank].sgen != generation || j->rank[rank].detached)
		return;
	struct rank *r = &j->rank[rank];
	bool lost = !up;
	if (lost && !r->lost && !j->ended) {
		char text[160];
		snprintf(text, sizeof text, "the trainer (pid %lld) is gone with %u of %u micro-batches counted in window %llu",
			 (long long)r->session.pid, j->mirror.rank[rank].counted, job_micro_size(j),
			 (unsigned long long)j->mirror.r.window);
		j->ports.event(j->ports.ctx, j->id, true, "RankLost", rank, text);
	}
	if (lost && !r->lost)
		r->lost_ns = now.mono_ns;
	r->link = up;
	r->lost = lost;
	job_report(j, now);
}
