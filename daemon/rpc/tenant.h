/* SPDX-License-Identifier: Apache-2.0 */
/* One user of an RPC server, with a gRPC server of its own (rpc/tenants.h says why). Loop thread. */
#ifndef GACC_RPC_TENANT_H
#define GACC_RPC_TENANT_H

#include "rpc/private.h"

struct grpc_resource_quota;

struct rpc_tenant {
	struct rpc_server *server;
	struct rpc_tenant *next;
	int64_t user; /* as in rpc/quota.h; RPC_UNAUTHENTICATED: `overflow` */
	struct grpc_server *grpc;
	struct grpc_resource_quota *quota;
	/* by number of row, UNARY: gRPC's handle of the method; it reads the request before it hands the call over */
	void **registered;
	unsigned connections;
	unsigned armed;	    /* calls waiting to be accepted */
	unsigned open;	    /* accepted and not yet freed, the refused ones included */
	bool closing;	    /* gRPC accepts no more calls */
	bool shut;	    /* gRPC has reported the end of the shutdown */
	struct rpc_tag tag; /* of that report */
};

/* A tenant of this user at the head of server->tenants; all have equal parts of config.max_unread_bytes. It does not
 * serve yet. NO_MEMORY. */
enum status rpc_tenant_new(struct rpc_server *server, int64_t user, struct rpc_tenant **out_tenant);
/* Registers the server's rows, which are complete, at its gRPC server. Once, before that starts. NO_MEMORY. */
enum status rpc_tenant_register(struct rpc_tenant *tenant);
/* Frees a tenant that was never started. */
void rpc_tenant_drop(struct rpc_tenant *tenant);
/* gRPC accepts no more calls for this tenant, which started. It is freed when those under way have ended. */
void rpc_tenant_close(struct rpc_tenant *tenant);
/* After `armed` or `open` decreased: frees a closing tenant that waits for nothing else. */
void rpc_tenant_check_idle(struct rpc_tenant *tenant);

/* Length of server->tenants. */
size_t rpc_tenants_count(const struct rpc_server *server);

#endif
