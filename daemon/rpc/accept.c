/* SPDX-License-Identifier: Apache-2.0 */
/* Accepts calls for a tenant: each is admitted, and its request is read, or it is refused with the reason. Another call
 * is armed in its place. Loop thread. */
#include "rpc/call.h"

#include "base/log.h"
#include "rpc/tenant.h"
#include "proto/handoff.h"

#include <stdlib.h>
#include <grpc/grpc.h>
#include <grpc/slice.h>

#define MAX_LINKS 8 /* of a node: one, and those that have broken unseen */

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

/* Whom the call is for, as a node or who has the token says; others are not believed. */
static enum status read_relayed(struct rpc_call *call)
{
	struct rpc_peer *peer = &call->peer;
	const char *digits;
	size_t n;
	uint64_t uid = 0;
	if ((peer->role != RPC_ROLE_NODE && !peer->has_token) || !find_header(call, RPC_RELAYED_UID, &digits, &n))
		return ST_OK;
	for (size_t i = 0; i < n && uid < UINT32_MAX; i++)
		uid = digits[i] >= '0' && digits[i] <= '9' ? uid * 10 + (uint64_t)(digits[i] - '0') : UINT32_MAX;
	if (n == 0 || uid >= UINT32_MAX) /* (uid_t)-1 is nobody */
		return ST_UNAUTHENTICATED;
	peer->uid = (uid_t)uid;
	peer->relayed = true;
	return ST_OK;
}

static enum status find_peer(struct rpc_call *call)
{
	const char *authorization = NULL;
	size_t n = 0;
	find_header(call, "authorization", &authorization, &n);
	enum status st = rpc_peer_find(call->server, call->grpc, authorization, n, &call->peer);
	if (st == ST_OK && call->row->method->flags & RPC_RELAY)
		st = read_relayed(call);
	call->user = st == ST_OK ? (int64_t)call->peer.uid : RPC_UNAUTHENTICATED;
	return call->row->method->flags & RPC_NEEDS_NO_IDENTITY ? ST_OK : st;
}

static bool may_call(const struct rpc_call *call)
{
	const struct rpc_peer *peer = &call->peer;
	unsigned flags = call->row->method->flags;
	if (flags & RPC_INTERNAL)
		return !peer->is_unix && (peer->role == RPC_ROLE_NODE || peer->has_token);
	if (peer->role == RPC_ROLE_NODE && peer->relayed)
		return peer->uid >= call->server->config.relay_min_uid;
	return (flags & RPC_NEEDS_NO_IDENTITY) || peer->role == RPC_ROLE_NONE || peer->role == RPC_ROLE_ADMIN;
}

/* A number for a node, or for a user of it; those that happen to have the same share a quota. */
static int64_t number_of_node(const char *name, uint64_t user)
{
	uint64_t hash = (UINT64_C(14695981039346656037) ^ user) * UINT64_C(1099511628211); /* FNV-1a */
	for (; *name; name++)
		hash = (hash ^ (unsigned char)*name) * UINT64_C(1099511628211);
	return (int64_t)(hash >> 2) + 1;
}

/* A node names the users of its calls itself: by their quotas alone it could have all calls that there are. And none of
 * them may have so many that nothing is left for the others there. */
static bool take_of_node(struct rpc_call *call)
{
	struct rpc_server *server = call->server;
	if (call->row->method->flags & RPC_INTERNAL)
		return rpc_quota_used(&server->links, call->node) < MAX_LINKS &&
		       rpc_quota_add(&server->links, call->node, 1);
	if (rpc_quota_used(&server->of_node_users, call->node_user) >= rpc_quota_left(&server->of_nodes, call->node) ||
	    !rpc_quota_add(&server->of_node_users, call->node_user, 1))
		return false;
	if (rpc_quota_add(&server->of_nodes, call->node, 1))
		return true;
	rpc_quota_give(&server->of_node_users, call->node_user, 1);
	return false;
}

static enum status take_quotas(struct rpc_call *call)
{
	struct rpc_server *server = call->server;
	const struct rpc_peer *peer = &call->peer;
	if (!rpc_call_take_quota(server, &server->calls, call->user, 1))
		return ST_RESOURCE_EXHAUSTED;
	if (peer->role != RPC_ROLE_NODE)
		return ST_OK;
	call->node = number_of_node(peer->role_name, UINT64_MAX);
	call->node_user = number_of_node(peer->role_name, peer->uid);
	if (take_of_node(call))
		return ST_OK;
	rpc_quota_give(&server->calls, call->user, 1);
	return ST_RESOURCE_EXHAUSTED;
}

/* OK: the call is counted in the quotas of calls. Else the reason to refuse it. */
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
	if (!may_call(call))
		return ST_PERMISSION_DENIED;
	if ((call->row->method->flags & RPC_NEEDS_DEADLINE) && !rpc_call_has_deadline(call))
		return ST_INVALID_ARGUMENT;
	if (server->config.relays && !server->relay && (call->row->method->flags & RPC_RELAY))
		return ST_UNAVAILABLE;
	return take_quotas(call);
}

/* Returns the hint, or NULL. */
static const char *describe_refusal(const struct rpc_call *call, enum status st, char *text, size_t n_text)
{
	grpc_slice path = call->details.method;
	if (st == ST_PERMISSION_DENIED || (st == ST_UNAUTHENTICATED && call->peer.name[0]))
		return rpc_error_text_peer(call->row, &call->peer, text, n_text);
	if (st == ST_RESOURCE_EXHAUSTED && call->node)
		return rpc_error_text_node(call->server, call->row, call->node, call->node_user, call->peer.role_name,
					   text, n_text);
	return rpc_error_text_refused(call->server, call->row, (const char *)GRPC_SLICE_START_PTR(path),
				      GRPC_SLICE_LENGTH(path), call->user, st, text, n_text);
}

static void refuse(struct rpc_call *call, enum status st)
{
	char text[256];
	const char *hint = describe_refusal(call, st, text, sizeof(text));
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
		rpc_call_take_slot(call);
		if (call->row->method->on_open) {
			call->seen = true;
			call->row->method->on_open(call);
		}
		if (call->server->relay && call->row->method->flags & RPC_RELAY)
			rpc_relay_begin(call);
		else if (call->read_ahead)
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
		rpc_call_free(call);
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
	call->close.run = rpc_call_on_close;
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
		rpc_call_free(call);
		return;
	}
	tenant->armed++;
}
