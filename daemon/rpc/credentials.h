/* SPDX-License-Identifier: Apache-2.0 */
/* TLS credentials from files, and which addresses do without them. For the server's TCP listener and the channel to an
 * upstream. Loop thread. */
#ifndef GACC_RPC_CREDENTIALS_H
#define GACC_RPC_CREDENTIALS_H

#include <stdbool.h>

struct grpc_channel_credentials;
struct grpc_server_credentials;

/* "127.x.y.z:port" or "[::1]:port" */
bool rpc_is_loopback(const char *address);

/* Paths of PEM files; all or none are set. */
struct rpc_tls_files {
	const char *cert, *key, *ca;
};
bool rpc_tls_complete(const struct rpc_tls_files *files);
bool rpc_tls_none(const struct rpc_tls_files *files);

/* NULL: a file cannot be read or used, which is logged. Clients must have a certificate of the authority. */
struct grpc_server_credentials *rpc_tls_server(const struct rpc_tls_files *files);
/* The same for a client. */
struct grpc_channel_credentials *rpc_tls_client(const struct rpc_tls_files *files);

#endif
