/* SPDX-License-Identifier: Apache-2.0 */
/* What coll_gloo uses of Gloo (C++), as C: devices, contexts, buffers. No exception passes through: a call that Gloo
 * ends by one answers SHIM_BROKEN or NULL.
 *
 * Facts about Gloo 0.5 (Debian 12) that its users rely on; read in its source and covered by tests of coll_gloo:
 *
 * - A context has one TCP connection for each other part (a "pair"). Each pair listens on a port of its own from the
 *   moment it is made, until the first connection comes, whoever made it. One thread of the device moves all bytes.
 * - Of two parts, the one with the greater address connects (shim_connects); the other one's listener accepts.
 * - Messages of one slot between two parts arrive in the order of their receives, which take them in the order of
 *   their sends. Bytes are sent only after the other side has posted the receive.
 * - What Gloo's thread does not like ends the process, by an exception that nobody can catch: a message that is longer
 *   than its receive, a stranger's wrong header, a connection that was reset before it was accepted (port scanners do
 *   that). Hence: sizes are part of the slot, connections are closed without a reset (Gloo could do either), and the
 *   ports must be closed to strangers.
 * - shim_buffer_free waits until Gloo's thread does not touch the memory, and it never will again, whatever was posted.
 *   A connection that was receiving into it is then stuck, and keeps Gloo's thread busy until shim_context_break.
 * - A connection that ends is told to all buffers with a posted operation, but not to those whose message is half
 *   received or half sent: whoever waits must be woken by shim_wake. */
#ifndef GACC_COLL_GLOO_SHIM_H
#define GACC_COLL_GLOO_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#ifdef __cplusplus
extern "C" {
#endif

struct shim_device;  /* a network interface, with Gloo's thread */
struct shim_context; /* the connections of one member */
struct shim_buffer;  /* memory to send from or to receive into; belongs to its user */

enum shim_result {
	SHIM_DONE,
	SHIM_WOKEN, /* by shim_wake */
	SHIM_BROKEN
};

#define SHIM_TEXT 160 /* bytes of `why`, which tells what Gloo has said */

/* Exactly one of interface ("eth0") and address (numeric) is not NULL. NULL: *why. */
struct shim_device *shim_device_new(const char *interface, const char *address, char why[SHIM_TEXT]);
void shim_device_free(struct shim_device *); /* all its contexts are freed */

/* Listens for all other parts. NULL: *why. */
struct shim_context *shim_context_new(struct shim_device *, uint32_t part, uint32_t n_parts, char why[SHIM_TEXT]);
void shim_context_free(struct shim_context *); /* its buffers are freed; closes the connections */
/* Where it listens for a part. */
void shim_address(const struct shim_context *, uint32_t part, struct sockaddr_storage *out);
/* Whether the part at `own` connects to the one that listens at `other`; else it is the other way. */
bool shim_connects(const struct sockaddr_storage *own, const struct sockaddr_storage *other);
/* Blocks until connected with a part, or until shim_context_break. Once for each part; any thread. */
enum shim_result shim_connect(struct shim_context *, uint32_t part, const struct sockaddr_storage *,
			      char why[SHIM_TEXT]);
/* Closes all connections. Their buffers are told. Any thread. */
void shim_context_break(struct shim_context *);

/* NULL: no memory. */
struct shim_buffer *shim_buffer_new(struct shim_context *, void *memory, size_t n);
void shim_buffer_free(struct shim_buffer *); /* NULL is fine; see above */

/* Post bytes [from, from + n) of the memory. Never block. SHIM_BROKEN: the connection to the part has ended. */
enum shim_result shim_send(struct shim_buffer *, uint32_t to, uint64_t slot, uint64_t from, size_t n);
enum shim_result shim_recv(struct shim_buffer *, uint32_t source, uint64_t slot, uint64_t from, size_t n);
/* Wait for one posted operation, in the order of posting if all are of one part and slot. One thread at a time. */
enum shim_result shim_wait_send(struct shim_buffer *);
enum shim_result shim_wait_recv(struct shim_buffer *);
/* Whether one is received already; within ms. If not, all connections of the context are closed. */
bool shim_received(struct shim_buffer *, unsigned ms);
/* Ends the wait that runs, or the next one if none does. Any thread. */
void shim_wake(struct shim_buffer *);

#ifdef __cplusplus
}
#endif

#endif
