/* SPDX-License-Identifier: Apache-2.0 */
/* Which parameters are inf or NaN, in one of their copies or in Adam's second moment, with which they would never move
 * again.
 *
 * A function of what is in memory, so that an update gives the same answer whether it ran once or was resumed. Frozen
 * tensors may hold anything. Main thread; workers inside.
 */
#ifndef GACC_ENGINE_FINITE_H
#define GACC_ENGINE_FINITE_H

#include "engine/memory.h"
#include "engine/workers.h"

struct nonfinite {
	uint64_t count;	 /* elements */
	uint64_t tensor; /* index of the first one's; n_tensors: it is in none */
};

/* Reads all parameters. */
struct nonfinite finite_find(const struct memory *, const struct kernels *, struct workers *);
/* As a sentence without its end: "3 values of the parameters are inf or NaN, the first in tensor "w"". */
void finite_describe(const struct plan *, const struct nonfinite *, char *text, size_t n);

#endif
