/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of VBYTES bytes for the fast kernels, as compilers extend C by them: operators work lane by lane. Included by
 * one .c per instruction set, which defines VBYTES before and the v_* operations after it, then includes
 * kernels_body.h. Private to math.
 */
#include "math/kernels_scalar.h"

#include <immintrin.h>

#define ROW (VBYTES / 4) /* elements of f32 in a vector */

typedef float vf __attribute__((vector_size(VBYTES)));
typedef int32_t vi __attribute__((vector_size(VBYTES)));
typedef uint32_t vu __attribute__((vector_size(VBYTES)));
typedef uint64_t vu64 __attribute__((vector_size(VBYTES)));
typedef uint16_t vu16 __attribute__((vector_size(VBYTES / 2)));

#define INLINE static inline __attribute__((always_inline))

INLINE vf v_load(const float *p)
{
	vf x;
	memcpy(&x, p, sizeof(x));
	return x;
}

INLINE void v_store(float *p, vf x)
{
	memcpy(p, &x, sizeof(x));
}

/* Lanes of `yes` where mask is all ones, of `no` where it is zero. */
INLINE vu v_select(vi mask, vu yes, vu no)
{
	return ((vu)mask & yes) | (~(vu)mask & no);
}

INLINE vf v_load_bf16(const uint16_t *p)
{
	vu16 h;
	memcpy(&h, p, sizeof(h));
	return (vf)(__builtin_convertvector(h, vu) << 16);
}

INLINE vu16 v_to_bf16(vf x)
{
	vu u = (vu)x, rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
	vi nan = (vi)(u & 0x7fffffff) > 0x7f800000;
	return __builtin_convertvector(v_select(nan, u >> 16 | 0x40, rounded), vu16);
}
