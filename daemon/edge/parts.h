/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of jobs on this node, whoever coordinates them: made from placements, driven once a tick, let go when their
 * job has ended and the coordinator wants them no longer. Private to the edge; loop thread.
 */
#ifndef GACC_EDGE_PARTS_H
#define GACC_EDGE_PARTS_H

#include "edge/links.h"
#include "runtime/part.h"

/* A placement for this node, and its end. A placement that is wrong is refused with a text, and nothing is made. One
 * with a large specification is read in the pool, unless gaccd starts. */
links_take parts_take_placement, parts_take_drop;

void parts_tick(struct daemon *, struct now);
/* gaccd ends; the service manager keeps the memory. */
void parts_free_all(struct daemon *);

#endif
