/* SPDX-License-Identifier: Apache-2.0 */
/* Stopping a server: drain, shut gRPC down, give calls time to end, cancel the rest. stop_end.c does what remains when
 * all have ended. Loop thread. */
#include "rpc/stop_impl.h"

#include "base/log.h"
#include "rpc/tenants.h"

#include <stdlib.h>
#include <uv.h>

struct rpc_stop *rpc_stop_new(void)
{
	return calloc(1, sizeof(struct rpc_stop));
}

static void drain(struct rpc_server *server)
{
	server->draining = true;
	for (uint32_t i = 0; i < server->config.max_calls; i++)
		if (server->slots[i].call)
			rpc_call_drain(server->slots[i].call);
}

static void on_grace_over(uv_timer_t *timer)
{
	struct rpc_stop *stop = timer->data;
	unsigned open = rpc_tenants_open(stop->server);
	if (open) /* else it waits for idle clients to hang up */
		log_warn("calls that did not end in time are cancelled: %u", open);
	rpc_tenants_cancel(stop->server);
}

static void on_drained(uv_timer_t *timer)
{
	struct rpc_stop *stop = timer->data;
	struct rpc_server *server = stop->server;
	rpc_tenants_close(server);
	server->stopping = true;
	rpc_upstreams_stop(server);
	uv_timer_start(timer, on_grace_over, (uint64_t)stop->grace_ms, 0);
}

void rpc_server_stop(struct rpc_server *server, int drain_ms, int grace_ms, void (*on_stopped)(void *context),
		     void *context)
{
	struct rpc_stop *stop = server->stop;
	*stop = (struct rpc_stop){
		.server = server, .grace_ms = grace_ms, .on_stopped = on_stopped, .context = context
	};
	uv_timer_init(server->config.loop, &stop->timer);
	stop->timer.data = stop;
	drain(server);
	uv_timer_start(&stop->timer, on_drained, (uint64_t)drain_ms, 0);
}
