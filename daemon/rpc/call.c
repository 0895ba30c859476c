/* Calls. The order that gRPC asks for: one batch of each kind at a time, one SEND_MESSAGE in flight and the status only
 * after the last of them has come back, the call freed when every batch has. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>
#include <protobuf-c/protobuf-c.h>
#include "base/log.h"
#include "rpc/private.h"
#include "rpc/queue.h"
#include "proto/handoff.h"

#define CALL_OF(tag_, member) ((struct rpc_call *)((char *)(tag_)-offsetof(struct rpc_call, member)))

struct rpc_call {
	grpc_call *grpc;
	grpc_call_details details; /* deadline: of every call; the rest not of unary ones */
	grpc_metadata_array metadata;
	struct rpc_server *server;
	const struct rpc_row *row; /* NULL: no such method */
	uint64_t id; /* 0: refused before it got a slot */
	void *data;
	struct rpc_peer peer;
	int64_t who; /* whose shares it has, as rpc/shares.h has it */
	struct rpc_tag accept, close, recv, send, finish;
	unsigned pending; /* batches that are out */
	int cancelled; /* written by gRPC when `close` comes back */
	bool read_ahead; /* unary: gRPC has read the request already, and batches come back on server->ends */
	bool seen; /* by a handler, which is therefore owed on_end */
	bool closed;
	bool answered; /* rpc_finish or rpc_fail */
	bool in_handler;
	bool half_closed;
	bool receiving;
	bool wants_next; /* rpc_recv inside of on_message */
	bool sending;
	bool sent_metadata;
	bool sent_status;

	grpc_byte_buffer *in; /* the message that came; kept while the handler may look at its bulk */
	size_t held_bytes; /* of it, in server->held */
	ProtobufCMessage *request;
	struct bytes_view bulk;

	struct rpc_queue queue;
	grpc_byte_buffer *reply; /* goes out with the status */
	size_t reply_bytes;
	size_t queued_bytes; /* of both, in server->queued */
	int code;
	grpc_slice text;
	grpc_slice detail;
};

/* Life */

static void slot_take(struct rpc_call *call)
{
	struct rpc_server *server = call->server;
	uint32_t index = server->first_free;
	struct rpc_slot *slot = &server->slots[index];
	server->first_free = slot->next_free;
	slot->call = call;
	call->id = (uint64_t)slot->generation << 32 | index;
	server->stats.live++;
}

static void slot_give_back(struct rpc_call *call)
{
	if (call->id == 0)
		return;
	struct rpc_server *server = call->server;
	struct rpc_slot *slot = &server->slots[(uint32_t)call->id];
	slot->call = NULL;
	if (++slot->generation == 0)
		slot->generation = 1;
	slot->next_free = server->first_free;
	server->first_free = (uint32_t)call->id;
	rpc_shares_give(&server->calls, call->who, 1);
	server->stats.live--;
}

static void drop_in(struct rpc_call *call)
{
	if (call->in)
		grpc_byte_buffer_destroy(call->in);
	call->in = NULL;
}

static void drop_message(struct rpc_call *call)
{
	bytes_free(call->request);
	call->request = NULL;
	drop_in(call);
	rpc_shares_give(&call->server->held, call->who, call->held_bytes);
	call->held_bytes = 0;
	call->bulk = (struct bytes_view){ 0 };
}

/* What has left does not count any more. */
static void give_queued(struct rpc_call *call)
{
	size_t kept = call->queue.bytes + call->reply_bytes;
	if (call->queued_bytes <= kept)
		return;
	rpc_shares_give(&call->server->queued, call->who, call->queued_bytes - kept);
	call->queued_bytes = kept;
}

static void drop_reply(struct rpc_call *call)
{
	if (call->reply)
		grpc_byte_buffer_destroy(call->reply);
	call->reply = NULL;
	call->reply_bytes = 0;
	give_queued(call);
}

static void drop_queue(struct rpc_call *call)
{
	rpc_queue_drop(&call->queue);
	give_queued(call);
}

static void call_free(struct rpc_call *call)
{
	drop_message(call);
	rpc_queue_fini(&call->queue);
	drop_reply(call);
	grpc_slice_unref(call->text);
	grpc_slice_unref(call->detail);
	grpc_metadata_array_destroy(&call->metadata);
	grpc_call_details_destroy(&call->details);
	if (call->grpc)
		grpc_call_unref(call->grpc);
	free(call);
}

