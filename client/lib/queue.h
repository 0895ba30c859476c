/* SPDX-License-Identifier: Apache-2.0 */
/* Which thread takes the events of a gRPC completion queue.
 *
 * One thread at a time does. A caller that waits for a batch does it itself if nobody else is at it: handing the event
 * over from another thread would take longer than the call's work. The pump, a thread of the queue, does it while
 * nobody calls; in the midst of calls it looks only now and then whether they go on. Any thread may call.
 */
#ifndef GACC_CLIENT_QUEUE_H
#define GACC_CLIENT_QUEUE_H

#include "proto/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct grpc_completion_queue;

/* Who waits for batches: one thread at a time. */
struct waiter {
	pthread_cond_t changed;
	struct waiter *next; /* in the queue's list */
	/* long silences: its thread never takes events, so that the callers' need no handing over */
	bool patient;
};

/* A batch; its address is the tag that gRPC returns. */
struct tag {
	struct waiter *waiter;
	bool out;
	bool ok;
};

struct queue {
	struct grpc_completion_queue *grpc;
	pthread_t pump;
	pthread_mutex_t lock; /* of all below, and of the tags */
	pthread_cond_t pump_due;
	bool taken;  /* a thread is in grpc_completion_queue_next */
	bool called; /* a caller has waited since the pump looked last */
	bool closing;
	struct waiter *followers; /* callers that will take from the queue after the one that does it now */
};

/* In zeroed memory. NO_MEMORY: no thread could be made; nothing is to be undone. */
enum status queue_open(struct queue *queue);
/* Nothing may be out. Does nothing to one that was not opened. */
void queue_close(struct queue *queue);

void waiter_init(struct waiter *waiter, bool patient);
void waiter_fini(struct waiter *waiter);
/* Waits until the batch is back; false when timeout_ms (-1: for ever) pass first. */
bool queue_wait(struct queue *queue, const struct tag *tag, int64_t timeout_ms);

#endif
