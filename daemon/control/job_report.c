/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the reports that the coordinator gets about a part: its window, its vote, its ranks, whether it is degraded
 * or has failed. Part of struct job; pure; loop thread. */
#include "control/job_impl.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* ---- ranks ---- */

static bool is_blocked(const struct job *j, const struct rank *r, int64_t *since)
{
	bool queued = r->queued_since_ns && rank_blocked_by(j, r, r->queued_micro) != r->index;
	int64_t oldest = queued ? r->queued_since_ns : 0; /* that of a mailbox */
	for (int i = 0; i < RANK_MAX_PUSHES; i++) {
		const struct parked_push *p = &r->push[i];
		if (p->used && rank_blocked_by(j, r, p->micro) != r->index && (!oldest || p->since_ns < oldest))
			oldest = p->since_ns;
	}
	*since = oldest;
	return oldest != 0;
}

/* 0: `since` is none. */
static int64_t age_of(int64_t since_ns, struct now now)
{
	return !since_ns ? 0 : now.mono_ns > since_ns ? now.mono_ns - since_ns : 1;
}

static void fill_progress(struct job *j, struct now now)
{
	for (uint32_t i = 0; i < j->n_waiters; i++) /* a rank that waits for an answer is alive */
		j->rank[j->waiter[i].rank].heard_ns = j->clock_ns;
	EACH_RANK(j, r)
	{
		const struct control_rank *c = &j->mirror.rank[r->index];
		struct rank_progress *p = &j->progress[r->index];
		int64_t waiting = r->ready_ns;
		if (!waiting && j->run)
			is_blocked(j, r, &waiting);
		*p = (struct rank_progress){ .rank = r->global,
					     .counted = c->counted,
					     .voided = r->voided,
					     .first_void = r->first_void,
					     .nonfinite = r->nonfinite,
					     .first_nonfinite = r->first_nonfinite,
					     .flushed = (uint8_t)c->flushed,
					     .attached = r->has_session && !r->detached && !r->lost,
					     .lost = r->lost,
					     .known = r->has_session,
					     .unwatched = r->session.no_memory && !r->n_links,
					     .silent = session_is_silent(j, r),
					     .waiting_ns = age_of(waiting, now),
					     .lost_ns = r->lost ? age_of(r->lost_ns, now) : 0,
					     .pid = r->session.pid,
					     .weight = r->weight,
					     .ready_ns = age_of(r->ready_ns, now),
					     .last_push_unix_ns = r->last_push_unix_ns };
	}
}

/* ---- the start ---- */

static const char *missing_for_start(const struct job *j)
{
	if (!j->has_tensors)
		return "its tensors: no rank has called RegisterTensors";
	if (!j->engine_seen)
		return "its memory and its engine";
	if (takes_fill(j))
		return "the parameters of another part";
	if (j->mirror.r.params_ready)
		return "the coordinator";
	return j->restore	 ? "the parameters to be read from the checkpoint"
	       : j->spec->n_init ? "the initial parameters to be drawn by the rules of init"
				 : "the initial parameters: no rank has given all of them (PutParameters, the last "
				   "part with `last`)";
}

const struct rank *job_start_waits(const struct job *j, char *text, size_t n)
{
	const struct rank *giver = j->mirror.r.params_ready ? NULL : puts_giver(j);
	if (giver)
		snprintf(text, n,
			 "the initial parameters: rank %u (pid %lld) has given some of them, and not yet the last part",
			 giver->global, (long long)giver->session.pid);
	else
		snprintf(text, n, "%s", missing_for_start(j));
	return giver;
}

/* ---- the report ---- */

/* Optimizer CLIENT: GO of several parts writes the half that trainers still read. */
static bool is_read(const struct job *j)
{
	return has_parts(j) && j->mirror.r.client_pending;
}

static void describe_readers(const struct job *j, char *text, size_t n)
{
	size_t at = (size_t)snprintf(text, n, "the step acknowledgement of rank%s", j->n_reading == 1 ? "" : "s");
	uint32_t named = 0;
	for (uint32_t i = 0; i < j->spec->ranks && at + 16 < n; i++)
		if (j->rank[i].reads)
			at += (size_t)snprintf(text + at, n - at, "%s%u", named++ ? ", " : " ", j->rank[i].global);
	if (!named)
		text[0] = '\0'; /* all have: the engine is being told */
}

static void describe_lost(const struct job *j, char *text, size_t n)
{
	const struct control_record *m = &j->mirror.r;
	unsigned long long count = m->params_nonfinite;
	text[0] = '\0';
	if (count)
		snprintf(text, n, "%llu value%s of the parameters %s inf or NaN, the first in tensor \"%.80s\"", count,
			 count == 1 ? "" : "s", count == 1 ? "is" : "are",
			 m->nonfinite_tensor < j->set.n ? j->set.tensor[m->nonfinite_tensor].name : "");
}

