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
void node_serve_tick(struct daemon *, struct now);

#endif
