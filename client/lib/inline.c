/* SPDX-License-Identifier: Apache-2.0 */
/* Without shared memory: parameters and reduced gradients travel in streams. A stream is one attempt of session_run;
 * the job's thread. */
#include "lib/internal.h"

#include "lib/channel.h"
#include "gacc/v1/gradient.pb-c.h"

#include <stdio.h>

/* ---- initial parameters ---- */

static enum status send_params(struct gacc_job *job, const void *const *values, struct rpc_stream *stream)
{
	Gacc__V1__PutParametersInlineRequest chunk = GACC__V1__PUT_PARAMETERS_INLINE_REQUEST__INIT;
	unsigned char *piece = mapping_data(&job->memory.params); /* ours until the job runs */
	size_t total = job->layout.param_bytes;
	enum status st = ST_OK;

	layout_gather(&job->layout, values, 0, piece, total);
	chunk.session = job->session;
	for (size_t at = 0; at < total && !st; at += CHUNK_BYTES) {
		chunk.offset = at;
		chunk.data.data = piece + at;
		chunk.data.len = total - at < CHUNK_BYTES ? total - at : CHUNK_BYTES;
		chunk.last = at + chunk.data.len == total;
		st = rpc_stream_send(stream, &chunk.base);
		chunk.session = NULL;
	}
	return st ? st : rpc_stream_close_send(stream);
}

enum status inline_put_params(struct gacc_job *job, void *arg, int64_t timeout_ms, struct rpc_failure *failure)
{
	const void *const *const *values = arg;
	const struct ProtobufCMessage *answer = NULL;
	struct rpc_stream *stream;
	enum status st = session_stream(job, "PutParametersInline", timeout_ms, 0, &stream);

	if (st)
		return failure->status = st;
	(void)send_params(job, *values, stream);
	st = rpc_stream_next(stream, -1, &answer, NULL);
	if (st || !answer)
		st = session_stream_failed(stream, failure);
	rpc_stream_free(stream);
	return st;
}

/* ---- parameters and reduced gradients ---- */

/* Chunks come in order and are all of one window, else the daemon ends the stream with PARAMS_CHANGED. */
static enum status receive_all(struct rpc_stream *stream, unsigned char *dst, size_t bytes, struct rpc_failure *failure)
{
	const struct ProtobufCMessage *msg;
	struct bytes_view view;
	size_t at = 0, n;
	enum status st;

	for (;;) {
		st = rpc_stream_next(stream, -1, &msg, &view);
		if (st || !msg)
			break;
		n = view.left;
		if (((const Gacc__V1__GetParametersResponse *)msg)->offset != at || n > bytes - at) {
			rpc_stream_cancel(stream);
			snprintf(failure->message, sizeof(failure->message), "a chunk is out of place");
			return failure->status = ST_MALFORMED;
		}
		bytes_copy(&view, dst + at, n);
		at += n;
	}
	st = rpc_stream_finish(stream, failure);
	if (!st && at != bytes) {
		snprintf(failure->message, sizeof(failure->message), "%zu of %zu bytes", at, bytes);
		return failure->status = ST_MALFORMED;
	}
	return st;
}

enum status inline_fetch(struct gacc_job *job, void *arg, int64_t timeout_ms, struct rpc_failure *failure)
{
	bool reduced = *(const bool *)arg;
	const struct mapping *to = reduced ? &job->memory.reduced[0] : &job->memory.params;
	Gacc__V1__GetParametersRequest request = GACC__V1__GET_PARAMETERS_REQUEST__INIT;
	struct rpc_stream *stream;
	enum status st = session_stream(job, "GetParameters", timeout_ms, BYTES_BULK_FIELD, &stream);

	if (st)
		return failure->status = st;
	request.session = job->session;
	request.reduced_gradients = reduced;
	(void)rpc_stream_send(stream, &request.base);
	rpc_stream_close_send(stream);
	st = receive_all(stream, mapping_data(to), reduced ? job->layout.accum_bytes : job->layout.param_bytes,
			 failure);
	rpc_stream_free(stream);
	return st;
}
