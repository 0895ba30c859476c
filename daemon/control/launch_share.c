/* SPDX-License-Identifier: Apache-2.0 */
/* Shares the restarts of a job among its nodes: how many of max_restarts each may use.
 * For edge/launching.c, on the loop thread. Pure. */
#include "control/launch_share.h"

/* The most that the node can have been given. */
static uint64_t most(const struct launch_share *s, const struct launch_told *t)
{
	const uint64_t before = s->inherits ? t->restarts + t->n_ranks : 0;
	return before > s->allowed ? before : s->allowed;
}

bool launch_share_hear(struct launch_share *s, const struct launch_told *t)
{
	const uint64_t limit = most(s, t);
	const bool believed = t->allowed <= limit;
	s->heard = true;
	s->told_allowed = believed ? t->allowed : (uint32_t)limit;
	s->wanted = t->wanted < t->n_waiting ? t->wanted : t->n_waiting;
	if (s->told_allowed > s->allowed)
		s->allowed = s->told_allowed; /* by an earlier coordinator */
	return believed;
}

/* Without other nodes, or without restarts, there is nothing to wait for. */
static bool give_all(struct launch_share *s, uint32_t n, uint32_t max_restarts)
{
	bool news = false;
	for (uint32_t i = 0; i < n; i++) {
		news |= !s[i].final;
		s[i].final = true;
		s[i].allowed = max_restarts;
	}
	return news;
}

bool launch_share_give(struct launch_share *s, uint32_t n, uint32_t max_restarts)
{
	uint64_t given = 0;
	bool news = false;
	if (n == 1 || !max_restarts)
		return give_all(s, n, max_restarts);
	for (uint32_t i = 0; i < n; i++) {
		if (!s[i].heard)
			return false;
		given += s[i].allowed;
	}
	for (uint32_t i = 0; i < n; i++) {
		if (!s[i].wanted || s[i].final || s[i].told_allowed < s[i].allowed)
			continue;
		const uint64_t left = given < max_restarts ? max_restarts - given : 0;
		const uint32_t more = s[i].wanted < left ? s[i].wanted : (uint32_t)left;
		s[i].allowed += more;
		given += more;
		s[i].final = !more;
		news = true;
	}
	return news;
}
