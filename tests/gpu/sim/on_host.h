/* SPDX-License-Identifier: Apache-2.0 */
/* The names that kernels use, for a C++ compiler: given by -include to each .cu of the host's build, in place of what
 * math/cuda/device.h takes from nvcc. sim.h says what they mean and what they leave out. Collective operations of a
 * warp take all 32 lanes. */
#ifndef GACC_TESTS_ON_HOST_H
#define GACC_TESTS_ON_HOST_H

#include "sim.h"

#include <cmath>
#include <cstdint>
#include <cstring>

#define CUDA_ON_HOST 1

struct sim_index {
	unsigned x;
};
extern thread_local sim_index threadIdx, blockIdx, blockDim, gridDim;

struct alignas(16) float4 {
	float x, y, z, w;
};
struct alignas(16) uint4 {
	unsigned x, y, z, w;
};
struct alignas(8) uint2 {
	unsigned x, y;
};
static inline float4 make_float4(float x, float y, float z, float w)
{
	return { x, y, z, w };
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
	return { x, y, z, w };
}
static inline uint2 make_uint2(unsigned x, unsigned y)
{
	return { x, y };
}

#define __device__
#define __forceinline__ inline

extern "C" {
void sim_run(void (*fn)(const void *), const void *argument, unsigned grid, unsigned block);
void sim_barrier(void);
void sim_warp_barrier(void);
/* 32 cells of this warp, for its next exchange: two sets in turn, because a lane may be one exchange ahead. */
uint64_t *sim_cells(void);
/* This block's variable of that declaration. */
void *sim_shared(const void *declaration, size_t bytes);
void sim_store(void *to, const void *value, size_t bytes); /* up to 16 bytes */
/* Before this thread reads these bytes: what it has stored there itself is there. */
void sim_before_load(const void *from, size_t bytes);
/* Before an atomic operation or a look at what others change: the other blocks may come first. */
void sim_before_atomic(const void *at, size_t bytes, int changes);
void sim_fence(void);
}

/* A variable that the threads of a block share. */
#define SHARED(type, name)                                                                                             \
	static const char name##_declared = 0;                                                                         \
	type &name = *static_cast<type *>(sim_shared(&name##_declared, sizeof(type)))

static inline void __syncthreads(void)
{
	sim_barrier();
}
static inline void __syncwarp(void)
{
	sim_warp_barrier();
}
/* Both of the device's fences: there is one order of stores here. */
static inline void fence_device(void)
{
	sim_fence();
}
static inline void fence_in_order(void)
{
	sim_fence();
}

template <class T> static inline void put(T *to, T value)
{
	sim_store(to, &value, sizeof(value));
}
template <class T> static inline void put_stream(T *to, T value)
{
	sim_store(to, &value, sizeof(value));
}
template <class T> static inline T __ldcs(const T *from)
{
	sim_before_load(from, sizeof(T));
	return *from;
}
template <class T> static inline T __ldg(const T *from)
{
	return *from;
}
template <class T> static inline T get(const T *from)
{
	sim_before_load(from, sizeof(T));
	return *from;
}
/* What others change meanwhile. */
static inline unsigned long long look(const unsigned long long *at)
{
	sim_before_atomic(at, sizeof(*at), 0);
	return __atomic_load_n(at, __ATOMIC_SEQ_CST);
}
template <class T> static inline T atomicAdd(T *at, T value)
{
	sim_before_atomic(at, sizeof(*at), 1);
	return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);
}
template <class T> static inline T atomicCAS(T *at, T expected, T value)
{
	sim_before_atomic(at, sizeof(*at), 1);
	__atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	return expected; /* what was there, in both cases */
}
template <class T> static inline T atomicMax(T *at, T value)
{
	sim_before_atomic(at, sizeof(*at), 1);
	T old = __atomic_load_n(at, __ATOMIC_SEQ_CST);
	while (old < value && !__atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		;
	return old;
}

/* Gives each lane the value of lane `from`. */
template <class T> static inline T sim_exchange(T value, unsigned from)
{
	static_assert(sizeof(T) <= sizeof(uint64_t), "a cell holds 8 bytes");
	uint64_t *cell = sim_cells();
	memcpy(&cell[threadIdx.x % 32], &value, sizeof(value));
	sim_warp_barrier();
	memcpy(&value, &cell[from], sizeof(value));
	return value;
}
template <class T> static inline T __shfl_sync(unsigned, T value, unsigned from)
{
	return sim_exchange(value, from % 32);
}
template <class T> static inline T __shfl_down_sync(unsigned, T value, unsigned by, unsigned width = 32)
{
	const unsigned lane = threadIdx.x % 32;
	return sim_exchange(value, lane % width + by < width ? lane + by : lane);
}
static inline unsigned __ballot_sync(unsigned, int predicate)
{
	uint64_t *cell = sim_cells();
	unsigned set = 0;
	cell[threadIdx.x % 32] = predicate != 0;
	sim_warp_barrier();
	for (unsigned i = 0; i < 32; i++)
		set |= static_cast<unsigned>(cell[i]) << i;
	return set;
}

static inline float __fmul_rn(float a, float b)
{
	return a * b;
}
static inline float __fadd_rn(float a, float b)
{
	return a + b;
}
static inline float __fsub_rn(float a, float b)
{
	return a - b;
}
static inline float __fdiv_rn(float a, float b)
{
	return a / b;
}
static inline float __fsqrt_rn(float a)
{
	return sqrtf(a);
}
static inline unsigned __float_as_uint(float x)
{
	unsigned u;
	memcpy(&u, &x, sizeof(u));
	return u;
}
static inline float __uint_as_float(unsigned u)
{
	float x;
	memcpy(&x, &u, sizeof(x));
	return x;
}

/* KERNEL(name, struct type) { .. `a` is the argument .. } */
#define KERNEL(name, type)                                                                                             \
	static void name(const type &a);                                                                               \
	static void name##_thread(const void *argument)                                                                \
	{                                                                                                              \
		name(*static_cast<const type *>(argument));                                                            \
	}                                                                                                              \
	extern "C" __attribute__((visibility("default"))) sim_kernel host_##name;                                      \
	extern "C" void host_##name(void **params, unsigned grid, unsigned block)                                      \
	{                                                                                                              \
		sim_run(name##_thread, params[0], grid, block);                                                        \
	}                                                                                                              \
	static void name(const type &a)

#endif
