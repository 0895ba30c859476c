/* SPDX-License-Identifier: Apache-2.0 */
/* Small kernels for the test of the simulator, right ones and wrong ones, for test_sim.c. They are built for the host
 * alone, from the same names that the product's kernels use. */
#include "sample.h"

KERNEL(number_all, struct sample)
{
	put(&a.out[blockIdx.x * blockDim.x + threadIdx.x], (uint64_t)(blockIdx.x * blockDim.x + threadIdx.x));
}

/* The sum of all thread numbers of a block, by a tree in shared memory. */
#define SUM_OF_BLOCK(barrier)                                                                                          \
	SHARED(struct numbers, sh);                                                                                    \
	sh.value[threadIdx.x] = threadIdx.x;                                                                           \
	barrier;                                                                                                       \
	for (unsigned half = blockDim.x / 2; half; half /= 2) {                                                        \
		if (threadIdx.x < half)                                                                                \
			sh.value[threadIdx.x] += sh.value[threadIdx.x + half];                                         \
		barrier;                                                                                               \
	}                                                                                                              \
	if (threadIdx.x == 0)                                                                                          \
		put(&a.out[blockIdx.x], sh.value[0]);

struct numbers {
	uint64_t value[SAMPLE_THREADS];
};
KERNEL(sum_block, struct sample){ SUM_OF_BLOCK(__syncthreads()) } KERNEL(sum_block_no_barrier,
									 struct sample){ SUM_OF_BLOCK((void)0) }

/* What a warp makes of its lanes. */
KERNEL(warp_sum, struct sample)
{
	const unsigned t = threadIdx.x;
	uint64_t sum = t, half_sum = t;
	for (unsigned by = 16; by; by /= 2)
		sum += __shfl_down_sync(0xffffffffu, sum, by);
	for (unsigned by = 8; by; by /= 2)
		half_sum += __shfl_down_sync(0xffffffffu, half_sum, by, 16);
	const unsigned odd = __ballot_sync(0xffffffffu, t % 2);
	const uint64_t first = __shfl_sync(0xffffffffu, sum, 0);
	put(&a.out[t], t % 32 == 0 ? first << 32 | odd : t % 16 == 0 ? half_sum : first);
}

/* Each block takes SAMPLE_TICKETS tickets and notes its number on them. */
KERNEL(tickets, struct sample)
{
	for (unsigned i = 0; i < SAMPLE_TICKETS && threadIdx.x == 0; i++)
		put(&a.out[atomicAdd(a.counter, 1ull)], (uint64_t)blockIdx.x);
}

KERNEL(one_owner, struct sample)
{
	if (atomicCAS(a.counter, 0ull, (unsigned long long)blockIdx.x + 1) == 0)
		put(&a.out[0], (uint64_t)blockIdx.x + 1);
	atomicMax(&a.counter[1], (unsigned long long)blockIdx.x);
}

/* out[t] before out[n + t], for each t of the block. */
KERNEL(in_order, struct sample)
{
	put(&a.out[threadIdx.x], (uint64_t)1);
	fence_device();
	put(&a.out[blockDim.x + threadIdx.x], (uint64_t)1);
}
KERNEL(in_order_no_fence, struct sample)
{
	put(&a.out[threadIdx.x], (uint64_t)1);
	put(&a.out[blockDim.x + threadIdx.x], (uint64_t)1);
}

/* A thread sees what it has stored, and the last of two stores stays. */
KERNEL(own_stores, struct sample)
{
	uint64_t *mine = &a.out[threadIdx.x];
	put(mine, (uint64_t)threadIdx.x);
	put(mine, get(mine) + 1);
}

KERNEL(different_barriers, struct sample)
{
	if (threadIdx.x == 0)
		__syncwarp();
	__syncthreads();
}

KERNEL(too_much_shared, struct sample)
{
	struct large {
		unsigned char bytes[SIM_SHARED_BYTES + 1];
	};
	SHARED(struct large, sh);
	put(&a.out[0], (uint64_t)sh.bytes[0]);
}
