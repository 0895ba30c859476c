/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels are written in: CUDA's names where nvcc compiles, those of a simulator elsewhere (whoever builds for
 * it includes its header first: tests/gpu/sim/on_host.h); conversions; the gate. Every store to global memory is put()
 * or put_stream(): the simulator has to see it. */
#ifndef GACC_MATH_DEVICE_CUH
#define GACC_MATH_DEVICE_CUH

#include "math/cuda/kernels_cuda.h"

#ifndef CUDA_ON_HOST
#include <cuda_runtime.h>

#define UNROLL _Pragma("unroll")
#define UNROLL_16 _Pragma("unroll 16")
#define SHARED(type, name) __shared__ type name
#define KERNEL(name, type)                                                                                             \
	extern "C" __global__ void __launch_bounds__(CUDA_THREADS, 2) name(const __grid_constant__ type a)

template <class T> static __device__ __forceinline__ void put(T *to, T value)
{
	*to = value;
}
/* Past the caches: nobody reads it soon. */
template <class T> static __device__ __forceinline__ void put_stream(T *to, T value)
{
	__stcs(to, value);
}
template <class T> static __device__ __forceinline__ T get(const T *from)
{
	return *from;
}
/* What other blocks, and other launches, change meanwhile. */
static __device__ __forceinline__ cuda_word look(const cuda_word *at)
{
	cuda_word value;
	asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(value) : "l"(at) : "memory");
	return value;
}
/* Orders this thread's stores for everybody who looks at the device's memory. __threadfence() would do more, and cost
 * more: see fence_in_order. */
