/* SPDX-License-Identifier: Apache-2.0 */
/* gacc_push: hands one micro-batch to gaccd, now or queued (async.c), and repeats it after an outage. The job's thread.
 */
#include "lib/internal.h"

#include "proto/failpoint.h"

#include <inttypes.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define READY_TIMEOUT_MS 60000

/* ---- what the caller says ---- */

static gacc_status read_opts(struct gacc_job *job, const gacc_push_opts *in, gacc_push_opts *o)
{
	*o = (gacc_push_opts){ .weight = 1 };
	if (in && (in->struct_size < sizeof(in->struct_size) || in->struct_size > 4096))
		return job_fail(job, ST_INVALID_ARGUMENT, NULL, "gacc_push_opts.struct_size is not set");
	if (in)
		memcpy(o, in, in->struct_size < sizeof(*o) ? in->struct_size : sizeof(*o));
	if (o->weight == 0)
		o->weight = 1;
	if (!isfinite(o->weight) || o->weight < DBL_MIN)
		return job_fail(job, ST_BAD_WEIGHT, "send the number of samples or tokens of the micro-batch",
				"weight is %g: it must be %g..%g", o->weight, DBL_MIN, DBL_MAX);
	if (!(o->lr >= 0 && o->lr <= FLT_MAX))
		return job_fail(job, ST_INVALID_ARGUMENT, "give the window's learning rate, or 0 for the schedule's",
				"lr is %g: it must be 0..%g", o->lr, (double)FLT_MAX);
	return GACC_OK;
}

static gacc_status check_ready(struct gacc_job *job, const gacc_push_opts *o)
{
	if (!o->ready_at && (o->ready_value || o->ready_rings))
		return job_fail(job, ST_INVALID_ARGUMENT, "name the word in ready_at",
				"ready_value or ready_rings, and no ready word");
	if (o->ready_at > GACC_READY_WORDS || o->ready_timeout_ms < -1)
		return job_fail(job, ST_INVALID_ARGUMENT, NULL,
				"ready_at is %u: it must be 0..%d; ready_timeout_ms is %d: it must be -1 or more",
				o->ready_at, GACC_READY_WORDS, o->ready_timeout_ms);
	if (o->ready_at && !job->memory.words.at)
		return job_fail(job, ST_INVALID_ARGUMENT, "call gacc_ready_word", "a ready word that nobody can store");
	return GACC_OK;
}

/* Of now_ms. */
static int64_t ready_until(const gacc_push_opts *o)
{
	if (o->ready_timeout_ms < 0)
		return INT64_MAX;
	return now_ms() + (o->ready_timeout_ms ? o->ready_timeout_ms : READY_TIMEOUT_MS);
}

static gacc_status fill_push(struct gacc_job *job, const gacc_push_opts *o, struct push *push)
{
	size_t n = (job->layout.n + 7) / 8;
	bool last;

	*push = (struct push){ .window = job->window.number,
			       .slot = (uint32_t)job->held_slot,
			       .weight = o->weight,
			       .loss = o->loss,
			       .loss_scale = job->window.loss_scale,
			       .data_key = o->data_key,
			       .zero_after = o->zero_after,
			       .lr = o->lr,
			       .ready_at = o->ready_at,
			       .ready_value = o->ready_value,
			       .ready_rings = o->ready_rings,
			       .ready_until = o->ready_at ? ready_until(o) : 0 };
	window_next(&job->window, &push->micro, &last);
	if (!o->present)
		return GACC_OK;
	push->present = malloc(n);
	if (!push->present)
		return job_fail(job, ST_NO_MEMORY, NULL, "no memory for the bitmap of %zu tensors", job->layout.n);
	memcpy(push->present, o->present, n);
	push->n_present = n;
	return GACC_OK;
}

static gacc_status check_push(struct gacc_job *job)
{
	gacc_status st = job_enter(job);
	uint32_t micro;
	bool last;

	if (st)
		return st;
	if (!job->running)
		return job_fail(job, ST_NOT_READY, "call gacc_ready", "the job has not started here");
	if (job->pending_apply || !window_next(&job->window, &micro, &last))
		return job_fail(job, ST_WINDOW_FULL, "call gacc_wait",
				"this rank has given all its %u micro-batches of window %" PRIu64,
				job->window.micro_size, job->window.number);
	return GACC_OK;
}

static void fill_info(const struct push *push, gacc_push_info *out)
{
	if (out)
		*out = (gacc_push_info){ .window = push->window,
					 .micro = push->micro,
					 .count = push->count,
					 .micro_size = push->micro_size,
					 .duplicate = push->duplicate,
					 .parked_ns = push->parked_ns };
}

/* The slot that the caller holds; not if its push may have been counted, and it is the sum (accumulate: none). */
static bool may_be_written(const struct gacc_job *job)
{
	return job->held_slot >= 0 && !async_is_kept(job, (uint32_t)job->held_slot);
}

