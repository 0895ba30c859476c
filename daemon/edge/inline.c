/* The streams of clients without shared memory: gradients and initial parameters in, parameters out.
 *
 * A chunk (at most 4 MiB) is copied between gRPC's slices and the segment on the loop thread: under half a millisecond,
 * and the next one is read only after that, which is the back-pressure. From then on an inline push is an ordinary one.
 */
#include "edge/methods.h"

#include "base/log.h"

#include "gacc/v1/gradient.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define MAX_EXTENTS 4096
#define READ_CHUNK (1u << 20)
#define READ_CHUNK_SHORT (32u << 10) /* when room is short: a message of it may always wait */

struct extent {
	uint64_t start, end;
};

struct inline_call {
	struct call_owner owner;
	struct inline_call *next;      /* in l->inline_calls */
	struct live_job *l;
	struct session_key key;
	uint64_t call;
	uint32_t slot;                 /* of the session */
	unsigned char *base;           /* the slot's bytes */
	bool is_put, done;
	/* push */
	struct push_args args;
	unsigned char *present;
	struct extent *extent;         /* ascending, disjoint: what has come */
	uint32_t n_extents;
	/* put: the rest of the chunk under way */
	struct bytes_view rest;
	uint64_t offset;
	bool last;
};

static void drop(struct inline_call *c)
{
	for (struct inline_call **p = &c->l->inline_calls; *p; p = &(*p)->next)
		if (*p == c) {
			*p = c->next;
			break;
		}
	live_drop(c->l);
	free(c->present);
	free(c->extent);
	free(c);
}

static void over(struct rpc_call *call, bool completed)
{
	struct inline_call *c = rpc_data(call);
	if (!c)
		return;
	job_on_call_gone(c->l->job, c->call);
	drop(c);
}

/* A stream does not keep the memory of a job that has ended. */
static bool memory_is_gone(struct rpc_call *call, const struct live_job *l)
{
	if (l->released)
		rpc_failf(call, ST_JOB_ENDED, "job %llu has ended, and its memory is given back", (unsigned long long)l->id);
	return l->released;
}

static bool has_stream(const struct live_job *l, uint32_t rank, uint32_t slot)
{
	for (const struct inline_call *o = l->inline_calls; o; o = o->next)
		if (o->key.rank == rank && o->slot == slot)
			return true;
	return false;
}

/* A slot that neither a push nor another stream of this rank uses. */
static bool take_slot(struct inline_call *c)
{
	uint32_t n, first = job_session_slots(c->l->job, c->key.rank, &n), slot = 0;
	while (job_free_slot(c->l->job, c->key.rank, slot, &slot)) {
		if (!has_stream(c->l, c->key.rank, slot)) {
			c->slot = slot;
			c->base = live_map(c->l, SEG_SLOT, first + slot, true);
			return c->base != NULL;
		}
		slot++;
	}
	return false;
}

static struct inline_call *begin(struct rpc_call *call, const Gacc__V1__Session *s, bool is_put)
{
	struct session_key k;
	struct live_job *l = checked_session(call, s, &k);
	if (!l)
		return NULL;
	if (!job_has_tensors(l->job) || !l->segment || l->allocating) {
		rpc_failf(call, ST_NOT_READY, "call RegisterTensors first: the job has no memory yet");
		return NULL;
	}
	struct inline_call *c = calloc(1, sizeof *c);
	if (!c) {
		no_memory(call);
		return NULL;
	}
	*c = (struct inline_call){ .owner.is_inline = true, .l = l, .key = k, .call = rpc_id(call), .is_put = is_put,
				   .slot = UINT32_MAX };
	if (!take_slot(c)) {
		rpc_failf(call, ST_SLOT_BUSY, "rank %u has a stream or a push in each of its slots", k.rank);
		free(c);
		return NULL;
	}
	c->next = l->inline_calls;
	l->inline_calls = c;
	live_hold(l);
	rpc_set_data(call, c);
	return c;
}

/* ---- pushes ---- */

static bool begin_push(struct inline_call *c, struct rpc_call *call, const Gacc__V1__PushRequest *h)
{
	c->args = push_args_of(h);
	c->extent = malloc(MAX_EXTENTS * sizeof *c->extent);
	c->present = h->present.len ? malloc(h->present.len) : NULL;
	if (!c->extent || (h->present.len && !c->present)) {
		no_memory(call);
		return false;
	}
	if (c->present)
		memcpy(c->present, h->present.data, h->present.len);
	c->args.present = c->present;
	c->args.slot = c->slot;
	return true;
}

