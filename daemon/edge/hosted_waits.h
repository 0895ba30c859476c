/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that are parked until their job has come so far. Private to the edge; loop thread. */
#ifndef GACC_EDGE_HOSTED_WAITS_H
#define GACC_EDGE_HOSTED_WAITS_H

#include "edge/hosted.h"

/* What Wait asks for: the state, or the step, whichever comes first; neither: the job's end. */
struct wait_for {
	enum job_state state;  /* 0: not asked for */
	uint64_t applied_step; /* 0: not asked for */
	int64_t until_ns;      /* of the monotonic clock; then it fails with ST_DEADLINE */
};

/* Answers the call when the job has come so far, or cannot any more: at once or later. Until then it keeps the job, and
 * hosted_wait_over is its on_end. */
void hosted_wait(struct rpc_call *, struct hosted *, const struct wait_for *);
/* The same for Cancel: answers it when the job has ended, which is when its end is durable. */
void hosted_wait_cancelled(struct rpc_call *, struct hosted *);
void hosted_wait_over(struct rpc_call *, bool completed);
/* Answers the calls whose job has come so far, has ended, or whose time is over. */
void hosted_waits(struct hosted *, struct now);

#endif
