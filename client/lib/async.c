/* SPDX-License-Identifier: Apache-2.0 */
/* Asynchronous pushes as the job's thread sees them: it publishes them in the mailbox (posted.c) or queues them at the
 * sender, waits for them, and repeats under session_run what was not accepted. Only this thread may replace a session,
 * because only then nobody writes to a slot. */
#include "lib/internal.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#define LOOK_MS 1 /* at two slots that somebody else still writes to */

/* ---- how pushes end ---- */

/* Of several pushes, one after the other. */
struct outcome {
	gacc_status first; /* failure; GACC_OK: none */
	struct failure failure;
	bool refused;	   /* one was, for itself and not because its window is over */
	gacc_status later; /* not GACC_OK: one is left as it was, to be tried again by a later call */
};

/* Does `st` leave the push where it was, to be tried again by a later call? */
static bool may_try_later(const struct gacc_job *job, gacc_status st)
{
	return st == GACC_EUNAVAIL || st == GACC_ETIMEOUT || job->fenced;
}

/* Nobody reads the slot of a refused push, unless an attempt before it may have been counted from the same slot. */
static void release(struct gacc_job *job, const struct push *push)
{
	if (job->kept_window == push->window && !push->was_kept)
		job->kept_slots &= ~(UINT32_C(1) << push->slot);
}

/* Sends the push, unless it is accepted already. False: it is to be tried later. */
static bool finish(struct gacc_job *job, struct push *push, bool accepted, struct outcome *o)
{
	gacc_status st = accepted ? GACC_OK : push_by_rpc(job, push);

	if (may_try_later(job, st)) {
		o->later = st;
		return false;
	}
	st = push_conclude(job, push, st);
	if (st && !o->first) {
		o->first = st;
		o->failure = job->failure;
	}
	if (st && !failure_is_late(&job->failure) && !push->is_void) {
		o->refused = true;
		release(job, push); /* gacc_push took it for accepted */
	}
	return true;
}

static gacc_status conclude(struct gacc_job *job, const struct outcome *o)
{
	if (o->refused) /* what is owed now only the daemon knows, and a new session asks it */
		job->lost = true;
	return o->first ? failure_copy(&job->failure, &o->failure) : o->later;
}

/* ---- at the sender ---- */

/* The sender has halted at `push`: sends it and the rest, up to one that is refused. */
static gacc_status take_over(struct gacc_job *job, struct push *push)
{
	struct outcome o = { 0 };

	while (push && finish(job, push, false, &o))
		push = sender_drop(job->sender, o.refused ? SLOTS_MAX : 1);
	return conclude(job, &o);
}

/* Waits until at most `limit` pushes are queued. */
static gacc_status drain_sender(struct gacc_job *job, size_t limit)
{
	struct push *failed, first, is_void;
	gacc_status st;

	if (!sender_wait(job->sender, limit, settle_left(job), &failed, &first))
		return push_not_in_time(job, &first);
	st = failed ? take_over(job, failed) : GACC_OK;
	/* one that has not been told yet stays for the next call */
	return st || !sender_take_void(job->sender, &is_void) ? st : push_conclude(job, &is_void, GACC_OK);
}

static bool sender_is_idle(struct gacc_job *job)
{
	uint32_t queued[SLOTS_MAX];

	return sender_queued(job->sender, queued) == 0;
}

/* ---- in the mailbox ---- */

/* Waits until at most `limit` pushes are posted. After a failure none may stay: the engine could still add from slots
 * that the caller is about to get, and those behind a refused one are refused too, which only their answers tell. */
static gacc_status drain_posted(struct gacc_job *job, size_t limit)
{
	struct outcome o = { 0 };
	bool accepted;

	while (job->posted.n > (o.first ? 0 : limit)) {
		struct push *push = posted_first(job, &accepted);

		if (!accepted && settle_left(job) <= 0 && posted_is_owed(job)) {
			o.later = push_not_in_time(job, push);
			break;
		}
		if (!finish(job, push, accepted, &o))
			break;
		posted_drop(&job->posted);
	}
	return conclude(job, &o);
}

/* ---- both ---- */

static gacc_status drain(struct gacc_job *job, size_t limit)
{
	gacc_status st = drain_posted(job, limit);

	return st || !job->sender ? st : drain_sender(job, limit);
}

gacc_status async_push(struct gacc_job *job, const struct push *push)
{
	if (job->posted.n || (sender_is_idle(job) && posted_is_possible(job))) {
		posted_add(job, push);
	} else {
		if (!job->sender && sender_new(job, &job->sender)) {
			free(push->present);
			return job_fail(job, ST_RESOURCE_EXHAUSTED, "push without async",
					"no thread for asynchronous pushes");
		}
		sender_add(job->sender, push);
	}
	window_pushed(&job->window, push->micro);
	return GACC_OK;
}

