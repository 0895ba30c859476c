/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that this gaccd opens at an upstream: one batch for the headers and the status, one RECV_MESSAGE and one
 * SEND_MESSAGE at a time. A stream is gone when all of them have completed. Loop thread. */
#include "rpc/upstream_impl.h"

#include "base/log.h"
#include "rpc/queue.h"
#include "proto/handoff.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>
#include <protobuf-c/protobuf-c.h>

#define OUTGOING_OF(tag_, member) ((struct rpc_outgoing *)((char *)(tag_)-offsetof(struct rpc_outgoing, member)))

struct rpc_outgoing {
	grpc_call *grpc;
	struct rpc_upstream *upstream;
	struct rpc_outgoing *prev, *next; /* of upstream->streams */
	char path[128];
	const ProtobufCMessageDescriptor *input, *output; /* what it sends, and receives */
	struct rpc_outgoing_ends ends;			  /* all NULL: its owner has forgotten it */
	struct rpc_tag status, recv, send;
	unsigned pending; /* batches that gRPC has not completed */
	bool over;	  /* the status has come */
	bool cancelled;
	bool receiving, sending;
	bool in_message;
	bool wants_next; /* rpc_outgoing_recv inside of `message` */
	bool read_all;	 /* no more messages will come */

	grpc_byte_buffer *in;
	struct rpc_queue queue;
	size_t max_queued_bytes;
	grpc_metadata_array initial, trailing;
	grpc_status_code code;
	grpc_slice text;
	enum status fault; /* of a message that came; then `why` */
	char why[256];
};

/* ---- life ---- */

static void list_add(struct rpc_outgoing *stream)
{
	struct rpc_upstream *upstream = stream->upstream;
	stream->next = upstream->streams;
	if (stream->next)
		stream->next->prev = stream;
	upstream->streams = stream;
}

static void list_remove(struct rpc_outgoing *stream)
{
	*(stream->prev ? &stream->prev->next : &stream->upstream->streams) = stream->next;
	if (stream->next)
		stream->next->prev = stream->prev;
}

static void free_stream(struct rpc_outgoing *stream)
{
	rpc_queue_fini(&stream->queue);
	grpc_metadata_array_destroy(&stream->initial);
	grpc_metadata_array_destroy(&stream->trailing);
	grpc_slice_unref(stream->text);
	grpc_call_unref(stream->grpc);
	free(stream);
}

static void read_status(const struct rpc_outgoing *stream, struct rpc_failure *out_failure)
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
			    GRPC_SLICE_LENGTH(stream->text), trailer, n, out_failure);
}

static void tell_end(const struct rpc_outgoing *stream)
{
	struct rpc_failure failure;
	if (!stream->ends.ended)
		return;
	if (stream->fault) {
		stream->ends.ended(stream->ends.context, stream->fault, stream->why);
		return;
	}
	read_status(stream, &failure);
	stream->ends.ended(stream->ends.context, failure.status,
			   failure.message[0] ? failure.message : status_info(failure.status)->text);
}

/* The owner may free the upstream in `ended`. */
static void end_if_over(struct rpc_outgoing *stream)
{
	struct rpc_upstream *upstream = stream->upstream;
	struct rpc_server *server = upstream->server;
	if (!stream->over || stream->pending > 0)
		return;
	list_remove(stream);
	tell_end(stream);
	free_stream(stream);
	if (--upstream->open == 0 && upstream->freed)
		free(upstream);
	server->borrowed--;
	rpc_server_check_idle(server);
}

/* gRPC refuses a batch only if we made a mistake. */
static bool start(struct rpc_outgoing *stream, const grpc_op *ops, size_t n, struct rpc_tag *tag)
{
	handoff_given(tag);
	grpc_call_error err = grpc_call_start_batch(stream->grpc, ops, n, tag, NULL);
	if (err == GRPC_CALL_OK) {
		stream->pending++;
		return true;
	}
	log_error("%s: batch refused: %s", stream->path, grpc_call_error_to_string(err));
	grpc_call_cancel(stream->grpc, NULL);
	return false;
}

void rpc_outgoing_cancel(struct rpc_outgoing *stream)
{
	if (stream->cancelled)
		return;
	stream->cancelled = true;
	rpc_queue_drop(&stream->queue);
	grpc_call_cancel(stream->grpc, NULL);
}

