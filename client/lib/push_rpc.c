/* SPDX-License-Identifier: Apache-2.0 */
/* A push by RPC that outlives gaccd. RPC knows no ready words, so the gradient has to be complete first. For push.c and
 * async.c; the job's thread. */
#include "lib/internal.h"

#include <inttypes.h>

gacc_status push_by_rpc(struct gacc_job *job, struct push *push)
{
	char what[64];

	push_name(push, what, sizeof(what));
	if (!push_await_ready(job, push, INT64_MAX))
		return job_fail(job, ST_STALLED, LATE_HINT, "%s: ready word %u has not come to %" PRIu64 " in time",
				what, push->ready_at, push->ready_value);
	return session_run(job, what, -1, push_attempt, push);
}
