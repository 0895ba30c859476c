/* RegisterTensors: from the message to control, by way of the pool. Private to the edge; loop thread. */
#ifndef GACC_EDGE_REGISTERING_H
#define GACC_EDGE_REGISTERING_H

#include "edge/methods.h"

/* Takes the call's request, which has tensors. The call keeps the job (keep_job); it is answered sooner or later. */
void registering_begin(struct rpc_call *, struct live_job *, const struct session_key *);

#endif
