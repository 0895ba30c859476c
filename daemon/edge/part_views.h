/* SPDX-License-Identifier: Apache-2.0 */
/* What the coordinator is told of a part here, for people to see and to know when an ended job may go
 * (cluster/part_view_message.h). Private to the edge; loop thread.
 */
#ifndef GACC_EDGE_PART_VIEWS_H
#define GACC_EDGE_PART_VIEWS_H

struct part;

/* Sends the view of the part if it has changed since the last one, or that was sent 10 s ago. A part whose views have
 * changed ten times in a row may send one a second. The tick calls this for each part, and whoever changes what should
 * be seen at once. */
void part_view_send(struct part *);

#endif
