/* SPDX-License-Identifier: Apache-2.0 */
/* Blocking calls and streams on a channel: one batch of gRPC operations at a time in each direction. Any thread may
 * call; a stream belongs to one thread at a time. */
#include "lib/call.h"

#include "lib/channel.h"
#include "proto/failpoint.h"
#include "proto/handoff.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>
#include <protobuf-c/protobuf-c.h>

/* A call of any kind; a unary one uses the `status` batch alone. */
struct rpc_stream {
	struct rpc_channel *channel;
	grpc_call *call;
	const ProtobufCMethodDescriptor *types;
	uint32_t bulk;
	struct waiter waiter;
	struct tag status, send, close, recv;
	bool close_sent;
	bool ended; /* no more messages will come */

	grpc_byte_buffer *out;
	grpc_byte_buffer *in;
	ProtobufCMessage *msg;

	grpc_metadata_array initial, trailing;
	grpc_status_code code;
	grpc_slice text;
};

static void fill_failure(const struct rpc_stream *stream, struct rpc_failure *failure)
{
	const void *trailer = NULL;
	size_t n = 0;
	for (size_t i = 0; i < stream->trailing.count; i++) {
		const grpc_metadata *entry = &stream->trailing.metadata[i];
		if (grpc_slice_str_cmp(entry->key, ERROR_DETAIL_KEY) == 0) {
			trailer = GRPC_SLICE_START_PTR(entry->value);
			n = GRPC_SLICE_LENGTH(entry->value);
		}
	}
	error_detail_unpack(stream->code, (const char *)GRPC_SLICE_START_PTR(stream->text),
			    GRPC_SLICE_LENGTH(stream->text), trailer, n, failure);
}

static void fill_local(struct rpc_failure *failure, enum status st, const char *message)
{
	*failure = (struct rpc_failure){ .status = st, .grpc_code = status_info(st)->grpc_code };
	snprintf(failure->message, sizeof(failure->message), "%s", message);
}

static const ProtobufCMethodDescriptor *find_method(const ProtobufCServiceDescriptor *service, const char *name)
{
	for (unsigned i = 0; i < service->n_methods; i++)
		if (strcmp(service->methods[i].name, name) == 0)
			return &service->methods[i];
	return NULL;
}

static gpr_timespec deadline_in(int64_t timeout_ms)
{
	return timeout_ms > 0
		       ? gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(timeout_ms, GPR_TIMESPAN))
		       : gpr_inf_future(GPR_CLOCK_MONOTONIC);
}

static enum status stream_new(struct rpc_channel *channel, const ProtobufCServiceDescriptor *service, const char *name,
			      int64_t timeout_ms, struct rpc_stream **out_stream)
{
	const ProtobufCMethodDescriptor *types = find_method(service, name);
	char path[160];
	if (!types)
		return ST_UNIMPLEMENTED;
	struct rpc_stream *stream = calloc(1, sizeof(*stream));
	if (!stream)
		return ST_NO_MEMORY;
	snprintf(path, sizeof(path), "/%s/%s", service->name, name);
	stream->channel = channel;
	stream->types = types;
	stream->status.waiter = stream->send.waiter = stream->close.waiter = stream->recv.waiter = &stream->waiter;
	stream->text = grpc_empty_slice();
	grpc_metadata_array_init(&stream->initial);
	grpc_metadata_array_init(&stream->trailing);
	waiter_init(&stream->waiter, false);
	grpc_slice path_slice = grpc_slice_from_copied_string(path);
	stream->call = grpc_channel_create_call(channel->grpc, NULL, GRPC_PROPAGATE_DEFAULTS, channel->queue.grpc,
						path_slice, NULL, deadline_in(timeout_ms), NULL);
	grpc_slice_unref(path_slice);
	*out_stream = stream;
	return ST_OK;
}

static bool start(struct rpc_stream *stream, const grpc_op *ops, size_t n, struct tag *tag)
{
	tag->out = true;
	handoff_given(tag);
	if (grpc_call_start_batch(stream->call, ops, n, tag, NULL) == GRPC_CALL_OK)
		return true;
	tag->out = false;
	tag->ok = false;
	return false;
}

static bool wait_for(struct rpc_stream *stream, const struct tag *tag, int64_t timeout_ms)
{
	return queue_wait(&stream->channel->queue, tag, timeout_ms);
}

static bool is_out(struct rpc_stream *stream, const struct tag *tag)
{
	return !wait_for(stream, tag, 0);
}

