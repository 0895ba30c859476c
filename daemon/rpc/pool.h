/* Work in libuv's pool whose size users choose: few pieces at a time, users in turn.
 *
 * The pool has four threads and the journal is written in it. So at most RPC_POOL_WORKERS of them do such work; the rest waits here,
 * and nobody's work waits behind more than one piece of another user at a time. Loop thread.
 */
#ifndef GACC_RPC_POOL_H
#define GACC_RPC_POOL_H

#include "proto/status.h"

#include <stdbool.h>
#include <stdint.h>

#define RPC_POOL_WORKERS 2

struct rpc_pool;

/* A part of what the caller wants back. Zeroed before the first use; not to be touched between rpc_pool_put and `done`. */
struct rpc_work {
	struct rpc_work *next;
	int64_t who;
	void (*run)(struct rpc_work *);  /* in the pool */
	void (*done)(struct rpc_work *); /* on the loop; the work may be freed or put again there */
};

/* loop: uv_loop_t. */
enum status rpc_pool_new(void *loop, struct rpc_pool **out);
void rpc_pool_free(struct rpc_pool *); /* when nothing is busy; takes NULL */
/* who: the user whose turn it takes. */
void rpc_pool_put(struct rpc_pool *, struct rpc_work *, int64_t who, void (*run)(struct rpc_work *), void (*done)(struct rpc_work *));
bool rpc_pool_busy(const struct rpc_pool *);

#endif
