/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of engines on their way to the coordinator, and the board with all of them on its way back, as messages of
 * gacc/internal/v1/cluster.proto. What is wrong with one is said without its bytes: they hold a key. Any thread; no
 * state.
 */
#ifndef GACC_CLUSTER_BOARD_MESSAGE_H
#define GACC_CLUSTER_BOARD_MESSAGE_H

#include "coll/coll.h"
#include "control/messages.h"

#include <stddef.h>

struct ProtobufCMessage;

/* A message that was unpacked, and what it points to. */
struct held_blob {
	struct part_blob blob;
	struct ProtobufCMessage *message;
};
struct held_board {
	struct part_board board;
	struct coll_address address[COLL_MAX_PARTS];
	struct ProtobufCMessage *message;
};

/* For free(); NULL: no memory. */
void *blob_pack(const struct part_blob *, size_t *out_n);
void *board_pack(const struct part_board *, size_t *out_n);
/* Of a job of so many parts, at most COLL_MAX_PARTS. ST_VERSION_SKEW: `why` is one sentence that names field and value;
 * ST_NO_MEMORY. *out is written only with ST_OK: then for its release. */
enum status blob_unpack(const void *bytes, size_t n, uint32_t parts, struct held_blob *out, char *why, size_t n_why);
/* The board points into *out, which must stay where it is. */
enum status board_unpack(const void *bytes, size_t n, uint32_t parts, struct held_board *out, char *why, size_t n_why);
void blob_release(struct held_blob *);
void board_release(struct held_board *);

#endif
