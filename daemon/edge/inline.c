/* SPDX-License-Identifier: Apache-2.0 */
/* The streams of clients without shared memory: gradients and initial parameters in, parameters out. Loop thread.
 *
 * A chunk (at most 4 MiB) is copied between gRPC's slices and the segment on the loop thread: under half a millisecond,
 * and the next one is read only after that, which is the back-pressure. From then on an inline push is an ordinary one.
 * Whether a chunk may be copied, and into which slot, is decided in control (streams.c): it is asked before each copy.
 */
#include "edge/methods.h"

#include "base/log.h"
#include "edge/caller.h"
#include "edge/ended.h"
#include "edge/methods_gradient.h"
#include "edge/reply.h"
#include "gacc/v1/gradient.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define READ_CHUNK (1u << 20)
#define READ_CHUNK_SHORT (32u << 10) /* when room is short: a message of it may always wait */

struct inline_call {
	struct part_caller caller;
	struct part *part;
	struct session_key key;
	uint64_t call;
	uint32_t slot; /* of the engine */
	bool is_put, done;
	/* push */
	struct push_args args;
	unsigned char *present;
	/* put: the rest of the chunk under way */
	struct bytes_view rest;
	uint64_t offset;
	bool last;
};

static void over(struct rpc_call *call, bool completed)
{
	struct inline_call *c = rpc_data(call);
	if (!c)
		return;
	job_stream_gone(c->part->job, c->call, c->key.rank);
	job_on_call_gone(c->part->job, c->call, c->key.rank);
	part_drop(c->part);
	free(c->present);
	free(c);
}

static bool take_reply(struct rpc_call *call, const struct reply *r);

/* The call points to the stream from here on, so that `over` frees it when the call ends. */
static struct inline_call *new_call(struct rpc_call *call, const Gacc__V1__Session *s)
{
	struct session_key k;
	struct part *part = session_find(call, s, &k);
	if (!part)
		session_refuse(call, s);
	else if (part_memory_is_due(part)) {
		if (part->begun)
			rpc_failf(call, ST_ENGINE_DOWN, "job %llu is being recovered after a restart of gaccd",
				  (unsigned long long)part->id);
		else
			rpc_failf(call, ST_NOT_READY, "call RegisterTensors first: the job has no memory yet");
		return NULL;
	}
	struct inline_call *c = part ? calloc(1, sizeof(*c)) : NULL;
	if (part && !c)
		no_memory(call);
	if (!c)
		return NULL;
	*c = (struct inline_call){ .caller.take_reply = take_reply, .part = part, .key = k, .call = rpc_id(call) };
	part_hold(part);
	rpc_set_data(call, c);
	return c;
}

/* What lies in a device's memory alone is not for clients without it. false: answered. */
static bool is_on_host(struct part *part, struct rpc_call *call)
{
	if (!part_slots_on_device(part))
		return true;
	rpc_failf(
		call, ST_NOT_SUPPORTED,
		"job %llu has slots_on: device: gradients and parameters are in a GPU's memory, which trainers on that "
		"GPU import",
		(unsigned long long)part->id);
	return false;
}

/* May its session's slots be written to? false: answered. What is wrong with the session itself is control's to say. */
static bool slots_ready(const struct inline_call *c, struct rpc_call *call)
{
	struct reply unused;
	char why[480];
	if (!is_on_host(c->part, call))
		return false;
	enum status st = job_session_ok(c->part->job, &c->key, &unused) && c->part->mem.n
				 ? part_slots_ready(c->part, c->key.rank, why, sizeof(why))
				 : ST_OK;
	if (st)
		rpc_failf(call, st, "%s", why);
	return !st;
}

/* The stream ends here: its slot is free at once, not only when the client has got the answer. */
static void give_up(struct inline_call *c)
{
	job_stream_gone(c->part->job, c->call, c->key.rank);
}

/* The slot's memory, as it is now; NULL: answered. */
static unsigned char *slot_of(struct inline_call *c, struct rpc_call *call)
{
	unsigned char *base = part_map(c->part, SEG_SLOT, c->slot, true);
	if (!base) {
		give_up(c);
		rpc_failf(call, ST_IO_ERROR, "slot segment %u of job %llu cannot be mapped: gaccd's log says why",
			  c->slot, (unsigned long long)c->part->id);
	}
	return base;
}

/* ---- pushes ---- */

/* Of a stream that is open: its bitmap is of the right size, and streams are as many as slots. */
static bool keep_present(struct inline_call *c, struct rpc_call *call, const Gacc__V1__PushRequest *h)
{
	if (!h->present.len)
		return true;
	c->present = malloc(h->present.len);
	if (!c->present) {
		give_up(c);
		no_memory(call);
		return false;
	}
	memcpy(c->present, h->present.data, h->present.len);
	c->args.present = c->present;
	return true;
}

