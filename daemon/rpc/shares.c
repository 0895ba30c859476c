/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/shares.h"

#include <assert.h>
#include <stdlib.h>

static struct rpc_share *find(const struct rpc_shares *s, int64_t who)
{
	for (size_t i = 0; i < s->n_users; i++)
		if (s->user[i].who == who)
			return &s->user[i];
	return NULL;
}

static struct rpc_share *add(struct rpc_shares *s, int64_t who)
{
	if (s->n_users == s->room) {
		size_t room = s->room ? 2 * s->room : 8;
		struct rpc_share *all = realloc(s->user, room * sizeof(*all));
		if (!all)
			return NULL;
		s->user = all;
		s->room = room;
	}
	s->user[s->n_users] = (struct rpc_share){ .who = who };
	return &s->user[s->n_users++];
}

size_t rpc_shares_room(const struct rpc_shares *s, int64_t who)
{
	size_t own = rpc_shares_of(s, who), left = s->used < s->most ? s->most - s->used : 0;
	size_t room = own < left ? (left - own) / 2 : 0;
	if (who != RPC_STRANGERS || s->most_strangers == 0)
		return room;
	size_t strangers = own < s->most_strangers ? s->most_strangers - own : 0;
	return room < strangers ? room : strangers;
}

bool rpc_shares_add(struct rpc_shares *s, int64_t who, size_t n)
{
	if (n == 0)
		return true;
	struct rpc_share *user = find(s, who);
	if (!user)
		user = add(s, who);
	if (!user)
		return false;
	user->used += n;
	s->used += n;
	return true;
}

bool rpc_shares_take(struct rpc_shares *s, int64_t who, size_t n)
{
	return n <= rpc_shares_room(s, who) && rpc_shares_add(s, who, n);
}

void rpc_shares_give(struct rpc_shares *s, int64_t who, size_t n)
{
	if (n == 0)
		return;
	struct rpc_share *user = find(s, who);
	assert(user && user->used >= n);
	user->used -= n;
	s->used -= n;
	if (user->used == 0)
		*user = s->user[--s->n_users];
}

size_t rpc_shares_of(const struct rpc_shares *s, int64_t who)
{
	const struct rpc_share *user = find(s, who);
	return user ? user->used : 0;
}

void rpc_shares_fini(struct rpc_shares *s)
{
	free(s->user);
}
