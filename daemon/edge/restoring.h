/* SPDX-License-Identifier: Apache-2.0 */
/* A job that begins with a checkpoint: its coordinator reads the manifest before a node gets the part, which then knows
 * from its placement what to restore. Private to the edge; loop thread.
 */
#ifndef GACC_EDGE_RESTORING_H
#define GACC_EDGE_RESTORING_H

#include "edge/hosted.h"
#include "store/journal.h"

/* Asks a node to have the job's part (placing_send): at once; or, of a job that has to begin with a checkpoint, when
 * the manifest has been read in the pool and the journal has the tensor set. If that cannot be, the job ends, and its
 * submitter hears why. */
void restoring_place(struct hosted *, struct now);
/* The job is to begin with a checkpoint, and nobody knows yet in which window. */
bool restoring_awaits_base(const struct hosted *);
/* From the journal: a job that has begun with a checkpoint. ST_VERSION_SKEW: this gaccd cannot read it, for the reason
 * in `why`. ST_NO_MEMORY. */
enum status restoring_from_journal(struct hosted *, const struct journal_bytes *bytes, char *why, size_t n_why);

#endif
