/* SPDX-License-Identifier: Apache-2.0 */
/* RegisterTensors: from the message to control, by way of the pool. Private to the edge; loop thread. */
#ifndef GACC_EDGE_REGISTERING_H
#define GACC_EDGE_REGISTERING_H

#include "edge/methods.h"

struct Gacc__V1__RegisterTensorsRequest;

/* RegisterTensors with its session's job. The call keeps the job (keep_job); it is answered sooner or later. */
void registering_begin(struct rpc_call *, const struct Gacc__V1__RegisterTensorsRequest *, struct live_job *,
		       const struct session_key *);

#endif
