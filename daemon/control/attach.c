/* SPDX-License-Identifier: Apache-2.0 */
/* How a process attaches as a rank: which slots it gets, and how it fences the process before it. Part of struct job;
 * pure; loop thread. */
#include "control/job_impl.h"

#include <stdio.h>
#include <string.h>

static const uint8_t no_token[16];

/* ---- slots ---- */

/* The process that may still map this rank's own slots (spare = 0), or the spare slots given to this rank; 0: none
 * besides the caller. */
static int64_t set_holder(const struct job *j, const struct session_record *s, uint32_t spare,
			  const struct attach_args *a)
{
	int64_t pid = s->spare != spare ? s->other_pid : s->no_memory ? 0 : s->pid;
	uint64_t start_time = s->spare == spare ? s->start_time : s->other_start_time;
	bool me = pid == a->pid && start_time == a->start_time;
	return !me && session_process_lives(j, pid, start_time) ? pid : 0;
}

/* The engine has one set of spare slots. Another rank's session keeps them until that rank attaches again, even when
 * its process is dead, because its last push may still be on its way. *holder: a process to name; 0: not known. */
static bool spare_is_taken(const struct job *j, const struct rank *me, const struct attach_args *a, int64_t *holder)
{
	for (uint32_t i = 0; i < j->spec->ranks; i++) {
		const struct rank *r = &j->rank[i];
		*holder = r->has_session ? set_holder(j, &r->session, 1, a) : 0;
		if (*holder)
			return true;
		bool keeps = r->has_session && r->session.spare, gets = r->attaching && r->next.spare;
		*holder = gets ? r->next.pid : r->session.pid;
		if (r != me && (keeps || gets))
			return true;
	}
	return false;
}

/* Chooses the slots of the new session. A process that was stopped, not killed, keeps its mapping and may write at any
 * time: its slots are not given away before it is seen dead. */
static enum status choose_slots(const struct job *j, const struct rank *r, const struct attach_args *a,
				struct session_record *next, int64_t *holder)
{
	const struct session_record *old = &r->session;
	int64_t at_home = set_holder(j, old, 0, a);
	next->spare = at_home != 0;
	if (next->spare && spare_is_taken(j, r, a, holder))
		return ST_NO_SLOT;
	/* an earlier process of this rank may still map the set that the new session does not get */
	int64_t other = next->spare ? at_home : set_holder(j, old, 1, a);
	next->other_pid = other;
	next->other_start_time = other == old->pid ? old->start_time : old->other_start_time;
	return ST_OK;
}

/* ---- the call ---- */

static void attach_reply(struct job *j, const struct rank *r, uint64_t call)
{
	struct reply rep = { .kind = REPLY_ATTACH };
	memcpy(rep.attach.token, r->session.token, 16);
	rep.attach.rank = r->global;
	rep.attach.generation = r->sgen;
	rep.attach.epoch = j->epoch;
	rep.attach.micro_size = job_micro_size(j);
	rep.attach.tensors_known = j->has_tensors;
	j->ports.reply(j->ports.ctx, call, &rep);
}

/* Its session has begun, and the answer was lost. Also when the job has ended since: it asks how its last step went. */
static bool is_repeated(const struct job *j, const struct attach_args *a)
{
	const struct rank *r = job_rank(j, a->rank);
	return r && r->has_session && !r->attaching && !memcmp(r->session.nonce, a->nonce, 16);
}

static bool attach_allowed(struct job *j, uint64_t call, const struct attach_args *a)
{
	char here[120];
	if (j->ended && !is_repeated(j, a)) {
		reply_error(j, call, ST_JOB_ENDED, "submit a new job", "job %llu has ended: %s",
			    (unsigned long long)j->id, j->end_reason);
		return false;
	}
	if (a->uid != j->owner_uid && a->uid != 0) {
		reply_error(j, call, ST_PERMISSION_DENIED, "attach as the user who submitted it",
			    "job %llu belongs to uid %u, this is uid %u", (unsigned long long)j->id, j->owner_uid,
			    a->uid);
		return false;
	}
	if (a->rank >= j->part.world) {
		reply_error(j, call, ST_RANK_OUT_OF_RANGE, "check RANK, or the job's ranks",
			    "rank %u of a job with %u ranks", a->rank, j->part.world);
		return false;
	}
	if (a->world_size != j->part.world) {
		reply_error(j, call, ST_INVALID_ARGUMENT, "start as many ranks as the job has",
			    "world_size is %u, the job has %u ranks", a->world_size, j->part.world);
		return false;
	}
	if (j->spec->accumulate == ACCUMULATE_NONE && !a->shared_memory) {
		reply_error(j, call, ST_NOT_SUPPORTED,
			    "attach over the unix socket with shared memory, or use accumulate: sum",
			    "job %llu has accumulate: none: its gradients are read from slots that the trainer maps",
			    (unsigned long long)j->id);
		return false;
	}
	if (job_rank(j, a->rank))
		return true;
	part_describe_ranks(&j->part, here, sizeof(here));
	reply_error(j, call, ST_RANK_OUT_OF_RANGE, "attach to the gaccd of the node that has this rank's part",
		    "rank %u is not on this node: it has part %u of job %llu, with ranks %s", a->rank, j->part.number,
		    (unsigned long long)j->id, here);
	return false;
}

/* Prepares the new session, which replaces the old one when the engine has stored it. False: there are no slots for it,
 * and the call is answered. */
