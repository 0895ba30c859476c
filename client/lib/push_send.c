/* SPDX-License-Identifier: Apache-2.0 */
/* One attempt to send a micro-batch: by the number of its slot, or without shared memory with its gradients in a
 * stream; and what its end means for the window. For gacc_push on the job's thread, and for queued pushes on the
 * sender's. */
#include "lib/internal.h"

#include "lib/channel.h"
#include "gacc/v1/gradient.pb-c.h"
#include "proto/failpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

void push_name(const struct push *push, char *out, size_t n)
{
	snprintf(out, n, "push of micro-batch %u of window %" PRIu64, push->micro, push->window);
}

void push_to_wire(const struct gacc_job *job, const struct push *push, Gacc__V1__PushRequest *out)
{
	gacc__v1__push_request__init(out);
	out->session = job->session;
	out->window = push->window;
	out->micro = push->micro;
	out->slot = push->slot;
	out->weight = push->weight;
	out->loss = push->loss;
	out->data_key = push->data_key;
	out->loss_scale = push->loss_scale;
	out->lr = push->lr;
	out->present.data = push->present;
	out->present.len = push->n_present;
	out->zero_after = push->zero_after;
}

static void take_answer(struct push *push, const Gacc__V1__PushResponse *answer)
{
	push->is_void = answer->result == GACC__V1__PUSH_RESULT__PUSH_RESULT_VOID;
	push->duplicate = answer->result == GACC__V1__PUSH_RESULT__PUSH_RESULT_DUPLICATE ||
			  answer->result == GACC__V1__PUSH_RESULT__PUSH_RESULT_ALREADY_COMMITTED;
	push->count = answer->micro_count;
	push->micro_size = answer->micro_size;
	push->parked_ns = answer->parked_ns;
}

/* ---- gradients in a stream ----
 *
 * By reference: they must not change until gRPC has let go of them, so every attempt ends by waiting for that. */

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

static enum status send_inline(struct gacc_job *job, struct push *push, int64_t timeout_ms, struct rpc_failure *failure)
{
	const struct ProtobufCMessage *answer = NULL;
	struct rpc_stream *stream;
	struct borrowed lent;
	enum status st;

	st = session_stream(job, "PushInline", timeout_ms, 0, &stream);
	if (st)
		return failure->status = st;
	borrowed_init(&lent);
	/* a failed send means that the stream is over: the answer or the reason is there to be read */
	(void)send_gradients(job, push, stream, &lent);
	st = rpc_stream_next(stream, -1, &answer, NULL);
	if (!st && answer)
		take_answer(push, (const Gacc__V1__PushResponse *)answer);
	else
		st = session_stream_failed(stream, failure);
	rpc_stream_free(stream);
	borrowed_fini(&lent);
	return st;
}

/* ---- attempts and their end ---- */

int64_t push_ready_left(const struct gacc_job *job, const struct push *push)
{
	return late_left(job, push->ready_until);
}

bool push_await_ready(const struct gacc_job *job, const struct push *push, int64_t ms)
{
	int64_t left = push->ready_at ? push_ready_left(job, push) : 0;

	return !push->ready_at ||
	       words_await(&job->memory.words, push->ready_at, push->ready_value, left < ms ? left : ms);
}

enum status push_attempt(struct gacc_job *job, void *arg, int64_t timeout_ms, struct rpc_failure *failure)
{
	struct push *push = arg;
	Gacc__V1__PushRequest request;
	struct unary call = { .method = "Push", .request = &request.base };
	enum status st;

	st = FAILPOINT_ERROR(client_push_before);
	if (st)
		return st;
	if (job->memory.inlined)
		return send_inline(job, push, timeout_ms, failure);
	push_to_wire(job, push, &request);
	st = session_unary(job, &call, timeout_ms, failure);
	if (st)
		return st;
	take_answer(push, (Gacc__V1__PushResponse *)call.reply);
	bytes_free(call.reply);
	return FAILPOINT_ERROR(client_push_answered);
}

gacc_status push_conclude(struct gacc_job *job, const struct push *push, gacc_status st)
{
	bool current = push->window == job->window.number;

	if (st) {
		if (current && failure_is_late(&job->failure))
			window_give_up(&job->window);
		return st;
	}
	if (current)
		window_pushed(&job->window, push->micro);
	if (push->is_void)
		return job_fail(job, ST_NONFINITE, "the window goes on without it",
				"micro-batch %u of window %" PRIu64 " has non-finite gradients and does not count",
				push->micro, push->window);
	return GACC_OK;
}
