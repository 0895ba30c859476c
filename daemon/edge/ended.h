/* SPDX-License-Identifier: Apache-2.0 */
/* Answers to trainers whose session has no part here: their job is over, or there is none. Private to the edge; loop
 * thread.
 */
#ifndef GACC_EDGE_ENDED_H
#define GACC_EDGE_ENDED_H

#include <stdbool.h>

struct rpc_call;
struct Gacc__V1__DetachRequest;
struct Gacc__V1__PushRequest;
struct Gacc__V1__Session;
struct Gacc__V1__WaitStepRequest;

/* Answers with an error: the session's job has ended, or there is no such session. */
void session_refuse(struct rpc_call *, const struct Gacc__V1__Session *);

/* A call that may be the repetition of one whose answer was lost. true: its job is over, and it is answered: a push of
 * the last window that was counted in it; a wait for that window; a detach. */
bool push_is_over(struct rpc_call *, const struct Gacc__V1__PushRequest *);
bool wait_step_is_over(struct rpc_call *, const struct Gacc__V1__WaitStepRequest *);
bool detach_is_over(struct rpc_call *, const struct Gacc__V1__DetachRequest *);

#endif
