/* SPDX-License-Identifier: Apache-2.0 */
/* The way between a coordinator and a node: reports, events, views, ledgers, tensor sets, addresses of engines, norms
 * of tensors and what has become of placements and checkpoints go up; orders, placements, their end, boards of
 * addresses, and checkpoints and norms that are wanted go down. All are packed.
 *
 * This is the link inside one process, where a gaccd coordinates jobs whose parts it has itself. A message is delivered
 * by link_run, never while its sender is still at work; messages keep their order (a Save counts on it). What cannot be
 * queued is lost, as on any link: both sides repeat what has not arrived. One thread.
 */
#ifndef GACC_CLUSTER_LINK_H
#define GACC_CLUSTER_LINK_H

#include "base/shared.h"
#include "proto/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct link;

/* The numbers go between gaccds (peer.proto: Carried.kind): they are for ever, and new ones come last. */
enum link_kind {
	LINK_REPORT,	/* report_message.h */
	LINK_ORDER,	/* order_message.h */
	LINK_PLACEMENT, /* placement_message.h */
	LINK_PLACED,	/* placed_message.h */
	LINK_DROP,	/* placed_message.h */
	LINK_EVENT,	/* event_message.h */
	LINK_TENSORS,	/* tensors_message.h, as LINK_KEPT is */
	LINK_KEPT,
	LINK_SAVE, /* save_message.h, as LINK_SAVED is */
	LINK_SAVED,
	LINK_VIEW,   /* part_view_message.h */
	LINK_LEDGER, /* ledger_message.h */
	LINK_BLOB,   /* board_message.h, as LINK_BOARD is */
	LINK_BOARD,
	LINK_LAUNCH, /* launch_message.h, as LINK_LAUNCHED is */
	LINK_LAUNCHED,
	LINK_LOG_ASK, /* log_message.h, as LINK_LOG_PIECE is */
	LINK_LOG_PIECE,
	LINK_NORMS_ASK, /* norms_message.h, as LINK_NORMS is */
	LINK_NORMS,
	LINK_KINDS
};

/* From a part to the coordinator of its job? The others go down, to the node of a part. */
static inline bool link_goes_up(enum link_kind kind)
{
	switch (kind) {
	case LINK_REPORT:
	case LINK_PLACED:
	case LINK_EVENT:
	case LINK_TENSORS:
	case LINK_SAVED:
	case LINK_VIEW:
	case LINK_LEDGER:
	case LINK_BLOB:
	case LINK_LAUNCHED:
	case LINK_LOG_PIECE:
	case LINK_NORMS:
		return true;
	case LINK_ORDER:
	case LINK_PLACEMENT:
	case LINK_DROP:
	case LINK_KEPT:
	case LINK_SAVE:
	case LINK_BOARD:
	case LINK_LAUNCH:
	case LINK_LOG_ASK:
	case LINK_NORMS_ASK:
	case LINK_KINDS:
		break;
	}
	return false;
}

struct link_message {
	enum link_kind kind;
	uint64_t job;
	uint32_t part;
	const void *bytes;
	size_t n;
	struct shared *end; /* large bytes that follow these; NULL: none */
	bool away;	    /* another gaccd has sent it, which coordinates the job */
	uint32_t node; /* of the node of a part: its index among the members (control/members.h) + 1; 0: this gaccd */
};

struct link_ends {
	void *ctx;
	/* The queue is no longer empty: link_run is to be called soon, and not from here. */
	void (*wake)(void *ctx);
	/* A message has arrived; it is lent. May send others, which the next link_run delivers. */
	void (*arrived)(void *ctx, const struct link_message *);
};

/* ST_NO_MEMORY. */
enum status link_new(const struct link_ends *, struct link **out);
void link_free(struct link *); /* what is queued is dropped; takes NULL */
/* Takes the bytes, malloc'ed, also when the message is lost for want of memory (false). bytes NULL counts as lost. */
bool link_send(struct link *, enum link_kind, uint64_t job, uint32_t part, void *bytes, size_t n);
/* The same for a message whose end is large, and is held instead of copied: its bytes are `bytes` and then those of
 * `end`. NULL: there is none. */
bool link_send_shared(struct link *, enum link_kind, uint64_t job, uint32_t part, void *bytes, size_t n,
		      struct shared *end);
/* Delivers what is queued now. */
void link_run(struct link *);
bool link_is_empty(const struct link *);

#endif
