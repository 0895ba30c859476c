/* SPDX-License-Identifier: Apache-2.0 */
/* Passes calls on to the upstream: messages both ways as they are, then the status with its details. In each direction
 * one message is on its way, counted in the quotas of the caller like those of other calls. Loop thread. */
#include "rpc/call.h"
#include "rpc/upstream_impl.h"

#include "base/log.h"
#include "proto/bytes.h"
#include "proto/handoff.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/slice.h>

#define RELAY_OF(tag_, member) ((struct rpc_relay *)((char *)(tag_)-offsetof(struct rpc_relay, member)))

/* The half of a relayed call that goes to the upstream. The caller's half lives longer: `pending` counts this one. */
struct rpc_relay {
	struct rpc_call *call;
	grpc_call *grpc;
	struct rpc_tag status, send, recv;
	unsigned pending;	    /* batches that gRPC has not completed */
	bool over;		    /* the status has come */
	grpc_byte_buffer *in, *out; /* out: a question of ours, rpc_ask */
	rpc_asked_fn *asked;	    /* takes its answer; NULL: the caller does */
	grpc_metadata_array initial, trailing;
	grpc_status_code code;
	grpc_slice text;
};

static bool has_one_request(const struct rpc_call *call)
{
	enum rpc_kind kind = call->row->method->kind;
	return kind == RPC_UNARY || kind == RPC_SERVER_STREAM;
}

static bool has_one_reply(const struct rpc_call *call)
{
	enum rpc_kind kind = call->row->method->kind;
	return kind == RPC_UNARY || kind == RPC_CLIENT_STREAM;
}

/* ---- life ---- */

static grpc_slice find_detail(const struct rpc_relay *relay)
{
	for (size_t i = 0; i < relay->trailing.count; i++)
		if (grpc_slice_str_cmp(relay->trailing.metadata[i].key, ERROR_DETAIL_KEY) == 0)
			return relay->trailing.metadata[i].value;
	return grpc_empty_slice();
}

static void answer(struct rpc_relay *relay)
{
	struct rpc_call *call = relay->call;
	grpc_slice detail = find_detail(relay);
	if (call->closed || call->answered)
		return;
	if (relay->code == GRPC_STATUS_UNAVAILABLE && GRPC_SLICE_IS_EMPTY(detail)) {
		rpc_failf(call, ST_UNAVAILABLE, "the coordinator cannot be reached: %.*s",
			  (int)GRPC_SLICE_LENGTH(relay->text), (const char *)GRPC_SLICE_START_PTR(relay->text));
		return;
	}
	if (relay->code == GRPC_STATUS_OK && relay->asked && relay->in) {
		relay->asked(call, relay->in);
		return;
	}
	if (relay->code == GRPC_STATUS_OK && has_one_reply(call)) {
		grpc_byte_buffer *reply = relay->in;
		relay->in = NULL;
		if (!reply) {
			rpc_failf(call, ST_INTERNAL, "the coordinator has answered without a message");
			return;
		}
		if (!rpc_call_pass_reply(call, reply))
			return;
	}
	rpc_call_pass_status(call, relay->code, relay->text, detail);
}

static void relay_free(struct rpc_relay *relay)
{
	if (relay->in)
		grpc_byte_buffer_destroy(relay->in);
	if (relay->out)
		grpc_byte_buffer_destroy(relay->out);
	grpc_metadata_array_destroy(&relay->initial);
	grpc_metadata_array_destroy(&relay->trailing);
	grpc_slice_unref(relay->text);
	grpc_call_unref(relay->grpc);
	free(relay);
}

static void end_if_over(struct rpc_relay *relay)
{
	struct rpc_call *call = relay->call;
	if (!relay->over || relay->pending > 0)
		return;
	answer(relay);
	call->relay = NULL;
	relay_free(relay);
	call->pending--;
	rpc_call_end_if_over(call);
}

