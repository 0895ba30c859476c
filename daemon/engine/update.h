/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer's update, in place, that an engine can die in at any instant and finish in its next life.
 *
 * The ranges of the plan are cut into chunks of KERNEL_BLOCK elements (the last of a range may be short), numbered
 * through; the chunks are dealt to UNDO_SHARES shares for each thread, share s of k owning numbers [n * s / k,
 * n * (s + 1) / k). A share is worked by one worker, in ascending order, and has one undo area and one stamp. A chunk
 * has UPDATE_UNITS units of KERNEL_UNIT elements (the last of a range may lack some), numbered chunk * UPDATE_UNITS +
 * k. The stamp is one word, unit << 1 | UNDO_HELD, changed by one store:
 *
 *   unit, not held   the share's units below `unit` have their new values, all others their old ones
 *   unit, held       the same, except that `unit` itself may be a mixture; its old values are in half unit & 1 of the
 * area
 *
 *   update_begin      stamp := first, not held        (before APPLYING is published: no progress)
 *   each unit u       p, m, v to half u & 1; stamp := u, held; overwrite        (the kernel: struct kernel_undo)
 *   end of a call     stamp := next, not held
 *   after a death     held: copy the half back, stamp := u, not held (dying here repeats it); go on from u
 *
 * Why that is enough. A killed thread has done all its stores up to some instruction and none after it, in program
 * order (non-temporal ones, too: what has retired reaches memory), and the next life begins after its death. Hence only
 * the compiler must be held, by signal fences, not the processor, and the saving stores cost what stores to the first
 * cache cost. Dead before "stamp := u, held": the stamp still names u - 1, whose old values are in the other half,
 * which saving u does not touch; u is not yet overwritten. Dead after it: u is wholly saved. u - 1 is done by then, so
 * taking it back is not wrong, only needless. Units of one call alternate between the halves; between calls, where the
 * next number may be of the same parity, the stamp is not held and nothing needs the area.
 *
 * When no stamp is held each share goes on from its `unit`; all at their ends means done, and running again changes
 * nothing. Frozen ranges are never touched and leave no stamp. Stamps mean something only while the record in force is
 * APPLYING. Unit numbers depend on ranges and threads: the record keeps a hash of the ranges, the control segment's
 * size depends on the threads; an engine whose plan differs refuses the segment.
 *
 * LAMB takes two such runs over the ranges, phases, because its ratios are of whole tensors: the first updates m and v
 * and sums the squares of p and of the directions; the ratios go to the control segment; the second updates p. The
 * second phase's unit numbers begin behind the last number of the first:
 *
 *   all stamps in the first phase     go on with it; then norms and ratios (an earlier life's sums are lost: they are
 * taken again from m, v and p, which gives the same bits); then stamp after stamp := first of phase 2 any stamp in the
 * second phase     the first is done and the ratios are whole: they were written before. Stamps that are still in the
 * first := first of phase 2; go on with the second
 *
 * P[x] and the commit_* fields are read only, so that every life computes the same bits. 16-bit copies are derived with
 * the update of their unit. Main thread; workers inside.
 */
#ifndef GACC_ENGINE_UPDATE_H
#define GACC_ENGINE_UPDATE_H

#include "engine/front.h"
#include "engine/memory.h"
#include "engine/sum_view.h"
#include "engine/workers.h"

#define UPDATE_UNITS (KERNEL_BLOCK / KERNEL_UNIT)

struct update;

/* All borrowed until update_free. ST_NO_MEMORY. */
enum status update_new(struct update **out, const struct memory *, const struct kernels *, struct workers *);
void update_free(struct update *); /* NULL is fine */

/* Sets all stamps to "no progress" for the update of `window`. */
void update_begin(struct update *, uint64_t window);
/* The stamps are of this window and inside their shares: an update may go on. */
bool update_can_resume(const struct update *, uint64_t window);
/* Runs the update of record r (commit_*) with this sum, or what is left of it. Digest of the parameters after
 * it; of a sharded job only this part's own are updated, and the digest is theirs. Digests of shares add up to that of
 * the whole. */
uint64_t update_run(struct update *, const struct control_record *r, const struct sum_view *sum);
/* Of a sharded job, whose update_run moves it, and which update_begin sets back; the caller ends it. NULL: of another
 * one. */
struct front *update_front(struct update *);
/* The last update_run has written values that are inf or NaN, or cannot know, because an earlier life has written some:
 * finite_find tells. */
bool update_is_suspect(const struct update *);
/* Digest of the parameters as they are: of the master where there is one. The same number as update_run's. Of a sharded
 * job, where no part has all masters, of what trainers see. */
uint64_t update_digest(struct update *);
/* Of this part's own alone: of the values that count, or of what trainers see. */
uint64_t update_own_digest(struct update *, bool of_trainers);
/* Of all but its own: of what trainers see. */
uint64_t update_others_digest(struct update *);

#endif
