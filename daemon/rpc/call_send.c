/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of calls: one SEND_MESSAGE in flight, the others queued, and the status once the queue is empty. What waits
 * is counted in its user's quota. Loop thread; large replies are packed in the pool. */
#include "rpc/call.h"
#include "rpc/revoked.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/slice.h>
#include <protobuf-c/protobuf-c.h>

static size_t metadata_op(struct rpc_call *call, grpc_op *op)
{
	if (call->sent_metadata)
		return 0;
	call->sent_metadata = true;
	*op = (grpc_op){ .op = GRPC_OP_SEND_INITIAL_METADATA };
	return 1;
}

static void send_status(struct rpc_call *call)
{
	grpc_metadata trailer = { .key = grpc_slice_from_static_string(ERROR_DETAIL_KEY), .value = call->detail };
	grpc_op ops[3];
	size_t n = metadata_op(call, ops);
	call->sent_status = true;
	if (call->reply) {
		ops[n] = (grpc_op){ .op = GRPC_OP_SEND_MESSAGE };
		ops[n++].data.send_message.send_message = call->reply;
	}
	ops[n] = (grpc_op){ .op = GRPC_OP_SEND_STATUS_FROM_SERVER };
	ops[n].data.send_status_from_server.status = (grpc_status_code)call->code;
	ops[n].data.send_status_from_server.status_details = &call->text;
	if (!GRPC_SLICE_IS_EMPTY(call->detail)) {
		ops[n].data.send_status_from_server.trailing_metadata_count = 1;
		ops[n].data.send_status_from_server.trailing_metadata = &trailer;
	}
	rpc_call_start(call, ops, n + 1, &call->finish);
}

void rpc_call_on_finish(struct rpc_tag *tag, bool ok)
{
	struct rpc_call *call = CALL_OF(tag, finish);
	call->pending--;
	rpc_call_drop_reply(call);
	rpc_call_end_if_over(call);
}

/* A queued message, or the status once the queue is empty. */
static void send_now(struct rpc_call *call)
{
	grpc_byte_buffer *message = rpc_queue_next(&call->queue);
	if (!message) {
		if (call->answered && !call->sent_status)
			send_status(call);
		return;
	}
	grpc_op ops[2];
	size_t n = metadata_op(call, ops);
	ops[n] = (grpc_op){ .op = GRPC_OP_SEND_MESSAGE };
	ops[n].data.send_message.send_message = message;
	call->sending = true;
	rpc_call_start(call, ops, n + 1, &call->send);
}

void rpc_call_on_turn(struct rpc_tag *tag, bool ok)
{
	struct rpc_call *call = CALL_OF(tag, turn);
	call->pending--;
	call->waits = false;
	if (!call->sending && !call->closed)
		send_now(call);
	rpc_call_end_if_over(call);
}

/* Sends the next message or the status, if there is one. gRPC writes to the socket at once, and thousands of calls may
 * be answered by one event: then some wait for a later turn of the loop. */
static void send_next(struct rpc_call *call)
{
	bool anything = call->queue.first || (call->answered && !call->sent_status);
	if (call->sending || call->closed || call->waits || !anything)
		return;
	if (rpc_turns_take(call->server->sends)) {
		send_now(call);
		return;
	}
	call->waits = true;
	call->pending++;
	rpc_turns_put(call->server->sends, &call->turn);
}

void rpc_call_on_sent(struct rpc_tag *tag, bool ok)
{
	struct rpc_call *call = CALL_OF(tag, send);
	call->pending--;
	call->sending = false;
	rpc_queue_sent(&call->queue);
	rpc_call_give_queued(call);
	if (ok)
		send_next(call);
	void (*on_writable)(struct rpc_call *) = call->proxy ? call->proxy->writable : call->row->method->on_writable;
	if (ok && !call->answered && !call->closed && on_writable &&
	    call->queue.bytes <= call->server->config.max_queued_bytes / 2)
		on_writable(call);
	rpc_call_end_if_over(call);
}

/* Counts n more bytes that wait for the client. A small first message is allowed even without quota, so that every call
 * can be answered. */
