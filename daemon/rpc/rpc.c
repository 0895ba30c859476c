/* SPDX-License-Identifier: Apache-2.0 */
/* An RPC server from its creation to its start, and the connections that it serves: descriptors that host/listen.c has
 * accepted, and its own TCP listener. Stopping is in stop.c. Loop thread. */
#include "rpc/rpc.h"

#include "base/log.h"
#include "base/loopback.h"
#include "rpc/certificate.h"
#include "rpc/credentials.h"
#include "rpc/revoked.h"
#include "rpc/tenants.h"
#include "proto/handoff.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <grpc/grpc.h>
#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <protobuf-c/protobuf-c.h>
#include <uv.h>

#define SENDS_PER_TURN 256 /* each takes gRPC ten to twenty microseconds */
#define UNAUTHENTICATED_CALLS 64
#define UNAUTHENTICATED_BYTES (1 << 20) /* of requests, and of answers */

static void set_defaults(struct rpc_config *config)
{
	if (config->max_calls == 0)
		config->max_calls = 16384;
	if (config->max_streams == 0)
		config->max_streams = 1024;
	if (config->max_queued_bytes == 0)
		config->max_queued_bytes = 8u << 20;
	if (config->max_queued_all == 0)
		config->max_queued_all = 1u << 30;
	if (config->max_held_bytes == 0)
		config->max_held_bytes = 512u << 20;
	if (config->max_unread_bytes == 0)
		config->max_unread_bytes = 2u << 30;
	if (config->max_call_bytes == 0)
		config->max_call_bytes = 256u << 20;
	if (config->relay_min_uid == 0)
		config->relay_min_uid = 1000;
	if (config->keepalive_ms == 0)
		config->keepalive_ms = 10000;
	if (config->handshake_ms == 0)
		config->handshake_ms = 20000;
}

enum status rpc_server_new(const struct rpc_config *config, struct rpc_server **out_server)
{
	struct rpc_server *server = calloc(1, sizeof(*server));
	if (!server)
		return ST_NO_MEMORY;
	grpc_init();
	rpc_log_hook_install();
	server->config = *config;
	set_defaults(&server->config);
	server->calls.most = server->config.max_calls;
	server->of_nodes.most = server->config.max_calls / 2;
	server->links.most = server->of_node_users.most = SIZE_MAX;
	server->held.most = server->config.max_held_bytes;
	server->queued.most = server->config.max_queued_all;
	server->overflow_users.most = SIZE_MAX;
	server->guards.max_streams = server->config.max_streams;
	server->guards.max_call_bytes = server->config.max_call_bytes;
	server->calls.most_unauthenticated = UNAUTHENTICATED_CALLS;
	server->held.most_unauthenticated = server->queued.most_unauthenticated = UNAUTHENTICATED_BYTES;
	server->slots = calloc(server->config.max_calls, sizeof(*server->slots));
	server->stop = rpc_stop_new();
	if (!server->slots || !server->stop || rpc_pool_new(server->config.loop, &server->pool))
		goto fail;
	for (uint32_t i = 0; i < server->config.max_calls; i++)
		server->slots[i] = (struct rpc_slot){ .generation = 1, .next_free = i + 1 };
	if (rpc_tenants_init(server) != ST_OK)
		goto fail;
	*out_server = server;
	return ST_OK;
fail:
	rpc_server_free(server);
	return ST_NO_MEMORY;
}

void rpc_server_free(struct rpc_server *server)
{
	if (!server)
		return;
	rpc_tenants_fini(server);
	rpc_pool_free(server->pool);
	free(server->stop);
	free(server->rows);
	free(server->slots);
	free(server->peers);
	rpc_quota_fini(&server->calls);
	rpc_quota_fini(&server->links);
	rpc_quota_fini(&server->of_nodes);
	rpc_quota_fini(&server->of_node_users);
	rpc_quota_fini(&server->held);
	rpc_quota_fini(&server->queued);
	rpc_quota_fini(&server->overflow_users);
	rpc_guards_fini(&server->guards);
	free(server);
	grpc_shutdown();
}

/* Calls that wait for long, as links do, would go on; new ones are refused anyway. */
enum status rpc_server_revoke(struct rpc_server *server, const char *path)
{
	enum status st = revoked_load(path);
	for (uint32_t i = 0; !st && i < server->config.max_calls; i++)
		if (server->slots[i].call)
			rpc_call_end_revoked(server->slots[i].call);
	char why[160];
	if (!st && rpc_upstreams_check_revoked(server, why, sizeof(why)))
		rpc_relay_end_all(server, why);
	return st;
}

