/* SPDX-License-Identifier: Apache-2.0 */
/* One tenant: a user's gRPC server and its quota, made, closed, and destroyed when its calls have ended. Loop thread;
 * memory is trimmed in libuv's pool. */
#include "rpc/tenant.h"

#include "base/log.h"
#include "base/machine.h"
#include "proto/handoff.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <grpc/grpc.h>
#include <grpc/support/time.h>
#include <uv.h>

#define MIN_PING_MS 5000       /* clients may ping this often */
#define WINDOW_BYTES (1 << 20) /* bytes that gRPC may hold for a stream that is not read */
#define KEPT_BYTES (64u << 20) /* free memory, as in main.c for the heap of the loop */

/* ---- gRPC's server ---- */

static grpc_arg int_arg(const char *key, int value)
{
	/* gRPC reads the key only; its type has no const. */
	return (grpc_arg){ .type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = value };
}

static grpc_arg quota_arg(grpc_resource_quota *quota)
{
	const void *vtable = grpc_resource_quota_arg_vtable();
	return (grpc_arg){ .type = GRPC_ARG_POINTER,
			   .key = (char *)(uintptr_t)GRPC_ARG_RESOURCE_QUOTA,
			   .value.pointer = { .p = quota, .vtable = (void *)(uintptr_t)vtable } };
}

/* BDP probing is off because its windows let each stalled stream hold 5 MiB; frames may be as large as the window
 * instead, because in 16 KiB pieces a chunk costs a fifth more; so_reuseport because a second daemon would share the
 * port in silence; compression because a small message could inflate to any size. */
static grpc_server *make_grpc(const struct rpc_config *config, grpc_resource_quota *quota)
{
	grpc_arg args[] = {
		quota_arg(quota),
		int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, BYTES_MESSAGE_MAX),
		int_arg(GRPC_ARG_MAX_CONCURRENT_STREAMS, (int)config->max_streams),
		int_arg("grpc.compression_enabled_algorithms_bitset", 1),
		int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, config->keepalive_ms),
		int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, config->keepalive_ms),
		int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
		int_arg(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, config->handshake_ms),
		int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
		int_arg(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, MIN_PING_MS),
		int_arg(GRPC_ARG_HTTP2_BDP_PROBE, 0),
		int_arg(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, WINDOW_BYTES),
		int_arg(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, WINDOW_BYTES),
		int_arg(GRPC_ARG_ALLOW_REUSEPORT, 0),
		int_arg(GRPC_ARG_ENABLE_CHANNELZ, 0),
	};
	grpc_channel_args all = { .num_args = sizeof(args) / sizeof(args[0]), .args = args };
	return grpc_server_create(&all, NULL);
}

/* gRPC destroys a server with listeners only after a shutdown, which needs a queue to report to. */
static void destroy_unstarted(grpc_server *grpc)
{
	grpc_completion_queue *queue = grpc_completion_queue_create_for_pluck(NULL);
	grpc_server_shutdown_and_notify(grpc, queue, grpc);
	grpc_completion_queue_pluck(queue, grpc, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
	grpc_server_destroy(grpc);
	grpc_completion_queue_shutdown(queue);
	grpc_completion_queue_destroy(queue);
}

/* ---- life ---- */

size_t rpc_tenants_count(const struct rpc_server *server)
{
	size_t n = 0;
	for (const struct rpc_tenant *t = server->tenants; t; t = t->next)
		n++;
	return n;
}

/* A quota that shrinks below what is used ends calls of this tenant until it fits. */
static void share_out(struct rpc_server *server)
{
	size_t n = rpc_tenants_count(server);
	for (struct rpc_tenant *t = server->tenants; t; t = t->next)
		grpc_resource_quota_resize(t->quota, server->config.max_unread_bytes / n);
}

static void tenant_free(struct rpc_tenant *tenant)
{
	grpc_resource_quota_unref(tenant->quota);
	free(tenant->registered);
	free(tenant);
}

static void on_shut(struct rpc_tag *tag, bool ok)
{
	struct rpc_tenant *tenant = (struct rpc_tenant *)((char *)tag - offsetof(struct rpc_tenant, tag));
	tenant->shut = true;
	rpc_tenant_check_idle(tenant);
}

enum status rpc_tenant_new(struct rpc_server *server, int64_t user, struct rpc_tenant **out_tenant)
{
	struct rpc_tenant *tenant = calloc(1, sizeof(*tenant));
	if (!tenant)
		return ST_NO_MEMORY;
	char name[32];
	snprintf(name, sizeof(name), "user %lld", (long long)user);
	tenant->server = server;
	tenant->user = user;
	tenant->tag.run = on_shut;
	tenant->quota = grpc_resource_quota_create(name);
	tenant->grpc = make_grpc(&server->config, tenant->quota);
	if (!tenant->grpc) {
		tenant_free(tenant);
		return ST_NO_MEMORY;
	}
	tenant->next = server->tenants;
	server->tenants = tenant;
	share_out(server);
	*out_tenant = tenant;
	return ST_OK;
}

/* Reading the request together with the call saves a wake-up of both threads. */
enum status rpc_tenant_register(struct rpc_tenant *tenant)
{
	const struct rpc_server *server = tenant->server;
	tenant->registered = calloc(server->n_rows + 1, sizeof(*tenant->registered));
	if (!tenant->registered)
		return ST_NO_MEMORY;
	for (size_t i = 0; i < server->n_rows; i++)
		if (server->rows[i].method->kind == RPC_UNARY)
			tenant->registered[i] = grpc_server_register_method(
				tenant->grpc, server->rows[i].path, NULL, GRPC_SRM_PAYLOAD_READ_INITIAL_BYTE_BUFFER, 0);
	return ST_OK;
}

/* `closing` is set after the shutdown, so that a call that arrives just before it still finds one armed. */
void rpc_tenant_close(struct rpc_tenant *tenant)
{
	handoff_given(&tenant->tag);
	grpc_server_shutdown_and_notify(tenant->grpc, rpc_pump_queue(tenant->server->pump), &tenant->tag);
	tenant->closing = true;
}

static void unlink_tenant(struct rpc_tenant *tenant)
{
	struct rpc_tenant **at = &tenant->server->tenants;
	while (*at != tenant)
		at = &(*at)->next;
	*at = tenant->next;
}

void rpc_tenant_drop(struct rpc_tenant *tenant)
{
	struct rpc_server *server = tenant->server;
	unlink_tenant(tenant);
	destroy_unstarted(tenant->grpc);
	tenant_free(tenant);
	share_out(server);
}

/* When a user has left, memory of its requests is returned to the system. A little is kept, because the next requests
 * would have to fault it in again. */

static void trim(uv_work_t *work)
{
	machine_memory_trim(KEPT_BYTES);
}

static void on_trimmed(uv_work_t *work, int status)
{
	struct rpc_server *server = work->data;
	free(work);
	server->borrowed--;
	rpc_server_check_idle(server);
}

static void start_trim(struct rpc_server *server)
{
	uv_work_t *work = malloc(sizeof(*work));
	if (!work)
		return;
	work->data = server;
	server->borrowed++;
	uv_queue_work(server->config.loop, work, trim, on_trimmed);
}

void rpc_tenant_check_idle(struct rpc_tenant *tenant)
{
	struct rpc_server *server = tenant->server;
	if (!tenant->shut || tenant->armed || tenant->open)
		return;
	unlink_tenant(tenant);
	grpc_server_destroy(tenant->grpc);
	tenant_free(tenant);
	if (!server->stopping) {
		share_out(server);
		start_trim(server);
	}
	rpc_server_check_idle(server);
}
