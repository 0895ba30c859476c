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

#endif
