/* SPDX-License-Identifier: Apache-2.0 */
/* gRPC core with nothing around it: the limit that calls and streams are compared with.
 *
 * The server has one thread, which waits on the completion queue and answers right there; the client has one, too. Both
 * use the arguments that are best for them: flow-control windows that grow (gRPC's default), no retries, no channelz,
 * the heap never trimmed.
 */
#ifndef GACC_TESTS_BARE_H
#define GACC_TESTS_BARE_H

#include <stddef.h>
#include <sys/types.h>

struct bare {
	pid_t server, client; /* processes of their own: a thread of libgacc in the client's would handle its events */
	int to_client, from_client;
	char path[64];
};

/* Starts both on a socket in /tmp. Before gRPC is initialised in this process. */
void bare_start(struct bare *bare);
void bare_stop(struct bare *bare);

/* Unary calls of n bytes, one after the other; the answers have as many. Seconds of a call. */
struct bare_times {
	double p50, p99;
};
struct bare_times bare_unary(struct bare *bare, size_t calls, size_t n);
/* A client stream of `total` bytes in messages of `chunk`, by reference; the server discards them and answers at the
 * end. Seconds. */
double bare_stream(struct bare *bare, size_t total, size_t chunk);

#endif
