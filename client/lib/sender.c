/* SPDX-License-Identifier: Apache-2.0 */
/* Asynchronous pushes. One thread sends what is queued, in order. It only ever repeats a push that is parked; anything
 * else that is not a plain success halts it, and the job's thread, when it next calls in, repeats the push under
 * session_run: only that thread may replace a session, because only then nobody writes to a slot. */
#include "lib/internal.h"

#include "lib/channel.h"

#include <stdlib.h>
#include <string.h>

#define ATTEMPT_MS 60000

struct sender {
	struct gacc_job *job;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct push queue[SLOTS_MAX]; /* [0] is being sent; only its owner of the moment removes it */
	size_t n;
	bool halted; /* queue[0] has failed: the job's thread takes over */
	bool stop;
	bool voided; /* a push was refused as non-finite and not yet reported */
	struct push void_push;
};

static void drop_head(struct sender *s)
{
	free(s->queue[0].present);
	memmove(&s->queue[0], &s->queue[1], (s->n - 1) * sizeof(s->queue[0]));
	s->n--;
}

static void drop_head_locking(struct sender *s)
{
	pthread_mutex_lock(&s->lock);
	drop_head(s);
	pthread_mutex_unlock(&s->lock);
}

/* Sends the head with the lock released; true if it was counted or is void. */
static bool send_head(struct sender *s)
{
	struct rpc_failure failure;
	enum status st;

	pthread_mutex_unlock(&s->lock);
	memset(&failure, 0, sizeof(failure));
	st = push_attempt(s->job, &s->queue[0], ATTEMPT_MS, &failure);
	pthread_mutex_lock(&s->lock);
	if (st == ST_STALLED)
		return false;
	if (st) {
		s->halted = true;
		return false;
	}
	if (s->queue[0].is_void) {
		s->voided = true;
		s->void_push = s->queue[0];
		s->void_push.present = NULL;
	}
	return true;
}

static void *run(void *arg)
{
	struct sender *s = arg;

	pthread_mutex_lock(&s->lock);
	while (!s->stop) {
		if (!s->n || s->halted) {
			pthread_cond_wait(&s->changed, &s->lock);
			continue;
		}
		if (send_head(s))
			drop_head(s);
		pthread_cond_broadcast(&s->changed);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

static enum status sender_new(struct gacc_job *job, struct sender **out)
{
	struct sender *s = calloc(1, sizeof(*s));

	if (!s)
		return ST_NO_MEMORY;
	s->job = job;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->changed, NULL);
	if (thread_start(&s->thread, run, s)) {
		pthread_cond_destroy(&s->changed);
		pthread_mutex_destroy(&s->lock);
		free(s);
		return ST_RESOURCE_EXHAUSTED;
	}
	*out = s;
	return ST_OK;
}

void sender_free(struct sender *s)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	s->stop = true;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
	pthread_join(s->thread, NULL);
	while (s->n)
		drop_head(s);
	pthread_cond_destroy(&s->changed);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

gacc_status sender_queue(struct gacc_job *job, const struct push *push)
{
	struct sender *s;

	if (!job->sender && sender_new(job, &job->sender)) {
		free(push->present);
		return job_fail(job, ST_RESOURCE_EXHAUSTED, "push without async", "no thread for asynchronous pushes");
	}
	s = job->sender;
	pthread_mutex_lock(&s->lock);
	s->queue[s->n++] = *push;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
	window_pushed(&job->window, push->micro);
	return GACC_OK;
}

size_t sender_queued(const struct gacc_job *job, uint32_t *out)
{
	struct sender *s = job->sender;
	size_t n;

	if (!s)
		return 0;
	pthread_mutex_lock(&s->lock);
	n = s->n;
	for (size_t i = 0; i < n; i++)
		out[i] = s->queue[i].micro;
	pthread_mutex_unlock(&s->lock);
	return n;
}

/* Does `st` leave the push where it was, to be tried again by a later call? */
static bool may_try_later(const struct gacc_job *job, gacc_status st)
{
	return st == GACC_EUNAVAIL || st == GACC_ETIMEOUT || job->fenced;
}

/* The sender is halted: the job's thread sends the rest itself. The lock is not held; the queue is ours. */
static gacc_status take_over(struct gacc_job *job, struct sender *s)
{
	gacc_status first = GACC_OK;
	struct failure failure = { 0 };
	char what[64];

	while (s->n) {
		gacc_status st;

		push_name(&s->queue[0], what, sizeof(what));
		st = session_run(job, what, -1, push_attempt, &s->queue[0]);
		if (may_try_later(job, st))
			return st;
		st = push_conclude(job, &s->queue[0], st);
		if (st && !first) {
			first = st;
			failure = job->failure;
		}
		if (st && !failure_is_late(&job->failure) && !s->queue[0].is_void) {
			/* refused: what is owed now only the daemon knows, and a new session asks it */
			job->lost = true;
			while (s->n > 1)
				drop_head_locking(s);
		}
		drop_head_locking(s);
	}
	return first ? failure_copy(&job->failure, &failure) : GACC_OK;
}

/* Waits until at most `limit` pushes are queued. */
static gacc_status drain(struct gacc_job *job, size_t limit)
{
	struct sender *s = job->sender;
	gacc_status st = GACC_OK;
	bool halted, voided;

	pthread_mutex_lock(&s->lock);
	while (s->n > limit && !s->halted)
		pthread_cond_wait(&s->changed, &s->lock);
	halted = s->halted;
	pthread_mutex_unlock(&s->lock);
	if (halted)
		st = take_over(job, s);
	pthread_mutex_lock(&s->lock);
	s->halted = s->n > 0 && halted;
	voided = s->voided;
	s->voided = false;
	pthread_mutex_unlock(&s->lock);
	return st || !voided ? st : push_conclude(job, &s->void_push, GACC_OK);
}

gacc_status sender_settle(struct gacc_job *job)
{
	return job->sender ? drain(job, 0) : GACC_OK;
}

static bool slot_queued(const struct sender *s, uint32_t slot)
{
	for (size_t i = 0; i < s->n; i++)
		if (s->queue[i].slot == slot)
			return true;
	return false;
}

gacc_status sender_free_slot(struct gacc_job *job, int *out_slot)
{
	struct sender *s = job->sender;
	gacc_status st = s ? drain(job, job->layout.slots - 1) : GACC_OK;
	uint32_t slot = 0;

	if (st)
		return st;
	if (s) {
		pthread_mutex_lock(&s->lock);
		while (slot_queued(s, slot))
			slot++;
		pthread_mutex_unlock(&s->lock);
	}
	*out_slot = (int)slot;
	return GACC_OK;
}
