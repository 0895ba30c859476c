/* SPDX-License-Identifier: Apache-2.0 */
/* Asynchronous pushes as the job's thread sees them: it queues them at the sender, waits for them, and repeats under
 * session_run what the sender could not send. Only this thread may replace a session, because only then nobody writes
 * to a slot. */
#include "lib/internal.h"

#include <stdlib.h>

gacc_status async_push(struct gacc_job *job, const struct push *push)
{
	if (!job->sender && sender_new(job, &job->sender)) {
		free(push->present);
		return job_fail(job, ST_RESOURCE_EXHAUSTED, "push without async", "no thread for asynchronous pushes");
	}
	sender_add(job->sender, push);
	window_pushed(&job->window, push->micro);
	return GACC_OK;
}

/* Does `st` leave the push where it was, to be tried again by a later call? */
static bool may_try_later(const struct gacc_job *job, gacc_status st)
{
	return st == GACC_EUNAVAIL || st == GACC_ETIMEOUT || job->fenced;
}

/* The sender has halted at `push`: sends it and the rest. */
static gacc_status take_over(struct gacc_job *job, struct push *push)
{
	gacc_status st, first = GACC_OK;
	struct failure failure = { 0 };
	char what[64];

	while (push) {
		size_t over = 1;

		push_name(push, what, sizeof(what));
		st = session_run(job, what, -1, push_attempt, push);
		if (may_try_later(job, st))
			return st;
		st = push_conclude(job, push, st);
		if (st && !first) {
			first = st;
			failure = job->failure;
		}
		if (st && !failure_is_late(&job->failure) && !push->is_void) {
			/* refused: what is owed now only the daemon knows, and a new session asks it */
			job->lost = true;
			over = SLOTS_MAX;
		}
		push = sender_drop(job->sender, over);
	}
	return first ? failure_copy(&job->failure, &failure) : GACC_OK;
}

/* Waits until at most `limit` pushes are queued. */
static gacc_status drain(struct gacc_job *job, size_t limit)
{
	struct push *failed = sender_wait(job->sender, limit), is_void;
	gacc_status st = failed ? take_over(job, failed) : GACC_OK;
	bool voided = sender_take_void(job->sender, &is_void);

	return st || !voided ? st : push_conclude(job, &is_void, GACC_OK);
}

gacc_status async_settle(struct gacc_job *job)
{
	return job->sender ? drain(job, 0) : GACC_OK;
}

gacc_status async_free_slot(struct gacc_job *job, int *out_slot)
{
	gacc_status st = job->sender ? drain(job, job->layout.slots - 1) : GACC_OK;

	if (!st)
		*out_slot = job->sender ? (int)sender_lowest_free(job->sender) : 0;
	return st;
}
