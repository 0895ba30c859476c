/* The attach socket: hands shared memory to trainers as descriptors (proto/gacc/v1/attach.proto).
 *
 * One packet is one message; bytes go up and down raw. Nothing comes from a client but bytes: a packet that is too long, carries
 * descriptors or comes when memory has been handed out already is refused and ends its connection. A connection has two ends
 * worth knowing: it closes (the session is lost), and its process is seen dead (the memory it had mapped may be given away).
 * Both are told apart here.
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
	/* The process is dead. Comes once, and only if descriptors were sent on this connection and the peer has a pidfd; closed comes
	 * before or after. */
	void (*died)(void *arg, uint64_t conn);
};

/* As listener_open; opts->packets is set here. */
enum status attach_open(void *loop, const struct listen_opts *, const struct attach_events *, void *arg,
			struct attach **out);
/* As listener_heal. */
void attach_heal(struct attach *);
/* Ends all connections without events. Memory goes when the loop has run once more. */
void attach_close(struct attach *);

/* Sends a MapResponse with duplicates of fds. ST_SESSION_UNKNOWN: the connection is over, or its process dead. ST_UNAVAILABLE:
 * the client does not read; its connection ends, closed follows. */
enum status attach_reply(struct attach *, uint64_t conn, const void *bytes, size_t n, const int *fds, size_t n_fds);
/* Ends one connection; closed is not called, died may still come. */
void attach_drop(struct attach *, uint64_t conn);

#endif
