/* SPDX-License-Identifier: Apache-2.0 */
/* Answers that carry a whole job, its specification and all ranks included. Private to the edge; loop thread. */
#ifndef GACC_EDGE_WHOLE_JOB_H
#define GACC_EDGE_WHOLE_JOB_H

#include "edge/hosted.h"

struct Gacc__V1__Job;

typedef void whole_job_fn(struct rpc_call *, struct Gacc__V1__Job *, int arg);
/* Calls `then` with the job as it is, specification and ranks included, and with what more `parts` (enum view_part)
 * asks for: at once, or later when the journal has to be read. It is not called when the call is gone, or was answered
 * with an error. The job is lent. */
void with_whole_job(struct rpc_call *, struct hosted *, unsigned parts, whole_job_fn *then, int arg);

#endif
