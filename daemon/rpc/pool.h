/* SPDX-License-Identifier: Apache-2.0 */
/* Work in libuv's threads whose size users choose: few pieces of each kind at a time, users in turn.
 *
 * The journal is written on the same threads. So each kind of work has a maximum number of them; the rest waits here,
 * behind at most one piece of another user at a time. Kinds differ in what can make a piece slow, and do not wait for
 * each other. Loop thread.
 */
#ifndef GACC_RPC_POOL_H
#define GACC_RPC_POOL_H

#include "proto/status.h"

#include <stdbool.h>
#include <stdint.h>

enum rpc_pool_kind {
	RPC_POOL_COMPUTE,  /* decoding, matching, packing: bounded by the size of a message, or of a tensor set */
	RPC_POOL_ALLOCATE, /* pages of memory, one portion a piece */
	/* the same given back, which the kernel does in one go for a segment: 100 GiB take most of a minute */
	RPC_POOL_RELEASE,
	/* files where users say, on file systems that may not answer: one piece of a user at a time */
	RPC_POOL_DISK,
	RPC_POOL_KINDS,
};

struct rpc_pool;

/* A part of what the caller wants back. Zeroed before the first use; not to be touched between rpc_pool_put and `done`.
 */
struct rpc_work {
	struct rpc_work *next;
	int64_t who;
	enum rpc_pool_kind kind;
	void (*run)(struct rpc_work *);	 /* in the pool */
	void (*done)(struct rpc_work *); /* on the loop; the work may be freed or put again there */
};

/* Has libuv start a thread for each of the workers and some for what is gaccd's own: the journal, the history. Once,
 * before anything runs in libuv's threads; without it there are four for all. ST_NO_MEMORY. */
enum status rpc_pool_make_threads(void);

/* loop: uv_loop_t. */
enum status rpc_pool_new(void *loop, struct rpc_pool **out);
void rpc_pool_free(struct rpc_pool *); /* when nothing is busy; takes NULL */
/* Work of the kind COMPUTE. who: the user whose turn it takes. */
void rpc_pool_put(struct rpc_pool *, struct rpc_work *, int64_t who, void (*run)(struct rpc_work *),
		  void (*done)(struct rpc_work *));
void rpc_pool_put_kind(struct rpc_pool *, enum rpc_pool_kind, struct rpc_work *, int64_t who,
		       void (*run)(struct rpc_work *), void (*done)(struct rpc_work *));
bool rpc_pool_busy(const struct rpc_pool *); /* with work of any kind */
/* How many pieces of a kind run now. */
int rpc_pool_running(const struct rpc_pool *, enum rpc_pool_kind);

#endif
