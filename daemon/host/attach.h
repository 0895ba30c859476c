/* The attach socket: hands shared memory to trainers as descriptors (proto/gacc/v1/attach.proto).
 *
 * One packet is one message; bytes go up and down raw. Nothing comes from a client but bytes: a packet that is too long, carries
 * descriptors or comes when memory has been handed out already is refused and ends its connection. That a connection is
 * over says that its session is lost, not that its process is dead: who maps memory may have closed its socket.
 *
 * Loop thread. Connections are named by numbers that are never used twice.
 */
#ifndef GACC_HOST_ATTACH_H
#define GACC_HOST_ATTACH_H

#include "host/listen.h"

#include <stddef.h>

#define ATTACH_MAX_REQUEST 4096
#define ATTACH_MAX_FDS 253 /* what one message can carry (SCM_MAX_FD) */

struct attach;

struct attach_events {
	/* A MapRequest; bytes live until the return. */
	void (*request)(void *arg, uint64_t conn, const struct listen_peer *, const void *bytes, size_t n);
	/* Not a MapRequest, for the reason given. It may be answered in here; then the connection ends, as by the client. */
	void (*refused)(void *arg, uint64_t conn, const char *why);
	/* The connection is over. Comes once for each that made a request. */
	void (*closed)(void *arg, uint64_t conn);
};

/* As listener_open; opts->packets is set here. */
enum status attach_open(void *loop, const struct listen_opts *, const struct attach_events *, void *arg,
			struct attach **out);
/* As listener_heal. */
void attach_heal(struct attach *);
/* Ends all connections without events. Memory goes when the loop has run once more. */
void attach_close(struct attach *);

/* Sends a MapResponse with duplicates of fds. ST_SESSION_UNKNOWN: the connection is over. ST_UNAVAILABLE:
 * the client does not read; its connection ends, closed follows. */
enum status attach_reply(struct attach *, uint64_t conn, const void *bytes, size_t n, const int *fds, size_t n_fds);

#endif
