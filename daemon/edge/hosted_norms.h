/* SPDX-License-Identifier: Apache-2.0 */
/* TensorNorms: the calls that wait for a job's norms. Private to the edge; loop thread. */
#ifndef GACC_EDGE_HOSTED_NORMS_H
#define GACC_EDGE_HOSTED_NORMS_H

#include "edge/hosted.h"

/* That may wait for a job's: each is answered with all its tensors, and all at once. */
#define HOSTED_MAX_NORMS_CALLS 64
void hosted_norms(void *ctx, const struct commit *); /* coord_ports.norms; ctx is the hosted */
void hosted_fail_norms(struct hosted *, enum status, const char *why);

#endif
