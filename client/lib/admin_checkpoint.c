/* Checkpoints of a job. */
#include "gacc/v1/job.pb-c.h"
#include "lib/admin.h"
#include "lib/answer.h"
#include "lib/json.h"
#include "proto/bytes.h"

#define JOBS (&gacc__v1__job_service__descriptor)

static void fill(gacc_checkpoint_info *out, const Gacc__V1__Checkpoint *c, const char *json)
{
	*out = (gacc_checkpoint_info){
		.id = c->id,
		.path = c->path,
		.state = enum_short_name(&gacc__v1__checkpoint_state__descriptor, (int)c->state),
		.window = c->window,
		.applied_step = c->applied_step,
		.carried_micros = c->carried_micros,
		.bytes = c->bytes,
		.started_unix_nanos = c->started_unix_nanos,
		.ended_unix_nanos = c->ended_unix_nanos,
		.message = c->message,
		.json = json,
	};
}

/* n checkpoints of `owner`, which is taken. */
static gacc_checkpoints *checkpoints_new(ProtobufCMessage *owner, Gacc__V1__Checkpoint *const *c, size_t n)
{
	gacc_checkpoints *all = answer_new(sizeof(*all));
	gacc_checkpoint_info *item;

	if (!all) {
		bytes_free(owner);
		return NULL;
	}
	if (!answer_keep(all, owner))
		goto fail;
	item = answer_items(all, n, sizeof(*item));
	for (size_t i = 0; i < n; i++) {
		const char *json = item ? answer_json(all, &c[i]->base) : NULL;

		if (!json)
			goto fail;
		fill(&item[i], c[i], json);
	}
	all->n = n;
	all->checkpoint = item;
	return all;
fail:
	answer_free(all);
	return NULL;
}

gacc_status gacc_checkpoint_save(gacc_client *client, const char *job, int inside_window, int wait, gacc_checkpoints **out)
{
	Gacc__V1__SaveCheckpointRequest request = GACC__V1__SAVE_CHECKPOINT_REQUEST__INIT;
	uint8_t request_id[REQUEST_ID_BYTES];
	Gacc__V1__SaveCheckpointResponse *r;
	ProtobufCMessage *reply;
	gacc_status st;

	st = admin_request_id(client, request_id);
	if (st)
		return st;
	request.job = unconst(job);
	request.inside_window = inside_window != 0;
	request.wait = wait != 0;
	request.request_id = (ProtobufCBinaryData){ sizeof(request_id), request_id };
	st = admin_call(client, JOBS, "SaveCheckpoint", &request.base, &reply);
	if (st)
		return st;
	r = (Gacc__V1__SaveCheckpointResponse *)reply;
	if (!r->checkpoint) {
		bytes_free(reply);
		return admin_fail(client, ST_MALFORMED, "gaccd's answer holds no checkpoint");
	}
	*out = checkpoints_new(reply, &r->checkpoint, 1);
	return *out ? GACC_OK : admin_no_memory(client);
}

gacc_status gacc_checkpoint_list(gacc_client *client, const char *job, gacc_checkpoints **out)
{
	Gacc__V1__ListCheckpointsRequest request = GACC__V1__LIST_CHECKPOINTS_REQUEST__INIT;
	Gacc__V1__ListCheckpointsResponse *r;
	ProtobufCMessage *reply;
	gacc_status st;

	request.job = unconst(job);
	st = admin_call(client, JOBS, "ListCheckpoints", &request.base, &reply);
	if (st)
		return st;
	r = (Gacc__V1__ListCheckpointsResponse *)reply;
	*out = checkpoints_new(reply, r->checkpoints, r->n_checkpoints);
	return *out ? GACC_OK : admin_no_memory(client);
}

void gacc_checkpoints_free(gacc_checkpoints *all)
{
	answer_free(all);
}
