/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives between processes, over TCP by Gloo: for parts on host memory. coll.h describes the calls; this is what
 * is particular here:
 *
 * - Connections: one TCP connection between every two members, made by coll_join between ports that coll_open has
 * opened.
 * - Threads: Gloo has one for each net, and each member has one that watches, from coll_join to coll_leave. coll_join
 * has one more for each other member while it runs. They take no signals. Descriptors: 2 (D - 1) + 1 for each member, 1
 *   for each net.
 * - Beginning together: no operation returns ST_OK before all members have called it.
 * - Bytes are checked end to end. Each operation closes with a digest, between every two members, of what one has sent
 *   and the other has received, with a key that only the addresses (blobs) tell. A difference is ST_CHECKSUM and names
 *   the sender; callbacks may have seen the wrong bytes by then. The first message on a connection proves in the same
 *   way which life of which part has sent it.
 * - Strangers: the network must be closed to them all the same, and addresses must come on a way that they cannot read.
 *   Who connects to a port before the member it is meant for spoils the join, which then ends within its time limits.
 *   Who sends something there that is not Gloo's protocol ends this process, and so may a port scanner: Gloo throws on
 * a thread of its own. A member that dies in the very moment in which another connects can do that, too.
 * - Failures are passed on with their suspects. If part 1 has waited for part 2 in vain, all the others name part 2 and
 *   are STALLED. A member that waits itself is not blamed. Of several members that are silent one is named. A member
 *   that ends without a word (it was killed, its network is cut) is UNAVAILABLE; if even its kernel is silent, that
 *   takes about 20 s, unless stall_ns is less.
 * - Who has only opened hears nothing of the others: if one of them fails, the others' coll_join ends by its limits,
 *   or by coll_abort.
 * - Memory: 3 pieces for each other member, until coll_leave.
 * - SIGPIPE is ignored in the process from the first net on, unless it has a handler. */
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