/* Notes that [start, end) has come; false: too many pieces. */
static bool cover(struct inline_call *c, uint64_t start, uint64_t end)
{
	uint32_t i = c->n_extents;
	while (i && c->extent[i - 1].start > start)
		i--;
	if (i && c->extent[i - 1].end >= start) {
		i--;
		if (end > c->extent[i].end)
			c->extent[i].end = end;
	} else {
		if (c->n_extents == MAX_EXTENTS)
			return false;
		memmove(&c->extent[i + 1], &c->extent[i], (c->n_extents - i) * sizeof *c->extent);
		c->extent[i] = (struct extent){ start, end };
		c->n_extents++;
	}
	while (i + 1 < c->n_extents && c->extent[i + 1].start <= c->extent[i].end) {
		if (c->extent[i + 1].end > c->extent[i].end)
			c->extent[i].end = c->extent[i + 1].end;
		c->n_extents--;
		memmove(&c->extent[i + 1], &c->extent[i + 2], (c->n_extents - i - 1) * sizeof *c->extent);
	}
	return true;
}

static bool covered(const struct inline_call *c, uint64_t start, uint64_t end)
{
	uint32_t lo = 0, hi = c->n_extents;
	while (lo < hi) {
		uint32_t mid = (lo + hi) / 2;
		if (c->extent[mid].end < end)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < c->n_extents && c->extent[lo].start <= start;
}

static bool copy_checked(struct inline_call *c, struct rpc_call *call, uint64_t offset, uint64_t xxh3,
			 const struct bytes_view *data)
{
	uint64_t slot_bytes = job_arena(c->l->job)->slot_bytes, n = data ? data->left : 0;
	if (offset > slot_bytes || n > slot_bytes - offset) {
		rpc_failf(call, ST_INVALID_ARGUMENT, "offset %llu + %llu bytes: a slot holds %llu",
			  (unsigned long long)offset, (unsigned long long)n, (unsigned long long)slot_bytes);
		return false;
	}
	if (!n)
		return true;
	struct bytes_view view = *data;
	bytes_copy(&view, c->base + offset, n);
	if (xxh3 && XXH3_64bits(c->base + offset, n) != xxh3) {
		rpc_failf(call, ST_CHECKSUM, "chunk at offset %llu: xxh3 does not match its %llu bytes",
			  (unsigned long long)offset, (unsigned long long)n);
		return false;
	}
	if (!cover(c, offset, offset + n)) {
		rpc_failf(call, ST_RESOURCE_EXHAUSTED, "more than %d separate pieces: send larger or contiguous chunks",
			  MAX_EXTENTS);
		return false;
	}
	return true;
}

static void push_chunk(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *data)
{
	const Gacc__V1__PushInlineRequest *q = (const Gacc__V1__PushInlineRequest *)m;
	struct inline_call *c = rpc_data(call);
	if (!c) {
		if (!q->header) {
			rpc_failf(call, ST_INVALID_ARGUMENT, "the first message of PushInline must have a header");
			return;
		}
		if (push_is_over(call, q->header))
			return;
		c = begin(call, q->header->session, false);
		if (!c || !begin_push(c, call, q->header))
			return;
	}
	if (!memory_is_gone(call, c->l) && copy_checked(c, call, q->offset, q->xxh3, data))
		rpc_recv(call);
}

static bool is_present(const struct inline_call *c, uint64_t tensor)
{
	return !c->args.n_present || c->present[tensor / 8] >> tensor % 8 & 1;
}

static bool complete(struct inline_call *c, struct rpc_call *call)
{
	const struct arena *a = job_arena(c->l->job);
	uint64_t n;
	const struct tensor_spec *spec = job_tensors(c->l->job, &n);
	if (c->args.n_present && c->args.n_present != (n + 7) / 8) {
		rpc_failf(call, ST_INVALID_ARGUMENT, "present has %u bytes, %llu tensors need %llu", c->args.n_present,
			  (unsigned long long)n, (unsigned long long)(n + 7) / 8);
		return false;
	}
	for (uint64_t i = 0; i < n; i++) {
		const struct arena_tensor *t = &a->tensor[i];
		uint64_t end = t->slot_offset + t->count * dtype_size(a->group[t->group].grad_dtype);
		if (is_present(c, i) && t->alias < 0 && !covered(c, t->slot_offset, end)) {
			rpc_failf(call, ST_INVALID_ARGUMENT,
				  "the chunks do not cover tensor \"%.100s\" (bytes %llu to %llu of the slot)", spec[i].name,
				  (unsigned long long)t->slot_offset, (unsigned long long)end);
			return false;
		}
	}
	return true;
}

static void push_end(struct rpc_call *call)
{
	struct inline_call *c = rpc_data(call);
	if (!c)
		rpc_failf(call, ST_INVALID_ARGUMENT, "PushInline without a message");
	else if (!memory_is_gone(call, c->l) && complete(c, call))
		job_push(c->l->job, c->call, &c->key, &c->args, now_of(call));
}

/* ---- initial parameters ---- */

/* As much of the chunk as a slot holds; its answer brings the next piece. */
static void put_piece(struct inline_call *c)
{
	uint64_t slot_bytes = job_arena(c->l->job)->slot_bytes;
	uint64_t n = c->rest.left < slot_bytes ? c->rest.left : slot_bytes, offset = c->offset;
	bytes_copy(&c->rest, c->base, n);
	c->offset += n;
	job_put_params(c->l->job, c->call, &c->key, c->slot, offset, n, c->last && !c->rest.left, daemon_now(c->l->d));
}

static void put_chunk(struct rpc_call *call, const struct ProtobufCMessage *m, const struct bytes_view *data)
{
	const Gacc__V1__PutParametersInlineRequest *q = (const Gacc__V1__PutParametersInlineRequest *)m;
	struct inline_call *c = rpc_data(call);
	if (!c)
		c = begin(call, q->session, true);
	if (!c || memory_is_gone(call, c->l))
		return;
	c->rest = data ? *data : (struct bytes_view){ 0 };
	c->offset = q->offset;
	c->last = q->last;
	put_piece(c);
}

static void put_end(struct rpc_call *call)
{
	if (!rpc_data(call) || !((struct inline_call *)rpc_data(call))->done)
		rpc_failf(call, ST_INVALID_ARGUMENT, "the stream ended without `last`: the parameters are not complete");
}

bool inline_reply(struct rpc_call *call, const struct reply *r)
{
	const struct call_owner *o = rpc_data(call);
	if (!o || !o->is_inline)
		return false;
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
		put_piece(c);
	} else {
		rpc_recv(call);
	}
	return true;
}

