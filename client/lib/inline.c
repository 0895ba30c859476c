/* SPDX-License-Identifier: Apache-2.0 */
/* Without shared memory: gradients and parameters travel in streams, by reference on the way out. A stream is one
 * attempt; what is sent must not change until gRPC has let go of it, so every attempt ends by waiting for that. */
#include "lib/internal.h"

#include "lib/channel.h"
#include "gacc/v1/gradient.pb-c.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* Large enough to amortise a message, small enough to stay in the cache until it is added. */
#define CHUNK_BYTES ((size_t)1 << 20)

/* Chunks that gRPC still refers to. */
struct borrowed {
	pthread_mutex_t lock;
	pthread_cond_t none;
	size_t n;
};

static void borrowed_init(struct borrowed *b)
{
	pthread_mutex_init(&b->lock, NULL);
	pthread_cond_init(&b->none, NULL);
	b->n = 0;
}

static void lend(struct borrowed *b)
{
	pthread_mutex_lock(&b->lock);
	b->n++;
	pthread_mutex_unlock(&b->lock);
}

static void give_back(void *arg)
{
	struct borrowed *b = arg;

	pthread_mutex_lock(&b->lock);
	if (!--b->n)
		pthread_cond_signal(&b->none);
	pthread_mutex_unlock(&b->lock);
}

static void borrowed_fini(struct borrowed *b)
{
	pthread_mutex_lock(&b->lock);
	while (b->n)
		pthread_cond_wait(&b->none, &b->lock);
	pthread_mutex_unlock(&b->lock);
	pthread_cond_destroy(&b->none);
	pthread_mutex_destroy(&b->lock);
}

static enum status open_stream(struct gacc_job *job, const char *method, int64_t timeout_ms, uint32_t bulk,
			       struct rpc_stream **out)
{
	return rpc_stream_open(job->client->channel, &gacc__v1__gradient_service__descriptor, method, timeout_ms, bulk,
			       out);
}

/* Why a stream ended without what was expected of it. */
static enum status stream_failed(struct rpc_stream *stream, struct rpc_failure *failure)
{
	enum status st = rpc_stream_finish(stream, failure);

	if (st)
		return st;
	snprintf(failure->message, sizeof(failure->message), "the stream ended without an answer");
	return failure->status = ST_MALFORMED;
}

/* ---- gradients ---- */

/* Checksums are for wires; a unix socket has none. */
static bool over_network(const struct gacc_job *job)
{
	return strncmp(job->client->endpoint, "unix:", 5) != 0;
}

static enum status send_gradients(struct gacc_job *job, const struct push *push, struct rpc_stream *stream,
				  struct borrowed *lent)
{
	const unsigned char *slot = mapping_data(&job->memory.slot[push->slot]);
	Gacc__V1__PushInlineRequest chunk = GACC__V1__PUSH_INLINE_REQUEST__INIT;
	Gacc__V1__PushRequest header;
	enum status st = ST_OK;

	push_to_wire(job, push, &header);
	chunk.header = &header;
	for (size_t at = 0; at < job->layout.slot_bytes && !st; at += CHUNK_BYTES) {
		size_t left = job->layout.slot_bytes - at;

		chunk.offset = at;
		chunk.xxh3 = over_network(job) ? XXH3_64bits(slot + at, left < CHUNK_BYTES ? left : CHUNK_BYTES) : 0;
		lend(lent);
		st = rpc_stream_send_bulk(stream, &chunk.base, BYTES_BULK_FIELD, slot + at,
					  left < CHUNK_BYTES ? left : CHUNK_BYTES, give_back, lent);
		chunk.header = NULL;
	}
	return st ? st : rpc_stream_close_send(stream);
}

enum status inline_push(struct gacc_job *job, void *arg, int64_t timeout_ms, struct rpc_failure *failure)
{
	struct push *push = arg;
	const struct ProtobufCMessage *answer = NULL;
	struct rpc_stream *stream;
	struct borrowed lent;
	enum status st;

