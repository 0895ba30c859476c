/* SPDX-License-Identifier: Apache-2.0 */
/* Collects completions of unary calls (rpc/private.h) by polling a completion queue: when enough calls have come, and
 * from a timer that runs while calls are open. Loop thread. */
#include "rpc/private.h"
#include "proto/handoff.h"

#include <stdlib.h>
#include <grpc/grpc.h>
#include <grpc/support/time.h>
#include <uv.h>

#define POLL_MS 50
#define POLL_CALLS 64

struct rpc_reaper {
	grpc_completion_queue *queue;
	uv_timer_t timer;	    /* runs while calls are open */
	unsigned open, uncollected; /* calls; those that came since the last look */
	void (*on_stopped)(void *context);
	void *context;
};

struct grpc_completion_queue *rpc_reaper_queue(struct rpc_reaper *reaper)
{
	return reaper->queue;
}

void rpc_reaper_run(struct rpc_reaper *reaper)
{
	reaper->uncollected = 0;
	for (;;) {
		grpc_event event = grpc_completion_queue_next(reaper->queue, gpr_time_0(GPR_CLOCK_MONOTONIC), NULL);
		if (event.type != GRPC_OP_COMPLETE)
			return;
		struct rpc_tag *tag = event.tag;
		handoff_taken(tag);
		tag->run(tag, event.success != 0);
	}
}

static void on_timer(uv_timer_t *timer)
{
	rpc_reaper_run(timer->data);
}

void rpc_reaper_expect(struct rpc_reaper *reaper, int calls)
{
	if (reaper->open == 0)
		uv_timer_start(&reaper->timer, on_timer, POLL_MS, POLL_MS);
	reaper->open += (unsigned)calls;
	if (reaper->open == 0)
		uv_timer_stop(&reaper->timer);
	if (calls > 0 && ++reaper->uncollected >= POLL_CALLS)
		rpc_reaper_run(reaper);
}

enum status rpc_reaper_start(void *loop, struct rpc_reaper **out_reaper)
{
	struct rpc_reaper *reaper = calloc(1, sizeof(*reaper));
	if (!reaper)
		return ST_NO_MEMORY;
	reaper->queue = grpc_completion_queue_create_for_next(NULL);
	uv_timer_init(loop, &reaper->timer);
	reaper->timer.data = reaper;
	*out_reaper = reaper;
	return ST_OK;
}

static void on_closed(uv_handle_t *handle)
{
	struct rpc_reaper *reaper = handle->data;
	void (*on_stopped)(void *) = reaper->on_stopped;
	void *context = reaper->context;
	grpc_completion_queue_destroy(reaper->queue);
	free(reaper);
	on_stopped(context);
}

void rpc_reaper_stop(struct rpc_reaper *reaper, void (*on_stopped)(void *context), void *context)
{
	reaper->on_stopped = on_stopped;
	reaper->context = context;
	grpc_completion_queue_shutdown(reaper->queue);
	while (grpc_completion_queue_next(reaper->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type !=
	       GRPC_QUEUE_SHUTDOWN)
		;
	uv_close((uv_handle_t *)&reaper->timer, on_closed);
}
