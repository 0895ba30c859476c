/* SPDX-License-Identifier: Apache-2.0 */
/* The send queue of one call: a linked list of gRPC's byte buffers, and the one that gRPC is sending. Used by
 * call_send.c on the loop thread. */
#include "rpc/queue.h"

#include <stdlib.h>
#include <grpc/byte_buffer.h>

struct rpc_queued {
	struct rpc_queued *next;
	grpc_byte_buffer *buffer;
	size_t bytes; /* gRPC empties the buffer that it sends */
};

void rpc_queue_init(struct rpc_queue *q)
{
	*q = (struct rpc_queue){ .last = &q->first };
}

enum status rpc_queue_add(struct rpc_queue *q, grpc_byte_buffer *buffer)
{
	struct rpc_queued *m = malloc(sizeof(*m));
	if (!m) {
		grpc_byte_buffer_destroy(buffer);
		return ST_NO_MEMORY;
	}
	*m = (struct rpc_queued){ .buffer = buffer, .bytes = grpc_byte_buffer_length(buffer) };
	*q->last = m;
	q->last = &m->next;
	q->bytes += m->bytes;
	return ST_OK;
}

static void unlink_first(struct rpc_queue *q)
{
	struct rpc_queued *m = q->first;
	q->first = m->next;
	if (!q->first)
		q->last = &q->first;
	free(m);
}

grpc_byte_buffer *rpc_queue_next(struct rpc_queue *q)
{
	if (!q->first)
		return NULL;
	q->out = q->first->buffer;
	q->out_bytes = q->first->bytes;
	unlink_first(q);
	return q->out;
}

void rpc_queue_sent(struct rpc_queue *q)
{
	q->bytes -= q->out_bytes;
	q->out_bytes = 0;
	grpc_byte_buffer_destroy(q->out);
	q->out = NULL;
}

void rpc_queue_drop(struct rpc_queue *q)
{
	while (q->first) {
		q->bytes -= q->first->bytes;
		grpc_byte_buffer_destroy(q->first->buffer);
		unlink_first(q);
	}
}

void rpc_queue_fini(struct rpc_queue *q)
{
	rpc_queue_drop(q);
	if (q->out)
		rpc_queue_sent(q);
}
