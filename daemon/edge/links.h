/* SPDX-License-Identifier: Apache-2.0 */
/* Reports and orders of control as messages on links: packed by the sender, unpacked where they arrive. Private to the
 * edge; loop thread.
 */
#ifndef GACC_EDGE_LINKS_H
#define GACC_EDGE_LINKS_H

#include "cluster/link.h"
#include "edge/daemon.h"

/* Takes a message that has arrived. */
typedef void links_take(struct daemon *, const struct link_message *);
/* The link of this gaccd to itself; `takes` has one for each kind, and outlives it. ST_NO_MEMORY. */
enum status links_new(struct daemon *, links_take *const takes[LINK_KINDS]);
void links_free(struct daemon *);
/* Delivers what is queued now, for a start that cannot wait for the loop. */
void links_run_now(struct daemon *);
/* From a part here to the coordinator of its job, which is this gaccd or the one that it dials; the message is packed,
 * its bytes are taken, and NULL is one that could not be packed. What is lost, for want of memory or of a link, is
 * repeated by the sender's tick. Nothing when gaccd ends. */
void links_send(struct daemon *, enum link_kind, uint64_t job, uint32_t part, void *bytes, size_t n);
/* The same with a large end (link_send_shared). */
void links_send_shared(struct daemon *, enum link_kind, uint64_t job, uint32_t part, void *bytes, size_t n,
		       struct shared *end);
void links_send_report(struct daemon *, const struct report *);
void links_send_blob(struct daemon *, const struct part_blob *); /* the address of an engine */
/* To the node (link_message.node; 0: here) of a part of a job that is coordinated here. false: it is lost. */
bool links_send_down(struct daemon *, uint32_t node, enum link_kind, uint64_t job, uint32_t part, void *bytes, size_t n,
		     struct shared *end);
/* Whether little enough waits for that node that something large may follow. false: it does, or there is no link. */
bool links_have_room(const struct daemon *, uint32_t node);
void links_send_order(struct daemon *, uint32_t node, uint32_t part, const struct order *);
/* The addresses of all engines of a communicator. */
void links_send_board(struct daemon *, uint32_t node, uint32_t part, const struct part_board *);

/* Logs that a message cannot be read, or is not for us. Between two gaccds of one version that does not happen;
 * at most 20 lines in a minute. */
void links_refuse(const struct link_message *, const char *why);

#endif
