/* SPDX-License-Identifier: Apache-2.0 */
/* What the public calls of gacc_cuda.h begin and fail with. The job's thread. */
#ifndef GACC_CLIENT_CUDA_CALLS_H
#define GACC_CLIENT_CUDA_CALLS_H

#include "gacc/gacc_cuda.h"

#include "lib/internal.h"

/* As job_enter, and gacc_cuda_register has been called; and a slot is held. */
gacc_status cuda_begin(gacc_job *);
gacc_status cuda_begin_with_slot(gacc_job *);
/* The driver has failed at `what`. */
gacc_status cuda_fail(gacc_job *, cu_result, const char *what);

#endif
