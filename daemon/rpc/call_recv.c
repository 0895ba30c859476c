/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of calls: one RECV_MESSAGE at a time. Each message is counted in its user's quota until it is freed, decoded
 * and passed to the handler. Loop thread. */
#include "rpc/call.h"

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <protobuf-c/protobuf-c.h>

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

static void refuse(struct rpc_call *call, enum status st, const char *why)
{
	rpc_call_drop_message(call);
	rpc_fail(call, &(struct rpc_error){ .status = st, .message = why, .field = call->row->input->name });
}

static void hand_over(struct rpc_call *call)
{
	if (!call->row->method->bulk)
		rpc_call_drop_in(call);
	call->seen = true;
	call->in_handler = true;
	call->row->method->on_message(call, call->request, call->row->method->bulk ? &call->bulk : NULL);
	call->in_handler = false;
	if (!call->wants_next)
		return;
	call->wants_next = false;
	rpc_recv(call);
}

static void on_large_decoded(struct rpc_call *call, enum status st, const char *why)
{
	call->receiving = false;
	if (call->answered || call->closed)
		rpc_call_drop_message(call);
	else if (st)
		refuse(call, st, why);
	else
		hand_over(call);
	rpc_call_end_if_over(call);
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
	if (rpc_call_is_large(call, n)) {
		call->receiving = rpc_call_decode_large(call, on_large_decoded);
		if (!call->receiving)
			refuse(call, ST_NO_MEMORY, "no memory for the call");
		return;
	}
	enum status st = rpc_call_decode(call, why, sizeof(why));
	if (st)
		refuse(call, st, why);
	else
		hand_over(call);
}

void rpc_call_take_message(struct rpc_call *call)
{
	if (call->proxy)
		call->proxy->message(call);
	else if (!call->in)
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
