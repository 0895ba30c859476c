/* SPDX-License-Identifier: Apache-2.0 */
/* One call on a job's session, or one stream, as an attempt of session_run; and what every public call begins and fails
 * with. The job's thread, or the sender's for queued pushes. */
#include "lib/internal.h"

#include "lib/channel.h"
#include "gacc/v1/gradient.pb-c.h"
#include "proto/failpoint.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

/* How much longer the call may last than what it asks the daemon to wait, so that the daemon's answer, which knows
 * who is late, comes before the bare deadline. */
#define ANSWER_MS 5000

/* ---- what public calls begin and fail with ---- */

gacc_status job_fail(struct gacc_job *job, enum status st, const char *hint, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return failure_set(&job->failure, st, hint, "%s (job %llu, rank %d)", text, (unsigned long long)job->id,
			   job->rank);
}

/* Called for each push: getpid would be a system call. */
static bool is_forked(const struct gacc_client *client)
{
	return client->ours ? !*(const volatile unsigned char *)client->ours : client->pid != getpid();
}

gacc_status job_enter(struct gacc_job *job)
{
	if (is_forked(job->client))
		return GACC_EINVAL; /* a forked child: the text belongs to the parent */
	if (job->fenced)
		return job_fail(job, ST_SESSION_FENCED, "stop this process", "a newer process has taken this rank");
	if (job->memory.cuda && job->memory.cuda->lost)
		return job_fail(job, ST_INTERNAL, "detach, and attach anew", "%s", job->memory.cuda->why);
	return GACC_OK;
}

gacc_status job_has_memory(struct gacc_job *job)
{
	if (!job->on_device || job->memory.params.base)
		return GACC_OK;
	return job_fail(
		job, ST_DEVICE_MISMATCH, "call gacc_cuda_register after gacc_register",
		"the job's slots and parameters are in the memory of a GPU, which this process has not imported");
}

/* ---- on the wire ---- */

enum status session_unary(struct gacc_job *job, void *arg, int64_t timeout_ms, struct rpc_failure *failure)
{
	struct unary *u = arg;
	enum status st;

	if (u->wire_timeout_ms) {
		*u->wire_timeout_ms = (uint64_t)timeout_ms;
		timeout_ms += ANSWER_MS;
	}
	st = FAILPOINT_ERROR(client_call_before);
	if (!st)
		st = rpc_channel_call(job->client->channel, &gacc__v1__gradient_service__descriptor, u->method,
				      u->request, timeout_ms, &u->reply, failure);
	if (!st && (st = FAILPOINT_ERROR(client_call_answered)))
		bytes_free(u->reply);
	return st;
}

enum status session_stream(const struct gacc_job *job, const char *method, int64_t timeout_ms, uint32_t bulk,
			   struct rpc_stream **out)
{
	return rpc_stream_open(job->client->channel, &gacc__v1__gradient_service__descriptor, method, timeout_ms, bulk,
			       out);
}

enum status session_stream_failed(struct rpc_stream *stream, struct rpc_failure *failure)
{
	enum status st = rpc_stream_finish(stream, failure);

	if (st)
		return st;
	snprintf(failure->message, sizeof(failure->message), "the stream ended without an answer");
	return failure->status = ST_MALFORMED;
}
