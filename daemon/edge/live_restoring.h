/* SPDX-License-Identifier: Apache-2.0 */
/* A job that begins with a checkpoint: what is read before it gets memory, and its start from there. Private to the
 * edge; loop thread.
 */
#ifndef GACC_EDGE_LIVE_RESTORING_H
#define GACC_EDGE_LIVE_RESTORING_H

#include "edge/live_job.h"
#include "store/journal.h"

/* The checkpoint must be read before memory is allocated. */
bool restoring_due(const struct live_job *);
/* Reads the manifest in the pool, then declares the tensor set and calls done(l, ST_OK, NULL), or says why not. */
void restoring_begin(struct live_job *, void (*done)(struct live_job *, enum status, const char *why));
/* The job is to begin with a checkpoint, and nobody knows yet in which window. */
bool restoring_awaits_base(const struct live_job *);
/* From the journal: a job that has begun with a checkpoint. ST_VERSION_SKEW: this gaccd cannot read it, for the reason
 * in `why`. ST_NO_MEMORY. */
enum status restoring_from_journal(struct live_job *, const struct journal_bytes *base, char *why, size_t n_why);
/* The engine's answer to ENGINE_RESTORE. */
void restoring_on_answer(struct live_job *, const struct engine_answer *);

#endif
