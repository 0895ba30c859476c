/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank hears that attaches to a job which this gaccd does not know. Private to the edge; loop thread. */
#ifndef GACC_EDGE_UNKNOWN_JOB_H
#define GACC_EDGE_UNKNOWN_JOB_H

#include "rpc/rpc.h"

/* Answers an Attach, which points to no part yet: JOB_NOT_FOUND, if this gaccd coordinates. Else the coordinator is
 * asked, for the caller: NOT_READY (the job waits in the queue), ENGINE_DOWN (it is being placed here, or there is no
 * link to the coordinator), WRONG_NODE, JOB_ENDED, or what JobService.Get answers. */
void job_is_unknown(struct rpc_call *, const char *name, uint32_t rank);

#endif
