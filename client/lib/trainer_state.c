/* SPDX-License-Identifier: Apache-2.0 */
/* Gives the trainer's own state to gaccd and gets it back, in portions of messages: gacc_put_state, gacc_get_state. The
 * job's thread. */
#include "lib/internal.h"

#include "lib/channel.h"
#include "gacc/v1/gradient.pb-c.h"

#include <string.h>

#define TRIES 3 /* a gaccd that has been started meanwhile has none of the portions */

static gacc_status put_all(struct gacc_job *job, const void *data, size_t bytes)
{
	Gacc__V1__PutTrainerStateRequest request = GACC__V1__PUT_TRAINER_STATE_REQUEST__INIT;
	struct unary call = { .method = "PutTrainerState", .request = &request.base };
	gacc_status st = GACC_OK;
	size_t at = 0;

	request.window = job->window.number;
	request.total_bytes = bytes;
	do {
		request.session = job->session;
		request.offset = at;
		request.data.data = (uint8_t *)data + at;
		request.data.len = bytes - at < CHUNK_BYTES ? bytes - at : CHUNK_BYTES;
		st = session_run(job, "put the trainer's state", -1, session_unary, &call);
		if (!st)
			bytes_free(call.reply);
		at += request.data.len;
	} while (!st && at < bytes);
	return st;
}

gacc_status gacc_put_state(gacc_job *job, const void *data, size_t bytes)
{
	gacc_status st = job_enter(job);

	if (st)
		return st;
	if (!job->running)
		return job_fail(job, ST_NOT_READY, "call gacc_ready", "the job has not started here");
	st = async_settle(job);
	if (st)
		return st;
	if (!data && bytes)
		return job_fail(job, ST_INVALID_ARGUMENT, NULL, "gacc_put_state without data");
	for (int i = 0; i < TRIES; i++) {
		st = put_all(job, data, bytes);
		if (!st || job->failure.st != ST_OUT_OF_ORDER)
			break;
	}
	/* the window closed meanwhile, or the job has ended: there is nothing that this state could be saved with */
	if (st && (failure_is_late(&job->failure) || job->failure.st == ST_JOB_ENDED))
		return GACC_OK;
	return st;
}

/* One portion, into `to` if it has room for the whole state. */
static gacc_status get_portion(struct gacc_job *job, size_t at, void *to, size_t room, size_t *n, size_t *bytes,
			       uint64_t *window)
{
	Gacc__V1__GetTrainerStateRequest request = GACC__V1__GET_TRAINER_STATE_REQUEST__INIT;
	struct unary call = { .method = "GetTrainerState", .request = &request.base };
	gacc_status st;

	request.session = job->session;
	request.offset = at;
	st = session_run(job, "get the trainer's state", -1, session_unary, &call);
	if (st)
		return st;
	const Gacc__V1__GetTrainerStateResponse *r = (const Gacc__V1__GetTrainerStateResponse *)call.reply;
	const size_t total = r->found ? r->total_bytes : 0;
	if (at && (total != *bytes || r->window != *window))
		st = job_fail(job, ST_PARAMS_CHANGED, "call it again", "the trainer's state is another one by now");
	else if (at > total || r->data.len > total - at || (at < total && !r->data.len))
		st = job_fail(job, ST_MALFORMED, NULL, "gaccd's answer to GetTrainerState has %zu bytes of %zu at %zu",
			      r->data.len, total, at);
	else if (total <= room && r->data.len)
		memcpy((char *)to + at, r->data.data, r->data.len);
	*n = r->data.len;
	*bytes = total;
	*window = r->window;
	bytes_free(call.reply);
	return st;
}

gacc_status gacc_get_state(gacc_job *job, void *to, size_t room, size_t *bytes, uint64_t *window)
{
	gacc_status st = job_enter(job);
	uint64_t is = 0;
	size_t at = 0, n = 0, total = 0;

	if (!st)
		st = async_settle(job);
	if (st)
		return st;
	if (!bytes || (!to && room))
		return job_fail(job, ST_INVALID_ARGUMENT, NULL, "gacc_get_state without a place for its answer");
	do {
		st = get_portion(job, at, to, room, &n, &total, &is);
		at += n;
	} while (!st && at < total && total <= room);
	if (st)
		return st;
	*bytes = total;
	if (window)
		*window = is;
	return GACC_OK;
}
