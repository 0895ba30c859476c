/* SPDX-License-Identifier: Apache-2.0 */
/* A unix socket that identifies its clients.
 *
 * Accepts connections itself: gRPC's listener stops for good when descriptors run out, and does not check the user.
 * The path is guarded by a lock file beside it ("<path>.lock", never removed), so a socket left by a dead daemon is
 * replaced and one of a live daemon is not.
 *
 * Loop thread. Each connection counts toward its user's limit until it is closed; to notice the end, the listener
 * watches a duplicate of the descriptor. The owner of an accepted descriptor must therefore end it with shutdown(2)
 * before close(2), as gRPC does.
 */
#ifndef GACC_HOST_LISTEN_H
#define GACC_HOST_LISTEN_H

#include "proto/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct listener;

/* A connection of this user has ended. Not of those that outlive the listener. */
typedef void listen_gone_cb(void *arg, uid_t uid);

struct listen_opts {
	const char *path;
	const char *group;    /* NULL or "": the process's own */
	uint32_t mode;	      /* of the socket: who may connect */
	uint32_t max_per_uid; /* connections; 0: 256 */
	bool packets;	      /* SOCK_SEQPACKET instead of SOCK_STREAM */
	listen_gone_cb *gone; /* may be NULL */
};

/* The process that connected, by the kernel's word. */
struct listen_peer {
	uid_t uid;
	gid_t gid;
	pid_t pid;	     /* 0: lives in a pid namespace that we cannot see */
	uint64_t start_time; /* of that process; 0: it was gone already, and its number may be another's */
};

/* A new connection: `fd` (non-blocking, close-on-exec) is the callee's now. */
typedef void listen_cb(void *arg, int fd, const struct listen_peer *peer);

/* `loop` is a uv_loop_t. ST_ALREADY_EXISTS: a live daemon has the path, or something that is no socket lies there.
 * ST_INVALID_CONFIG: no such group, or the path is too long. */
enum status listener_open(void *loop, const struct listen_opts *, listen_cb *, void *arg, struct listener **out);
/* Makes the path again if somebody has removed it (a cleaner of old temporary files, say), so that others can connect;
 * logs that, and once if it cannot be done. Cheap: to be called now and then. NULL is fine. */
void listener_heal(struct listener *);
/* Removes the path and takes no further connection; those made live on. Memory goes when the loop has run once more. */
void listener_close(struct listener *);

#endif
