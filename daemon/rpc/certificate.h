/* SPDX-License-Identifier: Apache-2.0 */
/* What this process's own certificate says of itself. At the start, when the file has been looked at. */
#ifndef GACC_RPC_CERTIFICATE_H
#define GACC_RPC_CERTIFICATE_H

#include "rpc/role.h"

/* The cluster of its role (role.h), of the first certificate in this PEM file; "": it has no role, several, or cannot
 * be read. A certificate that replaces it later is for the same cluster. */
void rpc_certificate_cluster(const char *path, char out[RPC_CLUSTER_MAX + 1]);

#endif
