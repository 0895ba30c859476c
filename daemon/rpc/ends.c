/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/private.h"
#include "proto/handoff.h"

#include <stdlib.h>
#include <grpc/grpc.h>
#include <grpc/support/time.h>
#include <uv.h>

#define LOOK_MS 50
#define LOOK_CALLS 64

struct rpc_ends {
	grpc_completion_queue *queue;
	uv_timer_t timer;      /* runs while calls are open */
	unsigned open, unseen; /* calls; those that came since the last look */
	void (*on_stopped)(void *context);
	void *context;
};

struct grpc_completion_queue *rpc_ends_queue(struct rpc_ends *ends)
{
	return ends->queue;
}

void rpc_ends_look(struct rpc_ends *ends)
{
	ends->unseen = 0;
	for (;;) {
		grpc_event event = grpc_completion_queue_next(ends->queue, gpr_time_0(GPR_CLOCK_MONOTONIC), NULL);
		if (event.type != GRPC_OP_COMPLETE)
			return;
		struct rpc_tag *tag = event.tag;
		handoff_taken(tag);
		tag->run(tag, event.success != 0);
	}
}

static void on_timer(uv_timer_t *timer)
{
	rpc_ends_look(timer->data);
}

void rpc_ends_expect(struct rpc_ends *ends, int calls)
{
	if (ends->open == 0)
		uv_timer_start(&ends->timer, on_timer, LOOK_MS, LOOK_MS);
	ends->open += (unsigned)calls;
	if (ends->open == 0)
		uv_timer_stop(&ends->timer);
	if (calls > 0 && ++ends->unseen >= LOOK_CALLS)
		rpc_ends_look(ends);
}

enum status rpc_ends_start(void *loop, struct rpc_ends **out_ends)
{
	struct rpc_ends *ends = calloc(1, sizeof(*ends));
	if (!ends)
		return ST_NO_MEMORY;
	ends->queue = grpc_completion_queue_create_for_next(NULL);
	uv_timer_init(loop, &ends->timer);
	ends->timer.data = ends;
	*out_ends = ends;
	return ST_OK;
}

static void on_closed(uv_handle_t *handle)
{
	struct rpc_ends *ends = handle->data;
	void (*on_stopped)(void *) = ends->on_stopped;
	void *context = ends->context;
	grpc_completion_queue_destroy(ends->queue);
	free(ends);
	on_stopped(context);
}

void rpc_ends_stop(struct rpc_ends *ends, void (*on_stopped)(void *context), void *context)
{
	ends->on_stopped = on_stopped;
	ends->context = context;
	grpc_completion_queue_shutdown(ends->queue);
	while (grpc_completion_queue_next(ends->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type !=
	       GRPC_QUEUE_SHUTDOWN)
		;
	uv_close((uv_handle_t *)&ends->timer, on_closed);
}
