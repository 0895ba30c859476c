/* SPDX-License-Identifier: Apache-2.0 */
/* One gRPC server for each user: made for a user's first connection, closed after the last, destroyed when its calls
 * have ended. Loop thread; memory is trimmed in libuv's pool. */
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

#define ARMED 16	       /* calls that may arrive between two turns of the loop */
#define ARMED_UNARY 4	       /* the same, of each unary method */
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

static size_t count(const struct rpc_server *server)
{
	size_t n = 0;
	for (const struct rpc_tenant *t = server->tenants; t; t = t->next)
		n++;
	return n;
}

/* A quota that shrinks below what is used ends calls of this tenant until it fits. */
static void share_out(struct rpc_server *server)
{
	size_t n = count(server);
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

static enum status tenant_new(struct rpc_server *server, int64_t user, struct rpc_tenant **out_tenant)
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
static enum status register_unary(struct rpc_tenant *tenant)
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

static void serve(struct rpc_tenant *tenant)
{
	const struct rpc_server *server = tenant->server;
	grpc_server_register_completion_queue(tenant->grpc, rpc_pump_queue(server->pump), NULL);
	grpc_server_start(tenant->grpc);
	for (int i = 0; i < ARMED; i++)
		rpc_call_arm(tenant, NULL);
	for (size_t row = 0; row < server->n_rows; row++)
		for (int i = 0; tenant->registered[row] && i < ARMED_UNARY; i++)
			rpc_call_arm(tenant, &server->rows[row]);
}

/* `closing` is set after the shutdown, so that a call that arrives just before it still finds one armed. */
static void close_tenant(struct rpc_tenant *tenant)
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

/* ---- connections ---- */

static struct rpc_tenant *find(const struct rpc_server *server, int64_t user)
{
	for (struct rpc_tenant *t = server->tenants; t; t = t->next)
		if (t->user == user && !t->closing)
			return t;
	return NULL;
}

static enum status make(struct rpc_server *server, int64_t user, struct rpc_tenant **out_tenant)
{
	struct rpc_tenant *tenant;
	enum status st = tenant_new(server, user, &tenant);
	if (st)
		return st;
	st = register_unary(tenant);
	if (st) {
		unlink_tenant(tenant);
		destroy_unstarted(tenant->grpc);
		tenant_free(tenant);
		share_out(server);
		return st;
	}
	serve(tenant);
	*out_tenant = tenant;
	return ST_OK;
}

/* A user that has connections in `overflow` stays there: otherwise rpc_tenant_leave could not tell which tenant the
 * connection belonged to. */
enum status rpc_tenant_enter(struct rpc_server *server, uid_t uid, struct rpc_tenant **out_tenant)
{
	bool in_overflow = rpc_quota_used(&server->overflow_users, uid) > 0;
	struct rpc_tenant *tenant = in_overflow ? NULL : find(server, uid);
	if (!tenant && (in_overflow || count(server) >= TENANTS_MAX)) {
		*out_tenant = server->overflow;
		return rpc_quota_take(&server->overflow_users, uid, 1) ? ST_OK : ST_NO_MEMORY;
	}
	enum status st = tenant ? ST_OK : make(server, uid, &tenant);
	if (st)
		return st;
	tenant->connections++;
	*out_tenant = tenant;
	return ST_OK;
}

/* A connection that could not enter for lack of memory still leaves. Then its tenant may close early, which fails no
 * call: gRPC finishes those under way, and the clients connect again. */
void rpc_tenant_leave(struct rpc_server *server, uid_t uid)
{
	if (rpc_quota_used(&server->overflow_users, uid) > 0) {
		rpc_quota_give(&server->overflow_users, uid, 1);
		return;
	}
	struct rpc_tenant *tenant = find(server, uid);
	if (tenant && --tenant->connections == 0)
		close_tenant(tenant);
}

/* ---- all tenants ---- */

enum status rpc_tenants_init(struct rpc_server *server)
{
	return tenant_new(server, RPC_UNAUTHENTICATED, &server->overflow);
}

enum status rpc_tenants_register(struct rpc_server *server)
{
	return register_unary(server->overflow);
}

void rpc_tenants_start(struct rpc_server *server)
{
	serve(server->overflow);
}

void rpc_tenants_fini(struct rpc_server *server)
{
	if (!server->tenants)
		return;
	destroy_unstarted(server->overflow->grpc);
	tenant_free(server->overflow);
}

void rpc_tenants_close(struct rpc_server *server)
{
	for (struct rpc_tenant *t = server->tenants; t; t = t->next)
		if (!t->closing)
			close_tenant(t);
}

void rpc_tenants_cancel(struct rpc_server *server)
{
	for (struct rpc_tenant *t = server->tenants; t; t = t->next)
		grpc_server_cancel_all_calls(t->grpc);
}

unsigned rpc_tenants_open(const struct rpc_server *server)
{
	unsigned n = 0;
	for (const struct rpc_tenant *t = server->tenants; t; t = t->next)
		n += t->open;
	return n;
}
