/* SPDX-License-Identifier: Apache-2.0 */
/* What a channel is to its calls. */
#ifndef GACC_CLIENT_CALL_H
#define GACC_CLIENT_CALL_H

#include "lib/queue.h"

struct grpc_channel;

struct rpc_channel {
	struct grpc_channel *grpc;
	struct queue queue;
	char *authorization; /* NULL: none */
};

#endif
