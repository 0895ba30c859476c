/* SPDX-License-Identifier: Apache-2.0 */
/* The pump thread waits for gRPC's completions and posts them to an inbox without locks; a pipe wakes the loop thread,
 * which runs them in order, a few per turn. */
#include "rpc/pump.h"

#include "base/log.h"
#include "proto/handoff.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <grpc/grpc.h>
#include <grpc/support/time.h>
#include <uv.h>

#define TAGS_PER_TURN 64 /* in a turn of the loop, and no more after so long: */
#define TURN_NS UINT64_C(5000000)

struct rpc_pump {
	grpc_completion_queue *queue;
	pthread_t thread;
	int wake[2]; /* a pipe: the loop's end and the wakers' */
	uv_poll_t poll;
	_Atomic(struct rpc_tag *) inbox; /* newest first */
	struct rpc_tag *oldest, *newest; /* taken out and not run yet; loop thread. oldest NULL: none */
	atomic_int posting;		 /* threads inside rpc_pump_post */
	struct rpc_tag last;		 /* posted by the thread as its last act */
	void (*on_stopped)(void *context);
	void *context;
};

/* Only the push on empty wakes the loop: the loop takes the whole inbox out at once, and wakes itself until all has
 * run. */
void rpc_pump_post(struct rpc_pump *pump, struct rpc_tag *tag)
{
	atomic_fetch_add(&pump->posting, 1);
	struct rpc_tag *head = atomic_load_explicit(&pump->inbox, memory_order_relaxed);
	do
		tag->next = head;
	while (!atomic_compare_exchange_weak_explicit(&pump->inbox, &head, tag, memory_order_release,
						      memory_order_relaxed));
	if (!head && write(pump->wake[1], "", 1) < 0 && errno != EAGAIN)
		log_error("cannot wake the loop: %s", strerror(errno));
	atomic_fetch_sub(&pump->posting, 1);
}

static void take_inbox(struct rpc_pump *pump)
{
	struct rpc_tag *at = atomic_exchange_explicit(&pump->inbox, NULL, memory_order_acquire), *last = at,
		       *first = NULL;
	while (at) {
		struct rpc_tag *next = at->next;
		at->next = first;
		first = at;
		at = next;
	}
	if (!first)
		return;
	if (pump->oldest)
		pump->newest->next = first;
	else
		pump->oldest = first;
	pump->newest = last;
}

/* Users may send any number of requests at once, and each may take some time: others are served between the parts. */
static void run_some(struct rpc_pump *pump)
{
	uint64_t begun_ns = uv_hrtime();
	for (int n = 0; pump->oldest && n < TAGS_PER_TURN && (!n || uv_hrtime() - begun_ns < TURN_NS); n++) {
		struct rpc_tag *tag = pump->oldest;
		pump->oldest = tag->next; /* the tag may be gone after run */
		tag->run(tag, tag->ok);
	}
}

static void on_inbox(uv_poll_t *poll, int status, int events)
{
	struct rpc_pump *pump = poll->data;
	char wakes[64];
	while (read(pump->wake[0], wakes, sizeof(wakes)) < 0 && errno == EINTR)
		;
	take_inbox(pump);
	run_some(pump);
	if (pump->oldest && write(pump->wake[1], "", 1) < 0 && errno != EAGAIN)
		log_error("cannot wake the loop: %s", strerror(errno));
}

static void *pump_main(void *arg)
{
	struct rpc_pump *pump = arg;
	for (;;) {
		grpc_event event = grpc_completion_queue_next(pump->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
		if (event.type == GRPC_QUEUE_SHUTDOWN)
			break;
		struct rpc_tag *tag = event.tag;
		handoff_taken(tag);
		tag->ok = event.success != 0;
		rpc_pump_post(pump, tag);
	}
	rpc_pump_post(pump, &pump->last);
	return NULL;
}

static void on_closed(uv_handle_t *handle)
{
	struct rpc_pump *pump = handle->data;
	void (*on_stopped)(void *) = pump->on_stopped;
	void *context = pump->context;
	close(pump->wake[0]);
	close(pump->wake[1]);
	free(pump);
	on_stopped(context);
}

/* The thread has nothing left to do but return, so the join is short. */
static void on_last(struct rpc_tag *tag, bool ok)
{
	struct rpc_pump *pump = (struct rpc_pump *)((char *)tag - offsetof(struct rpc_pump, last));
	pthread_join(pump->thread, NULL);
	while (atomic_load(&pump->posting) > 0) /* a thread whose tag has run may still be waking us */
		sched_yield();
	grpc_completion_queue_destroy(pump->queue);
	uv_close((uv_handle_t *)&pump->poll, on_closed);
}

static void ignore(void *context)
{
}

/* Not a uv_async_t, for which the loop spins until the waker is through, and not an eventfd: the kernel takes a pipe's
 * writer to be about to sleep, as it is, and runs the loop on the same CPU instead of waking another one. */
static enum status open_wake(struct rpc_pump *pump, uv_loop_t *loop)
{
	int err = pipe2(pump->wake, O_NONBLOCK | O_CLOEXEC) ? uv_translate_sys_error(errno) : 0;
	if (err) {
		log_error("cannot make a pipe: %s", uv_strerror(err));
		return ST_UNAVAILABLE;
	}
	err = uv_poll_init(loop, &pump->poll, pump->wake[0]);
	if (err) {
		log_error("cannot make a wake-up handle: %s", uv_strerror(err));
		close(pump->wake[0]);
		close(pump->wake[1]);
		return ST_UNAVAILABLE;
	}
	pump->poll.data = pump;
	uv_poll_start(&pump->poll, UV_READABLE, on_inbox);
	return ST_OK;
}

enum status rpc_pump_start(void *loop, struct rpc_pump **out_pump)
{
	struct rpc_pump *pump = calloc(1, sizeof(*pump));
	if (!pump)
		return ST_NO_MEMORY;
	enum status st = open_wake(pump, loop);
	if (st) {
		free(pump);
		return st;
	}
	pump->last.run = on_last;
	pump->queue = grpc_completion_queue_create_for_next(NULL);
	int err = pthread_create(&pump->thread, NULL, pump_main, pump);
	if (err) {
		log_error("cannot start the RPC thread: %s", strerror(err));
		grpc_completion_queue_shutdown(pump->queue);
		grpc_completion_queue_destroy(pump->queue);
		pump->on_stopped = ignore;
		uv_close((uv_handle_t *)&pump->poll, on_closed);
		return ST_UNAVAILABLE;
	}
	*out_pump = pump;
	return ST_OK;
}

grpc_completion_queue *rpc_pump_queue(struct rpc_pump *pump)
{
	return pump->queue;
}

void rpc_pump_stop(struct rpc_pump *pump, void (*on_stopped)(void *context), void *context)
{
	pump->on_stopped = on_stopped;
	pump->context = context;
	grpc_completion_queue_shutdown(pump->queue);
}
