/* SPDX-License-Identifier: Apache-2.0 */
/* What two gaccds say over their link, as messages of gacc/internal/v1/peer.proto: Hello, Welcome, Beat, and Carried, a
 * frame of a message of link.h. Any thread; no state. peer_frames.h cuts messages into frames and joins them again.
 */
#ifndef GACC_CLUSTER_PEER_MESSAGE_H
#define GACC_CLUSTER_PEER_MESSAGE_H

#include "cluster/link.h"
#include "control/members.h"

struct Gacc__Internal__V1__PeerMessage;

#define PEER_MAX_HELD 4096
#define PEER_FRAME (1u << 20) /* bytes of a message in one frame, at most */

/* A part that the node has. */
struct part_held {
	uint64_t job_id, epoch;
	uint64_t term;	 /* of the newest order that it has taken; 0: none */
	uint64_t window; /* its open one */
	uint32_t part;
	uint64_t uuid_high, uuid_low; /* of the job */
};

struct peer_hello {
	struct member_facts facts;
	const struct part_held *held; /* borrowed */
	uint32_t n_held;	      /* at most PEER_MAX_HELD */
};

struct peer_welcome {
	uint64_t link; /* number of this link; higher than that of any link before */
	uint64_t term; /* of the coordinator */
	char coordinator[MEMBER_NAME];
	uint32_t lease_ms;
};

struct peer_carried {
	enum link_kind kind;
	uint64_t job;
	uint32_t part;
	const void *bytes; /* borrowed; at least one, at most PEER_FRAME */
	size_t n;
	uint64_t rest; /* so many bytes of the message follow in later frames */
};

enum peer_kind { PEER_HELLO, PEER_WELCOME, PEER_BEAT, PEER_CARRIED };

struct peer_message {
	enum peer_kind kind;
	union {
		struct peer_hello hello;
		struct peer_welcome welcome;
		struct member_beat beat;
		struct peer_carried carried;
	};
};

/* How many bytes a message of this kind may have: 128 MiB where a tensor set is in it (64 MiB at most in the journal,
 * and a specification beside it), 16 MiB for the others (a report about 65536 ranks has 6). */
uint64_t peer_most(enum link_kind);

/* For sending; one block, for free(). NULL: no memory. Text that is no UTF-8 is mended; the bytes of a frame are lent,
 * everything else is copied. */
struct Gacc__Internal__V1__PeerMessage *peer_message_make(const struct peer_message *);

/* Checks what has come in. ST_VERSION_SKEW: `why` is one sentence that names field and value; ST_NO_MEMORY. *out is
 * written only with ST_OK: then for peer_message_release. The bytes of a frame are the message's; everything else is
 * copied. Text that is too long is cut at a character. */
enum status peer_message_read(const struct Gacc__Internal__V1__PeerMessage *, struct peer_message *out, char *why,
			      size_t n_why);
void peer_message_release(struct peer_message *); /* of peer_message_read */

#endif
