/* The optimizer's update, in place, that an engine can die in at any instant and finish in its next life.
 *
 * The ranges of the plan are cut into chunks of at most UNDO_CHUNK elements, numbered through; the chunks are dealt to
 * plan->threads shares, share s owning numbers [n * s / threads, n * (s + 1) / threads). A share is worked by one
 * worker, in ascending order, and has one undo area and one stamp. The stamp is one word, chunk << 1 | UNDO_HELD,
 * changed by one store:
 *
 *   chunk, not held   the share's chunks below `chunk` have their new values, all others their old ones
 *   chunk, held       the same, except that `chunk` itself may be a mixture; its old values are in the undo area
 *
 *   update_begin      stamp := first, not held       (before APPLYING is published: no progress)
 *   each chunk c      copy p, m, v to the undo area; stamp := c, held; update in place; stamp := c + 1, not held
 *   after a death     held: copy the undo area back, stamp := c, not held (dying here repeats it); go on from c
 *
 * Between "c + 1, not held" and "c + 1, held" the undo area is overwritten: nothing needs it then. A stamp is written
 * by a release store behind a fence that drains non-temporal ones; no more is needed, since a process that is killed
 * has done all its stores up to some instruction and none after it. When no stamp is held each share goes on from its
 * `chunk`; all at their ends means done, and running again changes nothing. Frozen chunks are never touched and leave
 * no stamp. Stamps mean something only while the record in force is APPLYING. Chunk numbers depend on ranges and
 * threads: the record keeps a hash of the ranges, the control segment's size depends on the threads; an engine whose
 * plan differs refuses the segment.
 *
 * P[x] and the commit_* fields are read only, so that every life computes the same bits. 16-bit copies are derived with
 * the update of their chunk. Main thread; workers inside.
 */
#ifndef GACC_ENGINE_UPDATE_H
#define GACC_ENGINE_UPDATE_H

#include "engine/memory.h"
#include "engine/workers.h"

struct update;

/* All borrowed until update_free. ST_NO_MEMORY. */
enum status update_new(struct update **out, const struct memory *, const struct kernels *, struct workers *);
void update_free(struct update *); /* NULL is fine */

/* XXH3-64 of the plan's ranges: goes into the control record. */
uint64_t update_ranges_hash(const struct plan *);
/* Sets all stamps to "no progress" for the update of `window`. */
void update_begin(struct update *, uint64_t window);
/* The stamps are of this window and inside their shares: an update may go on. */
bool update_can_resume(const struct update *, uint64_t window);
/* Runs the update of record r (commit_*) with the sum in `sum`, or what is left of it. Digest of the parameters after
 * it. */
uint64_t update_run(struct update *, const struct control_record *r, const void *sum);
/* Digest of the parameters as they are: of the master where there is one. The same number as update_run's. */
uint64_t update_digest(struct update *);

#endif
