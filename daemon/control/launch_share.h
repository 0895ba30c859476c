/* SPDX-License-Identifier: Apache-2.0 */
/* The restarts of a job whose ranks are on several nodes: how many of max_restarts each node may use. Pure; any thread.
 *
 * A node is allowed a number that never falls, and tells how much of it is used and how many ranks wait for more
 * (control/launch.h). What all nodes are allowed together never exceeds max_restarts, whatever is lost, repeated or
 * started anew: a coordinator that has just started gives nothing before every node has said what it has been given.
 */
#ifndef GACC_CONTROL_LAUNCH_SHARE_H
#define GACC_CONTROL_LAUNCH_SHARE_H

#include <stdbool.h>
#include <stdint.h>

struct launch_share {
	/* given by this coordinator, or by one before it */
	uint32_t allowed;
	bool final; /* it gets no more */
	/* as the node has told last */
	bool heard;
	uint32_t told_allowed, wanted;
};

/* The node has said this: its order is taken when it says so. */
void launch_share_hear(struct launch_share *, uint32_t allowed, uint32_t wanted);
/* Gives restarts to nodes that want some and have taken what they were given before. True: somebody is to be told. */
bool launch_share_give(struct launch_share *, uint32_t n, uint32_t max_restarts);

#endif
