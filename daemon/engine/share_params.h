/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of a sharded job after an update: each part has updated its shard (plan_shards), and the parts of
 * its group get each other's, in what trainers see (SEG_PARAMS), while it updates what is left of its own. Pieces of
 * the same bytes may come any number of times.
 *
 * With them goes a table with the digests of all parts' shards. A digest is a sum over blocks, mod 2^64, so those of a
 * group add up to that of the whole, and a part that has been given other bytes than their owner has ends up with
 * another digest than the others: which the coordinator sees.
 */
#ifndef GACC_ENGINE_SHARE_PARAMS_H
#define GACC_ENGINE_SHARE_PARAMS_H

#include "coll/coll.h"
#include "engine/front.h"
#include "engine/memory.h"

/* Where each shard lies in SEG_PARAMS, in bytes: out has n_shards + 1 places. */
void share_params_bounds(const struct plan *, uint64_t *out);
/* The communication thread. Each piece of the own shard is given as soon as it is below the front, and the digests when
 * it has ended. whole: this part has all, and its parameters are not written. table: [n_parts], filled. Else than
 * ST_OK: the communicator's failure; the update goes on. */
enum status share_params_gather(const struct memory *, struct coll *, struct front *, bool whole,
				struct arith_share *table);
/* Of all parameters. others: what trainers see of all shards but the own, as they are here. */
uint64_t share_params_digest(const struct plan *, const struct arith_share *table, uint64_t others);

#endif
