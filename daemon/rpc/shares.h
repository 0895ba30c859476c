/* SPDX-License-Identifier: Apache-2.0 */
/* Something that all users share and that can run out: calls, bytes of requests, bytes of answers.
 *
 * A user may have as much as is left. So one alone gets half of it at most, and whoever comes next still gets half of
 * the rest: nobody can take it from the others. A user is a uid; all who have not proved who they are count as one,
 * RPC_STRANGERS. Loop thread.
 */
#ifndef GACC_RPC_SHARES_H
#define GACC_RPC_SHARES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RPC_STRANGERS (-1)

struct rpc_share {
	int64_t who;
	size_t used; /* > 0 */
};

struct rpc_shares {
	size_t most, used;
	size_t most_strangers;	/* of RPC_STRANGERS; 0: as of anybody */
	struct rpc_share *user; /* who has some of it, in no order */
	size_t n_users, room;
};

/* false: it is too much for this user now, or there is no memory; nothing has changed. */
bool rpc_shares_take(struct rpc_shares *, int64_t who, size_t n);
/* The same without a bound, for what the user had before this process. false: no memory. */
bool rpc_shares_add(struct rpc_shares *, int64_t who, size_t n);
/* What was taken, or a part of it. */
void rpc_shares_give(struct rpc_shares *, int64_t who, size_t n);
/* How much of it this user could take now. */
size_t rpc_shares_room(const struct rpc_shares *, int64_t who);
/* What this user has. */
size_t rpc_shares_of(const struct rpc_shares *, int64_t who);
/* Frees its list alone. */
void rpc_shares_fini(struct rpc_shares *);

#endif
