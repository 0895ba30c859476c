/* SPDX-License-Identifier: Apache-2.0 */
/* Limits for connections below gRPC, which has none there: how much a client may make it keep, and do, with bytes that
 * are no message.
 *
 * gRPC 1.51 keeps headers that never end, looks anew at all of them with every piece that comes, takes any number of
 * calls from who does not acknowledge its SETTINGS, and answers frames that nobody needs as long as they come; the
 * thread that does so serves all users. It offers no place to look at what a connection sends. So this file defines
 * recvmsg, sendmsg, close, epoll_ctl and accept4, which gRPC finds here instead of in the C library: those that were
 * asked for are watched (rpc/frames.h), all others go straight to the kernel. A connection that goes too far hears
 * GOAWAY (ENHANCE_YOUR_CALM, with the reason) and ends.
 */
#ifndef GACC_RPC_GUARD_H
#define GACC_RPC_GUARD_H

#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct rpc_guard;

/* Those of all users. */
struct rpc_guards {
	unsigned max_streams;  /* of each connection */
	size_t max_call_bytes; /* of each user: gRPC's memory for calls and their headers, about */
	struct rpc_guard *first;
};

/* Watches this connection until its descriptor is closed. Nobody else uses that yet. RESOURCE_EXHAUSTED (too many of
 * this user's had to be ended just now; the client was told), NO_MEMORY. Loop thread. */
enum status rpc_guard_watch(struct rpc_guards *all, int fd, uid_t uid, pid_t pid);
/* The same for those that gRPC itself accepts at this TCP port: all are one user's, who may have 1024. Of those with
 * TLS that is all that is looked at. One port in a process. When no descriptor is left, gRPC goes on with the next that
 * comes; by itself it would never again. Before the start. NO_MEMORY. */
enum status rpc_guard_listen(struct rpc_guards *all, int port, bool plain);
/* Those that are watched still are so until they are closed. Loop thread. */
void rpc_guards_fini(struct rpc_guards *all);

#endif
