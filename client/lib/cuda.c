/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of gacc_cuda.h: finds the driver and a context, pins the job's memory, enqueues copies and rings. The job's
 * thread; ring_now on threads of the driver. */
#include "gacc/gacc_cuda.h"

#include "lib/internal.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK_DEFAULT ((size_t)4 << 30)
#define HALF (CUDA_STAGE_BYTES / 2)

_Static_assert(CUDA_SLOTS_MAX == SLOTS_MAX, "each slot has its pins and its ring");

static gacc_status fail(gacc_job *job, cu_result code, const char *what)
{
	const struct cuda *c = job->memory.cuda;

	return job_fail(job, code == CUDA_ERROR_OUT_OF_MEMORY ? ST_NO_MEMORY : ST_INTERNAL,
			"see what the program did on the device before", "%s: %s", what,
			cuda_result_name(&c->api, code));
}

/* ---- gacc_cuda_register ---- */

static gacc_status read_opts(gacc_job *job, const gacc_cuda_opts *in, gacc_cuda_opts *o)
{
	*o = (gacc_cuda_opts){ .device = -1 };
	if (in && (in->struct_size < sizeof(in->struct_size) || in->struct_size > 4096))
		return job_fail(job, ST_INVALID_ARGUMENT, NULL, "gacc_cuda_opts.struct_size is not set");
	if (in)
		memcpy(o, in, in->struct_size < sizeof(*o) ? in->struct_size : sizeof(*o));
	if (!o->chunk_bytes)
		o->chunk_bytes = CHUNK_DEFAULT;
	if (o->device < -1 || o->chunk_bytes % 4096)
		return job_fail(
			job, ST_INVALID_ARGUMENT, NULL,
			"device is %d: it must be -1 or more; chunk_bytes is %zu: it must be a multiple of 4096",
			o->device, o->chunk_bytes);
	if (!job->registered || job->memory.cuda)
		return job_fail(job, ST_INVALID_ARGUMENT, NULL, "%s",
				job->registered ? "gacc_cuda_register was called before"
						: "no memory to pin: register tensors first");
	if (job->layout.slots < 2)
		return job_fail(job, ST_INVALID_ARGUMENT, "give the job slots_per_rank: 2",
				"the job has one slot for each rank: the device could not fill one while the other is "
				"added");
	return GACC_OK;
}

static gacc_status find_context(gacc_job *job, struct cuda *c, int device)
{
	cu_result code = c->api.cuInit(0);

	if (!code && device >= 0) {
		code = c->api.cuDeviceGet(&c->device, device);
		if (!code)
			code = c->api.cuDevicePrimaryCtxRetain(&c->context, c->device);
		c->retained = !code;
		return code ? fail(job, code, "taking the device's primary context") : GACC_OK;
	}
	if (!code)
		code = c->api.cuCtxGetCurrent(&c->context);
	if (!code && !c->context)
		return job_fail(job, ST_INVALID_ARGUMENT,
				"call cudaSetDevice, torch.cuda.init() or cuCtxSetCurrent, or name a device",
				"no CUDA context is current on this thread");
	if (!code)
		code = c->api.cuCtxGetDevice(&c->device);
	return code ? fail(job, code, "finding the current CUDA context") : GACC_OK;
}

/* In the context. */
static cu_result make_objects(struct cuda *c)
{
	int yes = 0;
	cu_result code =
		c->api.cuDeviceGetAttribute(&yes, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, c->device);

	c->read_only = yes;
	if (!code)
		code = c->api.cuStreamCreate(&c->side, CU_STREAM_NON_BLOCKING);
	if (!code)
		code = c->api.cuEventCreate(&c->event, CU_EVENT_DISABLE_TIMING);
	return code;
}

static gacc_status prepare(gacc_job *job, struct cuda *c, int device)
{
	gacc_status st = find_context(job, c, device);
	cu_context before;
	uint64_t *word;
	cu_result code;

	if (st)
		return st;
	code = cuda_enter(c, &before);
	if (!code) {
		code = make_objects(c);
		cuda_leave(c, before);
	}
	if (code)
		return fail(job, code, "making a stream and an event");
	for (uint32_t i = 0; i < job->layout.slots; i++) {
		st = gacc_ready_word(job, i + 1, &word, NULL);
		if (st)
			return st;
	}
	return GACC_OK;
}