void rpc_outgoing_cancel_all(struct rpc_upstream *upstream)
{
	for (struct rpc_outgoing *s = upstream->streams; s; s = s->next)
		rpc_outgoing_cancel(s);
}

void rpc_outgoing_fail_all(struct rpc_upstream *upstream, enum status st, const char *why)
{
	for (struct rpc_outgoing *s = upstream->streams; s; s = s->next) {
		if (s->cancelled)
			continue;
		s->fault = st;
		snprintf(s->why, sizeof(s->why), "%s", why);
	}
	rpc_outgoing_cancel_all(upstream);
}

void rpc_outgoing_forget_all(struct rpc_upstream *upstream)
{
	for (struct rpc_outgoing *s = upstream->streams; s; s = s->next)
		s->ends = (struct rpc_outgoing_ends){ 0 };
	rpc_outgoing_cancel_all(upstream);
}

/* ---- receiving ---- */

static void recv_next(struct rpc_outgoing *stream)
{
	grpc_op op = { .op = GRPC_OP_RECV_MESSAGE };
	op.data.recv_message.recv_message = &stream->in;
	stream->receiving = start(stream, &op, 1, &stream->recv);
}

void rpc_outgoing_recv(struct rpc_outgoing *stream)
{
	if (stream->over || stream->cancelled || stream->read_all || stream->receiving)
		return;
	if (stream->in_message)
		stream->wants_next = true;
	else
		recv_next(stream);
}

static void deliver(struct rpc_outgoing *stream)
{
	ProtobufCMessage *message;
	bool fits = grpc_byte_buffer_length(stream->in) <= RPC_OUTGOING_MESSAGE_MAX;
	stream->fault = fits ? bytes_from_buffer(stream->output, stream->in, &message) : ST_RESOURCE_EXHAUSTED;
	if (stream->fault) {
		if (stream->fault == ST_MALFORMED)
			bytes_explain_buffer(stream->output, stream->in, stream->why, sizeof(stream->why));
		else
			snprintf(stream->why, sizeof(stream->why), "%s: %zu bytes: %s", stream->output->name,
				 grpc_byte_buffer_length(stream->in), status_info(stream->fault)->text);
		rpc_outgoing_cancel(stream);
		return;
	}
	stream->in_message = true;
	if (stream->ends.message)
		stream->ends.message(stream->ends.context, message);
	stream->in_message = false;
	bytes_free(message);
}

static void on_recv(struct rpc_tag *tag, bool ok)
{
	struct rpc_outgoing *stream = OUTGOING_OF(tag, recv);
	stream->pending--;
	stream->receiving = false;
	stream->read_all = !stream->in;
	if (stream->in && !stream->cancelled)
		deliver(stream);
	if (stream->in)
		grpc_byte_buffer_destroy(stream->in);
	stream->in = NULL;
	if (stream->wants_next) {
		stream->wants_next = false;
		rpc_outgoing_recv(stream);
	}
	end_if_over(stream);
}

/* ---- sending ---- */

static void send_next(struct rpc_outgoing *stream)
{
	if (stream->sending || stream->over || stream->cancelled)
		return;
	grpc_byte_buffer *message = rpc_queue_next(&stream->queue);
	if (!message)
		return;
	grpc_op op = { .op = GRPC_OP_SEND_MESSAGE };
	op.data.send_message.send_message = message;
	stream->sending = start(stream, &op, 1, &stream->send);
}

static void on_sent(struct rpc_tag *tag, bool ok)
{
	struct rpc_outgoing *stream = OUTGOING_OF(tag, send);
	stream->pending--;
	stream->sending = false;
	rpc_queue_sent(&stream->queue);
	if (ok)
		send_next(stream);
	if (ok && !stream->over && !stream->cancelled && stream->ends.writable &&
	    stream->queue.bytes <= stream->max_queued_bytes / 2)
		stream->ends.writable(stream->ends.context);
	end_if_over(stream);
}

size_t rpc_outgoing_room(const struct rpc_outgoing *stream)
{
	if (stream->over || stream->cancelled || stream->queue.bytes >= stream->max_queued_bytes)
		return 0;
	return stream->max_queued_bytes - stream->queue.bytes;
}

