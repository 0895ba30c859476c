/* SPDX-License-Identifier: Apache-2.0 */
/* A packet of the attach socket, as a trainer sends it: which session wants its memory. Pure. */
#ifndef GACC_HOST_MAP_REQUEST_H
#define GACC_HOST_MAP_REQUEST_H

#include "proto/segment_layout.h"
#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct map_request {
	uint64_t session; /* Session.id */
	uint8_t token[16];
	bool wants_mailbox;
	bool device;
	char gpu[STATUS_GPU_BYTES + 1]; /* what the process uses; "": it does not say */
};

/* MALFORMED, VERSION_SKEW (proto/version.h), SESSION_UNKNOWN (no session, or a token that is none) or INVALID_ARGUMENT
 * (the name of no GPU), with a sentence in `why`. */
enum status map_request_parse(const void *bytes, size_t n, struct map_request *out, char *why, size_t n_why);

#endif
