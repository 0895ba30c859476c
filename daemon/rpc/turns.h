/* SPDX-License-Identifier: Apache-2.0 */
/* Spreads work that arrives at once over several turns of the loop, so that others are served in between.
 *
 * FIFO. For messages and answers that one event causes for many calls, each of which gRPC writes to a socket at once.
 * Loop thread.
 */
#ifndef GACC_RPC_TURNS_H
#define GACC_RPC_TURNS_H

#include "rpc/pump.h"

struct rpc_turns;

/* `most` in one turn of the loop, a uv_loop_t, and of those that wait none more after 5 ms. ST_NO_MEMORY. */
enum status rpc_turns_new(void *loop, unsigned most, struct rpc_turns **out);
/* Whether one more may be done in this turn, which it then counts as; else it is to be put. */
bool rpc_turns_take(struct rpc_turns *);
/* Runs the tag in a turn that has room for it, behind those that were put before. It is taken already when it runs. */
void rpc_turns_put(struct rpc_turns *, struct rpc_tag *tag);
/* Nothing is put any more, and all that was has run. Gone when the loop has closed its handles; NULL is fine. */
void rpc_turns_free(struct rpc_turns *);

#endif
