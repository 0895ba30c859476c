/* Checkpoints of a job. */
#include "gacc/v1/job.pb-c.h"
#include "lib/admin.h"
#include "lib/answer.h"
#include "lib/json.h"

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

static bool fill_all(gacc_checkpoints *out, Gacc__V1__Checkpoint *const *c, size_t n)
{
	gacc_checkpoint_info *item = answer_items(out, n, sizeof(*item));

	for (size_t i = 0; item && i < n; i++) {
		const char *json = answer_json(out, &c[i]->base);

		if (!json)
			return false;
		fill(&item[i], c[i], json);
	}
	*out = (gacc_checkpoints){ n, item };
	return item != NULL;
}

static bool fill_saved(void *public, const ProtobufCMessage *reply)
{
	const Gacc__V1__SaveCheckpointResponse *r = (const Gacc__V1__SaveCheckpointResponse *)reply;

	return fill_all(public, &r->checkpoint, r->checkpoint != NULL);
}

static bool fill_listed(void *public, const ProtobufCMessage *reply)
{
	const Gacc__V1__ListCheckpointsResponse *r = (const Gacc__V1__ListCheckpointsResponse *)reply;

	return fill_all(public, r->checkpoints, r->n_checkpoints);
}

gacc_status gacc_checkpoint_save(gacc_client *client, const char *job, int inside_window, int wait, gacc_checkpoints **out)
{
	Gacc__V1__SaveCheckpointRequest request = GACC__V1__SAVE_CHECKPOINT_REQUEST__INIT;
	uint8_t request_id[REQUEST_ID_BYTES];
	gacc_checkpoints *saved;
	gacc_status st;
	void *answer;

	st = admin_request_id(client, request_id);
	if (st)
		return st;
	request.job = unconst(job);
	request.inside_window = inside_window != 0;
	request.wait = wait != 0;
	request.request_id = (ProtobufCBinaryData){ sizeof(request_id), request_id };
	st = admin_answer(client, JOBS, "SaveCheckpoint", &request.base, sizeof(*saved), fill_saved, &answer);
	if (st)
		return st;
	saved = answer;
	if (!saved->n) {
		gacc_checkpoints_free(saved);
		return admin_fail(client, ST_MALFORMED, "gaccd's answer holds no checkpoint");
	}
	*out = saved;
	return GACC_OK;
}

gacc_status gacc_checkpoint_list(gacc_client *client, const char *job, gacc_checkpoints **out)
{
	Gacc__V1__ListCheckpointsRequest request = GACC__V1__LIST_CHECKPOINTS_REQUEST__INIT;
	gacc_status st;
	void *answer;

	request.job = unconst(job);
	st = admin_answer(client, JOBS, "ListCheckpoints", &request.base, sizeof(**out), fill_listed, &answer);
	if (!st)
		*out = answer;
	return st;
}

void gacc_checkpoints_free(gacc_checkpoints *all)
{
	answer_free(all);
}
