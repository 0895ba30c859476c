/* SPDX-License-Identifier: Apache-2.0 */
/* Judges certificates: that of whoever connects, by the authority, the date and what it is for, and this process's own.
 * gRPC would do the first by itself, but tells nobody which certificate it has refused and why. Any thread. */
#ifndef GACC_RPC_CERTIFICATE_H
#define GACC_RPC_CERTIFICATE_H

#include "rpc/role.h"

#include <stddef.h>
#include <stdint.h>

struct rpc_tls_files;

#define RPC_CERTIFICATE_WHY 600 /* bytes for a sentence */

enum rpc_certificate_use {
	RPC_CERTIFICATE_OF_CLIENT, /* of one that has connected here */
	RPC_CERTIFICATE_OF_SERVER, /* of one that this process has connected to */
};

/* The certificate of the other side, PEM, with those between it and the authority (NULL: none), is valid now, for this
 * use, and of an authority in the file `ca`, which is read anew. Else false, and `why` is one sentence that says which
 * certificate, what is wrong with it and what to do, and *out_known (NULL: nobody asks) whether an authority in `ca`
 * has signed it, so that it is no stranger's; also when `ca` cannot be read, which is no stranger's doing. The key is
 * not checked: TLS has done it. */
bool rpc_certificate_ok(const char *pem, const char *chain, const char *ca, enum rpc_certificate_use use,
			bool *out_known, char *why, size_t n_why);

/* The cluster of its role (role.h), of the first certificate in this PEM file; "": it has no role, several, or cannot
 * be read. A certificate that replaces it later is for the same cluster. */
void rpc_certificate_cluster(const char *path, char out[RPC_CLUSTER_MAX + 1]);

/* What is known of this process's own certificate. */
struct rpc_own_certificate {
	char name[256];			 /* certificate "b" (role node/b, serial 0a1b); "": it cannot be read */
	char fault[RPC_CERTIFICATE_WHY]; /* why the others refuse it, and what to do; "": they will take it */
	char note[RPC_CERTIFICATE_WHY];	 /* what is no fault, but should be mended; "": nothing */
	int64_t expires_unix;		 /* seconds; 0: it cannot be read */
};

/* Looks at the files as they are now. `node`: node.name; `address`: node.data_address, an IP address; `dials`: another
 * gaccd is dialled with it, which takes the certificate of a node only. */
void rpc_own_certificate(const struct rpc_tls_files *, const char *node, const char *address, bool dials,
			 struct rpc_own_certificate *out);

#endif