static struct cuda *cuda_new(gacc_job *job, const gacc_cuda_opts *o)
{
	struct cuda *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	pthread_mutex_init(&c->lock, NULL);
	c->job = job;
	c->chunk = o->chunk_bytes;
	c->pins_params = !o->no_params;
	for (uint32_t i = 0; i < SLOTS_MAX; i++)
		c->ring[i] = (struct cuda_ring){ .cuda = c, .slot = i };
	return c;
}

static enum status tell_attempt(struct gacc_job *job, void *arg, int64_t timeout_ms, struct rpc_failure *f)
{
	return memory_tell_device(&job->memory, job, f);
}

/* gaccd gives these slots to no other session while the device may write to them. */
static gacc_status tell_gaccd(gacc_job *job)
{
	if (job->memory.inlined || job->memory.device)
		return GACC_OK;
	return session_run(job, "tell gaccd of the device", job->timeout_ms, tell_attempt, NULL);
}

gacc_status gacc_cuda_register(gacc_job *job, const gacc_cuda_opts *opts)
{
	gacc_cuda_opts o;
	gacc_status st = job_enter(job);
	char why[200] = "";
	struct cuda *c;
	enum status pinned;

	if (!st)
		st = read_opts(job, opts, &o);
	if (st)
		return st;
	c = cuda_new(job, &o);
	if (!c)
		return job_fail(job, ST_NO_MEMORY, NULL, "no memory for the device's state");
	if (!cuda_driver_load(&c->api, why, sizeof(why))) {
		free(c);
		return job_fail(job, ST_UNIMPLEMENTED, "push from host memory, or run where there is a GPU", "%s", why);
	}
	st = tell_gaccd(job);
	if (!st) {
		job->memory.cuda = c;
		st = prepare(job, c, o.device);
	}
	if (!st && (pinned = memory_pin(&job->memory, why, sizeof(why))))
		st = job_fail(job, pinned == ST_NO_MEMORY ? pinned : ST_INTERNAL,
			      "the job's slots and parameters must fit into memory that can be pinned (ulimit -l)",
			      "%s", why);
	if (st) {
		job->memory.cuda = NULL;
		cuda_free(c);
	}
	return st;
}

/* ---- what the other calls begin with ---- */

static gacc_status enter(gacc_job *job)
{
	gacc_status st = job_enter(job);

	if (!st && !job->memory.cuda)
		st = job_fail(job, ST_INVALID_ARGUMENT, "call gacc_cuda_register", "no memory of this job is pinned");
	return st;
}

static gacc_status enter_with_slot(gacc_job *job)
{
	gacc_status st = enter(job);

	if (!st && job->held_slot < 0)
		st = job_fail(job, ST_BAD_SLOT, "call gacc_grad_buffer", "no slot is held");
	return st;
}

gacc_status gacc_cuda_address(gacc_job *job, const void *host, gacc_cuda_memory *out, size_t *out_bytes)
{
	gacc_status st = enter(job);
	const struct cuda *c = job->memory.cuda;
	bool found = false;
	cu_memory at = 0;
	size_t left = 0;

	if (st)
		return st;
	for (int i = 0; i <= SLOTS_MAX && !found; i++)
		found = cuda_find(c, i < SLOTS_MAX ? &c->slot[i] : &c->params, host, &at, &left);
	if (!found || !out)
		return job_fail(job, ST_INVALID_ARGUMENT, NULL, "%p is in no slot and not in pinned parameters", host);
	*out = at;
	if (out_bytes)
		*out_bytes = left;
	return GACC_OK;
}

/* ---- copies ---- */

static gacc_status check_range(gacc_job *job, size_t offset, size_t bytes, size_t all)
{
	if (offset <= all && bytes <= all - offset)
		return GACC_OK;
	return job_fail(job, ST_INVALID_ARGUMENT, NULL, "bytes %zu to %zu of %zu", offset, offset + bytes, all);
}

/* One copy for each registration that it touches: a copy over two of them is refused by the driver. */
static cu_result copy_pinned(const struct cuda *c, const struct cuda_pinned *p, unsigned char *host, cu_memory device,
			     size_t bytes, bool to_host, cu_stream stream)
{
	cu_result code = CUDA_SUCCESS;

	while (bytes && !code) {
		cu_memory unused;
		size_t n = 0;

		if (!cuda_find(c, p, host, &unused, &n))
			return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
		n = n < bytes ? n : bytes;
		code = to_host ? c->api.cuMemcpyDtoHAsync(host, device, n, stream)
			       : c->api.cuMemcpyHtoDAsync(device, host, n, stream);
		host += n;
		device += n;
		bytes -= n;
	}
	return code;
}

