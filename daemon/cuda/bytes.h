/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of a job's arenas on a GPU, to and from the host. What is written passes through memory that the GPU can read,
 * and a kernel that looks at the gate: a copy that a dead engine has queued would look at nothing. */
#ifndef GACC_CUDA_BYTES_H
#define GACC_CUDA_BYTES_H

#include "cuda/life.h"

#define CUDA_STAGING (UINT64_C(1) << 20) /* bytes */

struct cuda_lanes;

struct cuda_bytes {
	const struct cuda_life *life;
	void *staging;
	cu_memory seen;		  /* where kernels find it */
	struct cuda_lanes *lanes; /* for reads, beside the main thread's work */
};

/* ST_NO_MEMORY, or as of the device. */
enum status cuda_bytes_new(struct cuda_bytes *out, const struct cuda_life *);
void cuda_bytes_fini(struct cuda_bytes *); /* zeros are fine */

/* Any thread, several at once; they wait for nothing that the main thread has queued, and an error of the device is all
 * that they can find. read: through pinned memory, CUDA_STAGING bytes at a time. read_pinned: to memory that is pinned,
 * in one copy. */
enum status cuda_bytes_read(const struct cuda_bytes *, void *to, cu_memory from, uint64_t n);
enum status cuda_bytes_read_pinned(const struct cuda_bytes *, void *to, cu_memory from, uint64_t n);
/* Main thread. take: from host memory that kernels can read (cuda_pinned). */
enum status cuda_bytes_take(const struct cuda_bytes *, cu_memory to, cu_memory seen, uint64_t n);
enum status cuda_bytes_write(const struct cuda_bytes *, cu_memory to, const void *from, uint64_t n);

#endif
