/* SPDX-License-Identifier: Apache-2.0 */
/* Roles of certificates, by their subject alternative names: spiffe://CLUSTER/node/NAME, .../coordinator/NAME and
 * .../admin/NAME. Pure. */
#ifndef GACC_RPC_ROLE_H
#define GACC_RPC_ROLE_H

#include "rpc/rpc.h"

struct rpc_identity {
	enum rpc_role role;
	char cluster[RPC_CLUSTER_MAX + 1]; /* "" without a role */
	char name[RPC_ROLE_NAME_MAX + 1];
	bool is_bad; /* several roles, or a name or a cluster that is not 1 to 64 letters, digits and ".-_" */
};

/* Takes one more URI of a certificate into account; those of other kinds change nothing. */
void rpc_identity_add(struct rpc_identity *identity, const char *uri, size_t n);
/* The certificate's role is of another cluster than this one; "": of a certificate without a role, which says nothing.
 */
bool rpc_identity_is_foreign(const struct rpc_identity *, const char *cluster);
/* "node" */
const char *rpc_role_word(enum rpc_role role);

#endif