enum status rpc_outgoing_send(struct rpc_outgoing *stream, const ProtobufCMessage *message)
{
	assert(message->descriptor == stream->input);
	if (stream->over || stream->cancelled)
		return ST_CANCELLED;
	if (stream->queue.bytes >= stream->max_queued_bytes)
		return ST_RESOURCE_EXHAUSTED;
	enum status st = rpc_queue_add(&stream->queue, bytes_to_buffer(message));
	if (st == ST_OK)
		send_next(stream);
	return st;
}

/* ---- opening ---- */

static void on_status(struct rpc_tag *tag, bool ok)
{
	struct rpc_outgoing *stream = OUTGOING_OF(tag, status);
	stream->pending--;
	stream->over = true;
	rpc_queue_drop(&stream->queue);
	end_if_over(stream);
}

/* The headers both ways, and the status: completes with the stream. */
static bool start_call(struct rpc_outgoing *stream)
{
	grpc_metadata header = { .key = grpc_slice_from_static_string("authorization"), .value = grpc_empty_slice() };
	grpc_op ops[3] = { { .op = GRPC_OP_SEND_INITIAL_METADATA },
			   { .op = GRPC_OP_RECV_INITIAL_METADATA },
			   { .op = GRPC_OP_RECV_STATUS_ON_CLIENT } };
	if (stream->upstream->authorization) {
		header.value = grpc_slice_from_copied_string(stream->upstream->authorization);
		ops[0].data.send_initial_metadata.count = 1;
		ops[0].data.send_initial_metadata.metadata = &header;
	}
	ops[1].data.recv_initial_metadata.recv_initial_metadata = &stream->initial;
	ops[2].data.recv_status_on_client.trailing_metadata = &stream->trailing;
	ops[2].data.recv_status_on_client.status = &stream->code;
	ops[2].data.recv_status_on_client.status_details = &stream->text;
	bool started = start(stream, ops, 3, &stream->status);
	grpc_slice_unref(header.value);
	return started;
}

static const ProtobufCMethodDescriptor *find_method(const ProtobufCServiceDescriptor *service, const char *name)
{
	for (unsigned i = 0; i < service->n_methods; i++)
		if (strcmp(service->methods[i].name, name) == 0)
			return &service->methods[i];
	return NULL;
}

static struct rpc_outgoing *new_stream(struct rpc_upstream *upstream, const char *path)
{
	struct rpc_outgoing *stream = calloc(1, sizeof(*stream));
	if (!stream)
		return NULL;
	stream->upstream = upstream;
	stream->status.run = on_status;
	stream->recv.run = on_recv;
	stream->send.run = on_sent;
	stream->text = grpc_empty_slice();
	rpc_queue_init(&stream->queue);
	grpc_metadata_array_init(&stream->initial);
	grpc_metadata_array_init(&stream->trailing);
	snprintf(stream->path, sizeof(stream->path), "%s", path);
	grpc_slice slice = grpc_slice_from_copied_string(path);
	stream->grpc = grpc_channel_create_call(upstream->grpc, NULL, GRPC_PROPAGATE_DEFAULTS,
						rpc_pump_queue(upstream->server->pump), slice, NULL,
						gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
	grpc_slice_unref(slice);
	return stream;
}

enum status rpc_outgoing_open(struct rpc_upstream *upstream, const ProtobufCServiceDescriptor *service,
			      const char *method, size_t max_queued_bytes, const struct rpc_outgoing_ends *ends,
			      struct rpc_outgoing **out_stream)
{
	const ProtobufCMethodDescriptor *types = find_method(service, method);
	char path[128];
	assert(ends->ended && max_queued_bytes > 0);
	if (!types)
		return ST_UNIMPLEMENTED;
	if (upstream->server->stopping)
		return ST_UNAVAILABLE;
	snprintf(path, sizeof(path), "/%s/%s", service->name, method);
	struct rpc_outgoing *stream = new_stream(upstream, path);
	if (!stream)
		return ST_NO_MEMORY;
	stream->input = types->input;
	stream->output = types->output;
	stream->ends = *ends;
	stream->max_queued_bytes = max_queued_bytes;
	if (!start_call(stream)) {
		free_stream(stream);
		return ST_INTERNAL;
	}
	list_add(stream);
	upstream->open++;
	upstream->server->borrowed++;
	*out_stream = stream;
	return ST_OK;
}
