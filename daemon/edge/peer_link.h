/* SPDX-License-Identifier: Apache-2.0 */
/* One link between this gaccd and another of its cluster, whichever of the two has dialled: what waits to be sent,
 * frame by frame, and what has come of a message. The stream is the caller's (node_dial.c, node_serve.c). Private to
 * the edge; loop thread.
 */
#ifndef GACC_EDGE_PEER_LINK_H
#define GACC_EDGE_PEER_LINK_H

#include "cluster/peer_frames.h"
#include "proto/status.h"

struct peer_link_stream {
	void *ctx;
	/* As rpc_send and rpc_room. */
	enum status (*send)(void *ctx, const struct Gacc__Internal__V1__PeerMessage *);
	size_t (*room)(const void *ctx);
};

struct peer_queued;

struct peer_link {
	struct peer_link_stream stream;
	struct peer_queued *first, **tail; /* the first may be half sent: `sending` */
	struct peer_frames sending;
	bool is_sending;
	uint64_t queued;	      /* bytes that wait, those that others hold (link_message.end) included */
	uint64_t lost;		      /* messages that there was no room for */
	struct peer_assembly arrived; /* of the message that is coming in */
	/* of daemon.awake: when its first frame has come, and its last one; begun 0: none is half there */
	int64_t begun_ns, frame_ns;
	int64_t heard_ns; /* the same: when the other side said something last */
	int64_t said_ns;  /* when a Beat went there; the kernel's clock */
};

/* What may wait for the other side: any one message, or together with it so much. */
#define PEER_LINK_QUEUE (UINT64_C(64) << 20)
#define PEER_LINK_BEAT_NS (INT64_C(1000) * 1000000)
#define PEER_LINK_SILENT_NS (INT64_C(10000) * 1000000) /* then the one that dialled dials anew */

void peer_link_init(struct peer_link *, const struct peer_link_stream *, int64_t heard_ns);
void peer_link_fini(struct peer_link *); /* what waits is lost */

/* Takes the bytes; the end is held. A message that is too large or finds too much before it is lost, as on any link:
 * false. */
bool peer_link_post(struct peer_link *, enum link_kind, uint64_t job, uint32_t part, void *bytes, size_t n,
		    struct shared *end);
/* Sends what the stream has room for. To be called when it has room again. */
void peer_link_pump(struct peer_link *);
/* Hello, Welcome, Beat: at once, before what waits. */
enum status peer_link_say(struct peer_link *, const struct peer_message *);
/* A Beat, if it is time for one. */
void peer_link_beat(struct peer_link *, const struct member_beat *, int64_t now_ns);

#endif
