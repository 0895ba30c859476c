/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32 of the few bytes of a mailbox's cell. For libgacc and the engine, both of which check each push twice: zlib
 * takes 0.14 us for each. */
#include "proto/box_check.h"

#include <stdbool.h>
#include <zlib.h>

#if defined(__x86_64__)
#include <immintrin.h>

/* Of 12 + 16 k bytes. After V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ", Intel
 * 2009: 16 bytes are folded onto the next 16, what is left is reduced by Barrett's method. A CRC that begins with 0
 * does not change by zeros in front, so 4 of them fill the first block up; its usual beginning is in the first 4 bytes.
 */
__attribute__((target("pclmul,sse4.1"))) static uint32_t by_products(const unsigned char *p, size_t bytes)
{
	const __m128i fold = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0), last = _mm_set_epi64x(0, 0x0163cd6124),
		      poly = _mm_set_epi64x(0x01f7011641, 0x01db710641), low = _mm_set_epi32(0, -1, 0, -1);
	__m128i x = _mm_loadu_si128((const __m128i *)p);
	x = _mm_slli_si128(_mm_xor_si128(x, _mm_set_epi32(0, 0, 0, -1)), 4);
	for (size_t at = 12; at < bytes; at += 16) {
		const __m128i next = _mm_loadu_si128((const __m128i *)(p + at));
		const __m128i a = _mm_clmulepi64_si128(x, fold, 0x00), b = _mm_clmulepi64_si128(x, fold, 0x11);
		x = _mm_xor_si128(_mm_xor_si128(a, b), next);
	}
	x = _mm_xor_si128(_mm_srli_si128(x, 8), _mm_clmulepi64_si128(x, fold, 0x10));
	x = _mm_xor_si128(_mm_srli_si128(x, 4), _mm_clmulepi64_si128(_mm_and_si128(x, low), last, 0x00));
	__m128i q = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(x, low), poly, 0x10), low);
	x = _mm_xor_si128(x, _mm_clmulepi64_si128(q, poly, 0x00));
	return ~(uint32_t)_mm_extract_epi32(x, 1);
}

static bool fits_products(size_t bytes)
{
	return bytes >= 28 && bytes % 16 == 12 && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}
#endif

uint32_t box_check(const void *p, size_t bytes)
{
#if defined(__x86_64__)
	if (fits_products(bytes))
		return by_products(p, bytes);
#endif
	return (uint32_t)crc32(0, p, (uInt)bytes);
}
