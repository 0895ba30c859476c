/* SPDX-License-Identifier: Apache-2.0 */
/* The links of the cluster's nodes to this gaccd, which coordinates: takes their Hello, knows which nodes there are
 * (control/members.h), and brings a node that is back up to date. Private to the edge; loop thread.
 */
#ifndef GACC_EDGE_NODE_SERVE_H
#define GACC_EDGE_NODE_SERVE_H

#include "edge/daemon.h"

extern const struct rpc_method peer_methods[]; /* gacc.internal.v1.PeerService */
extern const size_t n_peer_methods;

/* The members: so far none. Before jobs are read from the journal. NO_MEMORY. */
enum status node_serve_new(struct daemon *);
/* After the server's end. */
void node_serve_free(struct daemon *);
/* Ends calls that say no Hello within this time, and those in which a message does not get on for so long, or comes
 * more slowly than this: what has come of it takes memory of the coordinator. Time in which this gaccd did not run does
 * not count (base/awake.h). */
#define NODE_SERVE_LATE_NS (INT64_C(10) * 1000000000)
#define NODE_SERVE_BYTES_S (64u << 10)
void node_serve_tick(struct daemon *, struct now);

#endif