/* The end: gRPC is through with the call and every batch has come back. */
static void end_if_over(struct rpc_call *call)
{
	struct rpc_server *server = call->server;
	if (!call->closed || call->pending > 0)
		return;
	if (call->seen && call->row->method->on_end)
		call->row->method->on_end(call, !call->cancelled);
	slot_give_back(call);
	if (call->read_ahead)
		rpc_ends_expect(server->ends, -1);
	call_free(call);
	server->open--;
	rpc_server_check_idle(server);
}

static void start(struct rpc_call *call, const grpc_op *ops, size_t n, struct rpc_tag *tag)
{
	call->pending++;
	handoff_given(tag);
	grpc_call_error err = grpc_call_start_batch(call->grpc, ops, n, tag, NULL);
	if (err == GRPC_CALL_OK)
		return;
	call->pending--;
	log_error("%s: batch refused: %s", call->row ? call->row->path : "unknown method", grpc_call_error_to_string(err));
	grpc_call_cancel(call->grpc, NULL);
}

static void on_close(struct rpc_tag *tag, bool ok)
{
	struct rpc_call *call = CALL_OF(tag, close);
	call->pending--;
	call->closed = true;
	drop_queue(call);
	end_if_over(call);
}

/* Receiving */

static void start_recv(struct rpc_call *call)
{
	grpc_op op = { .op = GRPC_OP_RECV_MESSAGE };
	op.data.recv_message.recv_message = &call->in;
	call->receiving = true;
	start(call, &op, 1, &call->recv);
}