gacc_status gacc_cuda_copy_gradient(gacc_job *job, gacc_cuda_stream stream, size_t offset, gacc_cuda_memory from,
				    size_t bytes)
{
	gacc_status st = enter_with_slot(job);
	const struct cuda *c = job->memory.cuda;
	cu_context before;
	cu_result code;

	if (!st)
		st = async_check_held(job);
	if (!st)
		st = check_range(job, offset, bytes, job->layout.slot_bytes);
	if (st)
		return st;
	code = cuda_enter(c, &before);
	if (!code) {
		code = copy_pinned(c, &c->slot[job->held_slot],
				   mapping_data(&job->memory.slot[job->held_slot]) + offset, from, bytes, true, stream);
		cuda_leave(c, before);
	}
	return code ? fail(job, code, "copying a gradient to its slot") : GACC_OK;
}

static cu_result make_stage(struct cuda *c)
{
	cu_result code = CUDA_SUCCESS;

	for (int i = 0; i < 2 && !code; i++)
		if (!c->stage_free[i])
			code = c->api.cuEventCreate(&c->stage_free[i], CU_EVENT_DISABLE_TIMING);
	if (!code && !c->stage)
		code = c->api.cuMemHostAlloc((void **)&c->stage, CUDA_STAGE_BYTES, CU_MEMHOSTALLOC_PORTABLE);
	return code;
}

/* Through the two halves of a buffer in turn: one is filled while the other is copied. */
static cu_result copy_staged(struct cuda *c, const unsigned char *host, cu_memory to, size_t bytes, cu_stream stream)
{
	cu_result code = make_stage(c);

	for (int half = 0; bytes && !code; half = 1 - half) {
		size_t n = bytes < HALF ? bytes : HALF;

		if (c->stage_used[half])
			code = c->api.cuEventSynchronize(c->stage_free[half]);
		if (code)
			break;
		memcpy(c->stage + half * HALF, host, n);
		code = c->api.cuMemcpyHtoDAsync(to, c->stage + half * HALF, n, stream);
		if (!code)
			code = c->api.cuEventRecord(c->stage_free[half], stream);
		c->stage_used[half] = true;
		host += n;
		to += n;
		bytes -= n;
	}
	return code;
}

/* In the context. */
static cu_result copy_params(gacc_job *job, cu_stream stream, cu_memory to, size_t offset, size_t bytes)
{
	struct cuda *c = job->memory.cuda;
	unsigned char *host = mapping_data(&job->memory.params) + offset;
	cu_capture_status capture = CU_STREAM_CAPTURE_STATUS_NONE;
	cu_result code;

	if (c->params.base)
		return copy_pinned(c, &c->params, host, to, bytes, false, stream);
	code = c->api.cuStreamIsCapturing(stream, &capture);
	if (!code && capture != CU_STREAM_CAPTURE_STATUS_NONE)
		code = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	return code ? code : copy_staged(c, host, to, bytes, stream);
}

gacc_status gacc_cuda_copy_params(gacc_job *job, gacc_cuda_stream stream, gacc_cuda_memory to, size_t offset,
				  size_t bytes)
{
	gacc_status st = enter(job);
	cu_context before;
	cu_result code;

	if (!st)
		st = check_range(job, offset, bytes, job->layout.param_bytes);
	if (st)
		return st;
	code = cuda_enter(job->memory.cuda, &before);
	if (!code) {
		code = copy_params(job, stream, to, offset, bytes);
		cuda_leave(job->memory.cuda, before);
	}
	return code ? fail(job, code, "copying parameters to the device") : GACC_OK;
}

/* ---- rings ---- */

/* The host function: says that the slot is full. Counts by itself, so that a graph that is launched again goes on. */
static void ring_now(void *arg)
{
	struct cuda_ring *r = arg;
	struct cuda *c = r->cuda;
	uint64_t value = __atomic_add_fetch(&r->rung, 1, __ATOMIC_RELAXED);

	pthread_mutex_lock(&c->lock);
	if (c->job) {
		words_raise(&c->job->memory.words, r->slot + 1, value);
		gacc_ring(c->job);
	}
	pthread_mutex_unlock(&c->lock);
}

