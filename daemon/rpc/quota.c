/* SPDX-License-Identifier: Apache-2.0 */
/* Accounting of shared resources per user, for the RPC layer and for the tensor sets that the edge collects. Pure
 * bookkeeping without any system call; used on the loop thread only. */
#include "rpc/quota.h"

#include <assert.h>
#include <stdlib.h>

static struct rpc_usage *find(const struct rpc_quota *s, int64_t user)
{
	for (size_t i = 0; i < s->n_users; i++)
		if (s->users[i].user == user)
			return &s->users[i];
	return NULL;
}

static struct rpc_usage *add(struct rpc_quota *s, int64_t user)
{
	if (s->n_users == s->room) {
		size_t room = s->room ? 2 * s->room : 8;
		struct rpc_usage *all = realloc(s->users, room * sizeof(*all));
		if (!all)
			return NULL;
		s->users = all;
		s->room = room;
	}
	s->users[s->n_users] = (struct rpc_usage){ .user = user };
	return &s->users[s->n_users++];
}

size_t rpc_quota_left(const struct rpc_quota *s, int64_t user)
{
	size_t own = rpc_quota_used(s, user), left = s->used < s->most ? s->most - s->used : 0;
	size_t room = own < left ? (left - own) / 2 : 0;
	if (user != RPC_UNAUTHENTICATED || s->most_unauthenticated == 0)
		return room;
	size_t own_limit = own < s->most_unauthenticated ? s->most_unauthenticated - own : 0;
	return room < own_limit ? room : own_limit;
}

bool rpc_quota_add(struct rpc_quota *s, int64_t user, size_t n)
{
	if (n == 0)
		return true;
	struct rpc_usage *u = find(s, user);
	if (!u)
		u = add(s, user);
	if (!u)
		return false;
	u->used += n;
	s->used += n;
	return true;
}

bool rpc_quota_take(struct rpc_quota *s, int64_t user, size_t n)
{
	return n <= rpc_quota_left(s, user) && rpc_quota_add(s, user, n);
}

void rpc_quota_give(struct rpc_quota *s, int64_t user, size_t n)
{
	if (n == 0)
		return;
	struct rpc_usage *u = find(s, user);
	assert(u && u->used >= n);
	u->used -= n;
	s->used -= n;
	if (u->used == 0)
		*u = s->users[--s->n_users];
}

size_t rpc_quota_used(const struct rpc_quota *s, int64_t user)
{
	const struct rpc_usage *u = find(s, user);
	return u ? u->used : 0;
}

void rpc_quota_fini(struct rpc_quota *s)
{
	free(s->users);
}
