/* SPDX-License-Identifier: Apache-2.0 */
/* What this gaccd says of its node to the coordinator of the cluster. Private to the edge; loop thread. */
#ifndef GACC_EDGE_NODE_FACTS_H
#define GACC_EDGE_NODE_FACTS_H

#include "control/members.h"
#include "edge/daemon.h"

/* Of gacc.internal.v1 between gaccds. A node ends a link over which comes what it does not know. */
#define PEER_PROTOCOL_MIN 1
#define PEER_PROTOCOL_NORMS 2 /* from here on: NormsAsk, and engines that put the norms of shares together */
#define PEER_PROTOCOL 2

#define NODE_COLL "gloo/4" /* what engines speak to each other; it grows when that changes */

/* All but term_seen. */
void node_facts(const struct daemon *, struct member_facts *out);
/* Of these what jobs over several nodes must agree on: the name, data_address, and what the build is: version, coll,
 * kernels, kernels_revision. All else is zero. */
void node_build(const struct daemon *, struct member_facts *out);
struct member_beat node_beat(const struct daemon *);
/* Of a job, as Hello has them (PartHeld). */
void node_uuid_halves(const uint8_t uuid[16], uint64_t *high, uint64_t *low);

#endif
