/* SPDX-License-Identifier: Apache-2.0 */
/* The initial parameters: uploaded through a slot, or drawn. Main thread. */
#ifndef GACC_ENGINE_PARAMS_H
#define GACC_ENGINE_PARAMS_H

#include "engine/gaps.h"
#include "engine/memory.h"
#include "engine/workers.h"

/* Copies bytes from the start of `slot` to `offset` of the parameter layout, with zeros in place of those that belong
 * to no tensor, and derives the masters of the 16-bit parameters touched. The bytes are inside of both.
 */
void params_put(const struct memory *, const struct gaps *, const struct kernels *, uint32_t slot, uint64_t offset,
		uint64_t bytes);
/* The masters of all 16-bit parameters that are this part's own, from the parameters as they are. */
void params_derive_masters(const struct memory *, const struct kernels *);
/* Draws every tensor that has a rule; the others stay as they are, aliases follow their target. */
void params_init(const struct memory *, const struct kernels *, struct workers *);

#endif
