/* SPDX-License-Identifier: Apache-2.0 */
/* Element types of the arenas. The numbers are those of gacc.v1.DataType. */
#ifndef GACC_MATH_DTYPE_H
#define GACC_MATH_DTYPE_H

#include <stddef.h>

enum dtype { DTYPE_NONE = 0, DTYPE_F32 = 1, DTYPE_F64 = 2, DTYPE_F16 = 3, DTYPE_BF16 = 4 };

static inline size_t dtype_size(enum dtype t)
{
	return t == DTYPE_F64 ? 8 : t == DTYPE_F32 ? 4 : t == DTYPE_NONE ? 0 : 2;
}
static inline const char *dtype_name(enum dtype t)
{
	static const char *const names[] = { "none", "f32", "f64", "f16", "bf16" };
	return (unsigned)t <= DTYPE_BF16 ? names[t] : "?";
}

#endif
