/* SPDX-License-Identifier: Apache-2.0 */
/* LogScalars of gacc.v1.JobService: checks the call and lets hosted_scalars.c keep the values. Called by the RPC
 * server. Loop thread; answers before the values are written. */
#include "edge/methods.h"

#include "edge/caller.h"
#include "edge/hosted_scalars.h"
#include "gacc/v1/job.pb-c.h"

static void log_scalars(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__LogScalarsRequest *q = (const Gacc__V1__LogScalarsRequest *)m;
	Gacc__V1__LogScalarsResponse answer = GACC__V1__LOG_SCALARS_RESPONSE__INIT;
	struct hosted *h = named_job(call, q->job);
	char why[256] = "";
	if (!h || !may_change(call, h))
		return;
	if (!h->coord) {
		job_has_ended(call, h);
		return;
	}
	enum status st = hosted_scalars_put(h, q->window, q->rank, q->scalars, q->n_scalars, why, sizeof(why));
	if (st == ST_NO_MEMORY)
		no_memory(call);
	else if (st)
		rpc_failf(call, st, "job %llu: %s", (unsigned long long)h->id, why);
	else
		rpc_finish(call, &answer.base);
}

const struct rpc_method scalar_methods[] = {
	{ .service = &gacc__v1__job_service__descriptor,
	  .name = "LogScalars",
	  .kind = RPC_UNARY,
	  .flags = RPC_RELAY,
	  .on_message = log_scalars },
};
const size_t n_scalar_methods = sizeof(scalar_methods) / sizeof(*scalar_methods);
