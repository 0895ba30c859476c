/* SPDX-License-Identifier: Apache-2.0 */
/* Which stretches of the arena a pass adds which micro-batches to: a tensor may be absent from some of them, and frozen
 * tensors are never added. A function of the plan and the bitmaps alone, wherever the memory is. Main thread. */
#ifndef GACC_ENGINE_RUNS_H
#define GACC_ENGINE_RUNS_H

#include "engine/plan.h"
#include "proto/status.h"

#include <stdbool.h>

/* A tensor with storage of its own. */
struct run_owner {
	uint64_t start;
	uint32_t tensor, group; /* group: of the dtype */
	bool frozen;
};

/* Neighbours that have the same sources. Runs cover the arena in ascending order without gaps. */
struct run {
	uint64_t start, count;
	uint32_t group;
	uint32_t sources; /* bit i: source i is present */
};

struct runs;

/* ST_NO_MEMORY. The plan is borrowed until runs_free. */
enum status runs_new(struct runs **out, const struct plan *);
void runs_free(struct runs *); /* NULL is fine */

/* All tensors that are no alias, in the order of the arena. */
const struct run_owner *runs_owners(const struct runs *, uint64_t *n);
/* Of a pass of n sources, n <= KERNEL_MAX_SLOTS. present[i]: bit k of byte k / 8 is tensor k, an alias stands for its
 * target; NULL: all. Valid until the next call. */
const struct run *runs_of(struct runs *, const unsigned char *const *present, uint32_t n, uint32_t *n_runs);
/* The same for one tensor: runs_resolve once, then the sources of each. */
void runs_resolve(struct runs *, const unsigned char *const *present, uint32_t n);
uint32_t runs_sources(const struct runs *, const struct run_owner *, const unsigned char *const *present, uint32_t n);

#endif