static bool take_queued(struct rpc_call *call, size_t n)
{
	bool first = call->queue.bytes + call->reply_bytes == 0;
	if (!rpc_quota_take(&call->server->queued, call->user, n))
		return first && n <= RPC_ROOM_MIN;
	call->queued_bytes += n;
	return true;
}

static void fail_without_room(struct rpc_call *call, size_t n)
{
	char text[256];
	rpc_error_text_quota(&call->server->queued, "answers that nobody has read yet", call->user, n, text,
			     sizeof(text));
	rpc_fail(call,
		 &(struct rpc_error){ .status = ST_RESOURCE_EXHAUSTED,
				      .message = text,
				      .hint = "read the answers of the calls that are open, then repeat this one" });
}

/* Takes the buffer. A call with nothing on the way is ended if there is no room: on_writable would never come. */
static enum status enqueue(struct rpc_call *call, grpc_byte_buffer *buffer)
{
	size_t n = grpc_byte_buffer_length(buffer);
	if (!take_queued(call, n)) {
		grpc_byte_buffer_destroy(buffer);
		if (call->queue.bytes)
			return ST_RESOURCE_EXHAUSTED;
		fail_without_room(call, n);
		return ST_CANCELLED;
	}
	enum status st = rpc_queue_add(&call->queue, buffer);
	rpc_call_give_queued(call); /* if there was no memory */
	if (st == ST_OK)
		send_next(call);
	return st;
}

static enum status may_send(const struct rpc_call *call)
{
	if (call->answered || call->closed)
		return ST_CANCELLED;
	return call->queue.bytes >= call->server->config.max_queued_bytes ? ST_RESOURCE_EXHAUSTED : ST_OK;
}

size_t rpc_room(const struct rpc_call *call)
{
	if (may_send(call) != ST_OK)
		return 0;
	size_t room = rpc_quota_left(&call->server->queued, call->user);
	return call->queue.bytes == 0 && room < RPC_ROOM_MIN ? RPC_ROOM_MIN : room;
}

enum status rpc_send(struct rpc_call *call, const ProtobufCMessage *msg)
{
	assert(msg->descriptor == call->row->output);
	enum status st = may_send(call);
	return st == ST_OK ? enqueue(call, bytes_to_buffer(msg)) : st;
}

enum status rpc_send_bulk(struct rpc_call *call, const ProtobufCMessage *msg, uint32_t bulk, const void *data, size_t n,
			  void (*release)(void *arg), void *arg)
{
	assert(msg->descriptor == call->row->output);
	enum status st = may_send(call);
	void *borrowed = st == ST_OK ? rpc_borrowed_new(call->server, release, arg) : NULL;
	if (!borrowed) {
		release(arg);
		return st == ST_OK ? ST_NO_MEMORY : st;
	}
	return enqueue(call, bytes_to_buffer_bulk(msg, bulk, data, n, rpc_borrowed_end, borrowed));
}

/* ---- ending ---- */

static void answer(struct rpc_call *call, int code, const char *text)
{
	call->answered = true;
	call->code = code;
	call->text = grpc_slice_from_copied_buffer(text, error_text_fit(text, ERROR_TEXT_MAX));
	if (code != 0)
		rpc_call_drop_queue(call);
	send_next(call);
}

/* Takes the buffer. false: there is no room, and the call has failed for that. */
static bool keep_reply(struct rpc_call *call, grpc_byte_buffer *buffer)
{
	size_t n = grpc_byte_buffer_length(buffer);
	if (!take_queued(call, n)) {
		grpc_byte_buffer_destroy(buffer);
		fail_without_room(call, n);
		return false;
	}
	call->reply = buffer;
	call->reply_bytes = n;
	return true;
}

/* ---- what another server has answered ---- */

enum status rpc_call_pass_message(struct rpc_call *call, grpc_byte_buffer *message)
{
	enum status st = may_send(call);
	if (st == ST_OK)
		return enqueue(call, message);
	grpc_byte_buffer_destroy(message);
	return st;
}

