/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a call from its first batch to its end, what it holds until then, and what handlers ask about it. gRPC
 * requires an order: one batch of each kind at a time, one SEND_MESSAGE in flight, the status only after the last of
 * them has completed; a call is freed when every batch has. Loop thread. */
#include "rpc/call.h"

#include "base/log.h"
#include "rpc/tenant.h"
#include "proto/handoff.h"

#include <stdlib.h>
#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>

/* ---- quotas and slots ---- */

bool rpc_call_take_quota(struct rpc_server *server, struct rpc_quota *shares, int64_t user, size_t n)
{
	if (rpc_quota_take(shares, user, n))
		return true;
	rpc_reaper_run(server->reaper);
	return rpc_quota_take(shares, user, n);
}

void rpc_call_give_queued(struct rpc_call *call)
{
	size_t kept = call->queue.bytes + call->reply_bytes;
	if (call->queued_bytes <= kept)
		return;
	rpc_quota_give(&call->server->queued, call->user, call->queued_bytes - kept);
	call->queued_bytes = kept;
}

void rpc_call_take_slot(struct rpc_call *call)
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
	if (!call->node)
		return;
	if (call->row->method->flags & RPC_INTERNAL) {
		rpc_quota_give(&server->links, call->node, 1);
		return;
	}
	rpc_quota_give(&server->of_nodes, call->node, 1);
	rpc_quota_give(&server->of_node_users, call->node_user, 1);
}

/* ---- life ---- */

void rpc_call_drop_reply(struct rpc_call *call)
{
	if (call->reply)
		grpc_byte_buffer_destroy(call->reply);
	call->reply = NULL;
	call->reply_bytes = 0;
	rpc_call_give_queued(call);
}

void rpc_call_drop_queue(struct rpc_call *call)
{
	rpc_queue_drop(&call->queue);
	rpc_call_give_queued(call);
}

void rpc_call_free(struct rpc_call *call)
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
	rpc_call_free(call);
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

void rpc_call_on_close(struct rpc_tag *tag, bool ok)
{
	struct rpc_call *call = CALL_OF(tag, close);
	call->pending--;
	call->closed = true;
	rpc_call_drop_queue(call);
	if (call->proxy)
		call->proxy->closed(call);
	rpc_call_end_if_over(call);
}

/* ---- what handlers ask ---- */

bool rpc_call_has_deadline(const struct rpc_call *call)
{
	gpr_timespec deadline = call->details.deadline;
	return gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) != 0;
}

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
	if (!rpc_call_has_deadline(call))
		return INT64_MAX;
	gpr_timespec deadline = call->details.deadline;
	gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
	if (left.tv_sec < 0)
		return 0;
	return left.tv_sec >= INT64_MAX / 1000000000 - 1 ? INT64_MAX : left.tv_sec * 1000000000 + left.tv_nsec;
}