static bool begin_push(struct rpc_call *call, const Gacc__V1__PushRequest *h)
{
	struct inline_call *c = new_call(call, h->session);
	if (!c)
		return false;
	c->args = push_args_of(h);
	return slots_ready(c, call) &&
	       job_stream_open(c->part->job, c->call, &c->key, &c->args, &c->slot, now_of(call)) &&
	       keep_present(c, call, h);
}

static bool copy_chunk(struct inline_call *c, struct rpc_call *call, uint64_t offset, uint64_t xxh3,
		       const struct bytes_view *data)
{
	uint64_t n = data ? data->left : 0;
	if (!job_stream_admits(c->part->job, c->call, c->key.rank, offset, n))
		return false;
	unsigned char *base = slot_of(c, call);
	if (!base)
		return false;
	if (n) {
		struct bytes_view view = *data;
		bytes_copy(&view, base + offset, n);
	}
	if (n && xxh3 && XXH3_64bits(base + offset, n) != xxh3) {
		give_up(c);
		rpc_failf(call, ST_CHECKSUM, "chunk at offset %llu: xxh3 does not match its %llu bytes",
			  (unsigned long long)offset, (unsigned long long)n);
		return false;
	}
	return job_stream_took(c->part->job, c->call, c->key.rank, offset, n);
}

static void push_chunk(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *data)
{
	const Gacc__V1__PushInlineRequest *q = (const Gacc__V1__PushInlineRequest *)m;
	if (!rpc_data(call)) {
		if (!q->header) {
			rpc_failf(call, ST_INVALID_ARGUMENT, "the first message of PushInline must have a header");
			return;
		}
		if (push_is_over(call, q->header) || !begin_push(call, q->header))
			return;
	}
	if (copy_chunk(rpc_data(call), call, q->offset, q->xxh3, data))
		rpc_recv(call);
}

static void push_end(struct rpc_call *call)
{
	struct inline_call *c = rpc_data(call);
	if (!c)
		rpc_fail(call, &(struct rpc_error){ .status = ST_INVALID_ARGUMENT,
						    .message = "PushInline without a message",
						    .hint = "a repeated PushInline needs a new iterator of messages: "
							    "gRPC has used the first one up" });
	else
		job_stream_push(c->part->job, c->call, &c->key, &c->args, now_of(call));
}

/* ---- initial parameters ---- */

/* As much of the chunk as a slot holds; its answer brings the next piece. */
static void put_piece(struct inline_call *c, struct rpc_call *call)
{
	uint64_t slot_bytes = job_arena(c->part->job)->slot_bytes, offset = c->offset;
	uint64_t n = c->rest.left < slot_bytes ? c->rest.left : slot_bytes;
	if (!job_stream_admits(c->part->job, c->call, c->key.rank, offset, c->rest.left))
		return;
	unsigned char *base = slot_of(c, call);
	if (!base)
		return;
	bytes_copy(&c->rest, base, n);
	c->offset += n;
	job_stream_put(c->part->job, c->call, &c->key, offset, n, c->last && !c->rest.left, now_of(call));
}

static void put_chunk(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *data)
{
	const Gacc__V1__PutParametersInlineRequest *q = (const Gacc__V1__PutParametersInlineRequest *)m;
	struct inline_call *c = rpc_data(call);
	if (!c) {
		c = new_call(call, q->session);
		if (!c)
			return;
		c->is_put = true;
		if (!slots_ready(c, call) ||
		    !job_stream_open(c->part->job, c->call, &c->key, NULL, &c->slot, now_of(call)))
			return;
	}
	c->rest = data ? *data : (struct bytes_view){ 0 };
	c->offset = q->offset;
	c->last = q->last;
	put_piece(c, call);
}

static void put_end(struct rpc_call *call)
{
	struct inline_call *c = rpc_data(call);
	if (c && c->done)
		return;
	if (c)
		give_up(c);
	rpc_failf(call, ST_INVALID_ARGUMENT, "the stream ended without `last`: the parameters are not complete");
}

/* part_caller.take_reply of a stream. */
static bool take_reply(struct rpc_call *call, const struct reply *r)
{
	struct inline_call *c = rpc_data(call);
	if (r->status) {
		reply_fail(call, r);
	} else if (!c->is_put) {
		return false; /* the answer of a unary push */
	} else if (r->put.ready) {
		Gacc__V1__PutParametersResponse m = GACC__V1__PUT_PARAMETERS_RESPONSE__INIT;
		m.ready = true;
		c->done = true;
		rpc_finish(call, &m.base);
	} else if (c->rest.left) {
		put_piece(c, call);
	} else {
		rpc_recv(call);
	}
	return true;
}

/* ---- parameters out ---- */

struct reading {
	struct part *part;
	const unsigned char *base;
	const struct status_page *status;
	uint64_t at, end, seq, window;
};

static void reading_over(struct rpc_call *call, bool completed)
{
	struct reading *r = rpc_data(call);
	if (r)
		part_drop(r->part);
	free(r);
}