void rpc_recv(struct rpc_call *call)
{
	if (call->answered || call->closed || call->half_closed || call->receiving)
		return;
	if (call->in_handler) {
		call->wants_next = true;
		return;
	}
	drop_message(call);
	start_recv(call);
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

/* Calls that are over count until somebody has looked. */
static bool take_share(struct rpc_server *server, struct rpc_shares *shares, int64_t who, size_t n)
{
	if (rpc_shares_take(shares, who, n))
		return true;
	rpc_ends_look(server->ends);
	return rpc_shares_take(shares, who, n);
}

static enum status unpack(struct rpc_call *call, char *why, size_t n_why)
{
	const struct rpc_row *row = call->row;
	struct rpc_server *server = call->server;
	size_t n = grpc_byte_buffer_length(call->in);
	enum status st;
	if (!take_share(server, &server->held, call->who, n)) {
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
		drop_message(call);
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

static void take_message(struct rpc_call *call)
{
	if (!call->in)
		no_message(call);
	else if (!call->answered && !call->closed)
		deliver(call);
}

static void on_recv(struct rpc_tag *tag, bool ok)
{
	struct rpc_call *call = CALL_OF(tag, recv);
	call->pending--;
	call->receiving = false;
	take_message(call);
	end_if_over(call);
}

/* Sending */

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
	start(call, ops, n + 1, &call->finish);
}

static void on_finish(struct rpc_tag *tag, bool ok)
{
	struct rpc_call *call = CALL_OF(tag, finish);
	call->pending--;
	drop_reply(call);
	end_if_over(call);
}

/* Sends what is next: a queued message, or the status once the queue is empty. */
static void send_next(struct rpc_call *call)
{
	if (call->sending || call->closed)
		return;
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
	start(call, ops, n + 1, &call->send);
}

static void on_sent(struct rpc_tag *tag, bool ok)
{
	struct rpc_call *call = CALL_OF(tag, send);
	call->pending--;
	call->sending = false;
	rpc_queue_sent(&call->queue);
	give_queued(call);
	if (ok)
		send_next(call);
	if (ok && !call->answered && !call->closed && call->row->method->on_writable &&
	    call->queue.bytes <= call->server->config.max_queued_bytes / 2)
		call->row->method->on_writable(call);
	end_if_over(call);
}

/* Counts n bytes more that wait for the client. The first ones may wait uncounted if they are few: every call can be answered. */
static bool take_queued(struct rpc_call *call, size_t n)
{
	bool first = call->queue.bytes + call->reply_bytes == 0;
	if (!rpc_shares_take(&call->server->queued, call->who, n))
		return first && n <= RPC_ROOM_MIN;
	call->queued_bytes += n;
	return true;
}

static void fail_without_room(struct rpc_call *call, size_t n)
{
	char text[256];
	rpc_why_no_room(&call->server->queued, "answers that nobody has read yet", call->who, n, text, sizeof text);
	rpc_fail(call, &(struct rpc_error){ .status = ST_RESOURCE_EXHAUSTED, .message = text,
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
	give_queued(call); /* if there was no memory */
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
	size_t room = rpc_shares_room(&call->server->queued, call->who);
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
	void *loan = st == ST_OK ? rpc_loan_new(call->server, release, arg) : NULL;
	if (!loan) {
		release(arg);
		return st == ST_OK ? ST_NO_MEMORY : st;
	}
	return enqueue(call, bytes_to_buffer_bulk(msg, bulk, data, n, rpc_loan_end, loan));
}

/* Ending */

static void answer(struct rpc_call *call, int code, const char *text)
{
	call->answered = true;
	call->code = code;
	call->text = grpc_slice_from_copied_buffer(text, error_text_fit(text, ERROR_TEXT_MAX));
	if (code != 0)
		drop_queue(call);
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

void rpc_finish(struct rpc_call *call, const ProtobufCMessage *reply)
{
	assert(!reply || reply->descriptor == call->row->output);
	if (call->answered || (reply && !keep_reply(call, bytes_to_buffer(reply))))
		return;
	answer(call, 0, "");
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

void rpc_call_drain(struct rpc_call *call)
{
	if (call->row->method->flags & RPC_ENDS_ON_DRAIN)
		rpc_fail(call, &(struct rpc_error){ .status = ST_DRAINING });
}

/* Accepting */

static bool has_deadline(const struct rpc_call *call)
{
	gpr_timespec deadline = call->details.deadline;
	return gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) != 0;
}

static enum status find_peer(struct rpc_call *call)
{
	const char *authorization = NULL;
	size_t n = 0;
	rpc_metadata(call, "authorization", &authorization, &n);
	enum status st = rpc_peer_find(call->server, call->grpc, authorization, n, &call->peer);
	call->who = st == ST_OK ? (int64_t)call->peer.uid : RPC_STRANGERS;
	return call->row->method->flags & RPC_NEEDS_NO_IDENTITY ? ST_OK : st;
}

/* Reason to refuse the call; or OK, and it has its share of the slots. */
static enum status admit(struct rpc_call *call)
{
	struct rpc_server *server = call->server;
	if (!call->row)
		return ST_UNIMPLEMENTED;
	if (server->draining)
		return ST_DRAINING;
	enum status st = find_peer(call);
	if (st)
		return st;
	if ((call->row->method->flags & RPC_NEEDS_DEADLINE) && !has_deadline(call))
		return ST_INVALID_ARGUMENT;
	return take_share(server, &server->calls, call->who, 1) ? ST_OK : ST_RESOURCE_EXHAUSTED;
}

static void refuse(struct rpc_call *call, enum status st)
{
	grpc_slice path = call->details.method;
	char text[256];
	const char *hint = rpc_why_refused(call->server, call->row, (const char *)GRPC_SLICE_START_PTR(path), GRPC_SLICE_LENGTH(path),
					   call->who, st, text, sizeof text);
	call->server->stats.refused++;
	rpc_fail(call, &(struct rpc_error){ .status = st, .message = text, .hint = hint });
}

/* RECV_CLOSE is out from the start: it tells when the client cancels, dies or is past its deadline. `pending` keeps the call
 * alive here: who looks at the ends of other calls may find its own. */
static void begin(struct rpc_call *call)
{
	grpc_op op = { .op = GRPC_OP_RECV_CLOSE_ON_SERVER };
	op.data.recv_close_on_server.cancelled = &call->cancelled;
	call->pending++;
	start(call, &op, 1, &call->close);
	grpc_slice path = call->details.method;
	if (!call->read_ahead)
		call->row =
			rpc_row_find(call->server, (const char *)GRPC_SLICE_START_PTR(path), GRPC_SLICE_LENGTH(path));
	enum status st = admit(call);
	if (st != ST_OK) {
		drop_in(call);
		refuse(call, st);
	} else {
		slot_take(call);
		if (call->read_ahead)
			take_message(call);
		else
			start_recv(call);
	}
	call->pending--;
}

static void on_accept(struct rpc_tag *tag, bool ok)
{
	struct rpc_call *call = CALL_OF(tag, accept);
	struct rpc_server *server = call->server;
	server->armed--;
	if (!ok) { /* the server is stopping */
		call_free(call);
		rpc_server_check_idle(server);
		return;
	}
	rpc_call_arm(server, call->read_ahead ? call->row : NULL);
	server->open++;
	server->stats.calls++;
	if (call->read_ahead)
		rpc_ends_expect(server->ends, 1);
	begin(call);
	end_if_over(call);
}

static grpc_call_error request(struct rpc_call *call)
{
	struct rpc_server *server = call->server;
	grpc_completion_queue *queue = rpc_pump_queue(server->pump);
	handoff_given(&call->accept);
	if (!call->read_ahead)
		return grpc_server_request_call(server->grpc, &call->grpc, &call->details, &call->metadata, queue, queue,
						&call->accept);
	return grpc_server_request_registered_call(server->grpc, call->row->registered, &call->grpc, &call->details.deadline,
						   &call->metadata, &call->in, rpc_ends_queue(server->ends), queue,
						   &call->accept);
}

void rpc_call_arm(struct rpc_server *server, const struct rpc_row *row)
{
	if (server->stopping)
		return;
	struct rpc_call *call = calloc(1, sizeof *call);
	if (!call) {
		log_error("out of memory: one call less can be accepted at a time");
		return;
	}
	call->server = server;
	call->row = row;
	call->read_ahead = row != NULL;
	call->accept.run = on_accept;
	call->close.run = on_close;
	call->recv.run = on_recv;
	call->send.run = on_sent;
	call->finish.run = on_finish;
	rpc_queue_init(&call->queue);
	call->text = grpc_empty_slice();
	call->detail = grpc_empty_slice();
	grpc_call_details_init(&call->details);
	grpc_metadata_array_init(&call->metadata);
	grpc_call_error err = request(call);
	if (err != GRPC_CALL_OK) {
		log_error("cannot accept calls: %s", grpc_call_error_to_string(err));
		call_free(call);
		return;
	}
	server->armed++;
}

/* What handlers ask */

uint64_t rpc_id(const struct rpc_call *call)
{
	return call->id;
}

struct rpc_call *rpc_find(struct rpc_server *server, uint64_t id)
{
	uint32_t index = (uint32_t)id;
	if (index >= server->config.max_calls || server->slots[index].generation != id >> 32)
		return NULL;
	struct rpc_call *call = server->slots[index].call;
	return call && !call->answered && !call->closed ? call : NULL;
}

struct rpc_server *rpc_server_of(const struct rpc_call *call)
{
	return call->server;
}

void *rpc_context(const struct rpc_call *call)
{
	return call->row->context;
}

void rpc_set_data(struct rpc_call *call, void *data)
{
	call->data = data;
}

void *rpc_data(const struct rpc_call *call)
{
	return call->data;
}

const struct rpc_peer *rpc_peer(const struct rpc_call *call)
{
	return &call->peer;
}

int64_t rpc_deadline_left_ns(const struct rpc_call *call)
{
	if (!has_deadline(call))
		return INT64_MAX;
	gpr_timespec deadline = call->details.deadline;
	gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
	if (left.tv_sec < 0)
		return 0;
	return left.tv_sec >= INT64_MAX / 1000000000 - 1 ? INT64_MAX : left.tv_sec * 1000000000 + left.tv_nsec;
}

bool rpc_metadata(const struct rpc_call *call, const char *key, const char **out_value, size_t *out_len)
{
	for (size_t i = 0; i < call->metadata.count; i++) {
		const grpc_metadata *entry = &call->metadata.metadata[i];
		if (grpc_slice_str_cmp(entry->key, key) != 0)
			continue;
		*out_value = (const char *)GRPC_SLICE_START_PTR(entry->value);
		*out_len = GRPC_SLICE_LENGTH(entry->value);
		return true;
	}
	return false;
}
