/* SPDX-License-Identifier: Apache-2.0 */
/* The tensor set of a job that an earlier gaccd has begun, from the journal. Private to the edge; loop thread.
 *
 * A large set takes a second for a million tensors. It is read in the pool, when gaccd serves already: until then
 * `tensors_due` is set, the job's trainers hear that it is being taken over, and its memory waits in daemon.stored.
 * Also, how the set of any job is packed.
 */
#ifndef GACC_EDGE_LIVE_TENSORS_H
#define GACC_EDGE_LIVE_TENSORS_H

#include "edge/live_job.h"
#include "store/journal.h"

/* Reads the set now if it is small or `at_once`, else notes that it is due. ST_NO_MEMORY, or what makes it unreadable,
 * with why. */
enum status live_tensors_restore(struct live_job *, const struct journal_bytes *, bool at_once, char *why,
				 size_t n_why);
/* Reads the set that is due in the pool, then goes on with live_allocate. Without memory, the tick tries again. A set
 * that cannot be read sets the job aside. l->allocating meanwhile. */
void live_tensors_begin(struct live_job *);
/* true: the job has been set aside. */
bool live_tensors_tick(struct live_job *);

/* While the set is due. Bytes of the job's memory in daemon.stored. */
uint64_t live_tensors_held(const struct live_job *);
/* The window at which this memory is; false: it does not say. */
bool live_tensors_window(const struct live_job *, uint64_t *out);
/* The service manager need not keep what is left of it. */
void live_tensors_drop(struct live_job *);

#endif
