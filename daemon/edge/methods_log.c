/* SPDX-License-Identifier: Apache-2.0 */
/* ReadLog of gacc.v1.JobService: checks the call and lets rank_logs.c read. Called by the RPC server. Loop
 * thread. */
#include "edge/methods.h"

#include "edge/caller.h"
#include "edge/rank_logs.h"
#include "gacc/v1/job.pb-c.h"

static void read_log(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__ReadLogRequest *q = (const Gacc__V1__ReadLogRequest *)m;
	const struct hosted *h = named_job(call, q->job);
	const struct log_ask ask = {
		.rank = q->rank, .file = q->file, .offset = q->offset, .from_end = q->from_end, .tail = q->tail
	};
	if (!h || !may_change(call, h))
		return;
	if (h->spec->launch_mode != LAUNCH_DAEMON)
		rpc_failf(call, ST_NOT_SUPPORTED,
			  "gaccd has not launched the ranks of job %llu: it does not have their logs",
			  (unsigned long long)h->id);
	else if (q->rank >= h->spec->ranks)
		rpc_failf(call, ST_INVALID_ARGUMENT, "rank is %u, and job %llu has %u ranks", q->rank,
			  (unsigned long long)h->id, h->spec->ranks);
	else
		rank_logs_read(call, h, q->node, ask);
}

const struct rpc_method log_methods[] = {
	{ .service = &gacc__v1__job_service__descriptor,
	  .name = "ReadLog",
	  .kind = RPC_UNARY,
	  .flags = RPC_NEEDS_DEADLINE | RPC_RELAY,
	  .on_message = read_log },
};
const size_t n_log_methods = sizeof(log_methods) / sizeof(*log_methods);
