/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a call: accepted, admitted or refused, ended. gRPC requires an order: one batch of each kind at a time,
 * one SEND_MESSAGE in flight, the status only after the last of them has completed; a call is freed when every batch
 * has. Loop thread. */
#include "rpc/call.h"

#include "base/log.h"
#include "rpc/tenant.h"
#include "proto/handoff.h"

#include <stdlib.h>
#include <grpc/grpc.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>

/* ---- life ---- */

static void slot_take(struct rpc_call *call)
{
	struct rpc_server *server = call->server;
	uint32_t index = server->first_free;
	struct rpc_slot *slot = &server->slots[index];
	server->first_free = slot->next_free;
	slot->call = call;
	call->id = (uint64_t)slot->generation << 32 | index;
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
	rpc_quota_give(&server->calls, call->user, 1);
}

static void call_free(struct rpc_call *call)
{
	rpc_call_drop_message(call);
	rpc_queue_fini(&call->queue);
	rpc_call_drop_reply(call);
	grpc_slice_unref(call->text);
	grpc_slice_unref(call->detail);
	grpc_metadata_array_destroy(&call->metadata);
	grpc_call_details_destroy(&call->details);
	if (call->grpc)
		grpc_call_unref(call->grpc);
	free(call);
}

void rpc_call_end_if_over(struct rpc_call *call)
{
	struct rpc_server *server = call->server;
	struct rpc_tenant *tenant = call->tenant;
	if (!call->closed || call->pending > 0)
		return;
	if (call->seen && call->row->method->on_end)
		call->row->method->on_end(call, !call->cancelled);
	slot_give_back(call);
	if (call->read_ahead)
		rpc_reaper_expect(server->reaper, -1);
	call_free(call);
	tenant->open--;
	rpc_tenant_check_idle(tenant);
}

void rpc_call_start(struct rpc_call *call, const grpc_op *ops, size_t n, struct rpc_tag *tag)
{
	call->pending++;
	handoff_given(tag);
	grpc_call_error err = grpc_call_start_batch(call->grpc, ops, n, tag, NULL);
	if (err == GRPC_CALL_OK)
		return;
	call->pending--;
	log_error("%s: batch refused: %s", call->row ? call->row->path : "unknown method",
		  grpc_call_error_to_string(err));
	grpc_call_cancel(call->grpc, NULL);
}

static void on_close(struct rpc_tag *tag, bool ok)
{
	struct rpc_call *call = CALL_OF(tag, close);
	call->pending--;
	call->closed = true;
	rpc_call_drop_queue(call);
	rpc_call_end_if_over(call);
}

void rpc_call_drain(struct rpc_call *call)
{
	if (call->row->method->flags & RPC_ENDS_ON_DRAIN)
		rpc_fail(call, &(struct rpc_error){ .status = ST_DRAINING });
}

/* ---- accepting ---- */

bool rpc_call_take_quota(struct rpc_server *server, struct rpc_quota *shares, int64_t user, size_t n)
{
	if (rpc_quota_take(shares, user, n))
		return true;
	rpc_reaper_run(server->reaper);
	return rpc_quota_take(shares, user, n);
}

static bool has_deadline(const struct rpc_call *call)
{
	gpr_timespec deadline = call->details.deadline;
	return gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) != 0;
}

/* First value of a request header (lower-case key); false if absent. Not NUL-terminated; lives as long as the call. */
static bool find_header(const struct rpc_call *call, const char *key, const char **out_value, size_t *out_len)
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

static enum status find_peer(struct rpc_call *call)
{
	const char *authorization = NULL;
	size_t n = 0;
	find_header(call, "authorization", &authorization, &n);
	enum status st = rpc_peer_find(call->server, call->grpc, authorization, n, &call->peer);
	call->user = st == ST_OK ? (int64_t)call->peer.uid : RPC_UNAUTHENTICATED;
	return call->row->method->flags & RPC_NEEDS_NO_IDENTITY ? ST_OK : st;
}

