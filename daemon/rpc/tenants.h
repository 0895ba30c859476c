/* SPDX-License-Identifier: Apache-2.0 */
/* The users of an RPC server, each with a gRPC server of its own.
 *
 * gRPC reads requests before it reports a call, and no setting of a connection limits how much memory they take: flow
 * control works per stream, and gRPC opens the window of a message until all of it has arrived, however large it claims
 * to be. A resource quota does limit it; but an exhausted quota ends any calls of its gRPC server and closes idle
 * connections. So every user has a gRPC server, and a user that exhausts its quota harms only its own calls. All
 * tenants have equal parts of config.max_unread_bytes.
 *
 * A tenant serves while its user has connections. After the last it is closing: gRPC accepts no more calls for it, and
 * when those under way have ended it is freed. A new connection makes a new tenant. One tenant, `overflow`, serves from
 * the start to the stop: all clients over TCP, and users beyond TENANTS_MAX. Loop thread.
 */
#ifndef GACC_RPC_TENANTS_H
#define GACC_RPC_TENANTS_H

#include "rpc/tenant.h"

#define TENANTS_MAX 32 /* `overflow` included, and those that are closing */

/* server->overflow, before the start: it has no rows yet and does not serve. NO_MEMORY. */
enum status rpc_tenants_init(struct rpc_server *server);
/* Registers the rows, which are complete, in `overflow`. NO_MEMORY. */
enum status rpc_tenants_register(struct rpc_server *server);
/* After that: starts serving. */
void rpc_tenants_start(struct rpc_server *server);
/* Frees `overflow` if the server never started; otherwise rpc_tenants_close has freed all. */
void rpc_tenants_fini(struct rpc_server *server);

/* The tenant for a new connection of this user; the connection counts from now on. NO_MEMORY. */
enum status rpc_tenant_enter(struct rpc_server *server, uid_t uid, struct rpc_tenant **out_tenant);
/* A connection of this user has ended. */
void rpc_tenant_leave(struct rpc_server *server, uid_t uid);

/* The stop: closes all. server->tenants is NULL when they are gone, and rpc_server_check_idle has been called. */
void rpc_tenants_close(struct rpc_server *server);
/* Ends the calls that are under way. */
void rpc_tenants_cancel(struct rpc_server *server);
/* Calls under way. */
unsigned rpc_tenants_open(const struct rpc_server *server);

#endif