/* ---- parameters out ---- */

struct reading {
	struct live_job *l;
	const unsigned char *base;
	const struct status_page *status;
	uint64_t at, end, seq, window;
};

static void reading_over(struct rpc_call *call, bool completed)
{
	struct reading *r = rpc_data(call);
	if (r)
		live_drop(r->l);
	free(r);
}

static void read_on(struct rpc_call *call)
{
	struct reading *r = rpc_data(call);
	while (r && r->at < r->end) {
		if (memory_is_gone(call, r->l))
			return;
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
	struct live_job *l = checked_session(call, q->session, &k);
	if (!l)
		return;
	if (!l->segment || !job_params_ready(l->job)) {
		rpc_failf(call, ST_NOT_READY, "the parameters are not there yet: call WaitReady first");
		return;
	}
	if (q->reduced_gradients && l->spec.optim.type != OPTIM_CLIENT) {
		struct rpc_error e = { .status = ST_NOT_SUPPORTED, .field = "reduced_gradients",
				       .hint = "reduced gradients are for trainers that apply the step: optimizer client" };
		char text[128];
		snprintf(text, sizeof text, "the job's optimizer is %s: its sums are not for trainers",
			 optim_info(l->spec.optim.type)->name);
		e.message = text;
		rpc_fail(call, &e);
		return;
	}
	const struct arena *a = job_arena(l->job);
	uint32_t role = q->reduced_gradients ? SEG_ACCUM0 + job_reduced_half(l->job) : SEG_PARAMS;
	uint64_t all = q->reduced_gradients ? a->n_elements * dtype_size(l->spec.accumulate_dtype) : a->param_bytes;
	if (q->offset > all || q->bytes > all - q->offset) {
		rpc_failf(call, ST_INVALID_ARGUMENT, "offset %llu, bytes %llu: there are %llu", (unsigned long long)q->offset,
			  (unsigned long long)q->bytes, (unsigned long long)all);
		return;
	}
	struct reading *r = calloc(1, sizeof *r);
	if (!r) {
		no_memory(call);
		return;
	}
	*r = (struct reading){ .l = l, .base = live_map(l, role, 0, false), .status = live_map(l, SEG_STATUS, 0, false),
			       .at = q->offset, .end = q->bytes ? q->offset + q->bytes : all };
	rpc_set_data(call, r);
	live_hold(l);
	if (!r->base || !r->status) {
		rpc_failf(call, ST_IO_ERROR, "the parameters cannot be mapped");
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
	{ .service = SERVICE, .name = "PushInline", .kind = RPC_CLIENT_STREAM, .flags = RPC_NEEDS_DEADLINE,
	  .bulk = BYTES_BULK_FIELD, .on_message = push_chunk, .on_half_close = push_end, .on_end = over },
	{ .service = SERVICE, .name = "PutParametersInline", .kind = RPC_CLIENT_STREAM, .flags = RPC_NEEDS_DEADLINE,
	  .bulk = BYTES_BULK_FIELD, .on_message = put_chunk, .on_half_close = put_end, .on_end = over },
	{ .service = SERVICE, .name = "GetParameters", .kind = RPC_SERVER_STREAM, .on_message = get_parameters,
	  .on_writable = read_on, .on_end = reading_over },
};
const size_t n_inline_methods = sizeof inline_methods / sizeof *inline_methods;
