/* SPDX-License-Identifier: Apache-2.0 */
/* A gRPC completion queue whose completions run on the libuv loop.
 *
 * One thread waits on the queue and moves each tag to an inbox; the loop runs them in that order. A tag comes back
 * exactly once; handoff_given(tag) goes before the gRPC call that takes it. Other threads of gRPC may post tags of
 * their own. At most 64 run in one turn of the loop, for at most 5 ms.
 */
#ifndef GACC_RPC_PUMP_H
#define GACC_RPC_PUMP_H

#include "proto/status.h"

#include <stdbool.h>

struct grpc_completion_queue;
struct rpc_pump;

struct rpc_tag {
	struct rpc_tag *next;
	void (*run)(struct rpc_tag *tag, bool ok); /* on the loop */
	bool ok;
};

/* `loop` is a uv_loop_t. UNAVAILABLE, NO_MEMORY. Loop thread. */
enum status rpc_pump_start(void *loop, struct rpc_pump **out_pump);
struct grpc_completion_queue *rpc_pump_queue(struct rpc_pump *pump);
/* Any thread; before rpc_pump_stop. */
void rpc_pump_post(struct rpc_pump *pump, struct rpc_tag *tag);
/* When no tag is out: stops the thread and frees the pump, then runs on_stopped(context) on the loop. */
void rpc_pump_stop(struct rpc_pump *pump, void (*on_stopped)(void *context), void *context);

#endif
