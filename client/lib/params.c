/* SPDX-License-Identifier: Apache-2.0 */
/* gacc_put_params and gacc_get_params: sends the initial parameters, and reads current ones from mapped memory or
 * from a stream. The job's thread. */
#include "lib/internal.h"

#include "lib/channel.h"
#include "gacc/v1/gradient.pb-c.h"
#include "proto/segment_layout.h"

#include <stdatomic.h>
#include <stdint.h>

#define PUT_PARAMS "give the initial parameters"

static gacc_status fill_slot(struct gacc_job *job, const void *const *values, size_t offset, size_t n)
{
	unsigned char *to = mapping_data(&job->memory.slot[0]);
	char why[100];
	enum status st;

	if (!job->on_device) {
		layout_gather(&job->layout, values, offset, to, n);
		return GACC_OK;
	}
	st = cuda_fill(job->memory.cuda, &job->layout, values, offset, n, (uintptr_t)to, why, sizeof(why));
	if (!st)
		return GACC_OK;
	return job_fail(job, st == ST_NO_MEMORY ? st : ST_INTERNAL, NULL,
			"copying initial parameters to a slot on the device: %s", why);
}

/* One piece through slot 0; *ready says that the job needs no more. */
static gacc_status put_piece(struct gacc_job *job, const void *const *values, size_t offset, size_t n, bool *ready)
{
	Gacc__V1__PutParametersRequest request = GACC__V1__PUT_PARAMETERS_REQUEST__INIT;
	struct unary call = { .method = "PutParameters", .request = &request.base };
	gacc_status st;

	st = fill_slot(job, values, offset, n);
	if (st)
		return st;
	request.session = job->session;
	request.offset = offset;
	request.bytes = n;
	request.last = offset + n == job->layout.param_bytes;
	st = session_run(job, PUT_PARAMS, job->timeout_ms, session_unary, &call);
	if (st)
		return st;
	*ready = ((Gacc__V1__PutParametersResponse *)call.reply)->ready;
	bytes_free(call.reply);
	return GACC_OK;
}

/* All of them, from the first byte. */
static gacc_status put_all(struct gacc_job *job, const void *const *values)
{
	size_t total = job->layout.param_bytes, room = job->layout.slot_bytes;
	gacc_status st = GACC_OK;
	bool ready = false;

	for (size_t at = 0; at < total && !ready && !st; at += room)
		st = put_piece(job, values, at, total - at < room ? total - at : room, &ready);
	return st;
}

gacc_status gacc_put_params(gacc_job *job, const void *const *values)
{
	gacc_status st = job_enter(job);

	if (st)
		return st;
	if (!job->registered || job->running || !values)
		return job_fail(job, ST_NOT_READY, NULL,
				"parameters are given after gacc_register and before gacc_ready");
	st = job_has_memory(job);
	if (st)
		return st;
	for (size_t i = 0; i < job->layout.n; i++)
		if (!values[i] && !job->layout.tensors[i].alias)
			return job_fail(job, ST_INVALID_ARGUMENT, NULL, "no values for tensor %zu", i);
	if (job->memory.inlined) {
		st = session_run(job, PUT_PARAMS, job->timeout_ms, inline_put_params, &values);
	} else {
		st = put_all(job, values);
		if (st &&
		    job->failure.st ==
			    ST_INVALID_ARGUMENT) /* a gaccd that was started meanwhile has not seen the first pieces */
			st = put_all(job, values);
	}
	if (!st)
		job->layout.params_needed = false;
	return st;
}

static bool being_written(const struct memory *memory)
{
	const struct status_page *page = (const void *)mapping_data(&memory->status);

	return page && atomic_load_explicit(&page->seq, memory_order_acquire) & 1;
}

gacc_status gacc_params(gacc_job *job, const void **base, size_t *bytes)
{
	gacc_status st = job_enter(job);

	if (st)
		return st;
	if (!job->registered || !base)
		return job_fail(job, ST_NOT_READY, "call gacc_register", "no parameters are mapped");
	st = job_has_memory(job);
	if (st)
		return st;
	if (being_written(&job->memory))
		return job_fail(job, ST_PARAMS_CHANGED, "call gacc_wait first", "the parameters are being updated");
	*base = mapping_data(&job->memory.params);
	if (bytes)
		*bytes = job->layout.param_bytes;
	return GACC_OK;
}
