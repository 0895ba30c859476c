/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives between processes, over TCP by Gloo: for parts on host memory. coll.h describes the calls; this is what
 * is particular here:
 *
 * - Each pair of members has one TCP connection, made by coll_join between ports that coll_open has opened. A member
 *   has two threads besides Gloo's (one for each net): one that watches, and none of the caller's. coll_join has one
 *   more for each other member while it runs. They are gone when coll_leave returns, and so are the descriptors:
 *   2 (D - 1) + 1.
 * - Bytes are checked end to end: each operation closes with a digest, between every two members, of what one has sent
 *   and the other has received, keyed by what only the addresses (blobs) tell. A difference is ST_CHECKSUM, and names
 *   the sender. The first message of a connection proves the life of its sender in the same way.
 * - The network must be closed to strangers all the same. Who connects to a port before the member it is meant for
 *   spoils the join (it fails within its time limits), and who says something there that is not Gloo's protocol ends
 *   this process: Gloo throws on a thread of its own. Addresses must come on a way that strangers cannot read or write.
 * - No call of an operation returns ST_OK before all members have called it.
 * - A failure is told to the others with its suspects: who hears that part 1 has waited for part 2 in vain names part
 *   2, and has the same status. A member that ends without a word (it was killed, its network is cut) is UNAVAILABLE;
 *   a power failure takes about 20 s to be noticed without a stall before.
 * - Memory: 3 pieces for each other member while it lives.
 * - SIGPIPE is ignored in the process from the first net on, unless it has a handler.
 */
#ifndef GACC_COLL_COLL_GLOO_H
#define GACC_COLL_COLL_GLOO_H

#include "coll/coll.h"

struct coll_gloo_config {
	/* Exactly one of the two: others reach this process there. Copied. */
	const char *interface;	/* "eth0": its first address */
	const char *address;	/* "10.0.0.7", "fd00::7" */
	const char *congestion; /* TCP's congestion control ("cubic", "reno"); NULL: the machine's. bbr is slower */
};

/* A device of Gloo, with its thread. NULL: *why (INVALID_ARGUMENT: the interface or the address; NO_MEMORY); `why` may
 * be NULL. Freed by coll_net_free. A member of an id that this net has opened for the part before is refused. */
struct coll_net *coll_gloo_new(const struct coll_gloo_config *, struct coll_failure *why);

#endif
