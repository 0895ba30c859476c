/* SPDX-License-Identifier: Apache-2.0 */
/* How many connections over TLS an address may open, as each handshake costs gRPC's only thread some milliseconds,
 * whoever it is with. Pure; the caller has the lock.
 *
 * An address may open AT_ONCE connections, and earns PER_S more each second, up to AT_ONCE. An IPv6 address counts by
 * its first 64 bits, which one machine has to itself; link-local ones, where all machines share these, by all bits. Of
 * the addresses that have not earned all back ADDRESSES are known; one more takes the place of the one that has earned
 * most, which begins anew when it comes again. */
#ifndef GACC_RPC_CONNECT_RATE_H
#define GACC_RPC_CONNECT_RATE_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define CONNECT_AT_ONCE 100
#define CONNECT_PER_S 10
#define CONNECT_ADDRESSES 256

/* All zero at first. */
struct connect_rate {
	struct {
		struct in6_addr address;
		int64_t full_ns; /* when it has earned all back; until then it is known */
	} known[CONNECT_ADDRESSES];
};

/* Counts one more connection from there. false: too many, and nothing is counted. Those of other families than IP count
 * as one address. now_ns: of a clock that does not go back, and over 0. */
bool connect_rate_take(struct connect_rate *, const struct sockaddr *from, int64_t now_ns);

#endif
