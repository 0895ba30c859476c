/* SPDX-License-Identifier: Apache-2.0 */
#include "sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

uint64_t rng_next(struct rng *r)
{
	uint64_t x = r->state += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

double rng_unit(struct rng *r)
{
	return (double)(rng_next(r) >> 11) * 0x1p-53;
}

void *sample_alloc(enum dtype t, size_t n)
{
	size_t bytes = (n * dtype_size(t) + 63) / 64 * 64 + 64;
	void *p = aligned_alloc(64, bytes);
	if (!p)
		abort();
	return memset(p, 0, bytes);
}

static uint64_t exponent_field(enum dtype t)
{
	return t == DTYPE_F64 ? UINT64_C(0x7ff) << 52 : t == DTYPE_F32 ? 0x7f800000 : t == DTYPE_BF16 ? 0x7f80 : 0x7c00;
}

static uint64_t mantissa_field(enum dtype t)
{
	return t == DTYPE_F64 ? (UINT64_C(1) << 52) - 1 : t == DTYPE_F32 ? 0x7fffff : t == DTYPE_BF16 ? 0x7f : 0x3ff;
}

static uint64_t get_bits(const void *a, enum dtype t, size_t i)
{
	uint64_t u = 0;
	memcpy(&u, (const char *)a + i * dtype_size(t), dtype_size(t));
	return u;
}

/* Exponents near that of 1, any mantissa and sign. */
static uint64_t normal_bits(enum dtype t, struct rng *r)
{
	uint64_t top = exponent_field(t) & ~(exponent_field(t) >> 1),
		 one = (exponent_field(t) >> 1) & exponent_field(t);
	uint64_t ulp = mantissa_field(t) + 1, sign = (exponent_field(t) | mantissa_field(t)) + 1;
	uint64_t x = rng_next(r);
	uint64_t exponent = (x & 8 ? one - (x >> 4 & 7) * ulp : top + (x >> 4 & 1) * ulp) & exponent_field(t);
	return (x & 1 ? sign : 0) | exponent | (x >> 8 & mantissa_field(t));
}

static uint64_t sample_bits(enum dtype t, enum sample s, struct rng *r)
{
	uint64_t sign = (exponent_field(t) | mantissa_field(t)) + 1, x = rng_next(r);
	if (s == SAMPLE_NORMAL)
		return normal_bits(t, r);
	if (s == SAMPLE_SUBNORMAL)
		return (x & 1 ? sign : 0) | (x >> 1 & mantissa_field(t));
	switch (x % 8) {
	case 0:
		return exponent_field(t) | (x & 8 ? sign : 0); /* inf */
	case 1:
		return exponent_field(t) | ((mantissa_field(t) + 1) >> 1) | (x >> 8 & 1); /* NaN */
	case 2:
		return x & 8 ? sign : 0; /* zero */
	case 3:
		return exponent_field(t) - 1; /* largest finite */
	case 4:
		return x >> 8 & (sign | exponent_field(t) | mantissa_field(t));
	default:
		return sample_bits(t, x & 8 ? SAMPLE_SUBNORMAL : SAMPLE_NORMAL, r);
	}
}

void sample_fill(void *dst, enum dtype t, size_t n, enum sample s, struct rng *r)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t u = sample_bits(t, s, r);
		memcpy((char *)dst + i * dtype_size(t), &u, dtype_size(t));
	}
}

static bool is_nan(uint64_t u, enum dtype t)
{
	return (u & exponent_field(t)) == exponent_field(t) && (u & mantissa_field(t));
}

size_t sample_differs(const void *a, const void *b, enum dtype t, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t x = get_bits(a, t, i), y = get_bits(b, t, i);
		if (x != y && !(is_nan(x, t) && is_nan(y, t)))
			return i;
	}
	return n;
}

bool sample_has_nan(const void *a, enum dtype t, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (is_nan(get_bits(a, t, i), t))
			return true;
	return false;
}