static void read_on(struct rpc_call *call)
{
	struct reading *r = rpc_data(call);
	while (r && r->at < r->end) {
		if (r->part->mem.released) { /* a stream does not keep the memory of a job that has ended */
			rpc_failf(call, ST_JOB_ENDED, "job %llu has ended, and its memory is given back",
				  (unsigned long long)r->part->id);
			return;
		}
		uint64_t n = rpc_room(call) < READ_CHUNK + READ_CHUNK_SHORT ? READ_CHUNK_SHORT : READ_CHUNK;
		if (n > r->end - r->at)
			n = r->end - r->at;
		unsigned char *copy = malloc(n);
		if (!copy) {
			no_memory(call);
			return;
		}
		memcpy(copy, r->base + r->at, n);
		atomic_thread_fence(memory_order_acquire);
		if (atomic_load(&r->status->seq) != r->seq) {
			free(copy);
			rpc_failf(call, ST_PARAMS_CHANGED, "the parameters changed during the read: start it again");
			return;
		}
		Gacc__V1__GetParametersResponse m = GACC__V1__GET_PARAMETERS_RESPONSE__INIT;
		m.offset = r->at;
		m.window = r->window;
		enum status st = rpc_send_bulk(call, &m.base, BYTES_BULK_FIELD, copy, n, free, copy);
		if (st == ST_RESOURCE_EXHAUSTED)
			return; /* on_writable goes on */
		if (st)
			return;
		r->at += n;
	}
	if (r)
		rpc_finish(call, NULL);
}

static void get_parameters(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *bulk)
{
	const Gacc__V1__GetParametersRequest *q = (const Gacc__V1__GetParametersRequest *)m;
	struct session_key k;
	struct part *part = checked_session(call, q->session, &k);
	if (!part || !is_on_host(part, call))
		return;
	if (!part->mem.segment || !job_params_ready(part->job)) {
		rpc_failf(call, ST_NOT_READY, "the parameters are not there yet: call WaitReady first");
		return;
	}
	if (q->reduced_gradients && part->spec->optim.type != OPTIM_CLIENT) {
		struct rpc_error e = {
			.status = ST_NOT_SUPPORTED,
			.field = "reduced_gradients",
			.hint = "reduced gradients are for trainers that apply the step: optimizer client"
		};
		char text[128];
		snprintf(text, sizeof(text), "the job's optimizer is %s: its sums are not for trainers",
			 optim_info(part->spec->optim.type)->name);
		e.message = text;
		rpc_fail(call, &e);
		return;
	}
	const struct arena *a = job_arena(part->job);
	uint32_t role = q->reduced_gradients ? SEG_ACCUM0 + job_reduced_half(part->job) : SEG_PARAMS;
	uint64_t all = q->reduced_gradients ? a->n_elements * dtype_size(part->spec->accumulate_dtype) : a->param_bytes;
	if (q->offset > all || q->bytes > all - q->offset) {
		rpc_failf(call, ST_INVALID_ARGUMENT, "offset %llu, bytes %llu: the %s have %llu bytes",
			  (unsigned long long)q->offset, (unsigned long long)q->bytes,
			  q->reduced_gradients ? "reduced gradients" : "parameters", (unsigned long long)all);
		return;
	}
	struct reading *r = calloc(1, sizeof(*r));
	if (!r) {
		no_memory(call);
		return;
	}
	*r = (struct reading){ .part = part,
			       .base = part_map(part, role, 0, false),
			       .status = part_map(part, SEG_STATUS, 0, true),
			       .at = q->offset,
			       .end = q->bytes ? q->offset + q->bytes : all };
	rpc_set_data(call, r);
	part_hold(part);
	if (!r->base || !r->status) {
		rpc_failf(call, ST_IO_ERROR, "the parameters of job %llu cannot be mapped: gaccd's log says why",
			  (unsigned long long)part->id);
		return;
	}
	r->seq = atomic_load(&r->status->seq);
	r->window = atomic_load(&r->status->window);
	if (r->seq & 1)
		rpc_failf(call, ST_PARAMS_CHANGED, "the parameters are being updated: read them again");
	else
		read_on(call);
}

#define SERVICE &gacc__v1__gradient_service__descriptor
const struct rpc_method inline_methods[] = {
	{ .service = SERVICE,
	  .name = "PushInline",
	  .kind = RPC_CLIENT_STREAM,
	  .flags = RPC_NEEDS_DEADLINE,
	  .bulk = BYTES_BULK_FIELD,
	  .on_message = push_chunk,
	  .on_half_close = push_end,
	  .on_end = over },
	{ .service = SERVICE,
	  .name = "PutParametersInline",
	  .kind = RPC_CLIENT_STREAM,
	  .flags = RPC_NEEDS_DEADLINE,
	  .bulk = BYTES_BULK_FIELD,
	  .on_message = put_chunk,
	  .on_half_close = put_end,
	  .on_end = over },
	{ .service = SERVICE,
	  .name = "GetParameters",
	  .kind = RPC_SERVER_STREAM,
	  .on_message = get_parameters,
	  .on_writable = read_on,
	  .on_end = reading_over },
};
const size_t n_inline_methods = sizeof(inline_methods) / sizeof(*inline_methods);
