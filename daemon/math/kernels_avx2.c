/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels for x86-64-v3: AVX2 with F16C, 32-byte vectors. The CPU has FMA too, which must not be used: it rounds
 * once where the other tables round twice. Pure; the engine's threads. */
#define VBYTES 32
#include "math/kernels_vector.h"

#define KERNELS_TABLE kernels_avx2
#define KERNELS_NAME "avx2"

INLINE vf v_sqrt(vf x)
{
	return (vf)_mm256_sqrt_ps((__m256)x);
}

INLINE vf v_min(vf a, vf b)
{
	return (vf)_mm256_min_ps((__m256)a, (__m256)b);
}

INLINE vf v_max(vf a, vf b)
{
	return (vf)_mm256_max_ps((__m256)a, (__m256)b);
}

INLINE void v_stream(float *p, vf x)
{
	_mm256_stream_ps(p, (__m256)x);
}

INLINE void v_stream16(uint16_t *p, vu16 x)
{
	_mm_stream_si128((__m128i *)p, (__m128i)x);
}

/* Products of the even lanes, 64 bits wide. */
INLINE vu64 v_mul32(vu a, vu b)
{
	return (vu64)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}

INLINE vf v_load_f16(const uint16_t *p)
{
	return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

INLINE vu16 v_to_f16(vf x)
{
	return (vu16)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

#include "math/kernels_body.h"
