/* SPDX-License-Identifier: Apache-2.0 */
/* The messages of one call that wait to be sent, in their order, and the one that gRPC has. Loop thread. */
#ifndef GACC_RPC_QUEUE_H
#define GACC_RPC_QUEUE_H

#include "proto/status.h"

#include <stddef.h>

struct grpc_byte_buffer;
struct rpc_queued;

struct rpc_queue {
	struct rpc_queued *first, **last;
	struct grpc_byte_buffer *out; /* in flight */
	size_t out_bytes;
	size_t bytes; /* of all, `out` included */
};

void rpc_queue_init(struct rpc_queue *q);
/* Takes the buffer, also on failure. NO_MEMORY. */
enum status rpc_queue_add(struct rpc_queue *q, struct grpc_byte_buffer *buffer);
/* Puts the first that waits into flight; nothing may be in flight. NULL: none waits. */
struct grpc_byte_buffer *rpc_queue_next(struct rpc_queue *q);
/* What was in flight has left. */
void rpc_queue_sent(struct rpc_queue *q);
/* Frees those that wait. */
void rpc_queue_drop(struct rpc_queue *q);
/* The same, and what is in flight. */
void rpc_queue_fini(struct rpc_queue *q);

#endif
