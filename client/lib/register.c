/* SPDX-License-Identifier: Apache-2.0 */
/* Registers the tensors, in one call if one message has room for them, else in portions; then fetches their layout,
 * part by part if it is large, and maps the memory. */
#include "lib/internal.h"

#include "lib/channel.h"
#include "gacc/v1/gradient.pb-c.h"
#include "proto/bytes.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NDIM_MAX 8
#define PORTION_BYTES (1 << 20) /* of tensors in one message, about */
#define LAYOUT_TENSORS 50000	/* in one answer: 2.5 MB at most */

/* gacc_dtype is a copy of gacc.v1.DataType. */
_Static_assert((int)GACC_F32 == (int)GACC__V1__DATA_TYPE__DATA_TYPE_F32, "as in common.proto");
_Static_assert((int)GACC_F64 == (int)GACC__V1__DATA_TYPE__DATA_TYPE_F64, "as in common.proto");
_Static_assert((int)GACC_F16 == (int)GACC__V1__DATA_TYPE__DATA_TYPE_F16, "as in common.proto");
_Static_assert((int)GACC_BF16 == (int)GACC__V1__DATA_TYPE__DATA_TYPE_BF16, "as in common.proto");

static gacc_status check_tensors(struct gacc_job *job, const gacc_tensor *t, size_t n)
{
	if (!t || !n)
		return job_fail(job, ST_INVALID_ARGUMENT, NULL, "no tensors");
	for (size_t i = 0; i < n; i++)
		if (!t[i].name || t[i].ndim < 0 || t[i].ndim > NDIM_MAX)
			return job_fail(job, ST_INVALID_ARGUMENT, NULL, "tensor %zu: no name, or %d dimensions", i,
					t[i].ndim);
	return GACC_OK;
}

static void describe(const gacc_tensor *t, size_t n, Gacc__V1__TensorSpec *spec, Gacc__V1__TensorSpec **list)
{
	for (size_t i = 0; i < n; i++) {
		gacc__v1__tensor_spec__init(&spec[i]);
		spec[i].name = (char *)(uintptr_t)t[i].name;
		spec[i].dtype = (Gacc__V1__DataType)t[i].dtype;
		spec[i].n_shape = (size_t)t[i].ndim;
		spec[i].shape = (int64_t *)(uintptr_t)t[i].shape;
		if (t[i].alias_of)
			spec[i].alias_of = (char *)(uintptr_t)t[i].alias_of;
		list[i] = &spec[i];
	}
}

/* ---- tensors ---- */

/* Where we are in telling gaccd the tensors. */
struct declaring {
	const gacc_tensor *tensors;
	size_t n, given;
	bool whole;		    /* all in one call, as the first gaccd had it */
	Gacc__V1__TensorSpec *spec; /* of all */
	Gacc__V1__TensorSpec **list;
	Gacc__V1__RegisterTensorsResponse *reply; /* of the last portion */
};

/* At most so many bytes does the tensor take in a message. */
static size_t message_bytes(const gacc_tensor *t)
{
	return strlen(t->name) + (t->alias_of ? strlen(t->alias_of) : 0) + 20 + 10 * (size_t)t->ndim;
}

/* How many tensors from `first` on make a portion. */
static size_t portion_of(const gacc_tensor *t, size_t first, size_t n)
{
	size_t bytes = 0, i = first;

	while (i < n && (bytes += message_bytes(&t[i])) <= PORTION_BYTES)
		i++;
	return i > first ? i - first : 1;
}

/* Sends one portion; none if gaccd was restarted and has lost the earlier ones. */
static enum status give_portion(struct gacc_job *job, void *arg, int64_t timeout_ms, struct rpc_failure *f)
{
	struct declaring *d = arg;
	Gacc__V1__RegisterTensorsRequest request = GACC__V1__REGISTER_TENSORS_REQUEST__INIT;
	struct unary call = { .method = "RegisterTensors", .request = &request.base };
	size_t n = portion_of(d->tensors, d->given, d->n);
	enum status st;

