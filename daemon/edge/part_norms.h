/* SPDX-License-Identifier: Apache-2.0 */
/* The node's side of TensorNorms: keeps what the engine of part 0 has left with a vote, and answers the coordinator's
 * questions (cluster/norms_message.h). Private to the edge; loop thread.
 *
 * The engine's rows are overwritten by the next vote that brings some, and windows may be shorter than the way of a
 * message. So the node copies them before the coordinator hears of the vote: 16 bytes for each tensor, until nobody has
 * asked for them for a while.
 */
#ifndef GACC_EDGE_PART_NORMS_H
#define GACC_EDGE_PART_NORMS_H

#include "edge/links.h"

struct part;
struct report;

#define PART_NORMS_KEPT_NS (INT64_C(30) * 1000000000)

/* Before a report with the part's vote is sent. Without memory nothing is kept, and the coordinator hears so. */
void part_norms_keep(struct part *, const struct report *);
void part_norms_tick(struct part *, struct now);
links_take part_take_norms_ask; /* LINK_NORMS_ASK */

#endif