/* OK: the call is counted in its user's quota of calls. Else the reason to refuse it. */
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
	return rpc_call_take_quota(server, &server->calls, call->user, 1) ? ST_OK : ST_RESOURCE_EXHAUSTED;
}

static void refuse(struct rpc_call *call, enum status st)
{
	grpc_slice path = call->details.method;
	char text[256];
	const char *hint = rpc_error_text_refused(call->server, call->row, (const char *)GRPC_SLICE_START_PTR(path),
						  GRPC_SLICE_LENGTH(path), call->user, st, text, sizeof(text));
	rpc_fail(call, &(struct rpc_error){ .status = st, .message = text, .hint = hint });
}

/* RECV_CLOSE is started first: it completes when the client cancels, dies or misses its deadline. `pending` keeps the
 * call alive in here: admit() may run the reaper, which could free it. */
static void begin(struct rpc_call *call)
{
	grpc_op op = { .op = GRPC_OP_RECV_CLOSE_ON_SERVER };
	op.data.recv_close_on_server.cancelled = &call->cancelled;
	call->pending++;
	rpc_call_start(call, &op, 1, &call->close);
	grpc_slice path = call->details.method;
	if (!call->read_ahead)
		call->row =
			rpc_row_find(call->server, (const char *)GRPC_SLICE_START_PTR(path), GRPC_SLICE_LENGTH(path));
	enum status st = admit(call);
	if (st != ST_OK) {
		rpc_call_drop_message(call);
		refuse(call, st);
	} else {
		slot_take(call);
		if (call->read_ahead)
			rpc_call_take_message(call);
		else
			rpc_call_recv(call);
	}
	call->pending--;
}

static void on_accept(struct rpc_tag *tag, bool ok)
{
	struct rpc_call *call = CALL_OF(tag, accept);
	struct rpc_server *server = call->server;
	struct rpc_tenant *tenant = call->tenant;
	tenant->armed--;
	if (!ok) { /* the tenant is closing */
		call_free(call);
		rpc_tenant_check_idle(tenant);
		return;
	}
	rpc_call_arm(tenant, call->read_ahead ? call->row : NULL);
	tenant->open++;
	if (call->read_ahead)
		rpc_reaper_expect(server->reaper, 1);
	begin(call);
	rpc_call_end_if_over(call);
}

static grpc_call_error request(struct rpc_call *call)
{
	struct rpc_server *server = call->server;
	grpc_completion_queue *queue = rpc_pump_queue(server->pump);
	handoff_given(&call->accept);
	if (!call->read_ahead)
		return grpc_server_request_call(call->tenant->grpc, &call->grpc, &call->details, &call->metadata, queue,
						queue, &call->accept);
	return grpc_server_request_registered_call(call->tenant->grpc,
						   call->tenant->registered[call->row - server->rows], &call->grpc,
						   &call->details.deadline, &call->metadata, &call->in,
						   rpc_reaper_queue(server->reaper), queue, &call->accept);
}

void rpc_call_arm(struct rpc_tenant *tenant, const struct rpc_row *row)
{
	if (tenant->closing)
		return;
	struct rpc_call *call = calloc(1, sizeof(*call));
	if (!call) {
		log_error("out of memory: gaccd can accept one call fewer at a time");
		return;
	}
	call->server = tenant->server;
	call->tenant = tenant;
	call->row = row;
	call->read_ahead = row != NULL;
	call->accept.run = on_accept;
	call->close.run = on_close;
	call->recv.run = rpc_call_on_recv;
	call->send.run = rpc_call_on_sent;
	call->turn.run = rpc_call_on_turn;
	call->finish.run = rpc_call_on_finish;
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
	tenant->armed++;
}

/* ---- what handlers ask ---- */

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

void rpc_set_number(struct rpc_call *call, uint32_t number)
{
	call->number = number;
}

uint32_t rpc_number(const struct rpc_call *call)
{
	return call->number;
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
