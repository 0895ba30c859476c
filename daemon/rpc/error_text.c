/* SPDX-License-Identifier: Apache-2.0 */
/* Error texts of the RPC layer itself: for requests that cannot be decoded, exceed a quota or are refused. They tell
 * the client which limit it met and what to do. Any thread. */
#include "rpc/private.h"
#include "rpc/role.h"

#include <stdio.h>
#include <string.h>
#include <grpc/byte_buffer.h>
#include <protobuf-c/protobuf-c.h>

#define PATH_SHOWN 128 /* bytes of a method's name */

void rpc_error_text_unpack(const struct rpc_row *row, grpc_byte_buffer *in, enum status st, char *out_text,
			   size_t n_text)
{
	size_t n = grpc_byte_buffer_length(in);
	if (st == ST_MALFORMED)
		bytes_explain_buffer(row->input, in, out_text, n_text);
	else if (st == ST_RESOURCE_EXHAUSTED && row->method->bulk)
		snprintf(out_text, n_text, "%s: %zu bytes, of which more than %u are not data", row->input->name, n,
			 BYTES_ENVELOPE_MAX);
	else
		snprintf(out_text, n_text, "%s: %zu bytes of small elements: %s", row->input->name, n,
			 status_info(st)->text);
}

void rpc_error_text_quota(const struct rpc_quota *shares, const char *what, int64_t user, size_t n, char *out_text,
			  size_t n_text)
{
	snprintf(out_text, n_text,
		 "%s hold %zu bytes, %zu of them yours, this one has %zu; nobody may have more than are left of %zu",
		 what, shares->used, rpc_quota_used(shares, user), n, shares->most);
}

const char *rpc_error_text_refused(const struct rpc_server *server, const struct rpc_row *row, const char *path,
				   size_t n_path, int64_t user, enum status st, char *out_text, size_t n_text)
{
	if (row) {
		path = row->path;
		n_path = strlen(path);
	}
	int shown = (int)(n_path < PATH_SHOWN ? n_path : PATH_SHOWN);
	if (st == ST_RESOURCE_EXHAUSTED && user == RPC_UNAUTHENTICATED) {
		snprintf(out_text, n_text, "%.*s: %zu calls of callers without a token are open; there may be %zu",
			 shown, path, rpc_quota_used(&server->calls, user), server->calls.most_unauthenticated);
		return "send the token, or repeat this call later";
	}
	if (st == ST_RESOURCE_EXHAUSTED) {
		snprintf(out_text, n_text,
			 "%.*s: %zu calls are open, %zu of them yours; nobody may have more than are left of %zu",
			 shown, path, server->calls.used, rpc_quota_used(&server->calls, user), server->calls.most);
		return "end calls that wait, then repeat this one";
	}
	if (st == ST_INVALID_ARGUMENT) {
		snprintf(out_text, n_text, "%.*s: the call has no deadline", shown, path);
		return "set a deadline (grpc-timeout)";
	}
	if (st == ST_UNAVAILABLE) {
		snprintf(out_text, n_text, "%.*s: is for the coordinator, and this gaccd has no way to it", shown,
			 path);
		return "repeat the call; gaccd's log says more";
	}
	snprintf(out_text, n_text, "%.*s: %s", shown, path, status_info(st)->text);
	return NULL;
}

const char *rpc_error_text_node(const struct rpc_server *server, const struct rpc_row *row, int64_t node,
				int64_t node_user, const char *name, char *out_text, size_t n_text)
{
	if (row->method->flags & RPC_INTERNAL) {
		snprintf(out_text, n_text, "%s: node %s has %zu of them open already", row->path, name,
			 rpc_quota_used(&server->links, node));
		return "do several machines have the certificate of this node?";
	}
	snprintf(out_text, n_text,
		 "%s: node %s has passed on %zu calls that are open, %zu of them yours; nobody may have more than are "
		 "left to it",
		 row->path, name, rpc_quota_used(&server->of_nodes, node),
		 rpc_quota_used(&server->of_node_users, node_user));
	return "end calls that wait, then repeat this one";
}

const char *rpc_error_text_peer(const struct rpc_row *row, const struct rpc_peer *peer, char *out_text, size_t n_text)
{
	bool internal = row->method->flags & RPC_INTERNAL;
	const char *wanted = internal ? "node" : "admin";
	if (peer->is_unix) {
		snprintf(out_text, n_text, "%s: is for the gaccd of another node, over TCP", row->path);
		return "users need not call this; a node's gaccd does, with cluster.coordinator";
	}
	if (peer->relayed) {
		snprintf(out_text, n_text, "%s: certificate \"%s\" of node %s: uid %u is below cluster.relay_min_uid",
			 row->path, peer->name, peer->role_name, (unsigned)peer->uid);
		return "call as another user, or on the coordinator's machine";
	}
	if (peer->revoked) {
		snprintf(out_text, n_text, "%s: certificate \"%s\" (serial %s) is revoked", row->path, peer->name,
			 peer->serial);
		return "have the authority make another one";
	}
	if (*peer->other_cluster) {
		snprintf(out_text, n_text, "%s: certificate \"%s\" is of another cluster, \"%s\"", row->path,
			 peer->name, peer->other_cluster);
		return "use one that names the cluster of the certificate of the gaccd that is called";
	}
	if (peer->bad_role)
		snprintf(out_text, n_text, "%s: certificate \"%s\": its URIs name several roles, or one without a name",
			 row->path, peer->name);
	else if (peer->role)
		snprintf(out_text, n_text, "%s: certificate \"%s\" has the role %s/%s; needed: %s", row->path,
			 peer->name, rpc_role_word(peer->role), peer->role_name, wanted);
	else
		snprintf(out_text, n_text, "%s: certificate \"%s\" has no role; needed: %s", row->path, peer->name,
			 wanted);
	return "use a certificate with one URI spiffe://CLUSTER/ROLE/NAME of that role as subject alternative name";
}
