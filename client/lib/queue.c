/* SPDX-License-Identifier: Apache-2.0 */
/* Lets the calling thread take its own completion from gRPC's queue, and a pump thread take what nobody waits for.
 * For call.c and channel.c; any thread. */
#include "lib/queue.h"

#include "lib/clock.h"
#include "proto/handoff.h"

#include <grpc/grpc.h>
#include <grpc/support/time.h>

#define PUMP_AWAY_MS 20

/* Takes one event, with the lock released meanwhile; false when the queue has shut down. */
static bool take_event(struct queue *queue, gpr_timespec until)
{
	queue->taken = true;
	pthread_mutex_unlock(&queue->lock);
	grpc_event event = grpc_completion_queue_next(queue->grpc, until, NULL);
	if (event.type == GRPC_OP_COMPLETE)
		handoff_taken(event.tag);
	pthread_mutex_lock(&queue->lock);
	queue->taken = false;
	if (event.type == GRPC_OP_COMPLETE) {
		struct tag *tag = event.tag;
		tag->ok = event.success != 0;
		tag->out = false;
		pthread_cond_signal(&tag->waiter->changed);
	}
	return event.type != GRPC_QUEUE_SHUTDOWN;
}

static void hand_over(struct queue *queue)
{
	if (queue->followers && !queue->taken)
		pthread_cond_signal(&queue->followers->changed);
}

static void *pump_main(void *arg)
{
	struct queue *queue = arg;
	bool open = true;
	pthread_mutex_lock(&queue->lock);
	while (open) {
		while (!queue->closing && (queue->taken || queue->called)) {
			struct timespec until = time_in(PUMP_AWAY_MS);
			queue->called = false;
			pthread_cond_timedwait(&queue->pump_due, &queue->lock, &until);
		}
		open = take_event(queue, gpr_inf_future(GPR_CLOCK_MONOTONIC));
		hand_over(queue);
	}
	pthread_mutex_unlock(&queue->lock);
	return NULL;
}

enum status queue_open(struct queue *queue)
{
	pthread_mutex_init(&queue->lock, NULL);
	cond_init(&queue->pump_due);
	queue->grpc = grpc_completion_queue_create_for_next(NULL);
	if (pthread_create(&queue->pump, NULL, pump_main, queue) == 0)
		return ST_OK;
	grpc_completion_queue_shutdown(queue->grpc);
	grpc_completion_queue_destroy(queue->grpc);
	pthread_cond_destroy(&queue->pump_due);
	pthread_mutex_destroy(&queue->lock);
	queue->grpc = NULL;
	return ST_NO_MEMORY;
}

void queue_close(struct queue *queue)
{
	if (!queue->grpc)
		return;
	grpc_completion_queue_shutdown(queue->grpc);
	pthread_mutex_lock(&queue->lock);
	queue->closing = true;
	pthread_cond_signal(&queue->pump_due);
	pthread_mutex_unlock(&queue->lock);
	pthread_join(queue->pump, NULL);
	grpc_completion_queue_destroy(queue->grpc);
	pthread_cond_destroy(&queue->pump_due);
	pthread_mutex_destroy(&queue->lock);
}

void waiter_init(struct waiter *waiter, bool patient)
{
	cond_init(&waiter->changed);
	waiter->patient = patient;
}

void waiter_fini(struct waiter *waiter)
{
	pthread_cond_destroy(&waiter->changed);
}

/* One turn of waiting: takes an event if nobody else does, else sleeps. The lock is held. */
static void wait_turn(struct queue *queue, struct waiter *waiter, int64_t timeout_ms, const struct timespec *until)
{
	struct waiter **at = &queue->followers;
	if (waiter->patient && timeout_ms < 0) {
		pthread_cond_wait(&waiter->changed, &queue->lock);
		return;
	}
	if (!queue->taken) {
		take_event(queue, timeout_ms < 0 ? gpr_inf_future(GPR_CLOCK_MONOTONIC)
						 : (gpr_timespec){ until->tv_sec, (int32_t)until->tv_nsec,
								   GPR_CLOCK_MONOTONIC });
		return;
	}
	waiter->next = queue->followers;
	queue->followers = waiter;
	if (timeout_ms < 0)
		pthread_cond_wait(&waiter->changed, &queue->lock);
	else
		pthread_cond_timedwait(&waiter->changed, &queue->lock, until);
	while (*at != waiter)
		at = &(*at)->next;
	*at = waiter->next;
}

static bool is_past(const struct timespec *t)
{
	struct timespec now = time_in(0);
	return now.tv_sec > t->tv_sec || (now.tv_sec == t->tv_sec && now.tv_nsec >= t->tv_nsec);
}

bool queue_wait(struct queue *queue, const struct tag *tag, int64_t timeout_ms)
{
	struct timespec until = { 0 };
	if (timeout_ms > 0)
		until = time_in(timeout_ms);
	pthread_mutex_lock(&queue->lock);
	while (tag->out && (timeout_ms < 0 || (timeout_ms > 0 && !is_past(&until)))) {
		queue->called |= !tag->waiter->patient;
		wait_turn(queue, tag->waiter, timeout_ms, &until);
	}
	bool back = !tag->out;
	hand_over(queue);
	pthread_mutex_unlock(&queue->lock);
	return back;
}
