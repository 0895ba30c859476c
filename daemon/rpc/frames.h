/* SPDX-License-Identifier: Apache-2.0 */
/* Follows the frames of one HTTP/2 connection in both directions, and counts the memory and work that they cause in
 * gRPC. Pure; the owner locks.
 *
 * Bytes may arrive in any pieces. Only the nine bytes that begin each frame (RFC 9113, 4.1) and the code of RST_STREAM
 * are read; whether the frames make sense is left to gRPC.
 */
#ifndef GACC_RPC_FRAMES_H
#define GACC_RPC_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NS_PER_S 1000000000ll
/* bytes of one call's headers, as they come; gRPC takes 8 KiB of them, unpacked */
#define FRAMES_BLOCK_MAX (32u << 10)
/* Calls, and bytes of their headers, before gaccd's SETTINGS are acknowledged: gRPC's own limits do not hold yet. */
#define FRAMES_EARLY_CALLS 100
#define FRAMES_EARLY_BYTES (16u << 10)
#define FRAMES_WHOLE_S 30 /* until they are complete; until gaccd's SETTINGS are acknowledged */
/* what gRPC keeps for a call besides its headers and messages */
#define FRAMES_CALL_BYTES (12u << 10)

struct frames_side {
	uint8_t head[9], code[4];
	uint32_t have, left; /* bytes of the head; of the payload still to come */
};

struct frames_stream {
	uint32_t id, bytes;
};

struct frames {
	struct frames_side in, out;
	struct frames_stream *stream; /* that are open, by rising id */
	unsigned n_streams, room, max_streams;
	uint32_t preface; /* bytes of it still to come */
	uint32_t last;	  /* id of the newest stream */
	uint32_t early;	  /* bytes of headers before the acknowledgement */
	uint32_t block;	  /* bytes of the headers that are coming; `in_block` */
	bool in_block, acknowledged;
	int64_t began_ns, block_ns;

	/* For the caller. */
	uint64_t begun, frames; /* streams; frames that came */
	size_t bytes;		/* that gRPC keeps for the streams, about */
	/* useless frames that cost gRPC work, less those that answers have earned; the reader resets it to 0 */
	int64_t idle;
	unsigned throttled; /* streams that gRPC has ended for lack of memory; likewise */
};

/* For a new connection, which may have max_streams open. */
void frames_init(struct frames *f, unsigned max_streams, int64_t now_ns);
void frames_fini(struct frames *f);
/* Bytes that the client has sent. NULL, or the reason to close the connection (static); then no call may follow. */
const char *frames_received(struct frames *f, const void *data, size_t n, int64_t now_ns);
/* Bytes that were sent to the client. */
void frames_sent(struct frames *f, const void *data, size_t n);

#endif
