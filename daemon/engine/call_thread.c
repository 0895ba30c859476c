/* SPDX-License-Identifier: Apache-2.0 */
/* Runs calls on a thread of its own, one at a time, and tells by an eventfd when one has returned. For comm.c; threads
 * as call_thread.h says. */
#include "engine/call_thread.h"

#include "base/clock.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum call_state { CALL_IDLE, CALL_POSTED, CALL_DONE };

struct call_thread {
	int fd;
	pthread_t thread;
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	/* the mutex */
	enum call_state state;
	bool want_stop;
	enum status result;
	/* the owner, and the thread while it is POSTED */
	call_fn *fn;
	void *arg;
};

static void *serve(void *arg)
{
	struct call_thread *t = arg;
	const uint64_t one = 1;
	pthread_mutex_lock(&t->mutex);
	while (!t->want_stop) {
		if (t->state != CALL_POSTED) {
			pthread_cond_wait(&t->changed, &t->mutex);
			continue;
		}
		pthread_mutex_unlock(&t->mutex);
		enum status st = t->fn(t->arg);
		pthread_mutex_lock(&t->mutex);
		t->result = st;
		t->state = CALL_DONE;
		pthread_cond_broadcast(&t->changed);
		ssize_t n = write(t->fd, &one, sizeof(one));
		assert(n == sizeof(one));
		(void)n;
	}
	pthread_mutex_unlock(&t->mutex);
	return NULL;
}

/* ---- calls ---- */

int call_thread_fd(const struct call_thread *t)
{
	return t->fd;
}

void call_thread_post(struct call_thread *t, call_fn *fn, void *arg)
{
	pthread_mutex_lock(&t->mutex);
	assert(t->state == CALL_IDLE);
	t->fn = fn;
	t->arg = arg;
	t->state = CALL_POSTED;
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->mutex);
}

bool call_thread_take(struct call_thread *t, enum status *result)
{
	uint64_t count;
	while (read(t->fd, &count, sizeof(count)) == sizeof(count))
		;
	pthread_mutex_lock(&t->mutex);
	bool done = t->state == CALL_DONE;
	if (done)
		t->state = CALL_IDLE;
	*result = t->result;
	pthread_mutex_unlock(&t->mutex);
	return done;
}

static enum call_state state_of(struct call_thread *t)
{
	pthread_mutex_lock(&t->mutex);
	enum call_state state = t->state;
	pthread_mutex_unlock(&t->mutex);
	return state;
}

bool call_thread_is_idle(struct call_thread *t)
{
	return state_of(t) == CALL_IDLE;
}

bool call_thread_is_running(struct call_thread *t)
{
	return state_of(t) == CALL_POSTED;
}

bool call_thread_await(struct call_thread *t, int64_t until_ns)
{
	const struct timespec until = { until_ns / CLOCK_NS_PER_S, until_ns % CLOCK_NS_PER_S };
	int error = 0;
	pthread_mutex_lock(&t->mutex);
	while (t->state == CALL_POSTED && !error)
		error = pthread_cond_timedwait(&t->changed, &t->mutex, &until);
	bool back = t->state != CALL_POSTED;
	pthread_mutex_unlock(&t->mutex);
	return back;
}

/* ---- beginning and end ---- */

static bool start_thread(struct call_thread *t)
{
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	bool made = !pthread_create(&t->thread, NULL, serve, t);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return made;
}

static void destroy(struct call_thread *t)
{
	pthread_cond_destroy(&t->changed);
	pthread_mutex_destroy(&t->mutex);
	if (t->fd >= 0)
		close(t->fd);
	free(t);
}

enum status call_thread_new(struct call_thread **out)
{
	struct call_thread *t = calloc(1, sizeof(*t));
	pthread_condattr_t attr;
	if (!t)
		return ST_NO_MEMORY;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&t->changed, &attr);
	pthread_condattr_destroy(&attr);
	pthread_mutex_init(&t->mutex, NULL);
	t->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (t->fd < 0 || !start_thread(t)) {
		destroy(t);
		return ST_IO_ERROR;
	}
	*out = t;
	return ST_OK;
}

void call_thread_free(struct call_thread *t)
{
	if (!t)
		return;
	pthread_mutex_lock(&t->mutex);
	assert(t->state != CALL_POSTED);
	t->want_stop = true;
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->mutex);
	pthread_join(t->thread, NULL);
	destroy(t);
}
