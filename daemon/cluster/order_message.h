/* SPDX-License-Identifier: Apache-2.0 */
/* Orders as messages of gacc/internal/v1/cluster.proto. Any thread; no state. */
#ifndef GACC_CLUSTER_ORDER_MESSAGE_H
#define GACC_CLUSTER_ORDER_MESSAGE_H

#include "cluster/commit_message.h"

/* An order that was unpacked, with the late ranks that it points to. */
struct held_order {
	struct order order;
	struct late_rank late[ORDER_MAX_LATE];
};

/* For free(); NULL: no memory. The commit is left out unless it is wanted. Texts become valid UTF-8. */
void *order_pack(const struct order *, size_t *out_n);
/* An order about a job with these bounds. ST_VERSION_SKEW: `why` is one sentence that names field and value;
 * ST_NO_MEMORY. *out is written only with ST_OK. */
enum status order_unpack(const void *bytes, size_t n, const struct message_bounds *, struct held_order *out, char *why,
			 size_t n_why);

#endif