	st = open_stream(job, "PushInline", timeout_ms, 0, &stream);
	if (st)
		return failure->status = st;
	borrowed_init(&lent);
	/* a failed send means that the stream is over: the answer or the reason is there to be read */
	(void)send_gradients(job, push, stream, &lent);
	st = rpc_stream_next(stream, -1, &answer, NULL);
	if (!st && answer)
		push_take_answer(push, (const Gacc__V1__PushResponse *)answer);
	else
		st = stream_failed(stream, failure);
	rpc_stream_free(stream);
	borrowed_fini(&lent);
	return st;
}

/* ---- initial parameters ---- */

static enum status send_params(struct gacc_job *job, const void *const *values, struct rpc_stream *stream)
{
	Gacc__V1__PutParametersInlineRequest chunk = GACC__V1__PUT_PARAMETERS_INLINE_REQUEST__INIT;
	unsigned char *piece = mapping_data(&job->memory.params); /* ours until the job runs */
	size_t total = job->layout.param_bytes;
	enum status st = ST_OK;

	params_gather(&job->layout, values, 0, piece, total);
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

static enum status put_attempt(struct gacc_job *job, void *values, int64_t timeout_ms, struct rpc_failure *failure)
{
	const struct ProtobufCMessage *answer = NULL;
	struct rpc_stream *stream;
	enum status st = open_stream(job, "PutParametersInline", timeout_ms, 0, &stream);

	if (st)
		return failure->status = st;
	(void)send_params(job, values, stream);
	st = rpc_stream_next(stream, -1, &answer, NULL);
	if (st || !answer)
		st = stream_failed(stream, failure);
	rpc_stream_free(stream);
	return st;
}

gacc_status inline_put_params(struct gacc_job *job, const void *const *values)
{
	return session_run(job, "give the initial parameters", job->timeout_ms, put_attempt, (void *)(uintptr_t)values);
}

/* ---- parameters and reduced gradients ---- */

struct fetch {
	unsigned char *dst;
	size_t bytes;
	bool reduced;
};

/* Chunks come in order and are all of one window, else the daemon ends the stream with PARAMS_CHANGED. */
static enum status receive_all(struct rpc_stream *stream, const struct fetch *fetch, struct rpc_failure *failure)
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
		if (((const Gacc__V1__GetParametersResponse *)msg)->offset != at || n > fetch->bytes - at) {
			rpc_stream_cancel(stream);
			snprintf(failure->message, sizeof(failure->message), "a chunk is out of place");
			return failure->status = ST_MALFORMED;
		}
		bytes_copy(&view, fetch->dst + at, n);
		at += n;
	}
	st = rpc_stream_finish(stream, failure);
	if (!st && at != fetch->bytes) {
		snprintf(failure->message, sizeof(failure->message), "%zu of %zu bytes", at, fetch->bytes);
		return failure->status = ST_MALFORMED;
	}
	return st;
}

static enum status fetch_attempt(struct gacc_job *job, void *arg, int64_t timeout_ms, struct rpc_failure *failure)
{
	const struct fetch *fetch = arg;
	Gacc__V1__GetParametersRequest request = GACC__V1__GET_PARAMETERS_REQUEST__INIT;
	struct rpc_stream *stream;
	enum status st = open_stream(job, "GetParameters", timeout_ms, BYTES_BULK_FIELD, &stream);

	if (st)
		return failure->status = st;
	request.session = job->session;
	request.reduced_gradients = fetch->reduced;
	(void)rpc_stream_send(stream, &request.base);
	rpc_stream_close_send(stream);
	st = receive_all(stream, fetch, failure);
	rpc_stream_free(stream);
	return st;
}

gacc_status inline_fetch(struct gacc_job *job, bool reduced)
{
	struct fetch fetch = {
		.dst = mapping_data(reduced ? &job->memory.reduced[0] : &job->memory.params),
		.bytes = reduced ? job->layout.accum_bytes : job->layout.param_bytes,
		.reduced = reduced,
	};

	return session_run(job, reduced ? "fetch the reduced gradients" : "fetch the parameters", -1, fetch_attempt,
			   &fetch);
}
