/* SPDX-License-Identifier: Apache-2.0 */
/* A push by RPC that outlives gaccd. RPC knows no ready words, so the gradient has to be complete first. For push.c and
 * async.c; the job's thread. */
#include "lib/internal.h"

#include <inttypes.h>

#define RPC_MS 1000 /* for gaccd's answer, also when the time of the call is over: it may be a refusal */

gacc_status push_not_in_time(struct gacc_job *job, const struct push *push)
{
	char what[64];

	push_name(push, what, sizeof(what));
	return job_fail(job, ST_STALLED, status_info(ST_STALLED)->hint, "%s: it has not been counted in time", what);
}

gacc_status push_by_rpc(struct gacc_job *job, struct push *push)
{
	int64_t left = settle_left(job);
	char what[64];
	gacc_status st;

	push_name(push, what, sizeof(what));
	if (!push_await_ready(job, push, left))
		return job_fail(job, ST_STALLED, LATE_HINT, "%s: ready word %u has not come to %" PRIu64 " in time",
				what, push->ready_at, push->ready_value);
	left = settle_left(job);
	st = session_run(job, what, !job->settle_by ? -1 : left < RPC_MS ? RPC_MS : (int)left, push_attempt, push);
	return st == GACC_ETIMEOUT ? push_not_in_time(job, push) : st;
}
