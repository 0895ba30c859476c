/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's session: which process may use it, how a new process attaches and fences the one before, and which slots
 * it gets. Every trainer's call is checked here. Part of struct job; pure; loop thread. */
#include "control/job_impl.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- replies ---- */

void reply_error(struct job *j, uint64_t call, enum status st, const char *hint, const char *fmt, ...)
{
	struct reply r = { .status = st };
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(r.text, sizeof(r.text), fmt, ap);
	va_end(ap);
	snprintf(r.hint, sizeof(r.hint), "%s", hint ? hint : "");
	j->ports.reply(j->ports.ctx, call, &r);
}

/* ---- the fence ---- */

static bool same_token(const uint8_t *a, const uint8_t *b)
{
	uint8_t d = 0;
	for (int i = 0; i < 16; i++) /* constant time */
		d |= a[i] ^ b[i];
	return !d;
}

static const uint8_t no_token[16];

/* The job is being recovered after a restart of gaccd, and what its engine and its coordinator know has not arrived
 * yet. */
static bool restoring(const struct job *j)
{
	return j->taken_over && !j->ended && (j->engine_seen ? j->mirror.r.params_ready && !j->run : j->allocating);
}

static enum status judge_session(const struct job *j, const struct session_key *k)
{
	if (restoring(j))
		return ST_ENGINE_DOWN;
	if (j->taken_over && j->ended && !j->engine_seen) /* its sessions are lost with its memory */
		return ST_JOB_ENDED;
	const struct rank *r = job_rank(j, k->rank);
	if (!r)
		return ST_SESSION_UNKNOWN;
	if (r->has_session && same_token(r->session.token, k->token))
		return r->session.uid != k->uid && k->uid != 0 ? ST_PERMISSION_DENIED : ST_OK;
	if (!same_token(k->token, no_token) && same_token(r->session.previous_token, k->token))
		return ST_SESSION_FENCED;
	return ST_SESSION_UNKNOWN;
}

bool job_session_ok(struct job *j, const struct session_key *k, struct reply *why)
{
	enum status st = judge_session(j, k);
	const struct rank *r = job_rank(j, k->rank);
	if (!st)
		return true;
	*why = (struct reply){ .status = st };
	if (st == ST_SESSION_FENCED)
		snprintf(why->text, sizeof(why->text), "a newer process has attached as rank %u of job %llu (pid %lld)",
			 k->rank, (unsigned long long)j->id, (long long)r->session.pid);
	else if (st == ST_JOB_ENDED)
		snprintf(why->text, sizeof(why->text), "job %llu has ended: %.200s", (unsigned long long)j->id,
			 j->end_reason);
	else if (st == ST_PERMISSION_DENIED)
		snprintf(why->text, sizeof(why->text),
			 "the session of rank %u of job %llu belongs to uid %u, this is uid %u", k->rank,
			 (unsigned long long)j->id, r->session.uid, k->uid);
	else
		snprintf(why->text, sizeof(why->text), "%s (rank %u of job %llu)", status_info(st)->text, k->rank,
			 (unsigned long long)j->id);
	snprintf(why->hint, sizeof(why->hint), "%s", status_info(st)->hint);
	return false;
}

/* The rules that keep two processes from sharing slots leave out sessions without shared memory: slots that such a
 * session maps would be given to its successor, too. */
bool job_may_map(struct job *j, const struct session_key *k, struct reply *why)
{
	if (!job_session_ok(j, k, why))
		return false;
	if (!job_rank(j, k->rank)->session.no_memory)
		return true;
	*why = (struct reply){ .status = ST_INVALID_ARGUMENT };
	snprintf(why->text, sizeof(why->text), "the session of rank %u of job %llu has no shared memory", k->rank,
		 (unsigned long long)j->id);
	snprintf(why->hint, sizeof(why->hint), "attach again with wants_shared_memory, over the unix socket");
	return false;
}

static bool alive(const struct job *j, int64_t pid, uint64_t start_time)
{
	return pid && j->ports.process_alive(j->ports.ctx, pid, start_time);
}

static bool can_be_looked_at(const struct session_record *s)
{
	return s->pid && (s->start_time || !s->no_memory);
}

bool session_is_dead(const struct job *j, const struct session_record *s)
{
	return can_be_looked_at(s) && !alive(j, s->pid, s->start_time);
}

bool session_is_silent(const struct job *j, const struct rank *r)
{
	if (!r->session.no_memory || r->n_links || (r->watched && can_be_looked_at(&r->session)))
		return false;
	for (int i = 0; i < RANK_MAX_PUSHES; i++)
		if (r->push[i].used)
			return false;
	for (int i = 0; i < RANK_MAX_SLOTS; i++)
		if (r->stream[i].state)
			return false;
	return j->clock_ns - r->heard_ns >= j->spec->stall_warn_ns;
}

