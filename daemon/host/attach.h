/* SPDX-License-Identifier: Apache-2.0 */
/* The attach socket: hands shared memory to trainers as descriptors (proto/gacc/v1/attach.proto).
 *
 * One packet is one message; bytes go up and down raw. Nothing comes from a client but bytes: a packet that is too
 * long, carries descriptors or comes when memory has been handed out already is refused and ends its connection. The
 * end of a connection means that its session is lost, not that its process is dead: a process that maps memory may have
 * closed its socket.
 *
 * Linux counts descriptors that were sent and not received for all processes of gaccd's user together, up to
 * RLIMIT_NOFILE; beyond that no message with descriptors can be sent, not even to engines. So what is in flight here is
 * charged to the user it was sent to until it has been received or the socket is gone, and ATTACH_IN_FLIGHT is all
 * that users may have in flight together. A request beyond a user's share of it waits in its socket, and is refused
 * (RESOURCE_EXHAUSTED) after two seconds.
 *
 * Loop thread. Connections are named by numbers that are never used twice.
 */
#ifndef GACC_HOST_ATTACH_H
#define GACC_HOST_ATTACH_H

#include "host/listen.h"

#include <stddef.h>

#define ATTACH_MAX_REQUEST 4096

#define ATTACH_FDS_PER_MAP 9 /* at most, in a session's answer */
/* With those of the descriptor store (host/fdstore.h) fewer than gaccd keeps of RLIMIT_NOFILE for itself
 * (QUEUE_OWN_DESCRIPTORS), so that what engines are sent always fits: it is no more than what is counted for jobs. An
 * eighth of RLIMIT_NOFILE if that is less. */
#define ATTACH_IN_FLIGHT 88

struct attach;

/* What the caller wants to know again when a connection ends; nothing here reads it. */
struct attach_note {
	uint64_t job, generation;
	uint32_t rank;
};

struct attach_events {
	/* A MapRequest; bytes live until the return. */
	void (*request)(void *arg, uint64_t conn, const struct listen_peer *, const void *bytes, size_t n);
	/* Not a MapRequest (ST_MALFORMED), or one too many, for the reason given. It may be answered in here; then the
	 * connection ends, as by the client. */
	void (*refused)(void *arg, uint64_t conn, enum status, const char *why);
	/* The connection is over. Comes once for each that made a request. note: its last one, NULL: it has none. */
	void (*closed)(void *arg, uint64_t conn, const struct attach_note *note);
};

/* As listener_open; opts->packets is set here. */
enum status attach_open(void *loop, const struct listen_opts *, const struct attach_events *, void *arg,
			struct attach **out);
/* As listener_heal. */
void attach_heal(struct attach *);
/* Ends all connections without events. Memory goes when the loop has run once more. */
void attach_close(struct attach *);

/* Sends a packed MapResponse (n bytes) with duplicates of fds, which stay the caller's. ST_SESSION_UNKNOWN: the
 * connection is over. ST_UNAVAILABLE: the client does not read, or is gone; its connection ends, and `closed` follows.
 * ST_INVALID_ARGUMENT: more than PACKET_MAX_FDS (base/packet.h). ST_NO_MEMORY. */
enum status attach_reply(struct attach *, uint64_t conn, const void *bytes, size_t n, const int *fds, size_t n_fds);
/* Keeps a note for `closed`. Nothing if the connection is over. */
void attach_set_note(struct attach *, uint64_t conn, const struct attach_note *);

#endif