gacc_status async_settle(struct gacc_job *job)
{
	return drain(job, 0);
}

/* ---- slots ---- */

static gacc_status still_written(struct gacc_job *job, uint32_t slot)
{
	char text[256];

	late_name(job, slot, text, sizeof(text));
	return job_fail(job, ST_STALLED, LATE_HINT, "no free slot: %s", text);
}

/* Those whose content the daemon reads until the window is over, although their push is answered, or may be read. */
static uint32_t kept_now(const struct gacc_job *job)
{
	return job->layout.keeps_slot && job->kept_window == job->window.number ? job->kept_slots : 0;
}

bool async_is_kept(const struct gacc_job *job, uint32_t slot)
{
	return kept_now(job) >> slot & 1;
}

void async_keep(struct gacc_job *job, struct push *push)
{
	push->was_kept = async_is_kept(job, push->slot);
	if (job->kept_window != push->window)
		job->kept_slots = 0;
	job->kept_window = push->window;
	job->kept_slots |= UINT32_C(1) << push->slot;
}

/* A duplicate may be of an earlier push from another slot, which had no answer. */
void async_kept(struct gacc_job *job, const struct push *push, gacc_status st, bool queued)
{
	if (!st && !queued && !push->duplicate)
		job->kept_slots = UINT32_C(1) << push->slot;
	else if (st && !may_try_later(job, st))
		release(job, push);
}

static bool owes(const struct gacc_job *job)
{
	uint32_t micro;
	bool last;

	return !job->pending_apply && window_next(&job->window, &micro, &last);
}

static gacc_status refuse_kept(struct gacc_job *job)
{
	if (owes(job))
		return job_fail(job, ST_NOT_READY, "call gacc_push again, with the slot as it is",
				"accumulate is none: the gradient of window %" PRIu64
				" may be counted, and its slot is read until that window is over",
				job->window.number);
	return job_fail(job, ST_WINDOW_FULL, "call gacc_wait",
			"accumulate is none: the slot with the gradient of window %" PRIu64
			" is read until that window is over",
			job->window.number);
}

gacc_status async_check_held(struct gacc_job *job)
{
	return async_is_kept(job, (uint32_t)job->held_slot) ? refuse_kept(job) : GACC_OK;
}

/* Without accumulators a slot may be the sum: of a push of this process, or of one before it, which cannot be told from
 * a slot that is free. */
static gacc_status check_kept(struct gacc_job *job)
{
	const uint32_t kept = kept_now(job), all = (UINT32_C(1) << job->layout.slots) - 1;

	if (!job->layout.keeps_slot || (kept && kept != all))
		return GACC_OK;
	if (!job->running)
		return job_fail(job, ST_NOT_READY, "call gacc_ready", "accumulate is none: a slot may still be read");
	return owes(job) && !kept ? GACC_OK : refuse_kept(job);
}

static bool is_queued(struct gacc_job *job, uint32_t slot)
{
	return async_is_kept(job, slot) || posted_uses(&job->posted, slot) || sender_uses(job->sender, slot);
}

/* Of those that are neither queued nor kept, and there is one: the first that nobody writes to, else the one that is
 * awaited longest. */
static uint32_t best_slot(struct gacc_job *job)
{
	uint32_t best = SLOTS_MAX;

	for (uint32_t i = 0; i < job->layout.slots; i++) {
		if (is_queued(job, i))
			continue;
		if (late_await(job, i, 0))
			return i;
		if (best == SLOTS_MAX || job->memory.late[i].until > job->memory.late[best].until)
			best = i;
	}
	assert(best < SLOTS_MAX);
	return best;
}

gacc_status async_free_slot(struct gacc_job *job, int *out_slot)
{
	gacc_status st = check_kept(job);
	uint32_t slot;

	if (!st)
		st = drain(job, job->layout.slots - 1);
	if (st)
		return st;
	slot = best_slot(job);
	while (!late_await(job, slot, LOOK_MS)) {
		if (late_left(job, job->memory.late[slot].until) <= 0)
			return still_written(job, slot);
		slot = best_slot(job);
	}
	*out_slot = (int)slot;
	return GACC_OK;
}

gacc_status async_held_slot(struct gacc_job *job)
{
	uint32_t slot = (uint32_t)job->held_slot;

	return late_await(job, slot, INT64_MAX) ? GACC_OK : still_written(job, slot);
}
