/* SPDX-License-Identifier: Apache-2.0 */
/* Work of user-chosen size on libuv's threads: a few pieces of each kind at a time, users in turn.
 *
 * The journal is written on the same threads. So each kind of work may occupy only a few of them; the rest is queued
 * here, where a user waits for at most one piece of each other user at a time. The kinds differ in what can make a
 * piece slow, and do not wait for each other. Loop thread.
 */
#ifndef GACC_RPC_POOL_H
#define GACC_RPC_POOL_H

#include "proto/status.h"

#include <stdbool.h>
#include <stdint.h>

enum rpc_pool_kind {
	RPC_POOL_COMPUTE,  /* decoding, matching, packing: bounded by the size of a message, or of a tensor set */
	RPC_POOL_ALLOCATE, /* pages of memory, one portion a piece */
	/* pages returned, which the kernel does in one go for a segment: 100 GiB take most of a minute */
	RPC_POOL_RELEASE,
	/* files at paths that users choose, on file systems that may hang: one piece per user at a time */
	RPC_POOL_DISK,
	RPC_POOL_KINDS,
};

struct rpc_pool;

/* Embedded in the caller's struct. Zeroed before the first use; not to be touched between rpc_pool_put and `done`. */
struct rpc_work {
	struct rpc_work *next;
	int64_t user;
	enum rpc_pool_kind kind;
	void (*run)(struct rpc_work *);	 /* in the pool */
	void (*done)(struct rpc_work *); /* on the loop; the work may be freed or put again there */
};

/* Sets the number of libuv's threads: one for each worker, and some for gaccd's own work (journal, history). Once,
 * before anything runs on them; otherwise libuv has four. ST_NO_MEMORY. */
enum status rpc_pool_make_threads(void);

/* loop: uv_loop_t. */
enum status rpc_pool_new(void *loop, struct rpc_pool **out);
void rpc_pool_free(struct rpc_pool *); /* when nothing is busy; takes NULL */
/* Work of the kind COMPUTE. user: the one whose turn it takes. */
void rpc_pool_put(struct rpc_pool *, struct rpc_work *, int64_t user, void (*run)(struct rpc_work *),
		  void (*done)(struct rpc_work *));
void rpc_pool_put_kind(struct rpc_pool *, enum rpc_pool_kind, struct rpc_work *, int64_t user,
		       void (*run)(struct rpc_work *), void (*done)(struct rpc_work *));
bool rpc_pool_busy(const struct rpc_pool *); /* with work of any kind */
/* How many pieces of a kind run now. */
int rpc_pool_running(const struct rpc_pool *, enum rpc_pool_kind);

#endif
