/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a server's stop: once gRPC has returned everything (tenants, borrowed memory) and no work is in the pool,
 * stops the pump and then the reaper. Loop thread. */
#include "rpc/stop_impl.h"

static void on_reaper_stopped(void *context)
{
	struct rpc_stop *stop = context;
	void (*on_stopped)(void *) = stop->on_stopped;
	void *user = stop->context;
	stop->server->reaper = NULL;
	on_stopped(user);
}

static void on_pump_stopped(void *context)
{
	struct rpc_stop *stop = context;
	stop->server->pump = NULL;
	rpc_turns_free(stop->server->sends);
	stop->server->sends = NULL;
	rpc_reaper_stop(stop->server->reaper, on_reaper_stopped, stop);
}

static void on_timer_closed(uv_handle_t *handle)
{
	struct rpc_stop *stop = handle->data;
	rpc_pump_stop(stop->server->pump, on_pump_stopped, stop);
}

void rpc_server_check_idle(struct rpc_server *server)
{
	struct rpc_stop *stop = server->stop;
	if (!server->stopping || stop->ending || server->tenants || server->borrowed)
		return;
	stop->ending = true;
	uv_close((uv_handle_t *)&stop->timer, on_timer_closed);
}
