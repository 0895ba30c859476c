/* SPDX-License-Identifier: Apache-2.0 */
/* gRPC over TCP: where gaccd listens, how callers show who they are, and certificates that are taken back. For
 * daemon.c. Loop thread. */
#include "edge/tcp.h"

#include "base/log.h"
#include "base/regular.h"
#include "host/conf.h"
#include "host/token_file.h"

#include <string.h>

/* ---- revoked certificates ---- */

enum status tcp_read_revoked(struct daemon *d)
{
	const char *path = d->node.conf->tls.revoked;
	return *path ? rpc_server_revoke(d->rpc, path) : ST_OK;
}

void tcp_reload(struct daemon *d)
{
	const bool revokes = *d->node.conf->tls.revoked != '\0';
	if (revokes && !d->node.stopping && !tcp_read_revoked(d))
		log_notice("SIGHUP: tls.revoked has been read");
	if (!revokes)
		log_notice(
			"SIGHUP: the configuration is read at start only; restart gaccd to change it (jobs survive)");
}

bool tcp_check_files(const struct conf *c, FILE *to)
{
	const char *const files[][2] = { { "tls.revoked", c->tls.revoked },
					 { "listen.token_file", c->listen.token_file },
					 { "cluster.token_file", c->cluster.token_file } };
	bool ok = true;
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		if (!*files[i][1] || !regular_is_not(files[i][1]))
			continue;
		fprintf(to, "gaccd: %s: %s is not a regular file\n", files[i][0], files[i][1]);
		ok = false;
	}
	return ok;
}

/* ---- callers ---- */

static bool token_ok(void *context, const char *token, size_t n)
{
	const struct daemon *d = context;
	unsigned char diff = n != d->n_token;
	for (size_t i = 0; i < d->n_token; i++) /* as long for a wrong one as for the right one */
		diff |= (unsigned char)(d->token[i] ^ (i < n ? token[i] : 0));
	return !diff && d->n_token;
}

enum status tcp_listen(struct daemon *d)
{
	const struct conf *c = d->node.conf;
	if (!*c->listen.tcp)
		return ST_OK;
	struct rpc_tcp_identity id = { .cert_path = *c->tls.cert ? c->tls.cert : NULL,
				       .key_path = *c->tls.key ? c->tls.key : NULL,
				       .ca_path = *c->tls.ca ? c->tls.ca : NULL,
				       .context = d };
	if (!id.cert_path) {
		enum status st = ST_INVALID_CONFIG;
		if (!*c->listen.token_file)
			log_error("listen.tcp needs tls.cert, tls.key and tls.ca, or on loopback listen.token_file");
		else
			st = token_file_read("listen.token_file", c->listen.token_file, d->token);
		if (st)
			return st;
		d->n_token = strlen(d->token);
		id.token_ok = token_ok;
	}
	int port;
	return rpc_server_listen_tcp(d->rpc, c->listen.tcp, &id, &port);
}
