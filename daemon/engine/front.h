/* SPDX-License-Identifier: Apache-2.0 */
/* How far an update of a part's own share has got, for the thread that gives the share to the other parts meanwhile.
 *
 * The update works on runs of elements, each from its first element on, several at a time. Everything below the front
 * has its new values: all of the runs before one that is not done, and what is done of that one. Behind the last
 * element lie the digests of the share, which are known some time after it.
 *
 *   state      call                                  next      what happens
 *   any        front_begin                           MOVES     the front is at the first element
 *   MOVES      front_reach (of each run, ascending)  MOVES     wakes who waits for an element that is below the front
 *   MOVES      front_end                             ENDED     wakes all; every element is below the front
 *   ENDED      front_end                             ENDED     other digests, of the same values
 *
 * It is made in MOVES. Who begins an update always ends it, whatever becomes of the communicator: so waits are as long
 * as an update, and nothing cancels them; the other parts hear meanwhile that it gets on (joining_at_work). An update
 * of an earlier window has no one who waits: the next one begins when all parts have its shares.
 *
 * What was stored before front_reach and front_end is visible to who has waited for it. front_reach and front_wait are
 * in one order for all threads (sequentially consistent), so that no wake-up is lost. begin, end: the main thread.
 * reach: its workers, each run by one. wait: the communication thread, one at a time.
 */
#ifndef GACC_ENGINE_FRONT_H
#define GACC_ENGINE_FRONT_H

#include "engine/arith.h"

struct front;

/* Runs s of n are the elements [bounds[s], bounds[s + 1]), some of which may be none. ST_NO_MEMORY. */
enum status front_new(struct front **out, uint32_t n, const uint64_t *bounds);
void front_free(struct front *); /* NULL is fine; nobody waits */

void front_begin(struct front *);
/* All of run `run` below this element, which is in it or its end, is done. */
void front_reach(struct front *, uint32_t run, uint64_t element);
void front_end(struct front *, const struct arith_share *);

/* Until all below this element is done; at most the last run's end. */
void front_wait(struct front *, uint64_t element);
/* Until the end. */
struct arith_share front_wait_end(struct front *);

#endif