	request.session = job->session;
	request.tensors = d->list + d->given;
	request.n_tensors = n;
	if (!d->whole) {
		request.first = d->given;
		request.total = d->n;
	}
	request.layout_limit = d->n > LAYOUT_TENSORS ? LAYOUT_TENSORS : 0;
	st = session_unary(job, &call, timeout_ms, f);
	if (st == ST_OUT_OF_ORDER && d->given) { /* a restart, or a new session of ours */
		d->given = 0;
		return ST_OK;
	}
	if (st)
		return st;
	d->given += n;
	d->reply = (Gacc__V1__RegisterTensorsResponse *)call.reply;
	if (d->whole || d->reply->received >= d->given) {
		if (d->given < d->n) {
			bytes_free(call.reply);
			d->reply = NULL;
		}
		return ST_OK;
	}
	bytes_free(call.reply);
	d->reply = NULL;
	f->status = ST_VERSION_SKEW;
	snprintf(f->message, sizeof(f->message),
		 "this gaccd takes no tensor sets in portions: %zu tensors are too many for one message", d->n);
	return ST_VERSION_SKEW;
}

/* For session_run. */
static int left_ms(int64_t deadline)
{
	int64_t left = deadline - now_ms();

	return deadline == INT64_MAX ? -1 : left < 1 ? 1 : left > INT_MAX ? INT_MAX : (int)left;
}

static gacc_status declare(struct gacc_job *job, struct declaring *d, int64_t deadline)
{
	gacc_status st = GACC_OK;

	d->spec = calloc(d->n, sizeof(*d->spec));
	d->list = calloc(d->n, sizeof(*d->list));
	if (!d->spec || !d->list)
		return job_fail(job, ST_NO_MEMORY, NULL, "no memory for %zu tensors", d->n);
	describe(d->tensors, d->n, d->spec, d->list);
	d->whole = portion_of(d->tensors, 0, d->n) == d->n;
	while (!st && d->given < d->n)
		st = session_run(job, "register tensors", left_ms(deadline), give_portion, d);
	return st;
}

/* ---- layout ---- */

/* Every tensor must lie inside, or a later copy would write past the end. */
static bool fits(size_t offset, size_t count, size_t size, size_t limit)
{
	size_t bytes;

	return !__builtin_mul_overflow(count, size, &bytes) && offset <= limit && bytes <= limit - offset;
}

/* The tensors in this part are `first` and those that follow it. */
static bool layout_ok(const struct layout *l, const Gacc__V1__RegisterTensorsResponse *r, size_t first)
{
	size_t left = l->n - first;

	if (l->n > LAYOUT_TENSORS ? !r->n_layout || r->n_layout > left : r->n_layout != left)
		return false;
	if (r->slots != l->slots || r->slot_bytes != l->slot_bytes || r->param_bytes != l->param_bytes ||
	    r->accum_bytes != l->accum_bytes || r->fingerprint != l->fingerprint ||
	    (gacc_dtype)r->accumulate_dtype != l->accum_dtype)
		return false;
	for (size_t i = 0; i < r->n_layout; i++) {
		const Gacc__V1__TensorLayout *t = r->layout[i];

		if (!fits(t->slot_offset, t->count, dtype_bytes((gacc_dtype)t->grad_dtype), l->slot_bytes) ||
		    !fits(t->param_offset, t->count, dtype_bytes((gacc_dtype)t->param_dtype), l->param_bytes) ||
		    !fits(t->accum_offset, t->count, dtype_bytes((gacc_dtype)l->accum_dtype), l->accum_bytes))
			return false;
	}
	return true;
}

static gacc_status take_part(struct gacc_job *job, const Gacc__V1__RegisterTensorsResponse *r, const gacc_tensor *t,
			     size_t first)
{
	struct layout *l = &job->layout;

	if (!layout_ok(l, r, first))
		return job_fail(job, ST_MALFORMED, NULL, "gaccd's layout does not fit the tensor set");
	for (size_t i = 0; i < r->n_layout; i++)
		l->tensors[first + i] = (struct tensor){ .slot_offset = r->layout[i]->slot_offset,
							 .param_offset = r->layout[i]->param_offset,
							 .reduced_offset = r->layout[i]->accum_offset,
							 .count = r->layout[i]->count,
							 .grad_dtype = (gacc_dtype)r->layout[i]->grad_dtype,
							 .param_dtype = (gacc_dtype)r->layout[i]->param_dtype,
							 .alias = t[first + i].alias_of && *t[first + i].alias_of };
	return GACC_OK;
}

