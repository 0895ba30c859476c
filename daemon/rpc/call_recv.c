/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of calls: one RECV_MESSAGE at a time. Each message is decoded (large ones in the pool), passed to the
 * handler, and counted in its user's quota until it is freed. Loop thread. */
#include "rpc/call.h"

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <protobuf-c/protobuf-c.h>
#include <stdlib.h>

/* Decoding these takes longer than a hop to the pool and back; freeing them, too. */
#define LARGE_BYTES (64u << 10)
#define LARGE_PREPARE_BYTES (2u << 10) /* of methods with `prepare`, whose cost may be the square */

/* A message that is decoded, and later freed, in the pool. */
struct rpc_large {
	struct rpc_work work;
	struct rpc_server *server;
	struct rpc_call *call; /* while it is decoded */
	void (*discard)(void *prepared);
	ProtobufCMessage *request; /* to be freed */
	void *prepared;
	enum status status;
	char why[256];
};

static void free_large(struct rpc_work *w)
{
	struct rpc_large *large = (struct rpc_large *)w;
	bytes_free(large->request);
	if (large->prepared)
		large->discard(large->prepared);
}

static void on_large_freed(struct rpc_work *w)
{
	struct rpc_large *large = (struct rpc_large *)w;
	struct rpc_server *server = large->server;
	free(large);
	server->borrowed--;
	rpc_server_check_idle(server);
}

static void drop_in(struct rpc_call *call)
{
	if (call->in)
		grpc_byte_buffer_destroy(call->in);
	call->in = NULL;
}

void rpc_call_drop_message(struct rpc_call *call)
{
	struct rpc_large *large = call->large;
	if (large) {
		large->request = call->request;
		large->prepared = call->prepared;
		call->server->borrowed++;
		rpc_pool_put(call->server->pool, &large->work, call->user, free_large, on_large_freed);
	} else {
		bytes_free(call->request);
		if (call->prepared)
			call->row->method->discard(call->prepared);
	}
	call->large = NULL;
	call->request = NULL;
	call->prepared = NULL;
	drop_in(call);
	rpc_quota_give(&call->server->held, call->user, call->held_bytes);
	call->held_bytes = 0;
	call->bulk = (struct bytes_view){ 0 };
}

void *rpc_prepared(const struct rpc_call *call)
{
	return call->prepared;
}

ProtobufCMessage *rpc_take_request(struct rpc_call *call)
{
	ProtobufCMessage *request = call->request;
	call->request = NULL;
	return request;
}

struct rpc_pool *rpc_server_pool(const struct rpc_server *server)
{
	return server->pool;
}

void rpc_call_recv(struct rpc_call *call)
{
	grpc_op op = { .op = GRPC_OP_RECV_MESSAGE };
	op.data.recv_message.recv_message = &call->in;
	call->receiving = true;
	rpc_call_start(call, &op, 1, &call->recv);
}

void rpc_recv(struct rpc_call *call)
{
	if (call->answered || call->closed || call->half_closed || call->receiving)
		return;
	if (call->in_handler) {
		call->wants_next = true;
		return;
	}
	rpc_call_drop_message(call);
	rpc_call_recv(call);
}

/* No message came: half-close, unless the call has died. */
static void no_message(struct rpc_call *call)
{
	call->half_closed = true;
	if (call->answered || call->closed || grpc_call_failed_before_recv_message(call->grpc))
		return;
	if (!call->row->method->on_half_close) { /* a unary or server-stream call: one message was owed */
		rpc_failf(call, ST_MALFORMED, "the call has no request message");
		return;
	}
	call->seen = true;
	call->row->method->on_half_close(call);
}

/* Any thread. */
static enum status decode(struct rpc_call *call, char *why, size_t n_why)
{
	const struct rpc_row *row = call->row;
	enum status st;
	if (row->method->bulk)
		st = bytes_from_buffer_bulk(row->input, row->method->bulk, call->in, &call->request, &call->bulk);
	else
		st = bytes_from_buffer(row->input, call->in, &call->request);
	if (st)
		rpc_error_text_unpack(row, call->in, st, why, n_why);
	else if (row->method->prepare)
		call->prepared = row->method->prepare(call->request);
	return st;
}

static void refuse(struct rpc_call *call, enum status st, const char *why)
{
	rpc_call_drop_message(call);
	rpc_fail(call, &(struct rpc_error){ .status = st, .message = why, .field = call->row->input->name });
}

static void hand_over(struct rpc_call *call)
{
	if (!call->row->method->bulk)
		drop_in(call);
	call->seen = true;
	call->in_handler = true;
	call->row->method->on_message(call, call->request, call->row->method->bulk ? &call->bulk : NULL);
	call->in_handler = false;
	if (!call->wants_next)
		return;
	call->wants_next = false;
	rpc_recv(call);
}

static void decode_large(struct rpc_work *w)
{
	struct rpc_large *large = (struct rpc_large *)w;
	large->status = decode(large->call, large->why, sizeof(large->why));
}

static void on_large_decoded(struct rpc_work *w)
{
	struct rpc_large *large = (struct rpc_large *)w;
	struct rpc_call *call = large->call;
	call->pending--;
	call->receiving = false;
	if (call->answered || call->closed)
		rpc_call_drop_message(call);
	else if (large->status)
		refuse(call, large->status, large->why);
	else
		hand_over(call);
	rpc_call_end_if_over(call);
}

/* The call has no second message, so nothing can overtake this one. */
static bool is_large(const struct rpc_call *call, size_t n)
{
	const struct rpc_method *m = call->row->method;
	return !m->bulk && (m->kind == RPC_UNARY || m->kind == RPC_SERVER_STREAM) &&
	       n > (m->prepare ? LARGE_PREPARE_BYTES : LARGE_BYTES);
}

static bool put_large(struct rpc_call *call)
{
	struct rpc_large *large = calloc(1, sizeof(*large));
	if (!large)
		return false;
	large->server = call->server;
	large->call = call;
	large->discard = call->row->method->discard;
	call->large = large;
	call->receiving = true;
	call->pending++;
	rpc_pool_put(call->server->pool, &large->work, call->user, decode_large, on_large_decoded);
	return true;
}

static void deliver(struct rpc_call *call)
{
	char why[256];
	struct rpc_server *server = call->server;
	size_t n = grpc_byte_buffer_length(call->in);
	if (!rpc_call_take_quota(server, &server->held, call->user, n)) {
		rpc_error_text_quota(&server->held, "requests under way", call->user, n, why, sizeof(why));
		refuse(call, ST_RESOURCE_EXHAUSTED, why);
		return;
	}
	call->held_bytes = n;
	if (is_large(call, n)) {
		if (!put_large(call))
			refuse(call, ST_NO_MEMORY, "no memory for the call");
		return;
	}
	enum status st = decode(call, why, sizeof(why));
	if (st)
		refuse(call, st, why);
	else
		hand_over(call);
}

void rpc_call_take_message(struct rpc_call *call)
{
	if (!call->in)
		no_message(call);
	else if (!call->answered && !call->closed)
		deliver(call);
}

void rpc_call_on_recv(struct rpc_tag *tag, bool ok)
{
	struct rpc_call *call = CALL_OF(tag, recv);
	call->pending--;
	call->receiving = false;
	rpc_call_take_message(call);
	rpc_call_end_if_over(call);
}
