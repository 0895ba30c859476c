/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts the messages of a link between two gaccds into frames (struct peer_carried), and joins frames to messages. In
 * each direction a link sends one message at a time, frame after frame; Beats may come between the frames.
 * One thread for each object.
 */
#ifndef GACC_CLUSTER_PEER_FRAMES_H
#define GACC_CLUSTER_PEER_FRAMES_H

#include "cluster/peer_message.h"

/* A message that is being sent. */
struct peer_frames {
	struct link_message message; /* borrowed, with what it points to, until all is sent */
	uint64_t n_sent;
};

/* Of this message, whose job is not 0, and which has a byte at least. ST_RESOURCE_EXHAUSTED: it has more than
 * peer_most, which the other side would refuse, with the whole link; `why` is one sentence. */
enum status peer_frames_begin(struct peer_frames *, const struct link_message *, char *why, size_t n_why);
/* The next frame, which borrows from the message; false: all is sent. The same frame until peer_frames_sent. */
bool peer_frames_next(const struct peer_frames *, struct peer_carried *out);
void peer_frames_sent(struct peer_frames *, const struct peer_carried *);

/* A message that comes in; all zero at first. One for each link: what was half there when a link broke is not what the
 * next one goes on with. */
struct peer_assembly {
	struct peer_carried newest; /* without its bytes */
	uint8_t *bytes;
	size_t n, room;
	bool whole; /* and handed out */
};

/* Takes a frame that peer_message_read has accepted. With ST_OK and *whole the message is there, without an `end`: it
 * is lent until the next call, and while the frame is there. ST_VERSION_SKEW: the frame does not go on with the message
 * before it, and `why` is one sentence; the link is of no more use. ST_NO_MEMORY: the same. What is held is at most
 * twice what has arrived, whatever a frame announces. */
enum status peer_assembly_take(struct peer_assembly *, const struct peer_carried *, struct link_message *out,
			       bool *whole, char *why, size_t n_why);
/* Gives the memory back, and can be used again, as at first. */
void peer_assembly_clear(struct peer_assembly *);

#endif
