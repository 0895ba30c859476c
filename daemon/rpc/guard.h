/* SPDX-License-Identifier: Apache-2.0 */
/* Limits per connection and user that gRPC lacks: how much memory and work a client may cause with bytes that are no
 * message.
 *
 * gRPC 1.51 keeps headers that never end and parses all of them again with every piece, accepts any number of calls
 * from a client that does not acknowledge its SETTINGS, and answers useless frames as long as they arrive; the thread
 * that does this serves all users. It has no hook for the bytes of a connection. So guard.c defines recvmsg, sendmsg,
 * close, epoll_ctl and accept4, which gRPC's calls reach instead of the C library's: registered connections are
 * inspected (rpc/frames.h), all other descriptors go straight to the kernel. A connection that exceeds a limit receives
 * GOAWAY (ENHANCE_YOUR_CALM, with the reason) and is closed.
 */
#ifndef GACC_RPC_GUARD_H
#define GACC_RPC_GUARD_H

#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct rpc_guard;

/* The guards of all users. */
struct rpc_guards {
	unsigned max_streams;  /* of each connection */
	size_t max_call_bytes; /* of each user: gRPC's memory for calls and their headers, about */
	struct rpc_guard *first;
};

/* Watches this connection until its descriptor is closed; call it before gRPC gets the descriptor. RESOURCE_EXHAUSTED
 * (too many connections of this user were closed just now; the client was told), NO_MEMORY. Loop thread. */
enum status rpc_guard_watch(struct rpc_guards *all, int fd, uid_t uid, pid_t pid);
/* The same for connections that gRPC itself accepts at this TCP port: together they count as one user, which may have
 * 1024. With TLS (plain = false) only their number is limited, and how fast an address opens new ones
 * (rpc/connect_rate.h). One port in a process. This also keeps gRPC's listener
 * alive when the process has run out of descriptors; without it gRPC would never accept again. Before the start.
 * NO_MEMORY. */
enum status rpc_guard_listen(struct rpc_guards *all, int port, bool plain);
/* Connections that are watched remain so until they are closed. Loop thread. */
void rpc_guards_fini(struct rpc_guards *all);

#endif
