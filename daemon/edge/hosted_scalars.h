/* SPDX-License-Identifier: Apache-2.0 */
/* What the trainers of a job log under names, from the API to the history. Private to the edge; loop thread. */
#ifndef GACC_EDGE_HOSTED_SCALARS_H
#define GACC_EDGE_HOSTED_SCALARS_H

#include "edge/hosted.h"

struct Gacc__V1__Scalar;

/* Values of one rank and window; all, or none: INVALID_ARGUMENT, NOT_CURRENT_WINDOW, WINDOW_FORGOTTEN,
 * RESOURCE_EXHAUSTED: the disk is too slow for what this user logs; with `why`; NO_MEMORY. */
enum status hosted_scalars_put(struct hosted *, uint64_t window, uint32_t rank, struct Gacc__V1__Scalar *const *,
			       size_t n, char *why, size_t n_why);
/* What waits goes to the recorder, as far as there is room for this user's. */
void hosted_scalars_write(struct hosted *);
/* The same, and an event tells how many values were refused. */
void hosted_scalars_tick(struct hosted *, struct now);
/* Nothing is logged any more: all that waits goes to the recorder. */
void hosted_scalars_end(struct hosted *);
/* The newest of each name, into a job that has none. false: no memory. */
bool hosted_scalars_fill(const struct hosted *, struct Gacc__V1__Job *);
/* Of a window, as the history has them, for free with its message. false: no memory. */
bool scalars_message(const struct history_scalar *, size_t n, struct Gacc__V1__Scalar ***out, size_t *out_n);

#endif
