/* SPDX-License-Identifier: Apache-2.0 */
/* A user of the guard: limits for what all of the user's connections together make gRPC keep and do. Shared by guard.c
 * and guard_users.c only. */
#ifndef GACC_RPC_GUARD_IMPL_H
#define GACC_RPC_GUARD_IMPL_H

#include "rpc/guard.h"
#include "rpc/frames.h"

#include <pthread.h>
#include <stdint.h>

#define GUARD_IDLE_PER_S 10000 /* frames that nobody needs, of all connections of a user */
#define GUARD_IDLE_AT_ONCE 20000
#define GUARD_CUT_NS NS_PER_S /* when connections of a user were cut: how soon one more may be */

/* What comes back with time. */
struct bucket {
	int64_t left, at_ns;
};

/* A log line that many may cause. */
struct said {
	int64_t again_ns; /* not before */
	unsigned unsaid;
};

/* A user. It outlives its connections for a while: who comes back has used up what it had. */
struct rpc_guard {
	struct rpc_guard *next;
	uid_t uid;	  /* (uid_t)-1: all who come over TCP */
	int64_t asked_ns; /* when its newest connection came */
	size_t max_call_bytes;
	unsigned max_streams, max_connections;

	pthread_mutex_t lock; /* of what follows */
	unsigned refs;	      /* connections, the list, `tcp` */
	unsigned connections;
	size_t call_bytes;
	struct bucket idle;
	int64_t cuts_ns; /* when all cuts are forgiven */
	struct said cut, squeezed;
};

/* The user with this uid, made if there is none; users of long ago are dropped. Borrowed from `all`. NULL without
 * memory. Loop thread. */
struct rpc_guard *guard_of(struct rpc_guards *all, uid_t, int64_t now);
/* One reference less. Any thread, as what follows. */
void guard_unref(struct rpc_guard *);
/* One more connection, which holds a reference. NULL, or why not. */
const char *guard_enter(struct rpc_guard *, int64_t now);
/* Is it time to say this again? *unsaid are those since the last time. Under the user's lock. */
bool guard_may_say(struct said *, int64_t now, unsigned *unsaid);

#endif
