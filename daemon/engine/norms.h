/* SPDX-License-Identifier: Apache-2.0 */
/* Norms of single tensors, of the sum and of the parameters: computed only when somebody asks.
 *
 * Squares are summed as in the global norm, in blocks of KERNEL_BLOCK elements, but counted from the tensor's start,
 * and combined in kernel_sum's tree: the same bits for any number of threads and on every table.
 *
 * Of a sharded job no part has the whole sum, or all masters. Each part looks at the blocks that begin in its share
 * (plan_shares), and all parts gather the sums of all blocks: 16 bytes for each, so all get the bits that one part with
 * everything would have found. A block that ends in the next share needs the first elements of that one, which are
 * gathered before.
 *
 * Main thread with workers inside, norms_take_shares excepted.
 */
#ifndef GACC_ENGINE_NORMS_H
#define GACC_ENGINE_NORMS_H

#include "coll/coll.h"
#include "engine/memory.h"
#include "engine/sum_view.h"
#include "engine/workers.h"

struct norms;

/* All borrowed until norms_free. ST_NO_MEMORY. */
enum status norms_new(struct norms **out, const struct memory *, const struct kernels *, struct workers *);
void norms_free(struct norms *); /* NULL is fine */

/* Writes the rows of control_page_norms, those of aliases excepted. sum: P[x], or NULL when it holds nothing; frozen
 * tensors are zero in it. Parameters are the master where there is one. */
void norms_take(struct norms *, const struct sum_view *sum);
/* The same rows on all parts of a sharded job. sum: of this part's share. Communication thread, alone; all parts call
 * it, one after the other operations of their communicator. Else than ST_OK: the communicator's failure, and the rows
 * are as they were. */
enum status norms_take_shares(struct norms *, struct coll *, const struct sum_view *sum);

#endif