/* gRPC refuses a batch only if we made a mistake. */
static bool start(struct rpc_relay *relay, const grpc_op *ops, size_t n, struct rpc_tag *tag)
{
	handoff_given(tag);
	grpc_call_error err = grpc_call_start_batch(relay->grpc, ops, n, tag, NULL);
	if (err == GRPC_CALL_OK) {
		relay->pending++;
		return true;
	}
	log_error("%s: batch to the upstream refused: %s", relay->call->row->path, grpc_call_error_to_string(err));
	grpc_call_cancel(relay->grpc, NULL);
	return false;
}

static void on_status(struct rpc_tag *tag, bool ok)
{
	struct rpc_relay *relay = RELAY_OF(tag, status);
	relay->pending--;
	relay->over = true;
	end_if_over(relay);
}

/* ---- from the caller ---- */

static bool count_request(struct rpc_call *call)
{
	char why[256];
	struct rpc_quota *held = &call->server->held;
	size_t n = grpc_byte_buffer_length(call->in);
	if (rpc_call_take_quota(call->server, held, call->user, n)) {
		call->held_bytes = n;
		return true;
	}
	rpc_error_text_quota(held, "requests under way", call->user, n, why, sizeof(why));
	rpc_call_drop_message(call);
	rpc_fail(call, &(struct rpc_error){ .status = ST_RESOURCE_EXHAUSTED, .message = why });
	return false;
}

/* A message of the caller, or NULL: it has sent its last. */
static void on_request(struct rpc_call *call)
{
	struct rpc_relay *relay = call->relay;
	grpc_op ops[2];
	size_t n = 0;
	call->half_closed = !call->in;
	if (!relay || relay->over || call->answered || call->closed)
		return;
	if (call->in) {
		if (!count_request(call))
			return;
		ops[n] = (grpc_op){ .op = GRPC_OP_SEND_MESSAGE };
		ops[n++].data.send_message.send_message = call->in;
	} else if (grpc_call_failed_before_recv_message(call->grpc)) {
		return;
	}
	if (!call->in || has_one_request(call))
		ops[n++] = (grpc_op){ .op = GRPC_OP_SEND_CLOSE_FROM_CLIENT };
	start(relay, ops, n, &relay->send);
}

static void on_sent_up(struct rpc_tag *tag, bool ok)
{
	struct rpc_relay *relay = RELAY_OF(tag, send);
	struct rpc_call *call = relay->call;
	relay->pending--;
	rpc_call_drop_message(call);
	if (ok && !relay->over && !has_one_request(call))
		rpc_recv(call);
	end_if_over(relay);
}

static void on_closed(struct rpc_call *call)
{
	if (call->relay && !call->relay->over)
		grpc_call_cancel(call->relay->grpc, NULL);
}

/* ---- from the upstream ---- */

static void recv_next(struct rpc_relay *relay)
{
	grpc_op op = { .op = GRPC_OP_RECV_MESSAGE };
	op.data.recv_message.recv_message = &relay->in;
	start(relay, &op, 1, &relay->recv);
}

static void on_reply(struct rpc_tag *tag, bool ok)
{
	struct rpc_relay *relay = RELAY_OF(tag, recv);
	relay->pending--;
	if (relay->in && !has_one_reply(relay->call)) {
		grpc_byte_buffer *message = relay->in;
		relay->in = NULL;
		if (rpc_call_pass_message(relay->call, message) != ST_OK)
			grpc_call_cancel(relay->grpc, NULL);
	}
	end_if_over(relay);
}

/* The message before has left. */
static void on_room(struct rpc_call *call)
{
	if (call->relay && !call->relay->over)
		recv_next(call->relay);
}

/* ---- the beginning ---- */

static const struct rpc_proxy proxy = { .message = on_request, .writable = on_room, .closed = on_closed };

