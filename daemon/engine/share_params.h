/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of a sharded job after an update: each part has updated its share (plan_shares), and all parts get the
 * shares of all others, in what trainers see (SEG_PARAMS). Pieces of the same bytes may come any number of times.
 *
 * With them goes a table with the digests of each share. A digest is a sum over its blocks, mod 2^64, so those of the
 * shares add up to that of the whole, and a part that has been given other bytes than their owner has ends up with
 * another digest than the others: which the coordinator sees.
 */
#ifndef GACC_ENGINE_SHARE_PARAMS_H
#define GACC_ENGINE_SHARE_PARAMS_H

#include "coll/coll.h"
#include "engine/arith.h"
#include "engine/memory.h"

/* Where each part's share lies in SEG_PARAMS, in bytes: out has n_parts + 1 places. */
void share_params_bounds(const struct plan *, uint64_t *out);
/* The communication thread. whole: this part has all, and its parameters are not written. table: as arith_ops.gather.
 * Else than ST_OK: the communicator's failure. */
enum status share_params_gather(const struct memory *, struct coll *, bool whole, struct arith_share *table);
/* Of all parameters. others: what trainers see of all shares but the own, as they are here. */
uint64_t share_params_digest(const struct plan *, const struct arith_share *table, uint64_t others);

#endif
