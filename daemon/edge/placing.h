/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator's side of a placement: asks a node to have a part of the job, until it has or says why not; tells it
 * when the part is no longer wanted. A job runs with all of its parts or not at all. Private to the edge; loop thread.
 *
 * The node gets one packed message (cluster/placement_message.h), also when it is this gaccd: then it is sent over the
 * link of this process, and what is sent is what another machine would get. The specification goes out of the job's
 * packed copy, where it is large; it is copied into the message and out of it again (some 2 ms for the largest, 4 MB).
 * The tensor set, which may have 50 MB, is lent.
 */
#ifndef GACC_EDGE_PLACING_H
#define GACC_EDGE_PLACING_H

#include "edge/hosted.h"

/* From here on nodes are to have all parts. What cannot be sent for want of memory is sent by the tick. */
void placing_send(struct hosted *, struct now);
/* Sends the placements again that are not answered. */
void placing_tick(struct hosted *, struct now);
/* The part's node has a new link: it is asked again, whatever it has answered, since its answer may be lost and it may
 * have missed windows. At once, or by the tick when the link has room: the node may have many parts. */
void placing_linked(struct hosted *, uint32_t part);
/* Has a node not answered for two seconds? `why` names the part that has waited longest: "part 1: node b has not
 * answered its placement for 12 s". Not a node without a link, which is not asked. */
bool placing_is_late(const struct hosted *, struct now, char *why, size_t n_why);
/* The message that placing_send sends for a part, whose end are h->tensors; for free(). NULL: no memory. */
void *placing_pack(const struct hosted *, uint32_t part, size_t *out_n);

/* ---- what it will say ---- */
/* The next window of the journal; its bits are taken with true. false: no memory. */
bool placing_note_window(struct hosted *, const struct decided *);
/* The packed tensor set of the journal, which is copied. false: no memory. */
bool placing_note_tensors(struct hosted *, const void *packed, size_t n);
/* What each part is told of the checkpoint that the job begins with, [n_parts] with one path, which is copied. false:
 * no memory. */
bool placing_note_restore(struct hosted *, const struct part_restore *);

/* ---- the node's answers ---- */
/* The node has the part: so says any report about it. */
void placing_answered(struct hosted *, uint32_t part);
/* It has not, for this reason. A job that has begun is degraded while a node elsewhere refuses a part, and that node is
 * asked again. Else the tick ends the job, and with it its other parts: their nodes give their memory back, which they
 * would keep if the parts were only dropped. */
void placing_refused(struct hosted *, uint32_t part, enum status, const char *why);

/* The parts are no longer wanted where they are. What is kept for their placements is freed. */
void placing_drop(struct hosted *);

#endif
