/* SPDX-License-Identifier: Apache-2.0 */
/* The sum over all parts of a job: what each part has added, exchanged and gathered, so that all parts have the whole
 * sum with the same bits.
 *
 * S = ((0 + P[0]) + P[1]) + ... + P[D-1], element by element in part order, each addition rounded once to the
 * accumulator's dtype, subnormals flushed to zero. So the bits depend on how ranks are divided into parts, and on
 * nothing else. Each part adds its own share (plan_share_of) of all parts' sums, and the parts of one shard gather its
 * shares; a small arena goes whole to all parts, each of which adds all of it: the same bits in one message instead of
 * two operations.
 *
 * Runs on the communication thread, beside whatever does not write the two halves. No lock, no log, no allocation but
 * the communicator's.
 */
#ifndef GACC_ENGINE_SUM_PARTS_H
#define GACC_ENGINE_SUM_PARTS_H

#include "coll/coll.h"
#include "engine/arith.h"
#include "engine/plan.h"
#include "math/kernels.h"

/* Bytes that are sent, summed and gathered as one: equal on all parts, so it is no setting of a node. */
#define SUM_PARTS_PIECE (UINT64_C(1) << 20)

/* An arena is small when a part sends no more than this in all: what the messages of two operations cost is more. */
#define SUM_PARTS_SMALL (UINT64_C(128) << 10)

struct sum_parts;

/* Bytes of a small arena, for the members of the job's communicators (coll_config.small); 0: it is not small. */
uint32_t sum_parts_small(const struct plan *);

/* plan (of a job of several parts) and kernels are borrowed. ST_NO_MEMORY. */
enum status sum_parts_new(struct sum_parts **out, const struct plan *, const struct kernels *);
void sum_parts_free(struct sum_parts *); /* NULL is fine */

/* dst = the sum over all parts, of which `own` is this one's: two halves of the accumulator. filled: something has been
 * added to `own`; else it is set to zeros first. Of a sharded job dst has the sum of this part's shard alone, unless
 * the arena is small, and *norm is of the whole sum, with the same bits on all parts; norm is not used else. Else than
 * ST_OK: the communicator's failure, or what it says of itself; dst holds anything then. */
enum status sum_parts_run(struct sum_parts *, struct coll *, void *dst, void *own, bool filled,
			  struct arith_norm *norm);

#endif
