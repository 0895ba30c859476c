/* SPDX-License-Identifier: Apache-2.0 */
/* What all parts of jobs on this node share: the loop, the configuration, the service manager's descriptor store, the
 * pool of threads. Loop thread.
 */
#ifndef GACC_RUNTIME_NODE_H
#define GACC_RUNTIME_NODE_H

#include "control/messages.h"
#include "host/conf.h"
#include "host/fdstore.h"
#include "rpc/quota.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#define NODE_TICK_MS 100

struct rpc_pool;
struct part;

struct node {
	uv_loop_t loop;
	const struct conf *conf;
	struct rpc_pool *pool;
	struct fdstore *fdstore;
	struct fdstore_fd *stored; /* descriptors of an earlier gaccd, fd -1 once taken (runtime/stored.h) */
	size_t n_stored;
	uint64_t incarnation;
	uint64_t descriptors_before; /* soft limit that this process was started with */
	uint64_t host_bytes;	     /* of the segments and mailboxes of all parts */
	struct part **part;	     /* published ones, ascending: job, then number */
	uint32_t n_parts, parts_capacity;
	/* bytes of tensor sets that ranks register in portions, and of those that came so */
	struct rpc_quota collected;
	/* gaccd takes up what was there before it, and serves nobody yet */
	bool starting;
	bool stopping; /* gaccd ends: nothing new begins */
};

/* The time of the machine. */
struct now node_now(void);

#endif
