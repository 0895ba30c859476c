/* SPDX-License-Identifier: Apache-2.0 */
/* The channel to an upstream gaccd: target, credentials and gRPC's settings. Its streams are in outgoing.c. Loop
 * thread. */
#include "rpc/upstream_impl.h"

#include "base/log.h"
#include "base/loopback.h"
#include "rpc/credentials.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

/* gRPC gives up an attempt to connect when the other side, perhaps on a busy machine, has not answered by then */
#define CONNECT_MS 2000
#define REPLY_MAX (320 << 20)  /* of relayed calls, as in client/lib/channel.c; outgoing.c bounds those of streams */
#define WINDOW_BYTES (1 << 20) /* as in tenant.c */

/* gRPC only reads keys and strings; its types have no const. */
static grpc_arg int_arg(const char *key, int value)
{
	return (grpc_arg){ .type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = value };
}

static grpc_arg string_arg(const char *key, const char *value)
{
	return (grpc_arg){ .type = GRPC_ARG_STRING,
			   .key = (char *)(uintptr_t)key,
			   .value.string = (char *)(uintptr_t)value };
}

/* As the client's channel (client/lib/channel.c), with the server's windows: what a stream may hold unread is bounded.
 */
static grpc_channel *make_channel(const struct rpc_upstream *u)
{
	grpc_arg args[] = {
		int_arg(GRPC_ARG_ENABLE_RETRIES, 0),
		int_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
		int_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100),
		int_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, CONNECT_MS),
		int_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 300),
		int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, u->keepalive_ms),
		int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, u->keepalive_ms),
		int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
		int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, REPLY_MAX),
		int_arg(GRPC_ARG_HTTP2_BDP_PROBE, 0),
		int_arg(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, WINDOW_BYTES),
		int_arg(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, WINDOW_BYTES),
		int_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
		int_arg(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
		int_arg("grpc.compression_enabled_algorithms_bitset", 1),
		int_arg(GRPC_ARG_ENABLE_CHANNELZ, 0),
		string_arg(GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, u->server_name), /* last: left out if NULL */
	};
	size_t n = sizeof(args) / sizeof(args[0]) - (u->server_name ? 0 : 1);
	grpc_channel_args all = { .num_args = n, .args = args };
	return grpc_channel_create(u->target, u->creds, &all);
}

static enum status check(const struct rpc_upstream_config *config, const struct rpc_tls_files *files)
{
	bool loopback = is_loopback(config->address);
	const char *fault = NULL;
	if (!rpc_tls_complete(files) && !rpc_tls_none(files))
		fault = "certificate, key and ca are set together, or none of them";
	else if (rpc_tls_none(files) && !loopback)
		fault = "needs certificate, key and ca; only 127.0.0.1 and [::1] do without";
	else if (config->token && !loopback)
		fault = "a token is sent to 127.0.0.1 and [::1] only";
	if (fault)
		log_error("%s: %s", config->address, fault);
	return fault ? ST_INVALID_CONFIG : ST_OK;
}

/* What streams do not use that are still open. */
static void drop_parts(struct rpc_upstream *u)
{
	if (u->creds)
		grpc_channel_credentials_release(u->creds);
	rpc_tls_peer_drop(u->peer);
	free(u->authorization);
	free(u->server_name);
	free(u->target);
}

static bool copy_texts(struct rpc_upstream *u, const struct rpc_upstream_config *config)
{
	if (config->token && asprintf(&u->authorization, "Bearer %s", config->token) < 0)
		u->authorization = NULL;
	if (asprintf(&u->target, "dns:%s", config->address) < 0)
		u->target = NULL;
	u->server_name = config->server_name ? strdup(config->server_name) : NULL;
	return u->target && (u->authorization || !config->token) && (u->server_name || !config->server_name);
}

static enum status connect_to(struct rpc_upstream *u, const struct rpc_upstream_config *config,
			      const struct rpc_tls_files *files)
{
	u->keepalive_ms = config->keepalive_ms ? config->keepalive_ms : 10000;
	u->creds = rpc_tls_none(files) ? grpc_insecure_credentials_create() : rpc_tls_client(files, &u->peer);
	if (!u->creds)
		return ST_IO_ERROR;
	u->grpc = copy_texts(u, config) ? make_channel(u) : NULL;
	return u->grpc ? ST_OK : ST_NO_MEMORY;
}

enum status rpc_upstream_new(struct rpc_server *server, const struct rpc_upstream_config *config,
			     struct rpc_upstream **out_upstream)
{
	struct rpc_tls_files files = { config->cert_path, config->key_path, config->ca_path };
	enum status st = check(config, &files);
	if (st)
		return st;
	struct rpc_upstream *upstream = calloc(1, sizeof(*upstream));
	if (!upstream)
		return ST_NO_MEMORY;
	upstream->server = server;
	st = connect_to(upstream, config, &files);
	if (st) {
		drop_parts(upstream);
		free(upstream);
		return st;
	}
	upstream->next = server->upstreams;
	server->upstreams = upstream;
	*out_upstream = upstream;
	return ST_OK;
}

/* The channel's calls keep what they need of it. */
void rpc_upstream_free(struct rpc_upstream *upstream)
{
	if (!upstream)
		return;
	struct rpc_upstream **at = &upstream->server->upstreams;
	while (*at != upstream)
		at = &(*at)->next;
	*at = upstream->next;
	assert(upstream->server->relay != upstream);
	rpc_outgoing_forget_all(upstream);
	grpc_channel_destroy(upstream->grpc);
	drop_parts(upstream);
	upstream->freed = true;
	if (upstream->open == 0)
		free(upstream);
}

/* A new channel makes a new connection, for which the certificate is checked again: the list may be wrong, or the other
 * side may have another certificate by now. false: it is not revoked. */
static bool check_revoked(struct rpc_upstream *u, char *why, size_t n_why)
{
	char serial[REVOKED_SERIAL_MAX + 1];
	if (!u->peer || !rpc_tls_peer_revoked(u->peer, serial))
		return false;
	struct grpc_channel *old = u->grpc;
	snprintf(why, n_why, "its certificate (serial %s) is revoked", serial);
	u->grpc = make_channel(u);
	rpc_outgoing_fail_all(u, ST_UNAUTHENTICATED, why);
	grpc_channel_destroy(old);
	return true;
}

bool rpc_upstreams_check_revoked(struct rpc_server *server, char *why, size_t n_why)
{
	bool relay = false;
	for (struct rpc_upstream *u = server->upstreams; u; u = u->next)
		relay |= check_revoked(u, why, n_why) && u == server->relay;
	return relay;
}

void rpc_upstreams_stop(struct rpc_server *server)
{
	for (struct rpc_upstream *u = server->upstreams; u; u = u->next)
		rpc_outgoing_cancel_all(u);
}
