/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that watch a job. Private to the edge; loop thread. */
#ifndef GACC_EDGE_HOSTED_WATCHERS_H
#define GACC_EDGE_HOSTED_WATCHERS_H

#include "edge/hosted.h"

/* Tells them what has changed; when the job has ended they end. */
void hosted_tell(struct hosted *, struct now);

#endif