/* A call carries the token of a session whose lifelines are gone. It may be a delayed call of a dead process. A session
 * without shared memory may be used by another process than the one that attached. */
static void hear(struct job *j, struct rank *r, const struct session_key *k)
{
	bool other = r->session.no_memory && k->pid && k->pid != r->session.pid;
	if (!r->lost || (!other && session_is_dead(j, &r->session)))
		return;
	char text[120];
	snprintf(text, sizeof(text), "the trainer (pid %lld) is heard again",
		 (long long)(other ? k->pid : r->session.pid));
	j->ports.event(j->ports.ctx, j->id, false, "RankHeard", k->rank, text);
	r->lost = false;
	r->watched = !other;
	j->report_due = true;
}

struct rank *session_check(struct job *j, const struct session_key *k, uint64_t call)
{
	struct reply why;
	if (!job_session_ok(j, k, &why)) {
		j->ports.reply(j->ports.ctx, call, &why);
		return NULL;
	}
	struct rank *r = job_rank(j, k->rank);
	r->heard_ns = j->clock_ns;
	hear(j, r, k);
	return r;
}

/* ---- attach ---- */

/* The process that may still map this rank's own slots (spare = 0), or the spare slots given to this rank; 0: none
 * besides the caller. */
static int64_t set_holder(const struct job *j, const struct session_record *s, uint32_t spare,
			  const struct attach_args *a)
{
	int64_t pid = s->spare != spare ? s->other_pid : s->no_memory ? 0 : s->pid;
	uint64_t start_time = s->spare == spare ? s->start_time : s->other_start_time;
	bool me = pid == a->pid && start_time == a->start_time;
	return !me && alive(j, pid, start_time) ? pid : 0;
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

static bool attach_allowed(struct job *j, uint64_t call, const struct attach_args *a)
{
	char here[120];
	if (j->ended) {
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
			    alive(j, r->session.pid, r->session.start_time)
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

void job_attach(struct job *j, uint64_t call, const struct attach_args *a, struct now now)
{
	if (!attach_allowed(j, call, a))
		return;
	if (restoring(j)) { /* which session it would fence is not known yet */
		reply_error(j, call, ST_ENGINE_DOWN, "repeat the call",
			    "job %llu is being recovered after a restart of gaccd", (unsigned long long)j->id);
		return;
	}
	struct rank *r = job_rank(j, a->rank);
	if (a->pid && !alive(j, a->pid, a->start_time)) {
		/* its last words, delayed: they must not fence its successor */
		reply_error(j, call, ST_CANCELLED, "attach from a process that lives", "rank %u: process %lld is gone",
			    a->rank, (long long)a->pid);
		return;
	}
	if (r->has_session && !r->attaching && !memcmp(r->session.nonce, a->nonce, 16)) {
		attach_reply(j, r, call); /* the reply was lost */
		return;
	}
	bool again =
		!same_token(a->nonce, no_token) && r->has_session && same_token(a->nonce, r->session.previous_nonce);
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
		job_reconcile_rank(j, r);
}

void attach_done(struct job *j, struct rank *r, struct now now)
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
	r->session = r->next;
	r->sgen = r->next_sgen;
	r->has_session = true;
	r->attaching = r->lost = r->detached = r->mapped = false;
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

/* ---- its slots ---- */

uint32_t session_slots(const struct job *j, const struct rank *r, uint32_t *n)
{
	*n = j->spec->slots_per_rank;
	return (r->session.spare ? j->spec->ranks : r->index) * j->spec->slots_per_rank;
}

uint32_t job_session_slots(const struct job *j, uint32_t rank, uint32_t *n)
{
	const struct rank *r = job_rank(j, rank);
	assert(r);
	return session_slots(j, r, n);
}

static bool holds_put(const struct job *j, const struct rank *r, uint32_t slot)
{
	for (uint32_t i = 0; i < j->n_waiters && r->n_puts; i++)
		if (j->waiter[i].kind == WAIT_PUT && j->waiter[i].rank == r->index && j->waiter[i].slot == slot)
			return true;
	return false;
}

bool slot_in_use(const struct job *j, const struct rank *r, uint32_t slot)
{
	uint32_t n, first = session_slots(j, r, &n);
	for (int i = 0; i < RANK_MAX_PUSHES; i++)
		if (r->push[i].used && r->push[i].slot == first + slot)
			return true;
	return r->stream[slot].state != STREAM_NONE || holds_put(j, r, first + slot);
}

void job_on_mapped(struct job *j, uint32_t rank, uint64_t generation)
{
	struct rank *r = job_rank(j, rank);
	if (r && r->sgen == generation)
		r->mapped = true;
}
