/* SPDX-License-Identifier: Apache-2.0 */
/* The link of this gaccd to the coordinator of its cluster (cluster.coordinator): dials it, says Hello, keeps the link,
 * and dials anew when it breaks. Private to the edge; loop thread.
 */
#ifndef GACC_EDGE_NODE_DIAL_H
#define GACC_EDGE_NODE_DIAL_H

#include "edge/peer_link.h"
#include "edge/daemon.h"

struct node_dial;

/* Nothing where this gaccd coordinates. The ticks dial, once the server runs. INVALID_CONFIG, NO_MEMORY. */
enum status node_dial_new(struct daemon *);
void node_dial_free(struct daemon *); /* before the server */
void node_dial_tick(struct daemon *, struct now);
/* To the coordinator; NULL: there is no link now. */
struct peer_link *node_dial_link(struct daemon *);

#endif
