/* SPDX-License-Identifier: Apache-2.0 */
/* The reference kernels against what kernels.h says, with numbers worked out here. */
#include "sample.h"

#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct kernels *ref;

static uint32_t bits(float x)
{
	uint32_t u;
	memcpy(&u, &x, sizeof(u));
	return u;
}

/* What IEEE 754 says a 16-bit pattern is worth; 5 or 8 exponent bits. */
static double value16(uint16_t h, int exponent_bits)
{
	int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
	int exponent = h >> fraction_bits & ((1 << exponent_bits) - 1), fraction = h & ((1 << fraction_bits) - 1);
	double sign = h >> 15 ? -1 : 1;
	if (exponent == (1 << exponent_bits) - 1)
		return fraction ? NAN : sign * INFINITY;
	if (exponent == 0)
		return sign * ldexp(fraction, 1 - bias - fraction_bits);
	return sign * ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

START_TEST(every_16_bit_value_widens_exactly)
{
	for (uint32_t h = 0; h < 65536; h++) {
		uint16_t in = (uint16_t)h;
		float f16, bf16;
		ref->to_f32(&f16, &in, DTYPE_F16, 1);
		ref->to_f32(&bf16, &in, DTYPE_BF16, 1);
		double want_f16 = value16(in, 5), want_bf16 = value16(in, 8);
		ck_assert(isnan(want_f16) ? isnan(f16) : f16 == want_f16 && !signbit(f16) == !signbit(want_f16));
		ck_assert(isnan(want_bf16) ? isnan(bf16) : bf16 == want_bf16 && !signbit(bf16) == !signbit(want_bf16));
	}
}
END_TEST

/* Between neighbours a < b of a 16-bit type, the middle goes to the even one and its neighbours in f32 to the nearer.
 */
static void check_rounding(enum dtype t, uint16_t a, int exponent_bits)
{
	uint16_t b = (uint16_t)(a + 1), got[3];
	double low = value16(a, exponent_bits), high = value16(b, exponent_bits);
	if (isinf(high)) /* rounds as if the next value were there */
		high = 2 * low - value16((uint16_t)(a - 1), exponent_bits);
	float middle = (float)((low + high) / 2);
	float in[3] = { nextafterf(middle, 0), middle, nextafterf(middle, INFINITY) };
	ref->from_f32(got, t, in, 3);
	ck_assert_uint_eq(got[0], a);
	ck_assert_uint_eq(got[1], a % 2 ? b : a);
	ck_assert_uint_eq(got[2], b);
}

START_TEST(narrowing_rounds_to_nearest_even)
{
	for (uint32_t h = 0; h < 0x7c00; h++)
		check_rounding(DTYPE_F16, (uint16_t)h, 5);
	for (uint32_t h = 1; h < 0x7f80; h++)
		check_rounding(DTYPE_BF16, (uint16_t)h, 8);
	float in[] = { -0.0f, INFINITY, -INFINITY, NAN, 1e30f, -1e30f };
	uint16_t f16[6], bf16[6];
	ref->from_f32(f16, DTYPE_F16, in, 6);
	ref->from_f32(bf16, DTYPE_BF16, in, 6);
	ck_assert_uint_eq(f16[0], 0x8000);
	ck_assert_uint_eq(f16[1], 0x7c00);
	ck_assert_uint_eq(f16[2], 0xfc00);
	ck_assert(isnan(value16(f16[3], 5)));
	ck_assert_uint_eq(f16[4], 0x7c00);
	ck_assert_uint_eq(f16[5], 0xfc00);
	ck_assert_uint_eq(bf16[0], 0x8000);
	ck_assert_uint_eq(bf16[2], 0xff80);
	ck_assert(isnan(value16(bf16[3], 8)));
}
END_TEST

START_TEST(accumulate_of_small_integers_is_exact)
{
	enum { N = 1500 };
	float *src = sample_alloc(DTYPE_F32, N), *dst = sample_alloc(DTYPE_F32, N);
	float *g0 = sample_alloc(DTYPE_F32, N), *g1 = sample_alloc(DTYPE_F32, N);
	for (int i = 0; i < N; i++) {
		src[i] = (float)i;
		g0[i] = (float)(i % 7);
		g1[i] = (float)(i % 11);
	}
	struct kernel_src s[] = { { g0, 3 }, { g1, -0.5 } };
	ref->accumulate(dst, src, false, DTYPE_F32, s, 2, DTYPE_F32, N, NULL, NULL);
	for (int i = 0; i < N; i++)
		ck_assert(dst[i] == i + 3 * (i % 7) - 0.5 * (i % 11));
	ref->accumulate(dst, src, true, DTYPE_F32, s, 2, DTYPE_F32, N, NULL, NULL);
	for (int i = 0; i < N; i++)
		ck_assert(dst[i] == 3 * (i % 7) - 0.5 * (i % 11));
	free(src);
	free(dst);
	free(g0);
	free(g1);
}
END_TEST

START_TEST(first_pass_stores_positive_zero)
{
	float dst = 1, g = -0.0f;
	struct kernel_src s = { &g, 1 };
	ref->accumulate(&dst, NULL, true, DTYPE_F32, &s, 1, DTYPE_F32, 1, NULL, NULL);
	ck_assert_uint_eq(bits(dst), 0);
	dst = 1;
	ref->accumulate(&dst, NULL, true, DTYPE_F32, NULL, 0, DTYPE_F32, 1, NULL, NULL);
	ck_assert_uint_eq(bits(dst), 0);
}
END_TEST

/* For every table: one pass over k slots gives the bits of k passes. */
START_TEST(k_slots_are_k_passes)
{
	enum { N = 1100, K = 5 };
	const struct kernels *const *table;
	int n_tables = kernels_list(&table);
	struct rng rng = { 7 };
	float *a = sample_alloc(DTYPE_F32, N), *b = sample_alloc(DTYPE_F32, N), *once = sample_alloc(DTYPE_F32, N);
	struct kernel_src s[K];
	for (int j = 0; j < K; j++) {
		void *g = sample_alloc(DTYPE_BF16, N);
		sample_fill(g, DTYPE_BF16, N, SAMPLE_NORMAL, &rng);
		s[j] = (struct kernel_src){ g, rng_unit(&rng) };
	}
	for (int i = 0; i < n_tables; i++) {
		table[i]->accumulate(once, NULL, true, DTYPE_F32, s, K, DTYPE_BF16, N, NULL, NULL);
		for (int j = 0; j < K; j++)
			table[i]->accumulate(j % 2 ? b : a, j % 2 ? a : b, j == 0, DTYPE_F32, &s[j], 1, DTYPE_BF16, N,
					     NULL, NULL);
		ck_assert_mem_eq(once, a, N * sizeof(*a));
	}
	for (int j = 0; j < K; j++)
		free((void *)(uintptr_t)s[j].g);
	free(a);
	free(b);
	free(once);
}
END_TEST

/* An error of 4 eps sum|w g| / sum w per element against f64 is what docs/decisions.md allows. */
START_TEST(weighted_mean_is_within_its_bound)
{
	enum { N = 2000, K = KERNEL_MAX_SLOTS };
	struct rng rng = { 8 };
	float *sum = sample_alloc(DTYPE_F32, N), *mean = sample_alloc(DTYPE_F32, N);
	struct kernel_src s[K];
	double weights = 0;
	for (int j = 0; j < K; j++) {
		float *g = sample_alloc(DTYPE_F32, N);
		for (int i = 0; i < N; i++)
			g[i] = (float)(rng_unit(&rng) - 0.5);
		s[j] = (struct kernel_src){ g, (double)(1 + rng_next(&rng) % 1000) };
		weights += s[j].coef;
	}
	ref->accumulate(sum, NULL, true, DTYPE_F32, s, K, DTYPE_F32, N, NULL, NULL);
	ref->scale(mean, sum, DTYPE_F32, 1 / weights, 0, N);
	for (int i = 0; i < N; i++) {
		double exact = 0, size = 0;
		for (int j = 0; j < K; j++) {
			exact += s[j].coef * ((const float *)s[j].g)[i];
			size += fabs(s[j].coef * ((const float *)s[j].g)[i]);
		}
		ck_assert_double_le(fabs(mean[i] - exact / weights), 4 * 0x1p-23 * size / weights);
	}
	for (int j = 0; j < K; j++)
		free((void *)(uintptr_t)s[j].g);
	free(sum);
	free(mean);
}
END_TEST

START_TEST(nonfinite_values_are_counted_by_source_and_by_block)
{
	enum { N = KERNEL_BLOCK + 3 };
	float *dst = sample_alloc(DTYPE_F32, N), *g0 = sample_alloc(DTYPE_F32, N), *g1 = sample_alloc(DTYPE_F32, N);
	g0[5] = INFINITY;
	g0[6] = NAN;
	g0[KERNEL_BLOCK + 2] = 3e38f; /* finite, but not times 2 */
	g1[5] = -INFINITY;
	struct kernel_src s[] = { { g0, 2 }, { g1, 2 } };
	uint64_t by_source[2] = { 10, 20 };
	uint32_t by_block[2];
	struct kernel_partials out = { .nonfinite = by_block };
	ref->accumulate(dst, NULL, true, DTYPE_F32, s, 2, DTYPE_F32, N, by_source, &out);
	ck_assert_uint_eq(by_source[0], 13);
	ck_assert_uint_eq(by_source[1], 21);
	ck_assert_uint_eq(by_block[0], 2);
	ck_assert_uint_eq(by_block[1], 1);
	free(dst);
	free(g0);
	free(g1);
}
END_TEST

/* Lane j holds elements j, j + 16, ..; lanes meet in the order 8, 4, 2, 1. */
START_TEST(sum_of_squares_follows_lanes_and_tree)
{
	float a[40];
	double sum;
	for (int i = 0; i < 40; i++)
		a[i] = 0.1f * (float)(i + 1);
	float lane[16];
	for (int j = 0; j < 16; j++) {
		lane[j] = a[j] * a[j];
		lane[j] += a[j + 16] * a[j + 16];
		if (j < 8)
			lane[j] += a[j + 32] * a[j + 32];
	}
	float eight[8], four[4];
	for (int j = 0; j < 8; j++)
		eight[j] = lane[j] + lane[j + 8];
	for (int j = 0; j < 4; j++)
		four[j] = eight[j] + eight[j + 4];
	ref->inspect(a, DTYPE_F32, 40, &(struct kernel_partials){ .sumsq = &sum });
	ck_assert(sum == (four[0] + four[2]) + (four[1] + four[3]));
}
END_TEST

START_TEST(block_sums_add_up_in_a_fixed_tree)
{
	double a[21], plain = 0;
	for (int i = 0; i < 21; i++)
		plain += a[i] = 1.0 / (i + 1);
	ck_assert(kernel_sum(a, 0) == 0);
	ck_assert(kernel_sum(a, 1) == 1);
	ck_assert_double_eq_tol(kernel_sum(a, 21), plain, 1e-14);
	ck_assert(kernel_sum(a, 21) == kernel_sum(a, 16) + kernel_sum(a + 16, 5));
	ck_assert(kernel_sum(a, 16) == kernel_sum(a, 8) + kernel_sum(a + 8, 8));
}
END_TEST

static uint64_t digest_of(const void *a, enum dtype t, size_t n)
{
	uint64_t blocks[4];
	ref->inspect(a, t, n, &(struct kernel_partials){ .digest = blocks });
	return kernel_digest_combine(blocks, (n + KERNEL_BLOCK - 1) / KERNEL_BLOCK, 0);
}

START_TEST(digest_sees_every_bit_and_every_swap)
{
	enum { N = 2 * KERNEL_BLOCK + 5 };
	struct rng rng = { 9 };
	uint32_t *a = sample_alloc(DTYPE_F32, N);
	sample_fill(a, DTYPE_F32, N, SAMPLE_NORMAL, &rng);
	uint64_t before = digest_of(a, DTYPE_F32, N);
	for (int i = 0; i < N; i++)
		for (int bit = 0; bit < 32; bit += 5) {
			a[i] ^= UINT32_C(1) << bit;
			ck_assert_uint_ne(digest_of(a, DTYPE_F32, N), before);
			a[i] ^= UINT32_C(1) << bit;
		}
	for (int i = 0; i < N; i++) {
		size_t j = rng_next(&rng) % N;
		uint32_t x = a[i], y = a[j];
		if (x == y)
			continue;
		a[i] = y;
		a[j] = x;
		ck_assert_uint_ne(digest_of(a, DTYPE_F32, N), before);
		a[i] = x;
		a[j] = y;
	}
	ck_assert_uint_eq(digest_of(a, DTYPE_F32, N), before);
	free(a);
}
END_TEST

START_TEST(digest_of_ranges_adds_up)
{
	enum { BLOCKS = 4 };
	struct rng rng = { 10 };
	float *a = sample_alloc(DTYPE_F32, BLOCKS * KERNEL_BLOCK);
	uint64_t d[BLOCKS];
	sample_fill(a, DTYPE_F32, BLOCKS * KERNEL_BLOCK, SAMPLE_NORMAL, &rng);
	ref->inspect(a, DTYPE_F32, BLOCKS * KERNEL_BLOCK, &(struct kernel_partials){ .digest = d });
	uint64_t whole = kernel_digest_combine(d, BLOCKS, 7);
	ck_assert_uint_eq(whole, kernel_digest_combine(d + 1, 3, 8) + kernel_digest_combine(d, 1, 7));
	ck_assert_uint_ne(whole, kernel_digest_combine(d, BLOCKS, 8));
	free(a);
}
END_TEST

START_TEST(scale_clamps_and_keeps_nan)
{
	float src[] = { 1, -8, 8, NAN, INFINITY }, dst[5];
	ref->scale(dst, src, DTYPE_F32, 0.5, 2, 5);
	ck_assert(dst[0] == 0.5f && dst[1] == -2 && dst[2] == 2 && isnan(dst[3]) && dst[4] == 2);
	ref->scale(dst, src, DTYPE_F32, 0.5, 0, 5);
	ck_assert(dst[1] == -4 && dst[2] == 4 && dst[4] == INFINITY);
}
END_TEST

/* With a master the 16-bit copy is its rounding; without one the update reads and writes 16 bits. */
START_TEST(sixteen_bit_parameters)
{
	float p[2] = { 1, 2 }, g[2] = { 1, 0.001f };
	uint16_t copy[2], only[2] = { 0x3f80, 0x4000 };
	struct kernel_update u = { .scale = 1, .lr = 0.125f };
	ref->sgd(&(struct kernel_params){ .p = p, .p16 = copy, .p16_dtype = DTYPE_BF16 }, g, DTYPE_F32, 2, &u, NULL,
		 NULL);
	ck_assert(p[0] == 0.875f && p[1] < 2);
	ck_assert_uint_eq(copy[0], 0x3f60);
	ck_assert_uint_eq(copy[1], 0x4000);
	ref->sgd(&(struct kernel_params){ .p16 = only, .p16_dtype = DTYPE_BF16 }, g, DTYPE_F32, 2, &u, NULL, NULL);
	ck_assert_uint_eq(only[0], 0x3f60);
	ck_assert_uint_eq(only[1], 0x4000);
}
END_TEST

int main(void)
{
	ref = kernels_get("reference");
	Suite *suite = suite_create("reference");
	TCase *tc = tcase_create("definition");
	tcase_add_test(tc, every_16_bit_value_widens_exactly);
	tcase_add_test(tc, narrowing_rounds_to_nearest_even);
	tcase_add_test(tc, accumulate_of_small_integers_is_exact);
	tcase_add_test(tc, first_pass_stores_positive_zero);
	tcase_add_test(tc, k_slots_are_k_passes);
	tcase_add_test(tc, weighted_mean_is_within_its_bound);
	tcase_add_test(tc, nonfinite_values_are_counted_by_source_and_by_block);
	tcase_add_test(tc, sum_of_squares_follows_lanes_and_tree);
	tcase_add_test(tc, block_sums_add_up_in_a_fixed_tree);
	tcase_add_test(tc, digest_sees_every_bit_and_every_swap);
	tcase_add_test(tc, digest_of_ranges_adds_up);
	tcase_add_test(tc, scale_clamps_and_keeps_nan);
	tcase_add_test(tc, sixteen_bit_parameters);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
