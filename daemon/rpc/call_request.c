/* SPDX-License-Identifier: Apache-2.0 */
/* The request that a call holds: decoded when it has arrived, and freed when its handler needs it no longer. Both
 * happen in the pool if it is large. Loop thread, and the pool's. */
#include "rpc/call.h"

#include <grpc/byte_buffer.h>
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
	void (*decoded)(struct rpc_call *call, enum status st, const char *why);
	void (*discard)(void *prepared);
	ProtobufCMessage *request; /* to be freed */
	void *prepared;
	enum status status;
	char why[256];
};

/* ---- freeing ---- */

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

void rpc_call_drop_in(struct rpc_call *call)
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
	rpc_call_drop_in(call);
	rpc_quota_give(&call->server->held, call->user, call->held_bytes);
	call->held_bytes = 0;
	call->bulk = (struct bytes_view){ 0 };
}

/* ---- decoding ---- */

enum status rpc_call_decode(struct rpc_call *call, char *why, size_t n_why)
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

static void decode_large(struct rpc_work *w)
{
	struct rpc_large *large = (struct rpc_large *)w;
	large->status = rpc_call_decode(large->call, large->why, sizeof(large->why));
}

static void on_large_decoded(struct rpc_work *w)
{
	struct rpc_large *large = (struct rpc_large *)w;
	struct rpc_call *call = large->call;
	call->pending--;
	large->decoded(call, large->status, large->why);
}

/* Only calls that have no second message, which could overtake this one. */
bool rpc_call_is_large(const struct rpc_call *call, size_t n)
{
	const struct rpc_method *m = call->row->method;
	return !m->bulk && (m->kind == RPC_UNARY || m->kind == RPC_SERVER_STREAM) &&
	       n > (m->prepare ? LARGE_PREPARE_BYTES : LARGE_BYTES);
}

bool rpc_call_decode_large(struct rpc_call *call,
			   void (*decoded)(struct rpc_call *call, enum status st, const char *why))
{
	struct rpc_large *large = calloc(1, sizeof(*large));
	if (!large)
		return false;
	large->server = call->server;
	large->call = call;
	large->decoded = decoded;
	large->discard = call->row->method->discard;
	call->large = large;
	call->pending++;
	rpc_pool_put(call->server->pool, &large->work, call->user, decode_large, on_large_decoded);
	return true;
}

/* ---- what handlers ask ---- */

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
