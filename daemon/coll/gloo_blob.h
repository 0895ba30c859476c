/* SPDX-License-Identifier: Apache-2.0 */
/* What a member over Gloo tells the others before they connect, as it lies on the board. Of one build: its magic number
 * changes with it, and nodes of different ones do not meet (control/alike.h). Pure. */
#ifndef GACC_COLL_GLOO_BLOB_H
#define GACC_COLL_GLOO_BLOB_H

#include "coll/coll.h"

#include <sys/socket.h>

#define GLOO_MAGIC UINT64_C(0x3267636f6f6c67) /* its first byte changes with what members say to each other */

struct gloo_blob {
	uint64_t magic;
	struct coll_id id;
	uint64_t part, n_parts, small, life;
	uint64_t key[2];				 /* random */
	struct sockaddr_storage address[COLL_MAX_PARTS]; /* where it listens for each part; n_parts are sent */
};

/* Bytes of it that are sent. */
size_t gloo_blob_size(uint32_t n_parts);

/* Whether all of its addresses are this IP address, "10.0.0.7" or "fd00::7". true, too, of what is no blob of this
 * build: the members refuse it themselves. */
bool gloo_blob_is_at(const void *bytes, size_t n, const char *ip);

#endif
