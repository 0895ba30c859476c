/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of jobs on this node, whoever coordinates them: made from placements, driven once a tick, let go when their
 * job has ended and the coordinator wants them no longer. Private to the edge; loop thread.
 */
#ifndef GACC_EDGE_PARTS_H
#define GACC_EDGE_PARTS_H

#include "edge/links.h"
#include "runtime/part.h"

/* A placement for this node, and its end. A placement that is wrong is refused with a text, and nothing is made. One
 * with a large specification is read in the pool, unless gaccd starts. One that another gaccd has sent is written to
 * the journal of this one before the part is made. */
links_take parts_take_placement, parts_take_drop;

/* At the start, when the jobs that are coordinated here are back: the parts of this node's records, with the memory
 * that the service manager has kept for them. A record that cannot be read is set aside. ST_NO_MEMORY. */
enum status parts_recover(struct daemon *);

/* ---- for parts.c ---- */
struct placed;
void parts_answer(struct daemon *, const struct placed *);
/* What has arrived of this part, and is not made yet, will not be. */
void parts_forget_arriving(struct daemon *, uint64_t job, uint32_t part);
/* gaccd ends, and nobody reads or writes them any more. */
void parts_free_arriving(struct daemon *);

/* ---- parts.c ---- */
void parts_tick(struct daemon *, struct now);
/* gaccd ends; the service manager keeps the memory. */
void parts_free_all(struct daemon *);

#endif
