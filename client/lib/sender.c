/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of asynchronous pushes, and the thread that sends them in order. It only ever repeats a push that is
 * parked; anything else that is not a plain success halts it until the job's thread has dealt with that (async.c). */
#include "lib/internal.h"

#include "lib/channel.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define ATTEMPT_MS 60000
#define READY_MS 100 /* after which it is seen whether to stop */

struct sender {
	struct gacc_job *job;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct push queue[SLOTS_MAX]; /* [0] is being sent; only its owner of the moment removes it */
	size_t n;
	bool halted; /* queue[0] has failed: the queue is the job's thread's */
	bool stop;
	bool sending; /* queue[0], without the lock */
	bool held;    /* nothing is to be sent */
	bool voided;  /* a push was refused as non-finite and not yet reported */
	struct push void_push;
};

static void drop_head(struct sender *s)
{
	free(s->queue[0].present);
	memmove(&s->queue[0], &s->queue[1], (s->n - 1) * sizeof(s->queue[0]));
	s->n--;
}

/* Of the head, with the lock released. ST_STALLED: it is to be tried again. */
static enum status attempt(struct sender *s)
{
	struct push *push = &s->queue[0];
	struct rpc_failure failure;

	memset(&failure, 0, sizeof(failure));
	if (push_await_ready(s->job, push, READY_MS))
		return push_attempt(s->job, push, ATTEMPT_MS, &failure);
	return push_ready_left(s->job, push) > 0 ? ST_STALLED : ST_DEADLINE;
}

/* Sends the head with the lock released; true if it was counted or is void. */
static bool send_head(struct sender *s)
{
	enum status st;

	s->sending = true;
	pthread_mutex_unlock(&s->lock);
	st = attempt(s);
	pthread_mutex_lock(&s->lock);
	s->sending = false;
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
		if (!s->n || s->halted || s->held) {
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

enum status sender_new(struct gacc_job *job, struct sender **out)
{
	struct sender *s = calloc(1, sizeof(*s));

	if (!s)
		return ST_NO_MEMORY;
	s->job = job;
	pthread_mutex_init(&s->lock, NULL);
	cond_init(&s->changed);
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

void sender_hold(struct sender *s)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	s->held = true;
	while (s->sending)
		pthread_cond_wait(&s->changed, &s->lock);
	pthread_mutex_unlock(&s->lock);
}

void sender_let_go(struct sender *s)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	s->held = false;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}

void sender_add(struct sender *s, const struct push *push)
{
	pthread_mutex_lock(&s->lock);
	assert(s->n < SLOTS_MAX);
	s->queue[s->n++] = *push;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}

size_t sender_queued(struct sender *s, uint32_t *out)
{
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

bool sender_uses(struct sender *s, uint32_t slot)
{
	bool uses = false;

	if (!s)
		return false;
	pthread_mutex_lock(&s->lock);
	for (size_t i = 0; i < s->n; i++)
		uses = uses || s->queue[i].slot == slot;
	pthread_mutex_unlock(&s->lock);
	return uses;
}

bool sender_wait(struct sender *s, size_t limit, int64_t ms, struct push **out_failed, struct push *out_first)
{
	struct timespec end = time_in(ms == INT64_MAX ? 0 : ms);
	bool done;
	int err = 0;

	pthread_mutex_lock(&s->lock);
	while (s->n > limit && !s->halted && !err)
		err = ms == INT64_MAX ? pthread_cond_wait(&s->changed, &s->lock)
				      : pthread_cond_timedwait(&s->changed, &s->lock, &end);
	done = s->n <= limit || s->halted;
	*out_failed = s->halted ? &s->queue[0] : NULL;
	if (!done) /* the rest is the sender's of the moment */
		*out_first = (struct push){ .window = s->queue[0].window, .micro = s->queue[0].micro };
	pthread_mutex_unlock(&s->lock);
	return done;
}

struct push *sender_drop(struct sender *s, size_t n)
{
	struct push *next;

	pthread_mutex_lock(&s->lock);
	assert(s->halted);
	while (n-- && s->n)
		drop_head(s);
	s->halted = s->n > 0;
	next = s->halted ? &s->queue[0] : NULL;
	pthread_mutex_unlock(&s->lock);
	return next;
}

bool sender_take_void(struct sender *s, struct push *out)
{
	bool voided;

	pthread_mutex_lock(&s->lock);
	voided = s->voided;
	s->voided = false;
	*out = s->void_push;
	pthread_mutex_unlock(&s->lock);
	return voided;
}
