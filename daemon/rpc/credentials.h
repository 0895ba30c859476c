/* SPDX-License-Identifier: Apache-2.0 */
/* TLS credentials from files, and which addresses do without them. For the server's TCP listener and the channel to an
 * upstream. Loop thread. */
#ifndef GACC_RPC_CREDENTIALS_H
#define GACC_RPC_CREDENTIALS_H

#include "rpc/revoked.h"

#include <stdbool.h>

struct grpc_channel_credentials;
struct grpc_server_credentials;
struct rpc_tls_peer; /* the other side of a channel, by its certificate */

/* Paths of PEM files; all or none are set. */
struct rpc_tls_files {
	const char *cert, *key, *ca;
};
bool rpc_tls_complete(const struct rpc_tls_files *files);
bool rpc_tls_none(const struct rpc_tls_files *files);

/* NULL: a file cannot be read or used, which is logged. Clients must have a certificate of the authority. */
struct grpc_server_credentials *rpc_tls_server(const struct rpc_tls_files *files);
/* The same for a client, which takes a coordinator's certificate only. *out_peer is for rpc_tls_peer_drop. */
struct grpc_channel_credentials *rpc_tls_client(const struct rpc_tls_files *files, struct rpc_tls_peer **out_peer);

/* Certificates are checked when a connection is made. Whether the one that the newest connection was made with has been
 * revoked since; then its serial number is in out_serial. */
bool rpc_tls_peer_revoked(struct rpc_tls_peer *peer, char out_serial[REVOKED_SERIAL_MAX + 1]);
void rpc_tls_peer_drop(struct rpc_tls_peer *peer); /* takes NULL */

#endif
