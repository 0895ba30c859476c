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

/* At most `most` in one turn of `loop` (a uv_loop_t), and queued ones for at most 5 ms of it. ST_NO_MEMORY. */
enum status rpc_turns_new(void *loop, unsigned most, struct rpc_turns **out);
/* true: one more may be done in this turn, and is counted. false: put it instead. */
bool rpc_turns_take(struct rpc_turns *);
/* Runs the tag in a turn that has room for it, after those that were put before; it counts in that turn. */
void rpc_turns_put(struct rpc_turns *, struct rpc_tag *tag);
/* When all that was put has run and nothing more will be. Freed once the loop has closed its handles. Takes NULL. */
void rpc_turns_free(struct rpc_turns *);

#endif
