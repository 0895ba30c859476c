/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that every x86-64 CPU can run: SSE2, 16-byte vectors. Halves are converted lane by lane. Pure; called
 * through the table of math/kernels.h by the engine's threads. */
#define VBYTES 16
#include "math/kernels_vector.h"

#define KERNELS_TABLE kernels_sse2
#define KERNELS_NAME "sse2"

INLINE vf v_sqrt(vf x)
{
	return (vf)_mm_sqrt_ps((__m128)x);
}

INLINE vf v_min(vf a, vf b)
{
	return (vf)_mm_min_ps((__m128)a, (__m128)b);
}

INLINE vf v_max(vf a, vf b)
{
	return (vf)_mm_max_ps((__m128)a, (__m128)b);
}

INLINE void v_stream(float *p, vf x)
{
	_mm_stream_ps(p, (__m128)x);
}

INLINE void v_stream16(uint16_t *p, vu16 x)
{
	_mm_stream_si64((long long *)p, (long long)x);
}

/* Products of the even lanes, 64 bits wide. */
INLINE vu64 v_mul32(vu a, vu b)
{
	return (vu64)_mm_mul_epu32((__m128i)a, (__m128i)b);
}

/* f16_to_f32 of kernels_scalar.h, lane by lane */
INLINE vf v_load_f16(const uint16_t *p)
{
	vu16 h;
	memcpy(&h, p, sizeof(h));
	vu u = __builtin_convertvector(h, vu), em = u & 0x7fff, normal = (em << 13) + (112u << 23);
	vu tiny = (vu)(__builtin_convertvector((vi)em, vf) * 0x1p-24f);
	vu value = v_select((vi)em < 0x400, tiny, v_select((vi)em >= 0x7c00, normal + (112u << 23), normal));
	return (vf)((u & 0x8000) << 16 | value);
}

/* f16_from_f32 of kernels_scalar.h, lane by lane */
INLINE vu16 v_to_f16(vf x)
{
	vu u = (vu)x, a = u & 0x7fffffff;
	vu normal = (a + 0xfff + (a >> 13 & 1) - (112u << 23)) >> 13;
	vu tiny = (vu)((vf)a + 0.5f) - 0x3f000000;
	vu h = v_select((vi)a < 0x38800000, tiny, normal);
	h = v_select((vi)a >= 0x477ff000, (vu){ 0 } + 0x7c00, h);
	h = v_select((vi)a > 0x7f800000, 0x7e00 | (a >> 13 & 0x3ff), h);
	return __builtin_convertvector((u >> 16 & 0x8000) | h, vu16);
}

#include "math/kernels_body.h"
