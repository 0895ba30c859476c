/* SPDX-License-Identifier: Apache-2.0 */
/* Sends values under names for the job's history to gaccd: gacc_log, with one request for all of them. The job's
 * thread. */
#include "lib/internal.h"

#include "gacc/v1/job.pb-c.h"
#include "lib/channel.h"

#include <inttypes.h>
#include <stdio.h>

#define MOST 64		 /* values in one call, and names in a job */
#define PATIENCE_MS 5000 /* training is more important than its log */

static enum status log_attempt(struct gacc_job *job, void *arg, int64_t timeout_ms, struct rpc_failure *failure)
{
	struct ProtobufCMessage *reply;
	enum status st = rpc_channel_call(job->client->channel, &gacc__v1__job_service__descriptor, "LogScalars", arg,
					  timeout_ms, &reply, failure);

	if (!st)
		bytes_free(reply);
	return st;
}

gacc_status gacc_log(gacc_job *job, uint64_t window, const gacc_value *values, size_t n)
{
	Gacc__V1__LogScalarsRequest request = GACC__V1__LOG_SCALARS_REQUEST__INIT;
	Gacc__V1__Scalar scalar[MOST], *each[MOST];
	gacc_status st = job_enter(job);
	char id[24];

	if (st || !n)
		return st;
	if (!values || n > MOST)
		return job_fail(job, ST_INVALID_ARGUMENT, "log at most 64 at once", "gacc_log of %zu values", n);
	for (size_t i = 0; i < n; i++) {
		if (!values[i].name)
			return job_fail(job, ST_INVALID_ARGUMENT, NULL, "gacc_log of a value without a name");
		gacc__v1__scalar__init(&scalar[i]);
		scalar[i].name = (char *)values[i].name; /* read only */
		scalar[i].value = values[i].value;
		each[i] = &scalar[i];
	}
	snprintf(id, sizeof(id), "%" PRIu64, job->id);
	request.job = id;
	request.rank = (uint32_t)job->rank;
	request.window = window;
	request.scalars = each;
	request.n_scalars = n;
	return session_run(job, "log", PATIENCE_MS, log_attempt, &request);
}