static void fill_vote(const struct job *j, struct report *r)
{
	const struct control_record *m = &j->mirror.r;
	/* the record knows better than a vote of an attempt before the one that it is prepared for */
	bool stale = m->phase == WINDOW_PREPARED && prepared_at_least(j, j->vote_term, j->vote_attempt);
	if (j->vote_status && !stale) {
		r->vote_term = j->vote_term;
		r->vote_attempt = j->vote_attempt;
		r->vote_status = j->vote_status;
		r->vote_suspects = j->vote_suspects;
		memcpy(r->vote_text, j->vote_text, sizeof(r->vote_text));
	} else if (m->phase >= WINDOW_PREPARED) {
		r->vote_term = m->prepared_term;
		r->vote_attempt = m->prepared_attempt;
		r->sumsq = m->prepared_sumsq;
		r->nonfinite = m->prepared_nonfinite;
		r->digest = m->prepared_digest;
	}
}

static void fill_window(const struct job *j, struct report *r)
{
	const struct control_record *m = &j->mirror.r;
	r->window = m->window;
	r->phase = m->phase;
	r->params_digest = m->params_digest;
	r->complete = j->engine_seen && !j->n_owing && !is_read(j);
	r->armed = j->go_armed && j->have_order && j->go_term == j->order.term ? j->go_attempt : 0;
	/* the job ends at once if all have left and nothing is counted */
	r->all_left = j->engine_seen && j->n_left == j->spec->ranks && !j->behind;
	if (m->phase >= WINDOW_CLOSED) {
		r->count = m->count;
		r->sum_weight = m->sum_weight;
		r->sum_loss = m->sum_loss;
		r->lr = m->window_lr;
		r->lr_rank = part_global(&j->part, m->lr_rank);
		r->counted = j->mirror.counted;
		r->n_words = (uint32_t)j->mirror.n_words;
	}
	fill_vote(j, r);
	describe_lost(j, r->params_lost, sizeof(r->params_lost));
	r->refused = j->refused;
	memcpy(r->refusal, j->refusal, sizeof(r->refusal));
}

static void fill_start(const struct job *j, struct report *r)
{
	const bool has_params = j->mirror.r.params_ready && !takes_fill(j);
	r->start = !j->engine_seen ? START_DECLARED : has_params ? START_PARAMS : START_ALLOCATED;
	if (r->start < START_PARAMS)
		job_start_waits(j, r->start_waits, sizeof(r->start_waits));
	else if (is_read(j) && !j->n_owing)
		describe_readers(j, r->start_waits, sizeof(r->start_waits));
}

/* Of a job of several parts. */
static void fill_comm(const struct job *j, struct report *r)
{
	if (!has_parts(j))
		return;
	r->life = j->life;
	r->comm =
		j->member.state == MEMBER_JOINED && j->have_order && j->member.term == j->order.term ? j->member.k : 0;
}

void job_report(struct job *j, struct now now)
{
	assert(j->n_owing <= j->spec->ranks && j->n_left <= j->spec->ranks && (j->engine_seen || !j->engine_up));
	fill_progress(j, now);
	struct report r = { .job_id = j->id,
			    .epoch = j->epoch,
			    .incarnation = j->incarnation,
			    .part = j->part.number,
			    .number = ++j->n_reports,
			    .term = j->have_order ? j->order.term : 0,
			    .order = j->have_order ? j->order.number : 0,
			    .connected = j->connected,
			    .pieces = j->pieces,
			    .ended = j->ended,
			    .rank = j->progress,
			    .n_ranks = j->spec->ranks };
	fill_start(j, &r);
	fill_comm(j, &r);
	memcpy(r.hindrance, j->hindrance, sizeof(r.hindrance));
	r.failed.status = j->failed;
	memcpy(r.failed.text, j->failure, sizeof(r.failed.text));
	fill_window(j, &r);
	j->reported_ns = now.mono_ns;
	j->report_due = false;
	j->ports.report(j->ports.ctx, &r);
}

/* A rank's contribution has changed. The coordinator is told at once what it acts on; the rest is only shown to users
 * and waits for the tick, because a report looks at every rank. */
void job_report_rank(struct job *j, bool at_once, struct now now)
{
	j->report_due = true;
	if (at_once || !j->n_owing)
		job_report(j, now);
}

/* ---- a degraded or failed part ---- */

void job_hinder(struct job *j, const char *why, struct now now)
{
	if (!strcmp(j->hindrance, why))
		return;
	snprintf(j->hindrance, sizeof(j->hindrance), "%s", why);
	job_report(j, now);
}

void job_exchange(struct job *j, uint32_t connected, uint64_t pieces)
{
	j->connected = connected;
	j->pieces = pieces;
}

void job_fail(struct job *j, enum status st, const char *text, struct now now)
{
	if (j->failed || j->ended)
		return;
	j->failed = st;
	snprintf(j->failure, sizeof(j->failure), "%s", text);
	job_report(j, now);
}

const struct rank_progress *job_progress(const struct job *j, uint32_t *n)
{
	*n = j->spec->ranks;
	return j->progress;
}
