/* SPDX-License-Identifier: Apache-2.0 */
/* A job that begins with a checkpoint: what is read before it gets memory, and its start from there. Private to the
 * edge; loop thread.
 */
#ifndef GACC_EDGE_RESTORING_H
#define GACC_EDGE_RESTORING_H

#include "edge/hosted.h"
#include "store/journal.h"

/* The checkpoint must be read before memory is allocated. */
bool restoring_due(const struct hosted *);
/* Reads the manifest in the pool, then declares the tensor set and calls done(h, ST_OK, NULL), or says why not. */
void restoring_begin(struct hosted *, void (*done)(struct hosted *, enum status, const char *why));
/* The job is to begin with a checkpoint, and nobody knows yet in which window. */
bool restoring_awaits_base(const struct hosted *);
/* From the journal: a job that has begun with a checkpoint. ST_VERSION_SKEW: this gaccd cannot read it, for the reason
 * in `why`. ST_NO_MEMORY. */
enum status restoring_from_journal(struct hosted *, const struct journal_bytes *bytes, char *why, size_t n_why);
/* The engine's answer to ENGINE_RESTORE. */
void restoring_on_answer(struct hosted *, const struct engine_answer *);

#endif
