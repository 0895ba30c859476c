/* SPDX-License-Identifier: Apache-2.0 */
/* gacc_admin.h's calls on jobs: submit, list, query, and control (cancel, pause, resume, flush, update). For gaccctl
 * and other tools of operators; any thread, blocking. */
#include "gacc/v1/job.pb-c.h"
#include "lib/admin.h"
#include "lib/channel.h"
#include "lib/internal.h"
#include "lib/job_info.h"
#include "lib/json.h"
#include "lib/spec.h"

#include <grpc/status.h>
#include <stdio.h>
#include <strings.h>

#define WAIT_SLICE_MS 30000 /* a call that lasts longer would not notice a gaccd that is gone */
#define ANSWER_MS 1000	    /* more than a slice: a gaccd that hangs does not answer in time */
#define RETRY_MS 200

#define JOBS (&gacc__v1__job_service__descriptor)

static gacc_status give_jobs(struct gacc_client *client, ProtobufCMessage *owner, Gacc__V1__Job *const *job, size_t n,
			     gacc_jobs **out)
{
	if (n == 1 && !job[0]) {
		bytes_free(owner);
		return admin_fail(client, ST_MALFORMED, "gaccd's answer holds no job");
	}
	*out = jobs_new(owner, job, n);
	return *out ? GACC_OK : admin_no_memory(client);
}

/* The field that answers of one form all have. */
static const void *field_of(const ProtobufCMessage *reply, const char *name)
{
	return (const char *)reply + protobuf_c_message_descriptor_get_field_by_name(reply->descriptor, name)->offset;
}

/* A call that is answered with { Job job }. */
static gacc_status call_for_job(struct gacc_client *client, const char *method, const ProtobufCMessage *request,
				gacc_jobs **out)
{
	ProtobufCMessage *reply;
	gacc_status st;

	st = admin_call(client, JOBS, method, request, &reply);
	return st ? st : give_jobs(client, reply, field_of(reply, "job"), 1, out);
}

/* A call that is answered with { uint64 window }; out_window may be NULL. */
static gacc_status call_for_window(struct gacc_client *client, const char *method, const ProtobufCMessage *request,
				   uint64_t *out_window)
{
	ProtobufCMessage *reply;
	gacc_status st;

	st = admin_call(client, JOBS, method, request, &reply);
	if (st)
		return st;
	if (out_window)
		*out_window = *(const uint64_t *)field_of(reply, "window");
	bytes_free(reply);
	return GACC_OK;
}

gacc_status gacc_job_submit(gacc_client *client, const gacc_spec *spec, gacc_jobs **out)
{
	Gacc__V1__SubmitRequest request = GACC__V1__SUBMIT_REQUEST__INIT;
	uint8_t request_id[REQUEST_ID_BYTES];
	gacc_status st;

	st = admin_request_id(client, request_id);
	if (st)
		return st;
	request.spec = spec_message(spec);
	request.request_id.data = request_id;
	request.request_id.len = sizeof(request_id);
	return call_for_job(client, "Submit", &request.base, out);
}

gacc_status gacc_job_get(gacc_client *client, const char *job, gacc_jobs **out)
{
	Gacc__V1__GetRequest request = GACC__V1__GET_REQUEST__INIT;

	request.job = unconst(job);
	return call_for_job(client, "Get", &request.base, out);
}

gacc_status gacc_job_list(gacc_client *client, int ended_too, gacc_jobs **out)
{
	Gacc__V1__ListRequest request = GACC__V1__LIST_REQUEST__INIT;
	const Gacc__V1__ListResponse *list;
	ProtobufCMessage *reply;
	gacc_status st;

	request.all = ended_too != 0;
	st = admin_call(client, JOBS, "List", &request.base, &reply);
	if (st)
		return st;
	list = (Gacc__V1__ListResponse *)reply;
	return give_jobs(client, reply, list->jobs, list->n_jobs, out);
}

gacc_status gacc_job_cancel(gacc_client *client, const char *job, const char *reason, uint32_t grace_ms,
			    gacc_jobs **out)
{
	Gacc__V1__CancelRequest request = GACC__V1__CANCEL_REQUEST__INIT;

	request.job = unconst(job);
	request.reason = unconst(reason);
	request.grace_ms = grace_ms;
	return call_for_job(client, "Cancel", &request.base, out);
}

gacc_status gacc_job_fail(gacc_client *client, const char *job, const char *reason, gacc_jobs **out)
{
	Gacc__V1__CancelRequest request = GACC__V1__CANCEL_REQUEST__INIT;

	request.job = unconst(job);
	request.reason = unconst(reason);
	request.failed = 1;
	return call_for_job(client, "Cancel", &request.base, out);
}

gacc_status gacc_job_flush(gacc_client *client, const char *job, uint64_t *out_window)
{
	Gacc__V1__FlushJobRequest request = GACC__V1__FLUSH_JOB_REQUEST__INIT;

	request.job = unconst(job);
	return call_for_window(client, "Flush", &request.base, out_window);
}

gacc_status gacc_job_pause(gacc_client *client, const char *job, const char *reason, gacc_jobs **out)
{
	Gacc__V1__PauseRequest request = GACC__V1__PAUSE_REQUEST__INIT;

	request.job = unconst(job);
	request.reason = unconst(reason);
	return call_for_job(client, "Pause", &request.base, out);
}

