/* SPDX-License-Identifier: Apache-2.0 */
/* Where the device sees a job's memory, and copies between that and a trainer's own: gradients and parameters. Of the
 * calls of gacc_cuda.h; the job's thread. */
#include "lib/cuda_calls.h"

#include <stdlib.h>
#include <string.h>

#define HALF (CUDA_STAGE_BYTES / 2)

gacc_status cuda_fail(gacc_job *job, cu_result code, const char *what)
{
	const struct cuda *c = job->memory.cuda;

	return job_fail(job, code == CUDA_ERROR_OUT_OF_MEMORY ? ST_NO_MEMORY : ST_INTERNAL,
			"see what the program did on the device before", "%s: %s", what,
			cuda_result_name(&c->api, code));
}

/* ---- what the other calls begin with ---- */

gacc_status cuda_begin(gacc_job *job)
{
	gacc_status st = job_enter(job);

	if (!st && !job->memory.cuda)
		st = job_fail(job, ST_INVALID_ARGUMENT, "call gacc_cuda_register",
			      "this job has no memory that a device knows");
	return st;
}

gacc_status cuda_begin_with_slot(gacc_job *job)
{
	gacc_status st = cuda_begin(job);

	if (!st && job->held_slot < 0)
		st = job_fail(job, ST_BAD_SLOT, "call gacc_grad_buffer", "no slot is held");
	return st;
}

/* An address in memory of the device is one for the device, too. */
static bool find_imported(const struct mapping *m, const void *at, cu_memory *out, size_t *out_bytes)
{
	const unsigned char *p = at;

	if (!m->device.bytes || p < m->base || p >= m->base + m->bytes)
		return false;
	*out = (cu_memory)(uintptr_t)p;
	*out_bytes = (size_t)(m->base + m->bytes - p);
	return true;
}

gacc_status gacc_cuda_address(gacc_job *job, const void *host, gacc_cuda_memory *out, size_t *out_bytes)
{
	gacc_status st = cuda_begin(job);
	const struct cuda *c = job->memory.cuda;
	bool found = false;
	cu_memory at = 0;
	size_t left = 0;

	if (st)
		return st;
	for (int i = 0; i <= SLOTS_MAX && !found; i++)
		found = find_imported(i < SLOTS_MAX ? &job->memory.slot[i] : &job->memory.params, host, &at, &left) ||
			cuda_find(c, i < SLOTS_MAX ? &c->slot[i] : &c->params, host, &at, &left);
	if (!found || !out)
		return job_fail(job, ST_INVALID_ARGUMENT, NULL,
				"%p is in no slot and not in parameters that the device sees", host);
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
	gacc_status st = cuda_begin_with_slot(job);
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
		unsigned char *to = mapping_data(&job->memory.slot[job->held_slot]) + offset;

		code = job->on_device ? c->api.cuMemcpyDtoDAsync((cu_memory)(uintptr_t)to, from, bytes, stream)
				      : copy_pinned(c, &c->slot[job->held_slot], to, from, bytes, true, stream);
		cuda_leave(c, before);
	}
	return code ? cuda_fail(job, code, "copying a gradient to its slot") : GACC_OK;
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

	if (job->on_device)
		return c->api.cuMemcpyDtoDAsync(to, (cu_memory)(uintptr_t)host, bytes, stream);
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
	gacc_status st = cuda_begin(job);
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
	return code ? cuda_fail(job, code, "copying parameters to the device") : GACC_OK;
}

int gacc_cuda_is_on_device(const gacc_job *job)
{
	return job->on_device;
}

/* In the context. */
static cu_result read_params(gacc_job *job, const void *from, void *to, size_t bytes)
{
	const struct cuda *c = job->memory.cuda;
	cu_result code = c->api.cuMemcpyDtoHAsync(to, (cu_memory)(uintptr_t)from, bytes, c->side);

	return code ? code : c->api.cuStreamSynchronize(c->side);
}

gacc_status gacc_cuda_read_params(gacc_job *job, void *to, size_t offset, size_t bytes)
{
	const void *base;
	gacc_status st = cuda_begin(job);
	cu_context before;
	cu_result code;

	if (!st)
		st = check_range(job, offset, bytes, job->layout.param_bytes);
	if (!st)
		st = gacc_params(job, &base, NULL);
	if (st)
		return st;
	if (!job->on_device) {
		memcpy(to, (const unsigned char *)base + offset, bytes);
		return GACC_OK;
	}
	code = cuda_enter(job->memory.cuda, &before);
	if (!code) {
		code = read_params(job, (const unsigned char *)base + offset, to, bytes);
		cuda_leave(job->memory.cuda, before);
	}
	return code ? cuda_fail(job, code, "copying parameters to the host") : GACC_OK;
}
