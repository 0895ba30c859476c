/* SPDX-License-Identifier: Apache-2.0 */
/* A rank's session: which process may use it, whether that process lives, and which slots it has. Every trainer's call
 * is checked here. How a session begins is attach.c's. Part of struct job; pure; loop thread. */
#include "control/job_impl.h"

#include <assert.h>
#include <stdio.h>

/* ---- the fence ---- */

bool session_token_is(const uint8_t *a, const uint8_t *b)
{
	uint8_t d = 0;
	for (int i = 0; i < 16; i++) /* constant time */
		d |= a[i] ^ b[i];
	return !d;
}

static const uint8_t no_token[16];

/* The job is being recovered after a restart of gaccd, and what its engine and its coordinator know has not arrived
 * yet. */
bool job_is_recovering(const struct job *j)
{
	return j->taken_over && !j->ended && (j->engine_seen ? j->mirror.r.params_ready && !j->run : j->allocating);
}

static enum status judge_session(const struct job *j, const struct session_key *k)
{
	if (job_is_recovering(j))
		return ST_ENGINE_DOWN;
	if (j->taken_over && j->ended && !j->engine_seen) /* its sessions are lost with its memory */
		return ST_JOB_ENDED;
	const struct rank *r = job_rank(j, k->rank);
	if (!r)
		return ST_SESSION_UNKNOWN;
	if (r->has_session && session_token_is(r->session.token, k->token))
		return r->session.uid != k->uid && k->uid != 0 ? ST_PERMISSION_DENIED : ST_OK;
	if (!session_token_is(k->token, no_token) && session_token_is(r->session.previous_token, k->token))
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

/* ---- its process ---- */

bool session_process_lives(const struct job *j, int64_t pid, uint64_t start_time)
{
	return pid && j->ports.process_alive(j->ports.ctx, pid, start_time);
}

static bool can_be_looked_at(const struct session_record *s)
{
	return s->pid && (s->start_time || !s->no_memory);
}

bool session_is_dead(const struct job *j, const struct session_record *s)
{
	return can_be_looked_at(s) && !session_process_lives(j, s->pid, s->start_time);
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

/* ---- its calls ---- */

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

bool slot_is_filled(const struct job *j, const struct rank *r, uint32_t slot)
{
	uint32_t n, first = session_slots(j, r, &n);
	return r->stream[slot].state != STREAM_NONE || holds_put(j, r, first + slot);
}

bool slot_in_use(const struct job *j, const struct rank *r, uint32_t slot)
{
	uint32_t n, first = session_slots(j, r, &n);
	for (int i = 0; i < RANK_MAX_PUSHES; i++)
		if (r->push[i].used && r->push[i].slot == first + slot)
			return true;
	return slot_is_filled(j, r, slot);
}

void job_on_mapped(struct job *j, uint32_t rank, uint64_t generation)
{
	struct rank *r = job_rank(j, rank);
	if (r && r->sgen == generation)
		r->mapped = r->mapped_here = true;
}