gacc_status gacc_job_resume(gacc_client *client, const char *job, gacc_jobs **out)
{
	Gacc__V1__ResumeRequest request = GACC__V1__RESUME_REQUEST__INIT;

	request.job = unconst(job);
	return call_for_job(client, "Resume", &request.base, out);
}

static void values_to_wire(const gacc_job_values *v, Gacc__V1__JobValues *out)
{
	out->micro_size = v->micro_size;
	if (v->lr) {
		out->lr_value_case = GACC__V1__JOB_VALUES__LR_VALUE_LR;
		out->lr = *v->lr;
	}
	if (v->clip_norm) {
		out->clip_norm_value_case = GACC__V1__JOB_VALUES__CLIP_NORM_VALUE_CLIP_NORM;
		out->clip_norm = *v->clip_norm;
	}
	if (v->clip_value) {
		out->clip_value_value_case = GACC__V1__JOB_VALUES__CLIP_VALUE_VALUE_CLIP_VALUE;
		out->clip_value = *v->clip_value;
	}
}

gacc_status gacc_job_update(gacc_client *client, const char *job, const gacc_job_values *values, uint64_t window,
			    uint64_t *out_window)
{
	Gacc__V1__UpdateRequest request = GACC__V1__UPDATE_REQUEST__INIT;
	Gacc__V1__JobValues wire = GACC__V1__JOB_VALUES__INIT;

	if (!values || values->struct_size < sizeof(*values))
		return admin_fail(client, ST_INVALID_ARGUMENT, "gacc_job_values: struct_size is not set");
	values_to_wire(values, &wire);
	request.job = unconst(job);
	request.values = &wire;
	request.window = window;
	return call_for_window(client, "Update", &request.base, out_window);
}

/* ---- waiting ---- */

gacc_job_state gacc_job_state_named(const char *name)
{
	for (int s = GACC_JOB_PENDING; s <= GACC_JOB_NODE_FAIL; s++)
		if (!strcasecmp(name, enum_short_name(&gacc__v1__job_state__descriptor, s)))
			return (gacc_job_state)s;
	return (gacc_job_state)0;
}

/* Milliseconds of the next slice; 0: the time is up. */
static int64_t slice_ms(int64_t end_ms)
{
	int64_t left = end_ms < 0 ? WAIT_SLICE_MS : end_ms - now_ms();

	return left <= 0 ? 0 : left < WAIT_SLICE_MS ? left : WAIT_SLICE_MS;
}

/* The wait is over. If the job can never reach the goal, *out is the job all the same. */
static gacc_status give_ended(struct gacc_client *client, const char *job, struct rpc_failure *rpc, gacc_jobs **out)
{
	bool ended =
		rpc->grpc_code == GRPC_STATUS_FAILED_PRECONDITION || gacc_status_of(rpc->status) == GACC_ECANCELLED;
	gacc_status st = ended ? gacc_job_get(client, job, out) : GACC_OK;

	if (st)
		return st;
	st = admin_rpc_failed(client, JOBS, "Wait", rpc->status, rpc);
	return ended ? GACC_ECANCELLED : st;
}

/* One call; *over: its answer is the last word. */
static gacc_status wait_slice(struct gacc_client *client, Gacc__V1__WaitRequest *request, int64_t ms, bool *over,
			      struct rpc_failure *rpc, gacc_jobs **out)
{
	int64_t pause_ms = ms < RETRY_MS ? ms : RETRY_MS;
	ProtobufCMessage *reply;

	request->timeout_ms = (uint64_t)ms;
	*rpc = (struct rpc_failure){ 0 };
	rpc->status = rpc_channel_call(client->channel, JOBS, "Wait", &request->base, ms + ANSWER_MS, &reply, rpc);
	*over = true;
	if (!rpc->status)
		return give_jobs(client, reply, field_of(reply, "job"), 1, out);
	explain_unreachable(client->endpoint, rpc);
	if (is_outage(rpc))
		sleep_ms(pause_ms);
	else if (rpc->grpc_code != status_info(ST_STALLED)->grpc_code)
		return give_ended(client, request->job, rpc, out);
	*over = false;
	return GACC_ETIMEOUT;
}

/* What stood in the way last, too. */
static gacc_status time_is_up(struct gacc_client *client, const struct rpc_failure *rpc)
{
	char text[sizeof(rpc->message) + 32];

	snprintf(text, sizeof(text), "the time is up%s%s", *rpc->message ? ": " : "", rpc->message);
	return admin_fail(client, ST_STALLED, text);
}

gacc_status gacc_job_wait(gacc_client *client, const char *job, gacc_job_state state, uint64_t applied_step,
			  int timeout_ms, gacc_jobs **out)
{
	Gacc__V1__WaitRequest request = GACC__V1__WAIT_REQUEST__INIT;
	int64_t end_ms = timeout_ms < 0 ? -1 : now_ms() + timeout_ms, ms;
	struct rpc_failure rpc = { 0 };
	gacc_status st = GACC_ETIMEOUT;
	bool over = false;

	request.job = unconst(job);
	request.state = (Gacc__V1__JobState)state;
	request.applied_step = applied_step;
	while (!over && (ms = slice_ms(end_ms)))
		st = wait_slice(client, &request, ms, &over, &rpc, out);
	return over ? st : time_is_up(client, &rpc);
}
