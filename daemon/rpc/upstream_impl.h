/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the RPC layer: the channel to an upstream, as upstream.c and outgoing.c share it. Loop thread. */
#ifndef GACC_RPC_UPSTREAM_IMPL_H
#define GACC_RPC_UPSTREAM_IMPL_H

#include "rpc/private.h"
#include "rpc/upstream.h"

struct grpc_channel;

struct rpc_upstream {
	struct rpc_server *server;
	struct rpc_upstream *next; /* of server->upstreams; not of one that was freed */
	struct grpc_channel *grpc;
	char *authorization; /* NULL: none */
	/* to make another channel; not of one that was freed */
	struct grpc_channel_credentials *creds;
	struct rpc_tls_peer *peer; /* NULL: in the clear */
	char *target, *server_name;
	int keepalive_ms;
	struct rpc_outgoing *streams;
	unsigned open; /* streams that are not gone, also those that have left the list */
	bool freed;    /* by its owner; the last stream frees the memory */
};

/* Cancels all streams of the list. */
void rpc_outgoing_cancel_all(struct rpc_upstream *upstream);
/* The same, and they end with this status and text. */
void rpc_outgoing_fail_all(struct rpc_upstream *upstream, enum status st, const char *why);
/* The same as the first, and they end unseen. */
void rpc_outgoing_forget_all(struct rpc_upstream *upstream);

#endif