/* The ops that every call has: headers out and in, and the status. */
static size_t common_ops(struct rpc_stream *stream, grpc_op *ops, grpc_metadata *header)
{
	ops[0] = (grpc_op){ .op = GRPC_OP_SEND_INITIAL_METADATA };
	if (stream->channel->authorization) {
		header->key = grpc_slice_from_static_string("authorization");
		header->value = grpc_slice_from_copied_string(stream->channel->authorization);
		ops[0].data.send_initial_metadata.count = 1;
		ops[0].data.send_initial_metadata.metadata = header;
	}
	ops[1] = (grpc_op){ .op = GRPC_OP_RECV_INITIAL_METADATA };
	ops[1].data.recv_initial_metadata.recv_initial_metadata = &stream->initial;
	ops[2] = (grpc_op){ .op = GRPC_OP_RECV_STATUS_ON_CLIENT };
	ops[2].data.recv_status_on_client.trailing_metadata = &stream->trailing;
	ops[2].data.recv_status_on_client.status = &stream->code;
	ops[2].data.recv_status_on_client.status_details = &stream->text;
	return 3;
}

static void drop_out(struct rpc_stream *stream)
{
	if (stream->out)
		grpc_byte_buffer_destroy(stream->out);
	stream->out = NULL;
}

static void drop_in(struct rpc_stream *stream)
{
	bytes_free(stream->msg);
	stream->msg = NULL;
	if (stream->in)
		grpc_byte_buffer_destroy(stream->in);
	stream->in = NULL;
}

void rpc_stream_free(struct rpc_stream *stream)
{
	if (!stream)
		return;
	if (is_out(stream, &stream->status))
		grpc_call_cancel(stream->call, NULL);
	wait_for(stream, &stream->status, -1);
	wait_for(stream, &stream->send, -1);
	wait_for(stream, &stream->close, -1);
	wait_for(stream, &stream->recv, -1);
	drop_out(stream);
	drop_in(stream);
	grpc_metadata_array_destroy(&stream->initial);
	grpc_metadata_array_destroy(&stream->trailing);
	grpc_slice_unref(stream->text);
	grpc_call_unref(stream->call);
	waiter_fini(&stream->waiter);
	free(stream);
}

static void take_reply(struct rpc_stream *stream, ProtobufCMessage **out_reply, struct rpc_failure *failure)
{
	enum status st = bytes_from_buffer(stream->types->output, stream->in, out_reply);
	if (st)
		fill_local(failure, st, st == ST_NO_MEMORY ? "no memory for the reply" : "the reply is malformed");
}

/* One batch, one completion. */
static enum status exchange(struct rpc_stream *stream, const ProtobufCMessage *request, ProtobufCMessage **out_reply,
			    struct rpc_failure *failure)
{
	grpc_op ops[6];
	grpc_metadata header = { .value = grpc_empty_slice() };
	size_t n = common_ops(stream, ops, &header);
	stream->out = bytes_to_buffer(request);
	ops[n] = (grpc_op){ .op = GRPC_OP_SEND_MESSAGE };
	ops[n++].data.send_message.send_message = stream->out;
	ops[n++] = (grpc_op){ .op = GRPC_OP_SEND_CLOSE_FROM_CLIENT };
	ops[n] = (grpc_op){ .op = GRPC_OP_RECV_MESSAGE };
	ops[n++].data.recv_message.recv_message = &stream->in;
	bool started = start(stream, ops, n, &stream->status);
	grpc_slice_unref(header.value);
	FAILPOINT(client_call_sent);
	wait_for(stream, &stream->status, -1);
	if (!started) {
		fill_local(failure, ST_INTERNAL, "gRPC refused the call");
	} else {
		fill_failure(stream, failure);
		if (failure->status == ST_OK && !stream->in)
			fill_local(failure, ST_MALFORMED, "the reply has no message");
		else if (failure->status == ST_OK)
			take_reply(stream, out_reply, failure);
	}
	return failure->status;
}

enum status rpc_channel_call(struct rpc_channel *channel, const ProtobufCServiceDescriptor *service, const char *method,
			     const ProtobufCMessage *request, int64_t timeout_ms, ProtobufCMessage **out_reply,
			     struct rpc_failure *failure)
{
	struct rpc_failure unused;
	struct rpc_failure *f = failure ? failure : &unused;
	struct rpc_stream *stream;
	enum status st = stream_new(channel, service, method, timeout_ms, &stream);
	if (st != ST_OK) {
		fill_local(f, st, status_info(st)->text);
		return st;
	}
	st = exchange(stream, request, out_reply, f);
	rpc_stream_free(stream);
	return st;
}

