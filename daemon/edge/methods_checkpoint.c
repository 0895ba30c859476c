/* SPDX-License-Identifier: Apache-2.0 */
/* SaveCheckpoint and ListCheckpoints of gacc.v1.JobService: checks the call, lets checkpoints.c do the work, and
 * answers. Called by the RPC server. Loop thread. */
#include "edge/methods.h"

#include "edge/caller.h"
#include "edge/checkpoints.h"
#include "edge/convert.h"
#include "gacc/v1/job.pb-c.h"

#include <stdlib.h>
#include <string.h>

/* The job, which can be saved; NULL: answered. */
static struct hosted *savable_job(struct rpc_call *call, const char *name)
{
	struct hosted *h = named_job(call, name);
	if (!h || !may_change(call, h))
		return NULL;
	unsigned long long id = h->id;
	bool ready = h->coord && coord_phase(h->coord) > COORD_START && saving_ready(h);
	if (hosted_ended(h) || coord_phase(h->coord) >= COORD_ENDING)
		rpc_failf(call, ST_JOB_ENDED, "job %llu has ended", id);
	else if (h->spec->optim.type == OPTIM_CLIENT)
		rpc_failf(call, ST_NOT_SUPPORTED,
			  "job %llu: with optimizer client the trainers hold the parameters and save them", id);
	else if (!ready && h->params_durable) /* it is being recovered: its engine is about to start */
		rpc_failf(call, ST_ENGINE_DOWN, "job %llu: %s", id, status_info(ST_ENGINE_DOWN)->text);
	else if (!ready)
		rpc_failf(call, ST_NOT_READY, "job %llu has no parameters yet", id);
	else
		return h;
	return NULL;
}

static void save(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__SaveCheckpointRequest *q = (const Gacc__V1__SaveCheckpointRequest *)m;
	static const uint8_t none[16];
	struct hosted *h = savable_job(call, q->job);
	if (!h)
		return;
	if (q->request_id.len != 16 || !memcmp(q->request_id.data, none, 16)) {
		rpc_failf(call, ST_INVALID_ARGUMENT, "request_id must have 16 bytes that are not all zero");
		return;
	}
	if (q->inside_window && h->spec->accumulate == ACCUMULATE_NONE) {
		rpc_failf(call, ST_NOT_SUPPORTED,
			  "job %llu has accumulate: none: there is no sum to save, leave inside_window out",
			  (unsigned long long)h->id);
		return;
	}
	enum status st = saving_request(h, q->request_id.data, q->inside_window);
	if (st) {
		rpc_failf(call, st,
			  st == ST_NOT_SUPPORTED ? "job %llu: its checkpoint directory cannot be used, see its events"
			  : st == ST_RESOURCE_EXHAUSTED ? "job %llu: too many checkpoints are waited for"
							: "job %llu has ended",
			  (unsigned long long)h->id);
		return;
	}
	const struct saved *k = saving_of(h, q->request_id.data);
	if (k && (k->state != SAVED_WRITING || !q->wait)) {
		saving_answer(call, k);
		return;
	}
	st = saving_wait(h, rpc_id(call), q->request_id.data, q->wait);
	if (st)
		rpc_failf(call, st, "job %llu: %s", (unsigned long long)h->id,
			  st == ST_NO_MEMORY ? status_info(st)->text : "too many calls wait for its checkpoints");
}

static void list(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__ListCheckpointsRequest *q = (const Gacc__V1__ListCheckpointsRequest *)m;
	struct hosted *h = named_job(call, q->job);
	Gacc__V1__ListCheckpointsResponse r = GACC__V1__LIST_CHECKPOINTS_RESPONSE__INIT;
	size_t n;
	if (!h)
		return;
	const struct saved *page = saving_page(h, q->before_id, q->limit, &n);
	Gacc__V1__Checkpoint *k = calloc(n + 1, sizeof(*k)), **list_of = calloc(n + 1, sizeof(*list_of));
	for (size_t i = 0; k && list_of && i < n; i++) {
		gacc__v1__checkpoint__init(&k[i]);
		convert_checkpoint(&page[i], &k[i]);
		list_of[i] = &k[i];
	}
	r.n_checkpoints = n;
	r.checkpoints = list_of;
	if (k && list_of)
		rpc_finish(call, &r.base);
	else
		no_memory(call);
	free(k);
	free(list_of);
}

const struct rpc_method checkpoint_methods[] = {
	{ .service = &gacc__v1__job_service__descriptor,
	  .name = "SaveCheckpoint",
	  .kind = RPC_UNARY,
	  .flags = RPC_NEEDS_DEADLINE | RPC_RELAY,
	  .on_message = save },
	{ .service = &gacc__v1__job_service__descriptor,
	  .name = "ListCheckpoints",
	  .kind = RPC_UNARY,
	  .flags = RPC_RELAY,
	  .on_message = list },
};
const size_t n_checkpoint_methods = sizeof(checkpoint_methods) / sizeof(*checkpoint_methods);
