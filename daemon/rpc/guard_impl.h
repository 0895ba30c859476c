/* SPDX-License-Identifier: Apache-2.0 */
/* One user's guard: limits on the memory and work that all connections of the user together cause in gRPC. Shared by
 * guard.c and guard_users.c only. */
#ifndef GACC_RPC_GUARD_IMPL_H
#define GACC_RPC_GUARD_IMPL_H

#include "rpc/guard.h"
#include "rpc/frames.h"

#include <pthread.h>
#include <stdint.h>

#define GUARD_IDLE_PER_S 10000 /* useless frames, of all connections of a user */
#define GUARD_IDLE_AT_ONCE 20000
#define GUARD_CUT_NS NS_PER_S /* each connection that is cut uses up so much of its user's allowance */

/* A token bucket: `left` refills with time. */
struct bucket {
	int64_t left, at_ns;
};

/* Rate limit of one log line. */
struct said {
	int64_t again_ns; /* not before */
	unsigned unsaid;
};

/* Outlives its connections for a while, so that a user that reconnects does not get a fresh allowance. */
struct rpc_guard {
	struct rpc_guard *next;
	uid_t uid;	  /* (uid_t)-1: all clients over TCP */
	int64_t asked_ns; /* when its newest connection was made */
	size_t max_call_bytes;
	unsigned max_streams, max_connections;

	pthread_mutex_t lock; /* of what follows */
	unsigned refs;	      /* connections, the list, `tcp` */
	unsigned connections;
	size_t call_bytes;
	struct bucket idle;
	int64_t cuts_ns; /* when the allowance for cuts is full again */
	struct said cut, throttled;
};

/* The guard of this uid, made if there is none; old ones without connections are dropped. `all` owns it. NULL: out of
 * memory. Loop thread. */
struct rpc_guard *guard_of(struct rpc_guards *all, uid_t, int64_t now);
/* Drops a reference. Any thread, like what follows. */
void guard_unref(struct rpc_guard *);
/* Counts one more connection, which holds a reference. NULL, or the reason to refuse it (static). */
const char *guard_enter(struct rpc_guard *, int64_t now);
/* Whether the line may be logged again; *unsaid: how many were suppressed since. Hold the user's lock. */
bool guard_may_say(struct said *, int64_t now, unsigned *unsaid);

#endif
