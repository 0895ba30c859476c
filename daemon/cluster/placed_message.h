/* SPDX-License-Identifier: Apache-2.0 */
/* What follows a placement, as messages of gacc/internal/v1/placement.proto: the node's word of what has become of it,
 * and the coordinator's that the part is no longer wanted there. Any thread; no state.
 */
#ifndef GACC_CLUSTER_PLACED_MESSAGE_H
#define GACC_CLUSTER_PLACED_MESSAGE_H

#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PLACED_TEXT 320

struct placed {
	uint64_t job_id, epoch; /* of the placement */
	uint32_t part;
	bool refused; /* the node does not have the part */
	/* ST_OK: the part is there, and has memory and an engine where its tensors are known; else why it has not, in
	 * `text`. Never ST_OK where it is refused. */
	enum status status;
	char text[PLACED_TEXT];
	/* What a checkpoint of the part takes on a disk, and what the sum adds to that inside a window. 0: the part has
	 * no memory yet. */
	uint64_t save_bytes, carry_bytes;
};

struct drop {
	uint64_t job_id, epoch;
	uint64_t uuid_high, uuid_low; /* as in struct order */
	uint32_t part;
};

/* For free(); NULL: no memory. Text that is no UTF-8 is mended on the way. */
void *placed_pack(const struct placed *, size_t *out_n);
void *drop_pack(const struct drop *, size_t *out_n);
/* ST_VERSION_SKEW: `why` is one sentence that names field and value; ST_NO_MEMORY. *out is written only with ST_OK. A
 * text that is too long is cut at a character. */
enum status placed_unpack(const void *bytes, size_t n, struct placed *out, char *why, size_t n_why);
enum status drop_unpack(const void *bytes, size_t n, struct drop *out, char *why, size_t n_why);

#endif
