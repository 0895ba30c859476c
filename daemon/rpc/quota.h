/* SPDX-License-Identifier: Apache-2.0 */
/* Quotas for a resource that all users share and that can run out: calls, bytes of requests, bytes of answers.
 *
 * A user may hold at most as much as remains free. So a single user gets at most half of the resource, the next one
 * still gets half of the rest, and nobody can use it up. A user is a uid; all clients that have not authenticated count
 * as one user, RPC_UNAUTHENTICATED. Loop thread.
 */
#ifndef GACC_RPC_QUOTA_H
#define GACC_RPC_QUOTA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RPC_UNAUTHENTICATED (-1)

struct rpc_usage {
	int64_t user;
	size_t used; /* > 0 */
};

struct rpc_quota {
	size_t most, used;
	size_t most_unauthenticated; /* for RPC_UNAUTHENTICATED; 0: the same as for any user */
	struct rpc_usage *users;     /* users that hold some of it, in no order */
	size_t n_users, room;
};

/* Takes n for this user. false: more than the user may take now, or out of memory; nothing has changed. */
bool rpc_quota_take(struct rpc_quota *, int64_t user, size_t n);
/* The same without a limit, for what the user already held before this process started. false: out of memory. */
bool rpc_quota_add(struct rpc_quota *, int64_t user, size_t n);
/* Returns n of what the user holds. */
void rpc_quota_give(struct rpc_quota *, int64_t user, size_t n);
/* How much this user could take now. */
size_t rpc_quota_left(const struct rpc_quota *, int64_t user);
/* How much this user holds. */
size_t rpc_quota_used(const struct rpc_quota *, int64_t user);
/* Frees the list of users, not the struct itself. */
void rpc_quota_fini(struct rpc_quota *);

#endif
