/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator's side of a placement: asks a node to have the job's part, until it has or says why not; tells it
 * when the part is no longer wanted. Private to the edge; loop thread.
 *
 * The node gets one packed message (cluster/placement_message.h), also when it is this gaccd: then it is sent over the
 * link of this process, and what is sent is what another machine would get. The specification goes out of the job's
 * packed copy, where it is large; it is copied into the message and out of it again (some 2 ms for the largest, 4 MB).
 * The tensor set, which may have 50 MB, is lent.
 */
#ifndef GACC_EDGE_PLACING_H
#define GACC_EDGE_PLACING_H

#include "edge/hosted.h"

/* From here on a node is to have the part. What cannot be sent for want of memory is sent by the tick. */
void placing_send(struct hosted *, struct now);
/* Sends the placement again, until it is answered. */
void placing_tick(struct hosted *, struct now);
/* The message that placing_send sends, whose end are h->tensors; for free(). NULL: no memory. */
void *placing_pack(const struct hosted *, size_t *out_n);

/* ---- what it will say ---- */
/* The next window of the journal; its bits are taken with true. false: no memory. */
bool placing_note_window(struct hosted *, const struct decided *);
/* The packed tensor set of the journal, which is copied. false: no memory. */
bool placing_note_tensors(struct hosted *, const void *packed, size_t n);
/* The checkpoint that the job begins with, which is copied. false: no memory. */
bool placing_note_restore(struct hosted *, const struct part_restore *);

/* ---- the node's answers ---- */
/* The node has the part: so says any report about it. */
void placing_answered(struct hosted *);
/* It has not, for this reason. */
void placing_refused(struct hosted *, enum status, const char *why);

/* The part is no longer wanted where it is. What is kept for its placement is freed. */
void placing_drop(struct hosted *);

#endif
