/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels for x86-64-v4: AVX-512 F, BW, CD, DQ and VL, 64-byte vectors. Pure; called through the table of
 * math/kernels.h by the engine's threads. */
#define VBYTES 64
#include "math/kernels_vector.h"

#define KERNELS_TABLE kernels_avx512
#define KERNELS_NAME "avx512"

INLINE vf v_sqrt(vf x)
{
	return (vf)_mm512_sqrt_ps((__m512)x);
}

INLINE vf v_min(vf a, vf b)
{
	return (vf)_mm512_min_ps((__m512)a, (__m512)b);
}

INLINE vf v_max(vf a, vf b)
{
	return (vf)_mm512_max_ps((__m512)a, (__m512)b);
}

INLINE void v_stream(float *p, vf x)
{
	_mm512_stream_ps(p, (__m512)x);
}

INLINE void v_stream16(uint16_t *p, vu16 x)
{
	_mm256_stream_si256((__m256i *)p, (__m256i)x);
}

/* Products of the even lanes, 64 bits wide. */
INLINE vu64 v_mul32(vu a, vu b)
{
	return (vu64)_mm512_mul_epu32((__m512i)a, (__m512i)b);
}

INLINE vf v_load_f16(const uint16_t *p)
{
	return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE vu16 v_to_f16(vf x)
{
	return (vu16)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

#include "math/kernels_body.h"
