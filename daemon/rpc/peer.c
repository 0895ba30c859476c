/* SPDX-License-Identifier: Apache-2.0 */
/* Identifies the client of a call: by the descriptor of its unix connection, its TLS certificate or its bearer token.
 * Loop thread. */
#include "rpc/private.h"
#include "rpc/revoked.h"
#include "rpc/role.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/grpc_security_constants.h>
#include <grpc/support/alloc.h>

/* The peer of a connection that was handed over as a descriptor is "fd:<number>". The number cannot belong to
 * another connection while this call exists: a call holds its stream, the stream the transport, and gRPC (1.51) closes
 * the descriptor only when it destroys the transport. test_rpc.c has a test for it. */
static bool peer_by_descriptor(const struct rpc_server *server, const char *uri, struct rpc_peer *out_peer)
{
	char *end;
	unsigned long fd = strtoul(uri + 3, &end, 10);
	if (end == uri + 3 || *end || fd >= server->n_peers || !server->peers[fd].is_unix)
		return false;
	*out_peer = server->peers[fd];
	return true;
}

static bool read_role(const struct rpc_server *server, grpc_auth_context *context, struct rpc_peer *out_peer)
{
	struct rpc_identity identity = { 0 };
	const grpc_auth_property *property;
	grpc_auth_property_iterator it =
		grpc_auth_context_find_properties_by_name(context, GRPC_PEER_URI_PROPERTY_NAME);
	while ((property = grpc_auth_property_iterator_next(&it)))
		rpc_identity_add(&identity, property->value, property->value_length);
	out_peer->role = identity.role;
	memcpy(out_peer->role_name, identity.name, sizeof(out_peer->role_name));
	out_peer->bad_role = identity.is_bad;
	if (rpc_identity_is_foreign(&identity, server->cluster))
		memcpy(out_peer->other_cluster, identity.cluster, sizeof(out_peer->other_cluster));
	return !identity.is_bad && !*out_peer->other_cluster;
}

static bool read_serial(grpc_auth_context *context, struct rpc_peer *out_peer)
{
	grpc_auth_property_iterator it =
		grpc_auth_context_find_properties_by_name(context, GRPC_X509_PEM_CERT_PROPERTY_NAME);
	const grpc_auth_property *pem = grpc_auth_property_iterator_next(&it);
	if (!pem || !revoked_serial(pem->value, pem->value_length, out_peer->serial))
		return false;
	out_peer->revoked = revoked_has(out_peer->serial);
	return !out_peer->revoked;
}

/* Name and role of the certificate that mutual TLS has verified. */
static bool peer_by_certificate(const struct rpc_server *server, grpc_call *call, struct rpc_peer *out_peer)
{
	grpc_auth_context *context = grpc_call_auth_context(call);
	if (!context)
		return false;
	grpc_auth_property_iterator it = grpc_auth_context_find_properties_by_name(context, GRPC_X509_CN_PROPERTY_NAME);
	const grpc_auth_property *property = grpc_auth_property_iterator_next(&it);
	if (!property) {
		it = grpc_auth_context_peer_identity(context);
		property = grpc_auth_property_iterator_next(&it);
	}
	bool known = property && grpc_auth_context_peer_is_authenticated(context) &&
		     !memchr(property->value, 0, property->value_length);
	if (known)
		snprintf(out_peer->name, sizeof(out_peer->name), "%.*s", (int)property->value_length, property->value);
	known = known && read_role(server, context, out_peer) && read_serial(context, out_peer);
	grpc_auth_context_release(context);
	return known;
}

static bool token_ok(const struct rpc_server *server, const char *authorization, size_t len)
{
	static const char bearer[] = "Bearer ";
	const size_t n = sizeof(bearer) - 1;
	return server->token_ok && len > n && memcmp(authorization, bearer, n) == 0 &&
	       server->token_ok(server->token_context, authorization + n, len - n);
}

enum status rpc_peer_find(const struct rpc_server *server, grpc_call *call, const char *authorization,
			  size_t authorization_len, struct rpc_peer *out_peer)
{
	struct rpc_peer peer = { .uid = (uid_t)-1 };
	char *uri = grpc_call_get_peer(call);
	snprintf(peer.address, sizeof(peer.address), "%s", uri);
	bool known = strncmp(uri, "fd:", 3) == 0 ? peer_by_descriptor(server, uri, &peer)
						 : peer_by_certificate(server, call, &peer);
	gpr_free(uri);
	if (!known && token_ok(server, authorization, authorization_len)) {
		snprintf(peer.name, sizeof(peer.name), "token");
		peer.has_token = true;
		known = true;
	}
	*out_peer = peer;
	return known ? ST_OK : ST_UNAUTHENTICATED;
}