/* The rest of a layout that is too large for one answer. */
static gacc_status fetch_layout(struct gacc_job *job, const gacc_tensor *t, size_t have, int64_t deadline)
{
	Gacc__V1__RegisterTensorsRequest request = GACC__V1__REGISTER_TENSORS_REQUEST__INIT;
	struct unary call = { .method = "RegisterTensors", .request = &request.base };
	gacc_status st = GACC_OK;

	request.session = job->session;
	request.layout_limit = LAYOUT_TENSORS;
	while (!st && have < job->layout.n) {
		request.layout_first = have;
		st = session_run(job, "ask for the tensors' layout", left_ms(deadline), session_unary, &call);
		if (st)
			break;
		st = take_part(job, (Gacc__V1__RegisterTensorsResponse *)call.reply, t, have);
		have += ((Gacc__V1__RegisterTensorsResponse *)call.reply)->n_layout;
		bytes_free(call.reply);
	}
	return st;
}

static gacc_status take_layout(struct gacc_job *job, const Gacc__V1__RegisterTensorsResponse *r, const gacc_tensor *t,
			       size_t n, int64_t deadline)
{
	struct layout *l = &job->layout;
	gacc_status st;

	if (!r->slots || r->slots > SLOTS_MAX)
		return job_fail(job, ST_MALFORMED, NULL, "gaccd offers %u slots", r->slots);
	l->tensors = calloc(n, sizeof(*l->tensors));
	if (!l->tensors)
		return job_fail(job, ST_NO_MEMORY, NULL, "no memory for %zu tensors", n);
	l->n = n;
	l->slot_bytes = r->slot_bytes;
	l->param_bytes = r->param_bytes;
	l->accum_bytes = r->accum_bytes;
	l->slots = r->slots;
	l->fingerprint = r->fingerprint;
	l->params_needed = r->params_needed;
	l->keeps_slot = r->keeps_slot;
	l->accum_dtype = (gacc_dtype)r->accumulate_dtype;
	st = take_part(job, r, t, 0);
	if (!st)
		st = fetch_layout(job, t, r->n_layout, deadline);
	if (st) {
		free(l->tensors);
		*l = (struct layout){ 0 };
	}
	return st;
}

/* ---- memory ---- */

enum status memory_map_attempt(struct gacc_job *job, void *arg, int64_t timeout_ms, struct rpc_failure *f)
{
	/* after a recovery the memory is there already */
	return job->memory.params.base ? ST_OK : memory_map(&job->memory, job, f);
}

static gacc_status get_memory(struct gacc_job *job)
{
	if (job->on_device && !(job->wants_memory && *job->attach_socket))
		return job_fail(
			job, ST_NOT_SUPPORTED, "run the trainer on that node, or submit the job with slots_on: host",
			"the job's slots are in the memory of a GPU, which needs the attach socket of its node");
	if (job->on_device)
		return GACC_OK; /* by gacc_cuda_register */
	if (job->wants_memory && *job->attach_socket)
		return session_run(job, "map memory", job->timeout_ms, memory_map_attempt, NULL);
	if (memory_inline(&job->memory, &job->layout, job->client_optimizer))
		return job_fail(job, ST_NO_MEMORY, NULL, "no memory for gradients and parameters");
	return GACC_OK;
}

gacc_status gacc_register(gacc_job *job, const gacc_tensor *tensors, size_t n)
{
	struct declaring d = { .tensors = tensors, .n = n };
	int64_t deadline = job->timeout_ms < 0 ? INT64_MAX : now_ms() + job->timeout_ms;
	gacc_status st = job_enter(job);

	if (st)
		return st;
	if (job->registered)
		return job_fail(job, ST_INVALID_ARGUMENT, NULL, "the tensors are registered already");
	st = check_tensors(job, tensors, n);
	if (st)
		return st;
	st = declare(job, &d, deadline);
	free(d.spec);
	free(d.list);
	if (st)
		return st;
	st = take_layout(job, d.reply, tensors, n, deadline);
	bytes_free(&d.reply->base);
	if (st)
		return st;
	job->registered = true;
	st = get_memory(job);
	if (st)
		job->registered = false;
	return st;
}