/* Streams */

enum status rpc_stream_open(struct rpc_channel *channel, const ProtobufCServiceDescriptor *service, const char *method,
			    int64_t timeout_ms, uint32_t bulk, struct rpc_stream **out_stream)
{
	struct rpc_stream *stream;
	enum status st = stream_new(channel, service, method, timeout_ms, &stream);
	if (st != ST_OK)
		return st;
	grpc_op ops[3];
	grpc_metadata header = { .value = grpc_empty_slice() };
	size_t n = common_ops(stream, ops, &header);
	bool started = start(stream, ops, n, &stream->status);
	grpc_slice_unref(header.value);
	if (!started) {
		rpc_stream_free(stream);
		return ST_INTERNAL;
	}
	stream->bulk = bulk;
	stream->waiter.patient = timeout_ms <= 0;
	*out_stream = stream;
	return ST_OK;
}

/* Takes the buffer. */
static enum status send_buffer(struct rpc_stream *stream, grpc_byte_buffer *buffer)
{
	grpc_op op = { .op = GRPC_OP_SEND_MESSAGE };
	bool first = !stream->out;
	wait_for(stream, &stream->send, -1);
	drop_out(stream);
	stream->out = buffer;
	if (stream->close_sent || (!first && !stream->send.ok))
		return ST_UNAVAILABLE;
	op.data.send_message.send_message = buffer;
	return start(stream, &op, 1, &stream->send) ? ST_OK : ST_UNAVAILABLE;
}

enum status rpc_stream_send(struct rpc_stream *stream, const ProtobufCMessage *msg)
{
	return send_buffer(stream, bytes_to_buffer(msg));
}

enum status rpc_stream_send_bulk(struct rpc_stream *stream, const ProtobufCMessage *msg, uint32_t field,
				 const void *data, size_t n, void (*release)(void *arg), void *arg)
{
	return send_buffer(stream, bytes_to_buffer_bulk(msg, field, data, n, release, arg));
}

enum status rpc_stream_close_send(struct rpc_stream *stream)
{
	grpc_op op = { .op = GRPC_OP_SEND_CLOSE_FROM_CLIENT };
	if (stream->close_sent)
		return ST_OK;
	wait_for(stream, &stream->send, -1);
	stream->close_sent = true;
	return start(stream, &op, 1, &stream->close) ? ST_OK : ST_UNAVAILABLE;
}

static enum status unpack(struct rpc_stream *stream, struct bytes_view *out_bulk)
{
	struct bytes_view ignored;
	if (stream->bulk)
		return bytes_from_buffer_bulk(stream->types->output, stream->bulk, stream->in, &stream->msg,
					      out_bulk ? out_bulk : &ignored);
	return bytes_from_buffer(stream->types->output, stream->in, &stream->msg);
}

/* Waits for a message in stream->in; NULL at the end. */
static enum status next_buffer(struct rpc_stream *stream, int64_t timeout_ms)
{
	grpc_op op = { .op = GRPC_OP_RECV_MESSAGE };
	op.data.recv_message.recv_message = &stream->in;
	if (stream->ended)
		return ST_OK;
	if (!is_out(stream, &stream->recv)) {
		drop_in(stream);
		start(stream, &op, 1, &stream->recv);
	}
	if (!wait_for(stream, &stream->recv, timeout_ms))
		return ST_STALLED;
	stream->ended = !stream->in;
	return ST_OK;
}

enum status rpc_stream_next(struct rpc_stream *stream, int64_t timeout_ms, const ProtobufCMessage **out_msg,
			    struct bytes_view *out_bulk)
{
	enum status st = next_buffer(stream, timeout_ms);
	if (st != ST_OK)
		return st;
	if (!stream->ended) {
		st = unpack(stream, out_bulk);
		if (st != ST_OK) {
			rpc_stream_cancel(stream);
			return st;
		}
	}
	*out_msg = stream->ended ? NULL : stream->msg;
	return ST_OK;
}

enum status rpc_stream_finish(struct rpc_stream *stream, struct rpc_failure *failure)
{
	struct rpc_failure unused;
	struct rpc_failure *f = failure ? failure : &unused;
	rpc_stream_close_send(stream);
	do
		next_buffer(stream, -1);
	while (!stream->ended);
	wait_for(stream, &stream->status, -1);
	fill_failure(stream, f);
	return f->status;
}

void rpc_stream_cancel(struct rpc_stream *stream)
{
	grpc_call_cancel(stream->call, NULL);
}
