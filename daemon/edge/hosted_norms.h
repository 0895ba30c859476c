/* SPDX-License-Identifier: Apache-2.0 */
/* TensorNorms: the calls that wait for a job's norms, and the norms on their way from the node of part 0
 * (control/norms_fetch.h). Private to the edge; loop thread.
 */
#ifndef GACC_EDGE_HOSTED_NORMS_H
#define GACC_EDGE_HOSTED_NORMS_H

#include "edge/hosted.h"
#include "edge/links.h"

/* That may wait for a job's: each is answered with all its tensors, and all at once. */
#define HOSTED_MAX_NORMS_CALLS 64
/* Takes a call for the norms of the next window. ST_NOT_READY, ST_JOB_ENDED, ST_NO_MEMORY; ST_RESOURCE_EXHAUSTED: too
 * many wait; ST_NOT_SUPPORTED: a node is too old. With why, unless that is ""; the call is not answered then. */
enum status hosted_norms_add(struct hosted *, uint64_t call, char *why, size_t n_why);
void hosted_norms_remove(struct hosted *, uint64_t call);
void hosted_norms(void *ctx, const struct commit *); /* coord_ports.norms; ctx is the hosted */
links_take hosted_take_norms;			     /* LINK_NORMS */
void hosted_norms_tick(struct hosted *, struct now);
void hosted_norms_free(struct hosted *);

#endif