static __device__ __forceinline__ void fence_device()
{
	asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
/* The same, and a load after it comes after a store before it. */
static __device__ __forceinline__ void fence_in_order()
{
	__threadfence();
}
#else
#define UNROLL
#define UNROLL_16
#endif

#define DEVICE static __device__ __forceinline__
#define WARPS (CUDA_THREADS / 32)
#define EVERY_LANE 0xffffffffu

/* ---- values ---- */

DEVICE uint32_t is_nonfinite(float x)
{
	return (__float_as_uint(x) & 0x7f800000u) == 0x7f800000u;
}

DEVICE float bf16_to_f32(uint32_t h)
{
	return __uint_as_float(h << 16);
}

DEVICE uint32_t bf16_from_f32(float x)
{
	const uint32_t u = __float_as_uint(x);
	if ((u & 0x7fffffffu) > 0x7f800000u)
		return u >> 16 | 0x40; /* a NaN stays one */
	return (u + 0x7fffu + (u >> 16 & 1)) >> 16;
}

/* Subnormal halves are normal as f32: they are made by a product, because as bits they would count as zero. */
DEVICE float f16_to_f32(uint32_t h)
{
	const uint32_t sign = (h & 0x8000u) << 16, em = h & 0x7fffu;
	if (em < 0x400u)
		return __uint_as_float(sign | __float_as_uint(__fmul_rn((float)em, 0x1p-24f)));
	return __uint_as_float(sign | ((em << 13) + (em >= 0x7c00u ? 224u << 23 : 112u << 23)));
}

/* To nearest even. Below the smallest normal half, adding 0.5 rounds to multiples of 2^-24. */
DEVICE uint32_t f16_from_f32(float x)
{
	const uint32_t u = __float_as_uint(x), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
	if (a > 0x7f800000u)
		return sign | 0x7e00u | (a >> 13 & 0x3ffu);
	if (a >= 0x477ff000u) /* 65520 and up */
		return sign | 0x7c00u;
	if (a < 0x38800000u)
		return sign | (__float_as_uint(__fadd_rn(__uint_as_float(a), 0.5f)) - 0x3f000000u);
	return sign | (a + 0xfffu + (a >> 13 & 1) - (112u << 23)) >> 13;
}

/* Four elements of one thread. */
template <enum dtype T> DEVICE float4 widen4(uint2 h)
{
	if (T == DTYPE_BF16)
		return make_float4(bf16_to_f32(h.x & 0xffffu), bf16_to_f32(h.x >> 16), bf16_to_f32(h.y & 0xffffu),
				   bf16_to_f32(h.y >> 16));
	return make_float4(f16_to_f32(h.x & 0xffffu), f16_to_f32(h.x >> 16), f16_to_f32(h.y & 0xffffu),
			   f16_to_f32(h.y >> 16));
}

template <enum dtype T> DEVICE uint2 narrow4(float4 x)
{
	if (T == DTYPE_BF16)
		return make_uint2(bf16_from_f32(x.x) | bf16_from_f32(x.y) << 16, bf16_from_f32(x.z) | bf16_from_f32(x.w)
													      << 16);
	return make_uint2(f16_from_f32(x.x) | f16_from_f32(x.y) << 16, f16_from_f32(x.z) | f16_from_f32(x.w) << 16);
}

/* What is loaded of four elements, before it is needed. */
template <enum dtype T> struct quad {
	uint2 raw;
	DEVICE quad load(const void *array, uint64_t at)
	{
		return { __ldcs((const uint2 *)((const uint16_t *)array + at)) };
	}
	__device__ __forceinline__ float4 values() const
	{
		return widen4<T>(raw);
	}
};
template <> struct quad<DTYPE_F32> {
	float4 raw;
	DEVICE quad load(const void *array, uint64_t at)
	{
		return { __ldcs((const float4 *)((const float *)array + at)) };
	}
	__device__ __forceinline__ float4 values() const
	{
		return raw;
	}
};

DEVICE float4 zero4()
{
	return make_float4(0, 0, 0, 0);
}

DEVICE float4 square4(float4 x)
{
	return make_float4(__fmul_rn(x.x, x.x), __fmul_rn(x.y, x.y), __fmul_rn(x.z, x.z), __fmul_rn(x.w, x.w));
}

DEVICE uint32_t nonfinite4(float4 x)
{
	return is_nonfinite(x.x) + is_nonfinite(x.y) + is_nonfinite(x.z) + is_nonfinite(x.w);
}

/* ---- digests and sums ---- */

DEVICE cuda_word digest_pair(uint32_t w0, uint32_t w1, uint32_t k0, uint32_t k1)
{
	return (cuda_word)(w0 + k0) * (w1 + k1);
}

/* Of a thread's four values of f32, and of its four values of 16 bits, with the keys of their place in the block. */
DEVICE cuda_word digest_f32(float4 x, const uint32_t *keys)
{
	const uint4 k = __ldg((const uint4 *)keys + threadIdx.x);
	return digest_pair(__float_as_uint(x.x), __float_as_uint(x.y), k.x, k.y) +
	       digest_pair(__float_as_uint(x.z), __float_as_uint(x.w), k.z, k.w);
}

DEVICE cuda_word digest_16(uint2 h, const uint32_t *keys)
{
	const uint2 k = __ldg((const uint2 *)keys + threadIdx.x);
	return digest_pair(h.x, h.y, k.x, k.y);
}

template <class T> DEVICE T warp_sum(T value)
{
	for (unsigned by = 16; by; by /= 2)
		value += __shfl_down_sync(EVERY_LANE, value, by);
	return value; /* lane 0's is the sum */
}

/* One of KERNEL_LANES sums of a block's squares, which lie in shared memory: in ascending order, as everywhere. */
DEVICE float lane_sum(const float *square, unsigned lane)
{
	float sum = 0;
	UNROLL_16 for (unsigned i = 0; i < KERNEL_BLOCK; i += KERNEL_LANES) sum = __fadd_rn(sum, square[i + lane]);
	for (unsigned half = KERNEL_LANES / 2; half; half /= 2)
		sum = __fadd_rn(sum, __shfl_down_sync(EVERY_LANE, sum, half, KERNEL_LANES));
	return sum; /* lane 0's is the block's */
}

/* ---- the gate: see kernels_cuda.h. All threads of a block call these together ---- */

/* Whether the block may go on. Counted first, then looked: the other way round, a successor could open the gate and
 * read the counters in between. */
DEVICE bool gate_enter(const struct cuda_pass &p)
{
	SHARED(unsigned, is_open);
	if (threadIdx.x == 0) {
		atomicAdd(&p.gate->begun[p.generation % CUDA_GENERATIONS], 1ull);
		fence_in_order();
		is_open = look(&p.gate->generation) == p.generation;
	}
	__syncthreads();
	return is_open;
}

/* The same later. What the threads have left in shared memory before is there after it. */
DEVICE bool gate_is_open(const struct cuda_pass &p)
{
	SHARED(unsigned, is_open);
	__syncthreads();
	if (threadIdx.x == 0)
		is_open = look(&p.gate->generation) == p.generation;
	__syncthreads();
	return is_open;
}

DEVICE void gate_leave(const struct cuda_pass &p, bool early)
{
	fence_device();
	__syncthreads();
	if (threadIdx.x)
		return;
	if (early)
		atomicAdd(&p.gate->left[p.generation % CUDA_GENERATIONS], 1ull);
	atomicAdd(&p.gate->ended[p.generation % CUDA_GENERATIONS], 1ull);
}

#endif
