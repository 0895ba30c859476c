/* SPDX-License-Identifier: Apache-2.0 */
/* Which parameters are inf or NaN, in one of their copies or in Adam's second moment, with which they would never move
 * again.
 *
 * A function of what is in memory, so that an update gives the same answer whether it ran once or was resumed. Frozen
 * tensors may hold anything. Main thread; workers inside.
 */
#ifndef GACC_ENGINE_FINITE_H
#define GACC_ENGINE_FINITE_H

#include "engine/arith.h"
#include "engine/memory.h"
#include "engine/workers.h"

/* Reads all parameters. */
struct nonfinite finite_find(const struct memory *, const struct kernels *, struct workers *);

/* Adds to *count how many of n <= KERNEL_BLOCK elements are inf or NaN, and gives the first one's place among them, or
 * n. Any thread. */
size_t finite_count(const struct kernel_params *, size_t n, uint64_t *count);
/* The tensor that an element of the arena belongs to; n_tensors: none. */
uint64_t finite_tensor(const struct plan *, uint64_t element);

#endif
