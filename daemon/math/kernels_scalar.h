/* SPDX-License-Identifier: Apache-2.0 */
/* One element at a time: what the reference and the fast kernels share so that they cannot differ. Private to math.
 *
 * Everything here is free of branches that matter to the result, so that compilers vectorise loops over it, and works
 * on bits where FTZ or DAZ could change a value.
 */
#ifndef GACC_MATH_KERNELS_SCALAR_H
#define GACC_MATH_KERNELS_SCALAR_H

#include "math/kernels.h"
#include "proto/failpoint.h"

#include <string.h>

/* splitmix64's finaliser */
#define MIX_A(x) (((x) ^ (x) >> 30) * UINT64_C(0xbf58476d1ce4e5b9))
#define MIX_B(x) (((x) ^ (x) >> 27) * UINT64_C(0x94d049bb133111eb))
#define MIX(x) (MIX_B(MIX_A(x)) ^ MIX_B(MIX_A(x)) >> 31)
#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

/* Keys of the block digest: two 32-bit words per pair, enough for a block of f64. */
#define DIGEST_KEYS (2 * KERNEL_BLOCK)
extern const uint32_t digest_key[DIGEST_KEYS];

/* The plain table, which the fast ones fall back to for f64 accumulators. */
extern const struct kernels kernels_reference;

static inline uint32_t f32_bits(float x)
{
	uint32_t u;
	memcpy(&u, &x, sizeof(u));
	return u;
}

static inline float f32_from_bits(uint32_t u)
{
	float x;
	memcpy(&x, &u, sizeof(x));
	return x;
}

/* 1 for inf and NaN, else 0. */
static inline uint32_t f32_nonfinite(float x)
{
	return (f32_bits(x) & 0x7f800000u) == 0x7f800000u;
}

/* Bits of the smallest |x| that becomes inf when it is rounded to this dtype; NaNs are above it. */
static inline uint32_t overflow_bits(enum dtype t)
{
	return t == DTYPE_F16 ? 0x477ff000u : t == DTYPE_BF16 ? 0x7f7f8000u : 0x7f800000u;
}

static inline float bf16_to_f32(uint16_t h)
{
	return f32_from_bits((uint32_t)h << 16);
}

/* Nearest even; a NaN stays one (its lower payload bits are lost, so the quiet bit is set). */
static inline uint16_t bf16_from_f32(float x)
{
	uint32_t u = f32_bits(x), nan = (u & 0x7fffffffu) > 0x7f800000u;
	uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1)) >> 16;
	return (uint16_t)(nan ? u >> 16 | 0x40 : rounded);
}

/* Exact. Subnormal halves go through an integer, because as f32 bits they would be subnormal and DAZ clears those. */
static inline float f16_to_f32(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, em = h & 0x7fff;
	uint32_t normal = (em << 13) + (112u << 23);
	uint32_t special = normal + (112u << 23); /* inf and NaN: exponent 31 becomes 255 */
	uint32_t tiny = f32_bits((float)(int32_t)em * 0x1p-24f);
	return f32_from_bits(sign | (em >= 0x7c00 ? special : em < 0x400 ? tiny : normal));
}

/* Nearest even, overflow to inf, gradual underflow: adding 0.5 rounds to a multiple of 2^-24, the smallest half. */
static inline uint16_t f16_from_f32(float x)
{
	uint32_t u = f32_bits(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffffu;
	uint32_t normal = (a + 0xfffu + (a >> 13 & 1) - (112u << 23)) >> 13;
	uint32_t tiny = f32_bits(f32_from_bits(a) + 0.5f) - 0x3f000000u;
	uint32_t h = a < 0x38800000u ? tiny : normal;
	h = a >= 0x477ff000u ? 0x7c00 : h; /* 65520 and up */
	h = a > 0x7f800000u ? 0x7e00 | (a >> 13 & 0x3ff) : h;
	return (uint16_t)(sign | h);
}

/* Where array `which` (p, m, v) of unit `number` is saved. */
static inline char *undo_place(const void *area, uint64_t number, int which)
{
	return (char *)area + (number & 1) * KERNEL_UNDO_HALF + which * KERNEL_UNIT * 4;
}

/* Unit k of a call is saved: from here on it may be overwritten. The fences hold the compiler; see kernel_undo. */
static inline void undo_hold(const struct kernel_undo *undo, uint64_t k)
{
	atomic_signal_fence(memory_order_seq_cst);
	FAILPOINT(engine_undo_saved);
	atomic_store_explicit(undo->stamp, (undo->first + k) << 1 | 1, memory_order_relaxed);
	atomic_signal_fence(memory_order_seq_cst);
	FAILPOINT(engine_undo_held);
}

/* Sum over the pairs of 32-bit words that hold bytes [0, n_bytes) of (w0 + k0) * (w1 + k1) mod 2^64; an incomplete last
 * pair is completed with zeros. `key` belongs to the first word. */
static inline uint64_t digest_pairs(const void *bytes, size_t n_bytes, const uint32_t *key)
{
	uint64_t sum = 0;
	for (size_t at = 0; at < n_bytes; at += 8, key += 2) {
		uint32_t w[2] = { 0, 0 };
		memcpy(w, (const char *)bytes + at, n_bytes - at < 8 ? n_bytes - at : 8);
		sum += (uint64_t)(uint32_t)(w[0] + key[0]) * (uint32_t)(w[1] + key[1]);
	}
	return sum;
}

#endif
