/* SPDX-License-Identifier: Apache-2.0 */
/* Logs of launched ranks, for readers on any node: the coordinator reads those of its own node itself, and asks the
 * node of another rank for a piece (cluster/log_message.h). Private to the edge; loop thread.
 *
 * Logs must not delay orders on the same link: pieces are small, few are on their way from a node at a time, and
 * whoever reads asks for the next one.
 */
#ifndef GACC_EDGE_RANK_LOGS_H
#define GACC_EDGE_RANK_LOGS_H

#include "cluster/log_message.h"
#include "edge/hosted.h"

#define RANK_LOGS_MOST 256     /* questions that wait for nodes */
#define RANK_LOGS_ON_THE_WAY 2 /* to each node */
#define RANK_LOGS_NS (INT64_C(5) * 1000000000)

struct rank_log_call;

/* Answers the call ReadLog with what comes next in the log, by `ask` without its job and number, at the node of this
 * name. The caller may read the job's logs. */
void rank_logs_read(struct rpc_call *, const struct hosted *, const char *name, struct log_ask ask);
/* LINK_LOG_ASK, on the node; LINK_LOG_PIECE, on the coordinator. */
void rank_logs_take_ask(struct daemon *, const struct link_message *);
void rank_logs_take_piece(struct daemon *, const struct link_message *);
/* Answers whoever has waited too long, or whose node is gone. */
void rank_logs_tick(struct daemon *, struct now);
void rank_logs_free(struct daemon *);

#endif
