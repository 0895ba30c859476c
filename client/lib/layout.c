/* SPDX-License-Identifier: Apache-2.0 */
/* Where tensors lie in the job's memory: what the program may ask, and putting the values of all tensors in their
 * places. The job's thread. */
#include "lib/internal.h"

#include <string.h>

static size_t param_bytes(const struct tensor *t)
{
	return t->count * dtype_bytes(t->param_dtype);
}

void layout_gather(const struct layout *layout, const void *const *values, size_t offset, unsigned char *dst, size_t n)
{
	memset(dst, 0, n);
	for (size_t i = 0; i < layout->n; i++) {
		const struct tensor *t = &layout->tensors[i];
		size_t from = t->param_offset, to = from + param_bytes(t);

		if (t->alias || to <= offset || from >= offset + n)
			continue;
		from = from > offset ? from : offset;
		to = to < offset + n ? to : offset + n;
		memcpy(dst + (from - offset), (const unsigned char *)values[i] + (from - t->param_offset), to - from);
	}
}

/* ---- the public calls ---- */

size_t gacc_offset(const gacc_job *job, size_t t)
{
	return t < job->layout.n ? job->layout.tensors[t].slot_offset : 0;
}

size_t gacc_param_offset(const gacc_job *job, size_t t)
{
	return t < job->layout.n ? job->layout.tensors[t].param_offset : 0;
}

size_t gacc_reduced_offset(const gacc_job *job, size_t t)
{
	return t < job->layout.n ? job->layout.tensors[t].reduced_offset : 0;
}

gacc_dtype gacc_grad_dtype(const gacc_job *job, size_t t)
{
	return t < job->layout.n ? job->layout.tensors[t].grad_dtype : GACC_F32;
}

gacc_dtype gacc_reduced_dtype(const gacc_job *job)
{
	return job->layout.accum_dtype;
}

int gacc_params_needed(const gacc_job *job)
{
	return job->layout.params_needed;
}
