/* SPDX-License-Identifier: Apache-2.0 */
/* Which bytes of a range have come, when pieces may come in any order, twice or overlapping. Pure.
 *
 * The user chooses the pieces, so their number is bounded: adding one moves at most COVERAGE_MAX of them.
 */
#ifndef GACC_CONTROL_COVERAGE_H
#define GACC_CONTROL_COVERAGE_H

#include "math/arena.h"
#include "proto/status.h"

#include <stdbool.h>
#include <stdint.h>

#define COVERAGE_MAX 4096 /* separate pieces; neighbours are joined */

struct coverage_piece {
	uint64_t start, end;
};

/* Zeroed: nothing has come. Free with coverage_fini. */
struct coverage {
	struct coverage_piece *piece; /* ascending, disjoint, with a gap between each two */
	uint32_t n, capacity;
};

/* Notes that [start, end) has come, start <= end. ST_RESOURCE_EXHAUSTED: too many separate pieces, ST_NO_MEMORY;
 * nothing has changed then. */
enum status coverage_add(struct coverage *, uint64_t start, uint64_t end);
/* All of [start, end) has come. */
bool coverage_has(const struct coverage *, uint64_t start, uint64_t end);
void coverage_fini(struct coverage *); /* and it is empty again */

/* Which bytes of a tensor count. */
enum coverage_layout { COVERAGE_SLOT, COVERAGE_PARAMS };
/* The first tensor that has not come whole, n_tensors if all have. `present`: one bit for each tensor that must come,
 * NULL: all must. Gaps between tensors need not come; an alias has the bytes of its target. *out_start, *out_end: the
 * tensor's bytes. */
uint64_t coverage_missing(const struct coverage *, const struct arena *, enum coverage_layout, const uint8_t *present,
			  uint64_t *out_start, uint64_t *out_end);

#endif