/* On a side stream, so that the caller's does not wait for a thread of the host. */
static cu_result ring_behind(struct cuda *c, struct cuda_ring *r, cu_stream stream)
{
	cu_result code = c->api.cuEventRecord(c->event, stream);

	if (!code)
		code = c->api.cuStreamWaitEvent(c->side, c->event, CU_EVENT_WAIT_DEFAULT);
	if (!code)
		code = c->api.cuLaunchHostFunc(c->side, ring_now, r);
	if (code != CUDA_ERROR_NOT_SUPPORTED)
		return code;
	code = c->api.cuStreamSynchronize(stream); /* a device without stream operations */
	if (!code)
		ring_now(r);
	return code;
}

/* In the context. *out_captured: it will come with each launch of a graph. A side stream would have to be joined again,
 * so the host function is the graph's own. */
static cu_result ring(struct cuda *c, struct cuda_ring *r, cu_stream stream, bool *out_captured)
{
	cu_capture_status capture = CU_STREAM_CAPTURE_STATUS_NONE;
	cu_result code = c->api.cuStreamIsCapturing(stream, &capture);

	if (code)
		return code;
	*out_captured = capture != CU_STREAM_CAPTURE_STATUS_NONE;
	return *out_captured ? c->api.cuLaunchHostFunc(stream, ring_now, r) : ring_behind(c, r, stream);
}

static gacc_status enqueue_ring(gacc_job *job, cu_stream stream, bool *out_captured)
{
	gacc_status st = enter_with_slot(job);
	struct cuda *c = job->memory.cuda;
	cu_context before;
	cu_result code;

	if (st)
		return st;
	code = cuda_enter(c, &before);
	if (!code) {
		code = ring(c, &c->ring[job->held_slot], stream, out_captured);
		cuda_leave(c, before);
	}
	if (code)
		return fail(job, code, "enqueuing the slot's ring");
	if (!*out_captured)
		c->ring[job->held_slot].due++;
	return GACC_OK;
}

gacc_status gacc_cuda_ring(gacc_job *job, gacc_cuda_stream stream)
{
	bool captured;

	return enqueue_ring(job, stream, &captured);
}

gacc_status gacc_cuda_launched(gacc_job *job)
{
	gacc_status st = enter_with_slot(job);

	if (!st)
		job->memory.cuda->ring[job->held_slot].due++;
	return st;
}

gacc_status gacc_cuda_push_rung(gacc_job *job, const gacc_push_opts *opts, gacc_push_info *out)
{
	gacc_push_opts o = { .struct_size = sizeof(o) };
	gacc_status st = enter_with_slot(job);

	if (st)
		return st;
	if (opts && opts->struct_size >= sizeof(opts->struct_size))
		memcpy(&o, opts, opts->struct_size < sizeof(o) ? opts->struct_size : sizeof(o));
	if (opts && opts->struct_size < sizeof(opts->struct_size))
		return job_fail(job, ST_INVALID_ARGUMENT, NULL, "gacc_push_opts.struct_size is not set");
	if (o.ready_at || !job->memory.cuda->ring[job->held_slot].due)
		return job_fail(job, ST_INVALID_ARGUMENT, NULL,
				o.ready_at ? "ready_at is %u: the library has its own ready word for each slot"
					   : "ready_at is %u, and the slot has no ring: call gacc_cuda_ring",
				o.ready_at);
	o.struct_size = sizeof(o);
	o.ready_at = (uint32_t)job->held_slot + 1;
	o.ready_value = job->memory.cuda->ring[job->held_slot].due;
	o.ready_rings = 1;
	return gacc_push(job, &o, out);
}

static gacc_status check_capture(gacc_job *job, cu_stream stream)
{
	const struct cuda *c = job->memory.cuda;
	cu_capture_status capture = CU_STREAM_CAPTURE_STATUS_NONE;
	cu_context before;
	cu_result code = cuda_enter(c, &before);

	if (!code) {
		code = c->api.cuStreamIsCapturing(stream, &capture);
		cuda_leave(c, before);
	}
	if (code)
		return fail(job, code, "looking at the stream");
	if (capture == CU_STREAM_CAPTURE_STATUS_NONE)
		return GACC_OK;
	return job_fail(job, ST_INVALID_ARGUMENT,
			"capture gacc_cuda_ring, and call gacc_cuda_push_rung after each launch",
			"the stream is being captured: a graph does not repeat a push");
}

gacc_status gacc_cuda_push(gacc_job *job, gacc_cuda_stream stream, const gacc_push_opts *opts, gacc_push_info *out)
{
	gacc_status st = enter_with_slot(job);
	bool captured;

	if (!st)
		st = check_capture(job, stream);
	if (!st)
		st = enqueue_ring(job, stream, &captured);
	return st ? st : gacc_cuda_push_rung(job, opts, out);
}
