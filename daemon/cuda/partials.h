/* SPDX-License-Identifier: Apache-2.0 */
/* Results of blocks and their totals, in memory of this process on the GPU. One operation uses them at a time. Main
 * thread. */
#ifndef GACC_CUDA_PARTIALS_H
#define GACC_CUDA_PARTIALS_H

#include "cuda/life.h"

struct cuda_results {
	const struct cuda_life *life;
	uint64_t n; /* blocks that there is room for */
	struct cuda_partials at;
	const uint32_t *keys; /* digest_key, there */
	cu_memory sumsq, digest, nonfinite, key, total[2];
};

/* Room for n blocks. ST_NO_MEMORY, or as of the device. */
enum status cuda_results_new(struct cuda_results *out, const struct cuda_life *, uint64_t n);
void cuda_results_fini(struct cuda_results *); /* zeros are fine */

/* The same from block `first` on, for the argument of a kernel. */
struct cuda_partials cuda_results_from(const struct cuda_results *, uint64_t first);

/* Waits for all that is queued, which moves about so many bytes, and gives the totals of blocks [0, n): the sum in
 * kernel_sum's tree, the digest of kernel_digest_combine. `in` may have other arrays than those of `at`. */
enum status cuda_total_of(const struct cuda_results *, struct cuda_partials in, uint64_t n, uint64_t bytes,
			  struct cuda_total *out);

#endif
