/* SPDX-License-Identifier: Apache-2.0 */
/* All tenants of a server: finds or makes the one of a user for each connection, closes it after the last, and closes
 * all in a stop. For rpc.c and stop.c. Loop thread. */
#include "rpc/tenants.h"

#include <grpc/grpc.h>

#define ARMED 16      /* calls that may arrive between two turns of the loop */
#define ARMED_UNARY 4 /* the same, of each unary method */

/* ---- connections ---- */

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
	enum status st = rpc_tenant_new(server, user, &tenant);
	if (st)
		return st;
	st = rpc_tenant_register(tenant);
	if (st) {
		rpc_tenant_drop(tenant);
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
	if (!tenant && (in_overflow || rpc_tenants_count(server) >= TENANTS_MAX)) {
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
		rpc_tenant_close(tenant);
}

/* ---- from the start to the stop ---- */

enum status rpc_tenants_init(struct rpc_server *server)
{
	return rpc_tenant_new(server, RPC_UNAUTHENTICATED, &server->overflow);
}

enum status rpc_tenants_register(struct rpc_server *server)
{
	return rpc_tenant_register(server->overflow);
}

void rpc_tenants_start(struct rpc_server *server)
{
	serve(server->overflow);
}

void rpc_tenants_fini(struct rpc_server *server)
{
	if (server->tenants)
		rpc_tenant_drop(server->overflow);
}

void rpc_tenants_close(struct rpc_server *server)
{
	for (struct rpc_tenant *t = server->tenants; t; t = t->next)
		if (!t->closing)
			rpc_tenant_close(t);
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
