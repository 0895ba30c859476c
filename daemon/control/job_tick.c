/* SPDX-License-Identifier: Apache-2.0 */
/* A job's tick, which runtime/part.c calls: ends calls that time out, notices processes that died without breaking a
 * lifeline, sends the reports that are due. Part of struct job; pure; loop thread. */
#include "control/job_impl.h"

#include <assert.h>
#include <stdio.h>

/* When nothing changes: shows that the node is alive, and replaces a report that was lost. */
#define REPORT_EVERY_NS (INT64_C(1000) * 1000000)
#define LOOK_EVERY_NS (INT64_C(1000) * 1000000)
#define TIME_OUTS_AT_ONCE 256 /* each is told of ten late ranks and takes some ten microseconds */

static void time_out(struct job *j, struct waiter *w)
{
	struct reply rep = { .status = ST_STALLED };
	char start[160] = "";
	const struct rank *giver = j->run ? NULL : job_start_waits(j, start, sizeof(start));
	size_t at = 0;
	if (j->run)
		at = (size_t)snprintf(rep.text, sizeof(rep.text), "window %llu: waiting for",
				      (unsigned long long)j->mirror.r.window);
	else
		at = (size_t)snprintf(rep.text, sizeof(rep.text), "the job has not started: it waits for");
	for (uint32_t i = 0; i < j->n_late && at < sizeof(rep.text); i++) {
		const struct late_rank *l = &j->late[i];
		rep.missing[rep.n_missing++] = l->rank;
		at += (size_t)snprintf(rep.text + at, sizeof(rep.text) - at,
				       "%s rank %u (%spid %lld) at %u/%u for %.1f s", i ? "," : "", l->rank,
				       l->lost	     ? "lost, "
				       : l->attached ? ""
						     : "not attached, ",
				       (long long)l->pid, l->counted, l->micro_size, (double)l->waiting_ns / 1e9);
	}
	if (!j->n_late && giver)
		rep.missing[rep.n_missing++] = giver->global;
	const struct rank *self = w->rank < j->spec->ranks ? &j->rank[w->rank] : NULL;
	if (!j->n_late && self && j->run && j->engine_up && rank_owes(j, self))
		snprintf(rep.text + at, sizeof(rep.text) - at, " this rank itself, at %u/%u micro-batches",
			 rank_progress_count(j, self), job_micro_size(j));
	else if (!j->n_late && at < sizeof(rep.text))
		snprintf(rep.text + at, sizeof(rep.text) - at, " %s",
			 !j->run	   ? start
			 : j->order.paused ? "the operator: the job is paused"
			 : !j->engine_up   ? "the engine to restart"
					   : "the coordinator");
	snprintf(rep.hint, sizeof(rep.hint), "see: gaccctl status %llu", (unsigned long long)j->id);
	j->ports.reply(j->ports.ctx, w->call, &rep);
	waiter_remove(j, w);
}

/* The others wait until the next tick. */
static void time_out_some(struct job *j, struct now now)
{
	int n = 0;
	for (uint32_t i = 0; i < j->n_waiters && n < TIME_OUTS_AT_ONCE;) {
		bool over = j->waiter[i].deadline_ns && j->waiter[i].deadline_ns <= now.mono_ns;
		uint32_t before = j->n_waiters;
		if (over)
			time_out(j, &j->waiter[i]);
		n += over;
		i += j->n_waiters == before; /* else the last one is in its place */
	}
}

/* Looks at the processes of sessions without a lifeline: new ones, those after a restart of gaccd, and those that were
 * lost and are heard again. If such a process dies, no connection breaks. */
static void watch_unlinked(struct job *j, struct now now)
{
	if (!j->engine_up || (!j->look_at && now.mono_ns - j->looked_ns < LOOK_EVERY_NS))
		return;
	if (!j->look_at)
		j->looked_ns = now.mono_ns;
	for (int n = 0; j->look_at < j->spec->ranks && n < LOOKS_AT_ONCE; j->look_at++) {
		struct rank *r = &j->rank[j->look_at];
		bool unlinked = r->watched && r->has_session && !r->n_links && !r->lost && !r->detached;
		n += unlinked;
		if (unlinked && session_is_dead(j, &r->session))
			job_on_link(j, r->global, r->sgen, false, now);
	}
	if (j->look_at == j->spec->ranks)
		j->look_at = 0;
}

void job_tick(struct job *j, struct now now)
{
	char why[160];
	assert(!job_counts_wrong(j, why, sizeof(why)));
	(void)why;
	j->clock_ns = now.mono_ns;
	job_catch_up(j);
	watch_unlinked(j, now);
	time_out_some(j, now);
	job_reconcile(j, now);
	if (j->report_due || (!j->ended && now.mono_ns - j->reported_ns >= REPORT_EVERY_NS))
		job_report(j, now);
}
