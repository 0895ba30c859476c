/* SPDX-License-Identifier: Apache-2.0 */
/* The tensor set of a part on its way to the coordinator, and the answer, as messages of
 * gacc/internal/v1/placement.proto. Any thread; no state.
 */
#ifndef GACC_CLUSTER_TENSORS_MESSAGE_H
#define GACC_CLUSTER_TENSORS_MESSAGE_H

#include "base/shared.h"
#include "proto/status.h"

#include <stdint.h>

struct part_tensor_set {
	uint64_t job_id, epoch;
	uint32_t part;
};

struct tensors_kept {
	uint64_t job_id, epoch;
	uint32_t part;
	enum status status; /* ST_OK: it is durable */
};

/* The message without the bytes of the set, which are its end: for a stream both are written one after the other, and
 * within a process (link_send_shared) nobody copies what may have 50 MB. For free(); NULL: no memory. */
void *tensor_set_pack(const struct part_tensor_set *, const struct shared *set, size_t *out_n);
/* Of the message with `set` behind it; or of a whole message, where `set` is NULL. *out_set is for shared_drop.
 * ST_VERSION_SKEW: `why` is one sentence that names field and value; ST_NO_MEMORY. The outputs are written only with
 * ST_OK. */
enum status tensor_set_unpack(const void *bytes, size_t n, struct shared *set, struct part_tensor_set *out,
			      struct shared **out_set, char *why, size_t n_why);

void *tensors_kept_pack(const struct tensors_kept *, size_t *out_n);
enum status tensors_kept_unpack(const void *bytes, size_t n, struct tensors_kept *out, char *why, size_t n_why);

#endif
