/* SPDX-License-Identifier: Apache-2.0 */
/* One guard per user: found by uid on the loop thread, kept for a minute without connections, then dropped. gRPC's
 * threads use them too, under their lock. */
#include "rpc/guard_impl.h"

#include <limits.h>
#include <stdlib.h>

#define CUTS_AT_ONCE 10 /* connections of a user that are cut before new ones have to wait */
#define SAID_AGAIN_NS (60 * NS_PER_S)
#define KEPT_NS (60 * NS_PER_S) /* without connections: longer than the allowances take to refill */

void guard_unref(struct rpc_guard *guard)
{
	pthread_mutex_lock(&guard->lock);
	bool last = --guard->refs == 0;
	pthread_mutex_unlock(&guard->lock);
	if (!last)
		return;
	pthread_mutex_destroy(&guard->lock);
	free(guard);
}

static bool is_over(struct rpc_guard *guard, int64_t now)
{
	pthread_mutex_lock(&guard->lock);
	bool alone = guard->refs == 1;
	pthread_mutex_unlock(&guard->lock);
	return alone && now - guard->asked_ns > KEPT_NS;
}

static void drop_old(struct rpc_guards *all, int64_t now)
{
	for (struct rpc_guard **at = &all->first; *at;) {
		struct rpc_guard *guard = *at;
		if (!is_over(guard, now)) {
			at = &guard->next;
			continue;
		}
		*at = guard->next;
		guard_unref(guard);
	}
}

/* NULL: out of memory. */
static struct rpc_guard *new_guard(struct rpc_guards *all, uid_t uid, int64_t now)
{
	struct rpc_guard *guard = calloc(1, sizeof(*guard));
	if (!guard)
		return NULL;
	pthread_mutex_init(&guard->lock, NULL);
	guard->uid = uid;
	guard->max_call_bytes = all->max_call_bytes;
	guard->max_streams = all->max_streams;
	guard->max_connections = UINT_MAX;
	guard->refs = 1;
	guard->idle = (struct bucket){ GUARD_IDLE_AT_ONCE, now };
	guard->next = all->first;
	all->first = guard;
	return guard;
}

struct rpc_guard *guard_of(struct rpc_guards *all, uid_t uid, int64_t now)
{
	struct rpc_guard *guard = all->first;
	while (guard && guard->uid != uid)
		guard = guard->next;
	if (!guard) {
		drop_old(all, now);
		guard = new_guard(all, uid, now);
	}
	if (guard)
		guard->asked_ns = now;
	return guard;
}

bool guard_may_say(struct said *said, int64_t now, unsigned *unsaid)
{
	*unsaid = said->unsaid;
	if (now < said->again_ns) {
		said->unsaid++;
		return false;
	}
	*said = (struct said){ .again_ns = now + SAID_AGAIN_NS };
	return true;
}

const char *guard_enter(struct rpc_guard *guard, int64_t now)
{
	const char *why = NULL;
	pthread_mutex_lock(&guard->lock);
	if (guard->cuts_ns - now > CUTS_AT_ONCE * GUARD_CUT_NS)
		why = "too many of your connections were closed: wait a second";
	else if (guard->connections >= guard->max_connections)
		why = "too many connections over TCP";
	if (!why) {
		guard->connections++;
		guard->refs++;
	}
	pthread_mutex_unlock(&guard->lock);
	return why;
}
