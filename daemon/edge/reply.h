/* SPDX-License-Identifier: Apache-2.0 */
/* Control's answers as messages: what a parked call's method makes of a struct reply. Private to the edge; loop thread.
 */
#ifndef GACC_EDGE_REPLY_H
#define GACC_EDGE_REPLY_H

#include "control/job.h"

struct daemon;
struct part;
struct rpc_call;

/* part_ports.reply, with the part as ctx: answers the call if it still lives; one of very many in a turn in a later
 * turn. */
void reply_send(void *ctx, uint64_t id, const struct reply *);
/* Answers it at once. `part`: that of the call's session; NULL: the reply is no REPLY_ATTACH or REPLY_REGISTER. */
void reply_now(struct part *, struct rpc_call *, const struct reply *);
/* Frees what has been put off. */
void reply_drop_late(struct daemon *);
/* rpc_fail from a reply's error part. */
void reply_fail(struct rpc_call *, const struct reply *);

#endif
