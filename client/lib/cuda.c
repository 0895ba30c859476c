/* SPDX-License-Identifier: Apache-2.0 */
/* gacc_cuda_register, which finds the driver and a context and pins or imports the job's memory, and what enqueues
 * rings. The job's thread; ring_now on threads of the driver. */
#include "lib/cuda_calls.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK_DEFAULT ((size_t)4 << 30)

_Static_assert(CUDA_SLOTS_MAX == SLOTS_MAX, "each slot has its pins and its ring");

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
						: "no memory to pin or import: register tensors first");
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
		return code ? cuda_fail(job, code, "taking the device's primary context") : GACC_OK;
	}
	if (!code)
		code = c->api.cuCtxGetCurrent(&c->context);
	if (!code && !c->context)
		return job_fail(job, ST_INVALID_ARGUMENT,
				"call cudaSetDevice, torch.cuda.init() or cuCtxSetCurrent, or name a device",
				"no CUDA context is current on this thread");
	if (!code)
		code = c->api.cuCtxGetDevice(&c->device);
	return code ? cuda_fail(job, code, "finding the current CUDA context") : GACC_OK;
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
		return cuda_fail(job, code, "making a stream and an event");
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
	if (job->memory.inlined || job->memory.device || job->on_device)
		return GACC_OK;
	return session_run(job, "tell gaccd of the device", job->timeout_ms, tell_attempt, NULL);
}

static gacc_status pin(gacc_job *job)
{
	char why[200] = "";
	enum status st = memory_pin(&job->memory, why, sizeof(why));

	if (!st)
		return GACC_OK;
	return job_fail(job, st == ST_NO_MEMORY ? st : ST_INTERNAL,
			"the job's slots and parameters must fit into memory that can be pinned (ulimit -l)", "%s",
			why);
}

/* Slots and parameters of the device. Says to gaccd, too, that a device writes to them. */
static gacc_status import(gacc_job *job)
{
	struct memory *m = &job->memory;
	struct cu_uuid uuid;
	cu_result code = m->cuda->api.cuDeviceGetUuid(&uuid, m->cuda->device);
	gacc_status st;

	if (code)
		return cuda_fail(job, code, "asking for the device's UUID");
	cuda_uuid_text(&uuid, m->gpu);
	m->device = true;
	st = session_run(job, "import the job's memory", job->timeout_ms, memory_map_attempt, NULL);
	if (st)
		m->device = false;
	return st;
}

gacc_status gacc_cuda_register(gacc_job *job, const gacc_cuda_opts *opts)
{
	gacc_cuda_opts o;
	gacc_status st = job_enter(job);
	char why[200] = "";
	struct cuda *c;

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
	if (!st)
		st = job->on_device ? import(job) : pin(job);
	if (st) {
		job->memory.cuda = NULL;
		cuda_free(c);
	}
	return st;
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
	gacc_status st = cuda_begin_with_slot(job);
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
		return cuda_fail(job, code, "enqueuing the slot's ring");
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
	gacc_status st = cuda_begin_with_slot(job);

	if (!st)
		job->memory.cuda->ring[job->held_slot].due++;
	return st;
}

gacc_status gacc_cuda_push_rung(gacc_job *job, const gacc_push_opts *opts, gacc_push_info *out)
{
	gacc_push_opts o = { .struct_size = sizeof(o) };
	gacc_status st = cuda_begin_with_slot(job);

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
		return cuda_fail(job, code, "looking at the stream");
	if (capture == CU_STREAM_CAPTURE_STATUS_NONE)
		return GACC_OK;
	return job_fail(job, ST_INVALID_ARGUMENT,
			"capture gacc_cuda_ring, and call gacc_cuda_push_rung after each launch",
			"the stream is being captured: a graph does not repeat a push");
}

gacc_status gacc_cuda_push(gacc_job *job, gacc_cuda_stream stream, const gacc_push_opts *opts, gacc_push_info *out)
{
	gacc_status st = cuda_begin_with_slot(job);
	bool captured;

	if (!st)
		st = check_capture(job, stream);
	if (!st)
		st = enqueue_ring(job, stream, &captured);
	return st ? st : gacc_cuda_push_rung(job, opts, out);
}
