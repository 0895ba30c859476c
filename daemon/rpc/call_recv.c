/* Requests of calls: one RECV_MESSAGE at a time; what came is unpacked, handed to the handler, and counted until it is let go of. */
#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <protobuf-c/protobuf-c.h>
#include "rpc/call.h"

static void drop_in(struct rpc_call *call)
{
	if (call->in)
		grpc_byte_buffer_destroy(call->in);
	call->in = NULL;
}

void rpc_call_drop_message(struct rpc_call *call)
{
	bytes_free(call->request);
	call->request = NULL;
	drop_in(call);
	rpc_shares_give(&call->server->held, call->who, call->held_bytes);
	call->held_bytes = 0;
	call->bulk = (struct bytes_view){ 0 };
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

static enum status unpack(struct rpc_call *call, char *why, size_t n_why)
{
	const struct rpc_row *row = call->row;
	struct rpc_server *server = call->server;
	size_t n = grpc_byte_buffer_length(call->in);
	enum status st;
	if (!rpc_call_take_share(server, &server->held, call->who, n)) {
		rpc_why_no_room(&server->held, "requests under way", call->who, n, why, n_why);
		return ST_RESOURCE_EXHAUSTED;
	}
	call->held_bytes = n;
	if (row->method->bulk)
		st = bytes_from_buffer_bulk(row->input, row->method->bulk, call->in, &call->request, &call->bulk);
	else
		st = bytes_from_buffer(row->input, call->in, &call->request);
	if (st)
		rpc_why_unpack(row, call->in, st, why, n_why);
	if (!row->method->bulk)
		drop_in(call);
	return st;
}

static void deliver(struct rpc_call *call)
{
	char why[256];
	enum status st = unpack(call, why, sizeof why);
	if (st != ST_OK) {
		rpc_call_drop_message(call);
		rpc_fail(call, &(struct rpc_error){ .status = st, .message = why, .field = call->row->input->name });
		return;
	}
	call->seen = true;
	call->in_handler = true;
	call->row->method->on_message(call, call->request, call->row->method->bulk ? &call->bulk : NULL);
	call->in_handler = false;
	if (!call->wants_next)
		return;
	call->wants_next = false;
	rpc_recv(call);
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
