/* SPDX-License-Identifier: Apache-2.0 */
/* The users of an RPC server, each with a gRPC server of its own.
 *
 * gRPC reads requests before it hands a call over, and nothing that we may set for a connection bounds what it holds
 * then: a window is a stream's, and for a message that is being read it opens until the message is whole, however large
 * it says it is. What bounds it is a resource quota; but one that is exhausted ends whatever calls it meets first and
 * closes idle connections, for all of its gRPC server. So every user has a server, and what it does costs its own
 * calls. All have equal parts of config.max_unread_bytes.
 *
 * A tenant serves while its user has connections; then it is closing: gRPC takes no more calls of it, and when those
 * under way have come back it is freed. A new connection makes a new one. `common` serves from the start to the stop:
 * whoever comes over TCP, and users beyond TENANTS_MAX. Loop thread.
 */
#ifndef GACC_RPC_TENANT_H
#define GACC_RPC_TENANT_H

#include "rpc/private.h"

struct grpc_resource_quota;

#define TENANTS_MAX 32 /* `common` included, and those that are closing */

struct rpc_tenant {
	struct rpc_server *server;
	struct rpc_tenant *next;
	int64_t who; /* as rpc/shares.h has it; RPC_STRANGERS: `common` */
	struct grpc_server *grpc;
	struct grpc_resource_quota *quota;
	/* by number of row, UNARY: gRPC's handle of the method; it reads the request before it hands the call over */
	void **registered;
	unsigned connections;
	unsigned armed;	    /* calls waiting to be accepted */
	unsigned open;	    /* accepted and not yet freed, the refused ones included */
	bool closing;	    /* gRPC accepts no more calls */
	bool shut;	    /* gRPC's word that the closing is over */
	struct rpc_tag tag; /* of that word */
};

/* server->common, before the start: it has no rows yet and does not serve. NO_MEMORY. */
enum status rpc_tenants_init(struct rpc_server *server);
/* Gives `common` the rows, which are complete. NO_MEMORY. */
enum status rpc_tenants_register(struct rpc_server *server);
/* Then serves it. */
void rpc_tenants_start(struct rpc_server *server);
/* Frees `common`, if nothing was ever started; else all are gone already. */
void rpc_tenants_fini(struct rpc_server *server);

/* The tenant that serves this user's next connection, which counts from now. NO_MEMORY. */
enum status rpc_tenant_enter(struct rpc_server *server, uid_t uid, struct rpc_tenant **out_tenant);
/* A connection of this user is over. */
void rpc_tenant_leave(struct rpc_server *server, uid_t uid);

/* After armed or open became less: frees the tenant if it was the last that it waited for. */
void rpc_tenant_check_idle(struct rpc_tenant *tenant);

/* The stop: closes all. server->tenants is NULL when they are gone, and rpc_server_check_idle has been called. */
void rpc_tenants_close(struct rpc_server *server);
/* Ends the calls that are under way. */
void rpc_tenants_cancel(struct rpc_server *server);
/* Calls under way. */
unsigned rpc_tenants_open(const struct rpc_server *server);

#endif
