/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and closes channels to gaccd: target, credentials, gRPC's settings, and the thread that keeps reconnecting.
 * The calls are in call.c. Any thread. */
#include "lib/channel.h"

#include "lib/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#define REPLY_MAX (320 << 20) /* TensorNorms of 1,000,000 tensors with names of 255 bytes */
/* gRPC gives up an attempt when gaccd, perhaps on a busy machine, has not answered by then */
#define CONNECT_MS 2000
#define KEEPALIVE_MS 20000
#define KEEPALIVE_TIMEOUT_MS 10000

static char *read_pem(const char *path)
{
	char *text = NULL;
	size_t n = 0;
	FILE *file = fopen(path, "re");
	if (!file || getdelim(&text, &n, 0, file) < 0) {
		free(text);
		text = NULL;
	}
	if (file)
		fclose(file);
	return text;
}

static enum status make_credentials(const struct rpc_channel_options *options, grpc_channel_credentials **out_creds)
{
	if (!options->cert_path && !options->key_path && !options->ca_path) {
		*out_creds = grpc_insecure_credentials_create();
		return ST_OK;
	}
	if (!options->cert_path || !options->key_path || !options->ca_path)
		return ST_INVALID_ARGUMENT;
	enum status st = ST_IO_ERROR;
	char *cert = read_pem(options->cert_path), *key = read_pem(options->key_path), *ca = read_pem(options->ca_path);
	grpc_ssl_pem_key_cert_pair pair = { .private_key = key, .cert_chain = cert };
	if (cert && key && ca) {
		*out_creds = grpc_ssl_credentials_create_ex(ca, &pair, NULL, NULL);
		st = *out_creds ? ST_OK : ST_IO_ERROR;
	}
	free(cert);
	free(key);
	free(ca);
	return st;
}

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

/* Retries of gRPC are off because they hold lent memory after the call; a subchannel pool of its own, because channels
 * to the same daemon would share one connection; no proxy and no service config, because a daemon has neither. */
static grpc_channel *make_channel(const struct rpc_channel_options *options, grpc_channel_credentials *creds)
{
	grpc_arg args[] = {
		int_arg(GRPC_ARG_ENABLE_RETRIES, 0),
		int_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
		int_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100),
		int_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, CONNECT_MS),
		int_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000),
		int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_MS),
		int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_TIMEOUT_MS),
		int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
		int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
		int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, REPLY_MAX),
		int_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
		int_arg(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
		int_arg("grpc.compression_enabled_algorithms_bitset", 1),
		string_arg(GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, options->server_name), /* last: left out if NULL */
	};
	size_t n = sizeof(args) / sizeof(args[0]) - (options->server_name ? 0 : 1);
	grpc_channel_args all = { .num_args = n, .args = args };
	return grpc_channel_create(options->target, creds, &all);
}

static bool target_ok(const char *target)
{
	static const char *const schemes[] = { "unix:", "dns:", "ipv4:", "ipv6:" };
	for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++)
		if (strncmp(target, schemes[i], strlen(schemes[i])) == 0 && target[strlen(schemes[i])])
			return true;
	return false;
}

enum status rpc_channel_open(const struct rpc_channel_options *options, struct rpc_channel **out_channel)
{
	if (!options->target || !target_ok(options->target))
		return ST_INVALID_ARGUMENT;
	struct rpc_channel *channel = calloc(1, sizeof(*channel));
	if (!channel)
		return ST_NO_MEMORY;
	grpc_init();
	grpc_channel_credentials *creds = NULL;
	enum status st = make_credentials(options, &creds);
	if (st != ST_OK)
		goto fail;
	st = ST_NO_MEMORY;
	if (options->token && asprintf(&channel->authorization, "Bearer %s", options->token) < 0) {
		channel->authorization = NULL;
		goto fail;
	}
	channel->grpc = make_channel(options, creds);
	st = queue_open(&channel->queue);
	if (st != ST_OK)
		goto fail;
	grpc_channel_credentials_release(creds);
	*out_channel = channel;
	return ST_OK;
fail:
	if (creds)
		grpc_channel_credentials_release(creds);
	rpc_channel_close(channel);
	return st;
}

void rpc_channel_close(struct rpc_channel *channel)
{
	if (!channel)
		return;
	if (channel->grpc)
		grpc_channel_destroy(channel->grpc);
	queue_close(&channel->queue);
	free(channel->authorization);
	free(channel);
	grpc_shutdown();
}
