/* SPDX-License-Identifier: Apache-2.0 */
/* The restarts of a job whose ranks are on several nodes: how many of max_restarts each node may use. Pure; any thread.
 *
 * A node is allowed a number that never falls, and tells how much of it is used and how many ranks wait for more
 * (control/launch.h). What all nodes are allowed together never exceeds max_restarts, whatever is lost, repeated or
 * started anew: a coordinator that has just started gives nothing before every node has said what it has been given.
 *
 * A node's word is believed as far as its ranks can have used restarts: an allowance that this coordinator has not
 * given can only come from one before it, which gave no more than what was used and one for each rank that waited; and
 * only ranks that wait want restarts. A node whose ranks fail again and again, or that tells so, may use up all of
 * them: that is what sharing means.
 */
#ifndef GACC_CONTROL_LAUNCH_SHARE_H
#define GACC_CONTROL_LAUNCH_SHARE_H

#include <stdbool.h>
#include <stdint.h>

struct launch_share {
	bool inherits; /* a coordinator before this one may have given something; the caller sets it */
	/* given by this coordinator, or by one before it */
	uint32_t allowed;
	bool final; /* it gets no more */
	/* as the node has told last */
	bool heard;
	uint32_t told_allowed, wanted;
};

/* What a node says of its ranks. */
struct launch_told {
	uint32_t allowed, wanted;    /* as in struct launch_summary; `allowed` no less than `charged` */
	uint32_t n_ranks, n_waiting; /* how many there are, and how many of them wait for their next start */
	uint64_t restarts;	     /* of all of them together */
};

/* The node has said this: its order is taken when it says so. false: it says that it is allowed more than it can have
 * been given; the rest does not count. */
bool launch_share_hear(struct launch_share *, const struct launch_told *);
/* Gives restarts to nodes that want some and have taken what they were given before. True: somebody is to be told. */
bool launch_share_give(struct launch_share *, uint32_t n, uint32_t max_restarts);

#endif
