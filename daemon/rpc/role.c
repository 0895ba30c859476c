/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the role of a certificate from its URIs, for the server (peer.c) and the channel to an upstream
 * (credentials.c). Any thread. */
#include "rpc/role.h"

#include <ctype.h>
#include <string.h>

static const char *const words[] = { "none", "node", "coordinator", "admin" };

const char *rpc_role_word(enum rpc_role role)
{
	return words[role];
}

_Static_assert(RPC_CLUSTER_MAX == RPC_ROLE_NAME_MAX, "one rule for both names");

static bool name_ok(const char *name, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!isalnum((unsigned char)name[i]) && (name[i] == 0 || !strchr(".-_", name[i])))
			return false;
	return n >= 1 && n <= RPC_ROLE_NAME_MAX;
}

/* The end of a prefix of text; NULL: it begins otherwise. */
static const char *after(const char *text, const char *end, const char *prefix)
{
	size_t n = strlen(prefix);
	return (size_t)(end - text) >= n && memcmp(text, prefix, n) == 0 ? text + n : NULL;
}

void rpc_identity_add(struct rpc_identity *identity, const char *uri, size_t n)
{
	const char *end = uri + n, *cluster = after(uri, end, "spiffe://");
	const char *path = cluster ? memchr(cluster, '/', (size_t)(end - cluster)) : NULL;
	if (!path)
		return;
	for (enum rpc_role role = RPC_ROLE_NODE; role <= RPC_ROLE_ADMIN; role++) {
		const char *name = after(path + 1, end, words[role]);
		name = name && name < end && *name == '/' ? name + 1 : NULL;
		if (!name)
			continue;
		size_t n_name = (size_t)(end - name), n_cluster = (size_t)(path - cluster);
		if (identity->role || !name_ok(cluster, n_cluster) || !name_ok(name, n_name)) {
			identity->is_bad = true;
			continue;
		}
		identity->role = role;
		memcpy(identity->name, name, n_name);
		identity->name[n_name] = 0;
		memcpy(identity->cluster, cluster, n_cluster);
		identity->cluster[n_cluster] = 0;
	}
}

bool rpc_identity_is_foreign(const struct rpc_identity *identity, const char *cluster)
{
	return identity->role && *cluster && strcmp(identity->cluster, cluster) != 0;
}
