/* SPDX-License-Identifier: Apache-2.0 */
/* Norms of single tensors, of the sum and of the parameters: computed only when somebody asks.
 *
 * Squares are summed as in the global norm, in blocks of KERNEL_BLOCK elements, but counted from the tensor's start,
 * and combined in kernel_sum's tree: the same bits for any number of threads and on every table. Main thread; workers
 * inside.
 */
#ifndef GACC_ENGINE_NORMS_H
#define GACC_ENGINE_NORMS_H

#include "engine/memory.h"
#include "engine/workers.h"

struct norms;

/* All borrowed until norms_free. ST_NO_MEMORY. */
enum status norms_new(struct norms **out, const struct memory *, const struct kernels *, struct workers *);
void norms_free(struct norms *); /* NULL is fine */

/* Writes the rows of control_page_norms, those of aliases excepted. sum: P[x], or NULL when it holds nothing; frozen
 * tensors are zero in it. Parameters are the master where there is one. */
void norms_take(struct norms *, const void *sum);

#endif
