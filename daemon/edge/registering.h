/* SPDX-License-Identifier: Apache-2.0 */
/* RegisterTensors: from the message to control, by way of the pool. Private to the edge; loop thread. */
#ifndef GACC_EDGE_REGISTERING_H
#define GACC_EDGE_REGISTERING_H

#include "runtime/part.h"

struct rpc_call;
struct Gacc__V1__RegisterTensorsRequest;

/* RegisterTensors with its session's part. The call keeps the part; it is answered sooner or later. */
void registering_begin(struct rpc_call *, const struct Gacc__V1__RegisterTensorsRequest *, struct part *,
		       const struct session_key *);

/* Portions of a tensor set that nobody completes are dropped. */
void registering_tick(struct part *, struct now);
/* All that has been collected goes; not while the pool works for the part. */
void registering_drop(struct part *);

#endif