static bool begin_attach(struct job *j, struct rank *r, uint64_t call, const struct attach_args *a)
{
	struct session_record next = { .pid = a->pid ? a->pid : a->shown_pid,
				       .start_time = a->start_time,
				       .uid = a->uid,
				       .no_memory = !a->shared_memory };
	int64_t holder = 0;
	enum status st = choose_slots(j, r, a, &next, &holder);
	if (st) {
		reply_error(j, call, st,
			    session_process_lives(j, r->session.pid, r->session.start_time)
				    ? "end the earlier processes of this rank (kill -9), then attach again"
				    : "end or restart the process that has them, then attach again",
			    "rank %u gets no slots: an earlier process of it still maps its own, and process %lld has "
			    "the spare ones",
			    a->rank, (long long)holder);
		return false;
	}
	memcpy(next.nonce, a->nonce, 16);
	if (r->has_session) {
		memcpy(next.previous_token, r->session.token, 16);
		memcpy(next.previous_nonce, r->session.nonce, 16);
	}
	j->ports.random16(j->ports.ctx, next.token);
	r->next = next;
	r->next_sgen = r->sgen + 1;
	r->next_resumes = a->resume_generation != 0;
	r->attaching = true;
	r->attach_sent = false;
	return true;
}

/* ---- the engine ---- */

void attach_send(struct job *j, struct rank *r)
{
	if (!j->engine_up || !r->attaching || r->attach_sent)
		return;
	struct engine_command c = { .op = ENGINE_ATTACH, .rank = r->index, .sgen = r->next_sgen, .session = r->next };
	r->attach_sent = job_send(j, &c, &r->attach_command, NULL);
}

static void attach_done(struct job *j, struct rank *r, struct now now)
{
	for (int i = 0; i < RANK_MAX_PUSHES; i++)
		if (r->push[i].used)
			push_fail(j, r, &r->push[i], ST_SESSION_FENCED, "a newer process has attached as this rank");
	for (uint32_t i = j->n_waiters; i-- > 0;) {
		struct waiter *w = &j->waiter[i];
		if (w->rank != r->index || w->kind == WAIT_ATTACH)
			continue;
		if (!stream_of(r, w->call))
			reply_error(j, w->call, ST_SESSION_FENCED, "end this process",
				    "a newer process has attached as rank %u", r->global);
		waiter_remove(j, w);
	}
	streams_end(j, r, ST_SESSION_FENCED, "end this process", "a newer process has attached as this rank");
	mailbox_end(j, r);
	r->session = r->next;
	r->sgen = r->next_sgen;
	r->has_session = true;
	r->attaching = r->lost = r->detached = r->mapped = r->mapped_here = false;
	r->watched = true; /* it may die before it has a lifeline */
	r->heard_ns = now.mono_ns;
	r->n_links = 0;
	if (!r->next_resumes)
		coverage_fini(&r->given);
	r->flush_wanted = r->leave_wanted = r->flush_sent = false;
	rank_changed(j, r);
	for (uint32_t i = j->n_waiters; i-- > 0;) {
		struct waiter *w = &j->waiter[i];
		if (w->rank != r->index || w->kind != WAIT_ATTACH)
			continue;
		attach_reply(j, r, w->call);
		waiter_remove(j, w);
	}
	j->report_due = true; /* with the tick: a report costs a look at every rank, and all ranks may attach at once */
}

void job_attach(struct job *j, uint64_t call, const struct attach_args *a, struct now now)
{
	if (!attach_allowed(j, call, a))
		return;
	if (job_is_recovering(j)) { /* which session it would fence is not known yet */
		reply_error(j, call, ST_ENGINE_DOWN, "repeat the call",
			    "job %llu is being recovered after a restart of gaccd", (unsigned long long)j->id);
		return;
	}
	struct rank *r = job_rank(j, a->rank);
	if (a->pid && !session_process_lives(j, a->pid, a->start_time)) {
		/* its last words, delayed: they must not fence its successor */
		reply_error(j, call, ST_CANCELLED, "attach from a process that lives", "rank %u: process %lld is gone",
			    a->rank, (long long)a->pid);
		return;
	}
	if (is_repeated(j, a)) {
		attach_reply(j, r, call);
		return;
	}
	bool again = !session_token_is(a->nonce, no_token) && r->has_session &&
		     session_token_is(a->nonce, r->session.previous_nonce);
	if (again || (a->resume_generation && r->sgen > a->resume_generation)) {
		/* `again`: a copy of its first one, late */
		reply_error(j, call, ST_SESSION_FENCED, "end this process",
			    "a newer process has attached as rank %u of job %llu (pid %lld)", a->rank,
			    (unsigned long long)j->id, (long long)r->session.pid);
		return;
	}
	if (r->attaching && memcmp(r->next.nonce, a->nonce, 16)) {
		reply_error(j, call, ST_UNAVAILABLE, "repeat the call", "another process is attaching as rank %u",
			    a->rank);
		return;
	}
	if (!r->attaching && !begin_attach(j, r, call, a))
		return;
	if (!waiter_add(j, call, WAIT_ATTACH, r->index))
		return;
	if (!j->engine_seen && !j->allocating)
		attach_done(j, r, now); /* no engine yet: there is nothing to fence */
	else
		attach_send(j, r);
}

void attach_answered(struct job *j, const struct engine_answer *a, struct now now)
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
