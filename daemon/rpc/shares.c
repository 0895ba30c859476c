#include "rpc/shares.h"
#include <assert.h>
#include <stdlib.h>

static struct rpc_share *find(const struct rpc_shares *s, uid_t uid)
{
	for (size_t i = 0; i < s->n_users; i++)
		if (s->user[i].uid == uid)
			return &s->user[i];
	return NULL;
}

static struct rpc_share *add(struct rpc_shares *s, uid_t uid)
{
	if (s->n_users == s->room) {
		size_t room = s->room ? 2 * s->room : 8;
		struct rpc_share *all = realloc(s->user, room * sizeof *all);
		if (!all)
			return NULL;
		s->user = all;
		s->room = room;
	}
	s->user[s->n_users] = (struct rpc_share){ .uid = uid };
	return &s->user[s->n_users++];
}

bool rpc_shares_take(struct rpc_shares *s, uid_t uid, size_t n)
{
	size_t own = rpc_shares_of(s, uid), left = s->most - s->used;
	if (n == 0)
		return true;
	if (n > left || own + n > left - n)
		return false;
	struct rpc_share *user = own ? find(s, uid) : add(s, uid);
	if (!user)
		return false;
	user->used += n;
	s->used += n;
	return true;
}

void rpc_shares_give(struct rpc_shares *s, uid_t uid, size_t n)
{
	if (n == 0)
		return;
	struct rpc_share *user = find(s, uid);
	assert(user && user->used >= n);
	user->used -= n;
	s->used -= n;
	if (user->used == 0)
		*user = s->user[--s->n_users];
}

size_t rpc_shares_of(const struct rpc_shares *s, uid_t uid)
{
	const struct rpc_share *user = find(s, uid);
	return user ? user->used : 0;
}

void rpc_shares_fini(struct rpc_shares *s)
{
	free(s->user);
}