static bool start_call(struct rpc_relay *relay, const char *authorization)
{
	const struct rpc_peer *peer = &relay->call->peer;
	char uid[24];
	snprintf(uid, sizeof(uid), "%llu", (unsigned long long)(peer->is_unix ? peer->uid : geteuid()));
	grpc_metadata headers[2] = {
		{ .key = grpc_slice_from_static_string(RPC_RELAYED_UID), .value = grpc_slice_from_copied_string(uid) },
		{ .key = grpc_slice_from_static_string("authorization"), .value = grpc_empty_slice() }
	};
	grpc_op ops[3] = { { .op = GRPC_OP_SEND_INITIAL_METADATA },
			   { .op = GRPC_OP_RECV_INITIAL_METADATA },
			   { .op = GRPC_OP_RECV_STATUS_ON_CLIENT } };
	ops[0].data.send_initial_metadata.count = authorization ? 2 : 1;
	ops[0].data.send_initial_metadata.metadata = headers;
	if (authorization)
		headers[1].value = grpc_slice_from_copied_string(authorization);
	ops[1].data.recv_initial_metadata.recv_initial_metadata = &relay->initial;
	ops[2].data.recv_status_on_client.trailing_metadata = &relay->trailing;
	ops[2].data.recv_status_on_client.status = &relay->code;
	ops[2].data.recv_status_on_client.status_details = &relay->text;
	bool started = start(relay, ops, 3, &relay->status);
	grpc_slice_unref(headers[0].value);
	grpc_slice_unref(headers[1].value);
	return started;
}

static struct rpc_relay *relay_new(struct rpc_call *call, const struct rpc_upstream *upstream, const char *method)
{
	struct rpc_relay *relay = calloc(1, sizeof(*relay));
	if (!relay)
		return NULL;
	relay->call = call;
	relay->status.run = on_status;
	relay->send.run = on_sent_up;
	relay->recv.run = on_reply;
	relay->text = grpc_empty_slice();
	grpc_metadata_array_init(&relay->initial);
	grpc_metadata_array_init(&relay->trailing);
	grpc_slice path = grpc_slice_from_copied_string(method);
	relay->grpc =
		grpc_channel_create_call(upstream->grpc, NULL, GRPC_PROPAGATE_DEFAULTS,
					 rpc_pump_queue(call->server->pump), path, NULL, call->details.deadline, NULL);
	grpc_slice_unref(path);
	return relay;
}

void rpc_relay_begin(struct rpc_call *call)
{
	const struct rpc_upstream *upstream = call->server->relay;
	struct rpc_relay *relay = relay_new(call, upstream, call->row->path);
	if (relay && !start_call(relay, upstream->authorization)) {
		relay_free(relay);
		relay = NULL;
	}
	call->proxy = &proxy;
	if (!relay) {
		rpc_call_drop_message(call);
		rpc_fail(call, &(struct rpc_error){ .status = ST_NO_MEMORY, .message = "no memory for the call" });
		return;
	}
	call->relay = relay;
	call->pending++;
	recv_next(relay);
	if (call->read_ahead)
		rpc_call_take_message(call);
	else
		rpc_call_recv(call);
}

bool rpc_ask(struct rpc_call *call, const char *path, const struct ProtobufCMessage *question, rpc_asked_fn *asked)
{
	const struct rpc_upstream *upstream = call->server->relay;
	struct rpc_relay *relay = upstream && !call->relay ? relay_new(call, upstream, path) : NULL;
	if (relay && !start_call(relay, upstream->authorization)) {
		relay_free(relay);
		relay = NULL;
	}
	if (!relay)
		return false;
	relay->asked = asked;
	relay->out = bytes_to_buffer(question);
	call->proxy = &proxy;
	call->relay = relay;
	call->pending++;
	grpc_op ops[2] = { { .op = GRPC_OP_SEND_MESSAGE }, { .op = GRPC_OP_SEND_CLOSE_FROM_CLIENT } };
	ops[0].data.send_message.send_message = relay->out;
	start(relay, ops, 2, &relay->send);
	recv_next(relay);
	return true;
}

void rpc_relay_end_all(struct rpc_server *server, const char *why)
{
	for (uint32_t i = 0; i < server->config.max_calls; i++) {
		struct rpc_call *call = server->slots[i].call;
		if (!call || !call->relay || call->relay->over)
			continue;
		grpc_call_cancel(call->relay->grpc, NULL);
		rpc_failf(call, ST_UNAVAILABLE, "the coordinator cannot be reached: %s", why);
	}
}

void rpc_server_set_relay(struct rpc_server *server, struct rpc_upstream *upstream)
{
	server->relay = upstream;
}