struct rpc_pool *rpc_server_pool(const struct rpc_server *server)
{
	return server->pool;
}

static void ignore(void *context)
{
}

enum status rpc_server_start(struct rpc_server *server)
{
	enum status st = rpc_check_rows(server);
	if (st == ST_OK)
		st = rpc_tenants_register(server);
	if (st == ST_OK)
		st = rpc_reaper_start(server->config.loop, &server->reaper);
	if (st != ST_OK)
		return st;
	st = rpc_turns_new(server->config.loop, SENDS_PER_TURN, &server->sends);
	if (st == ST_OK)
		st = rpc_pump_start(server->config.loop, &server->pump);
	if (st != ST_OK) {
		rpc_turns_free(server->sends);
		server->sends = NULL;
		rpc_reaper_stop(server->reaper, ignore, NULL);
		server->reaper = NULL;
		return st;
	}
	rpc_tenants_start(server);
	return ST_OK;
}

/* ---- connections ---- */

static enum status set_peer(struct rpc_server *server, int fd, uid_t uid, pid_t pid, uint64_t start_time)
{
	if ((size_t)fd >= server->n_peers) {
		size_t n = (size_t)fd + 64;
		struct rpc_peer *all = realloc(server->peers, n * sizeof(*all));
		if (!all)
			return ST_NO_MEMORY;
		memset(all + server->n_peers, 0, (n - server->n_peers) * sizeof(*all));
		server->peers = all;
		server->n_peers = n;
	}
	struct rpc_peer *peer = &server->peers[fd];
	*peer = (struct rpc_peer){ .is_unix = true, .uid = uid, .pid = pid, .start_time = start_time };
	snprintf(peer->address, sizeof(peer->address), "unix:pid=%d", (int)pid);
	return ST_OK;
}

enum status rpc_server_add_fd(struct rpc_server *server, int fd, uid_t uid, pid_t pid, uint64_t start_time)
{
	struct rpc_tenant *tenant;
	enum status st = !server->pump || server->stopping ? ST_UNAVAILABLE : rpc_tenant_enter(server, uid, &tenant);
	int flags = fcntl(fd, F_GETFL);
	if (st == ST_OK && (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)) {
		log_error("cannot make a connection non-blocking: %s", strerror(errno));
		st = ST_IO_ERROR;
	}
	if (st == ST_OK)
		st = set_peer(server, fd, uid, pid, start_time);
	if (st == ST_OK)
		st = rpc_guard_watch(&server->guards, fd, uid, pid);
	if (st != ST_OK) {
		close(fd);
		return st;
	}
	grpc_server_credentials *insecure = grpc_insecure_server_credentials_create();
	grpc_server_add_channel_from_fd(tenant->grpc, fd, insecure);
	grpc_server_credentials_release(insecure);
	return ST_OK;
}

void rpc_server_fd_gone(struct rpc_server *server, uid_t uid)
{
	if (!server->stopping)
		rpc_tenant_leave(server, uid);
}

enum status rpc_server_listen_tcp(struct rpc_server *server, const char *address,
				  const struct rpc_tcp_identity *identity, int *out_port)
{
	struct rpc_tls_files files = { identity->cert_path, identity->key_path, identity->ca_path };
	bool tls = rpc_tls_complete(&files);
	if (!tls && (!identity->token_ok || !is_loopback(address))) {
		log_error("%s: needs certificate, key and ca; a token alone is allowed on 127.0.0.1 and [::1] only",
			  address);
		return ST_INVALID_CONFIG;
	}
	grpc_server_credentials *creds = tls ? rpc_tls_server(&files) : grpc_insecure_server_credentials_create();
	if (!creds)
		return ST_IO_ERROR;
	if (tls)
		rpc_certificate_cluster(files.cert, server->cluster);
	int port = grpc_server_add_http2_port(server->overflow->grpc, address, creds);
	grpc_server_credentials_release(creds);
	if (port == 0) {
		log_error("cannot listen on %s", address);
		return ST_IO_ERROR;
	}
	if (!tls) {
		server->token_ok = identity->token_ok;
		server->token_context = identity->context;
	}
	if (rpc_guard_listen(&server->guards, port, !tls) != ST_OK)
		return ST_NO_MEMORY;
	*out_port = port;
	return ST_OK;
}
