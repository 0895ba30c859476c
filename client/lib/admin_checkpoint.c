/* SPDX-License-Identifier: Apache-2.0 */
/* gacc_admin.h's calls on checkpoints of a job: save and list. For gaccctl and other tools of operators; any thread,
 * blocking. */
#include "gacc/v1/job.pb-c.h"
#include "lib/admin.h"
#include "lib/answer.h"
#include "lib/json.h"

#include <stdlib.h>
#include <string.h>

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
		.state_bytes = c->state_bytes,
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

gacc_status gacc_checkpoint_save(gacc_client *client, const char *job, int inside_window, int wait,
				 gacc_checkpoints **out)
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

/* ---- the list, which comes in pages, the newest one first ---- */

#define PAGE 1000

struct listed {
	Gacc__V1__Checkpoint **item; /* of kept replies, oldest first */
	size_t n;
};

static bool prepend(struct listed *all, Gacc__V1__Checkpoint *const *page, size_t n)
{
	Gacc__V1__Checkpoint **item = malloc((n + all->n) * sizeof(Gacc__V1__Checkpoint *));

	if (!item)
		return false;
	memcpy(item, page, n * sizeof(*item));
	if (all->n)
		memcpy(item + n, all->item, all->n * sizeof(*item));
	free(all->item);
	*all = (struct listed){ item, n + all->n };
	return true;
}

/* Adds what one page has, and sets the request to the next one; *out_more is false when there is none. */
static gacc_status add_page(gacc_client *client, void *public, Gacc__V1__ListCheckpointsRequest *request,
			    struct listed *all, bool *out_more)
{
	const Gacc__V1__ListCheckpointsResponse *r;
	ProtobufCMessage *reply;
	gacc_status st = admin_call(client, JOBS, "ListCheckpoints", &request->base, &reply);
	size_t n;

	*out_more = false;
	if (st)
		return st;
	if (!answer_keep(public, reply))
		return admin_no_memory(client);
	r = (const Gacc__V1__ListCheckpointsResponse *)reply;
	n = r->n_checkpoints;
	if (!n || (request->before_id &&
		   r->checkpoints[n - 1]->id >= request->before_id)) /* a gaccd without pages gives all again */
		return GACC_OK;
	if (!prepend(all, r->checkpoints, n))
		return admin_no_memory(client);
	request->before_id = r->checkpoints[0]->id;
	*out_more = n >= PAGE;
	return GACC_OK;
}

gacc_status gacc_checkpoint_list(gacc_client *client, const char *job, gacc_checkpoints **out)
{
	Gacc__V1__ListCheckpointsRequest request = GACC__V1__LIST_CHECKPOINTS_REQUEST__INIT;
	gacc_checkpoints *answer = answer_new(sizeof(*answer));
	struct listed all = { NULL, 0 };
	gacc_status st = GACC_OK;

	if (!answer)
		return admin_no_memory(client);
	request.job = unconst(job);
	request.limit = PAGE;
	for (bool more = true; more && !st;)
		st = add_page(client, answer, &request, &all, &more);
	if (!st && !fill_all(answer, all.item, all.n))
		st = admin_no_memory(client);
	free(all.item);
	if (st)
		gacc_checkpoints_free(answer);
	else
		*out = answer;
	return st;
}

void gacc_checkpoints_free(gacc_checkpoints *all)
{
	answer_free(all);
}