bool rpc_call_pass_reply(struct rpc_call *call, grpc_byte_buffer *reply)
{
	return keep_reply(call, reply);
}

/* Unlike an error of ours, this one drops no message: all that came before belong to the answer. */
void rpc_call_pass_status(struct rpc_call *call, int code, grpc_slice text, grpc_slice detail)
{
	call->answered = true;
	call->code = code;
	call->text = grpc_slice_ref(text);
	call->detail = grpc_slice_ref(detail);
	send_next(call);
}

/* ---- ending, for handlers ---- */

void rpc_finish(struct rpc_call *call, const ProtobufCMessage *reply)
{
	/* messages without fields are all the same on the wire */
	assert(!reply || reply->descriptor == call->row->output ||
	       (!reply->descriptor->n_fields && !call->row->output->n_fields));
	if (call->answered || (reply && !keep_reply(call, bytes_to_buffer(reply))))
		return;
	answer(call, 0, "");
}

struct made {
	struct rpc_work work;
	struct rpc_call *call;
	const ProtobufCMessage *(*make)(void *arg);
	void (*release)(void *arg);
	void *arg;
	grpc_byte_buffer *buffer; /* NULL: no memory */
};

static void make_reply(struct rpc_work *w)
{
	struct made *m = (struct made *)w;
	const ProtobufCMessage *reply = m->make(m->arg);
	m->buffer = reply ? bytes_to_buffer(reply) : NULL;
}

static void on_made(struct rpc_work *w)
{
	struct made *m = (struct made *)w;
	struct rpc_call *call = m->call;
	call->pending--;
	if (!m->buffer)
		rpc_fail(call, &(struct rpc_error){ .status = ST_NO_MEMORY, .message = "no memory for the answer" });
	else if (call->answered || call->closed)
		grpc_byte_buffer_destroy(m->buffer);
	else if (keep_reply(call, m->buffer))
		answer(call, 0, "");
	m->release(m->arg);
	free(m);
	rpc_call_end_if_over(call);
}

void rpc_finish_made(struct rpc_call *call, const ProtobufCMessage *(*make)(void *arg), void (*release)(void *arg),
		     void *arg)
{
	struct made *m = calloc(1, sizeof(*m));
	if (!m) {
		rpc_fail(call, &(struct rpc_error){ .status = ST_NO_MEMORY, .message = "no memory for the answer" });
		release(arg);
		return;
	}
	m->call = call;
	m->make = make;
	m->release = release;
	m->arg = arg;
	call->pending++;
	rpc_pool_put(call->server->pool, &m->work, call->user, make_reply, on_made);
}

void rpc_finish_code(struct rpc_call *call, int grpc_code, const char *text)
{
	if (!call->answered)
		answer(call, grpc_code, text);
}

void rpc_fail(struct rpc_call *call, const struct rpc_error *error)
{
	const struct status_info *info = status_info(error->status);
	uint8_t *detail;
	size_t n;
	if (call->answered)
		return;
	error_detail_pack(error, &detail, &n);
	if (detail)
		call->detail = grpc_slice_from_copied_buffer((char *)detail, n);
	free(detail);
	char text[ERROR_TEXT_MAX + 1];
	answer(call, info->grpc_code, error_text_copy(error->message ? error->message : info->text, text));
}

void rpc_failf(struct rpc_call *call, enum status status, const char *fmt, ...)
{
	char text[512];
	va_list args;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	rpc_fail(call, &(struct rpc_error){ .status = status, .message = text });
}

void rpc_call_drain(struct rpc_call *call)
{
	if (call->row->method->flags & RPC_ENDS_ON_DRAIN)
		rpc_fail(call, &(struct rpc_error){ .status = ST_DRAINING });
}

void rpc_call_end_revoked(struct rpc_call *call)
{
	const struct rpc_peer *peer = &call->peer;
	if (peer->serial[0] && revoked_has(peer->serial)) {
		call->peer.revoked = true;
		rpc_failf(call, ST_UNAUTHENTICATED, "certificate \"%s\" (serial %s) is revoked", peer->name,
			  peer->serial);
	}
}