/* ---- the public calls ---- */

gacc_status gacc_grad_buffer(gacc_job *job, void **base, size_t *bytes)
{
	gacc_status st = job_enter(job);

	if (st)
		return st;
	if (!job->registered || !base)
		return job_fail(job, ST_INVALID_ARGUMENT, NULL, "no buffer: register tensors first");
	st = job_has_memory(job);
	if (st)
		return st;
	st = may_be_written(job) ? async_held_slot(job) : async_free_slot(job, &job->held_slot);
	if (st)
		return st;
	*base = mapping_data(&job->memory.slot[job->held_slot]);
	if (bytes)
		*bytes = job->layout.slot_bytes;
	FAILPOINT(client_slot_given);
	return GACC_OK;
}

/* Takes push->present. Its slot may be pushed again as it is: by its first push, which a later one does not change. */
static void remember(struct gacc_job *job, struct push *push)
{
	if (job->held_slot < 0 || may_be_written(job) || push->was_kept) {
		free(push->present);
		return;
	}
	free(job->kept_as.present);
	job->kept_as = (struct kept_as){ push->present, push->data_key };
}

static gacc_status push_now(struct gacc_job *job, struct push *push)
{
	gacc_status st = async_settle(job); /* those queued before it come first */

	if (st)
		return st;
	if (posted_push_now(job, push))
		return push_conclude(job, push, GACC_OK);
	return push_conclude(job, push, push_by_rpc(job, push));
}

gacc_status gacc_push(gacc_job *job, const gacc_push_opts *opts, gacc_push_info *out)
{
	gacc_push_opts o;
	struct push push;
	gacc_status st = check_push(job);

	if (!st)
		st = read_opts(job, opts, &o);
	if (!st)
		st = check_ready(job, &o);
	if (!st && job->held_slot < 0)
		st = job_fail(job, ST_BAD_SLOT, "call gacc_grad_buffer", "no slot to push");
	if (!st)
		st = fill_push(job, &o, &push);
	if (st)
		return st;
	job->memory.late[push.slot] =
		(struct late){ push.ready_at, push.ready_value, push.ready_until, push.window, push.micro };
	FAILPOINT(client_slot_filled);
	async_keep(job, &push);
	if (o.async) {
		st = async_push(job, &push);
	} else {
		st = push_now(job, &push);
	}
	if (!st || failure_is_late(&job->failure) || push.is_void)
		job->held_slot = -1;
	async_kept(job, &push, st, o.async);
	if (!o.async)
		remember(job, &push);
	if (!st)
		fill_info(&push, out);
	return st;
}

/* The slot has the gradient of the first call already. */
static gacc_status copy_again(gacc_job *job, gacc_push_opts *o, gacc_push_info *out)
{
	const struct kept_as *k = &job->kept_as;

	if (o->data_key && k->data_key && o->data_key != k->data_key)
		return job_fail(job, ST_DATA_KEY_MISMATCH, "repeat it as it was, or call gacc_grad_buffer before",
				"data_key is %" PRIu64 ": the gradient that may be counted has %" PRIu64, o->data_key,
				k->data_key);
	o->present = k->present;
	return gacc_push(job, o, out);
}

gacc_status gacc_push_copy(gacc_job *job, const void *const *grads, const gacc_push_opts *opts, gacc_push_info *out)
{
	unsigned char *present;
	gacc_push_opts o;
	void *slot = NULL;
	gacc_status st = check_push(job);

	if (!st)
		st = read_opts(job, opts, &o);
	if (!st && (!grads || o.present || o.ready_at))
		st = job_fail(job, ST_INVALID_ARGUMENT, NULL,
			      "gacc_push_copy needs gradients, complete ones, and no bitmap: NULL is absent");
	o.struct_size = sizeof(o);
	if (!st && job->held_slot >= 0 && !may_be_written(job))
		return copy_again(job, &o, out);
	if (!st)
		st = gacc_grad_buffer(job, &slot, NULL);
	if (st)
		return st;
	present = calloc(1, (job->layout.n + 7) / 8);
	if (!present)
		return job_fail(job, ST_NO_MEMORY, NULL, "no memory for the bitmap of %zu tensors", job->layout.n);
	for (size_t i = 0; i < job->layout.n; i++) {
		const struct tensor *t = grads[i] ? &job->layout.tensors[i] : NULL;

		if (!t || t->alias)
			continue;
		memcpy((unsigned char *)slot + t->slot_offset, grads[i], t->count * dtype_bytes(t->grad_dtype));
		present[i / 8] |= (unsigned char)(1u << i % 8);
	}
	o.present = present;
	st = gacc_push(job, &o, out);
	free(present);
	return st;
}
