/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a server's stop. Shared by stop.c and stop_end.c only. */
#ifndef GACC_RPC_STOP_IMPL_H
#define GACC_RPC_STOP_IMPL_H

#include "rpc/private.h"

#include <uv.h>

struct rpc_stop {
	uv_timer_t timer; /* the drain, then the grace */
	struct rpc_server *server;
	int grace_ms;
	bool ending; /* stop_end.c has begun */
	void (*on_stopped)(void *context);
	void *context;
};

#endif
