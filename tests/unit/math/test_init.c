/* SPDX-License-Identifier: Apache-2.0 */
#include "math/init.h"
#include "math/philox.h"
#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Known answers of the Random123 library (kat_vectors, philox4x32-10). */
START_TEST(philox_known_answers)
{
	static const struct {
		uint32_t counter[4], key[2], out[4];
	} answers[] = {
		{ { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
		{ { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff },
		  { 0xffffffff, 0xffffffff },
		  { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
		{ { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
		  { 0xa4093822, 0x299f31d0 },
		  { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
	};
	for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
		uint32_t out[4];
		philox4x32_10(answers[i].counter, answers[i].key, out);
		ck_assert_mem_eq(out, answers[i].out, sizeof(out));
	}
}
END_TEST

#define N 200000

struct moments {
	double mean, std, min, max, kurtosis;
};

static struct moments moments_of(const float *a, size_t n)
{
	struct moments m = { .min = INFINITY, .max = -INFINITY };
	double square = 0, fourth = 0;
	for (size_t i = 0; i < n; i++) {
		m.mean += a[i] / (double)n;
		m.min = fmin(m.min, a[i]);
		m.max = fmax(m.max, a[i]);
	}
	for (size_t i = 0; i < n; i++) {
		double d = a[i] - m.mean;
		square += d * d / (double)n;
		fourth += d * d * d * d / (double)n;
	}
	m.std = sqrt(square);
	m.kurtosis = fourth / (square * square);
	return m;
}

static struct moments draw(enum init_type type, double a, double b, double fan_in, double fan_out)
{
	float *x = malloc(N * sizeof(*x));
	ck_assert_ptr_nonnull(x);
	init_fill(x, 0, N, &(struct init_rule){ type, a, b }, fan_in, fan_out, 42, 7);
	struct moments m = moments_of(x, N);
	free(x);
	return m;
}

/* Five standard errors: a fixed seed either passes for ever or never. */
static void assert_normal(struct moments m, double mean, double std)
{
	ck_assert_double_le(fabs(m.mean - mean), 5 * std / sqrt(N));
	ck_assert_double_le(fabs(m.std - std), 5 * std / sqrt(2.0 * N));
	ck_assert_double_le(fabs(m.kurtosis - 3), 5 * sqrt(24.0 / N));
	ck_assert(m.max > mean + 3.8 * std && m.min < mean - 3.8 * std);
}

static void assert_uniform(struct moments m, double low, double high)
{
	double std = (high - low) / sqrt(12);
	ck_assert_double_le(fabs(m.mean - (low + high) / 2), 5 * std / sqrt(N));
	ck_assert_double_le(fabs(m.std - std), 5 * std / sqrt(N));
	ck_assert_double_le(fabs(m.kurtosis - 1.8), 0.02);
	ck_assert(m.min >= low && m.min < low + 1e-4 * (high - low));
	ck_assert(m.max < high && m.max > high - 1e-4 * (high - low));
}

START_TEST(distributions)
{
	assert_normal(draw(INIT_NORMAL, 0.5, 2, 1, 1), 0.5, 2);
	assert_uniform(draw(INIT_UNIFORM, -1, 3, 1, 1), -1, 3);
	assert_uniform(draw(INIT_KAIMING_UNIFORM, 0, 0, 300, 50), -sqrt(6.0 / 300), sqrt(6.0 / 300));
	assert_uniform(draw(INIT_KAIMING_UNIFORM, 1, 0, 300, 50), -sqrt(3.0 / 300), sqrt(3.0 / 300));
	assert_normal(draw(INIT_KAIMING_NORMAL, 0, 0, 300, 50), 0, sqrt(2.0 / 300));
	assert_uniform(draw(INIT_XAVIER_UNIFORM, 0, 0, 300, 50), -sqrt(6.0 / 350), sqrt(6.0 / 350));
	assert_normal(draw(INIT_XAVIER_NORMAL, 3, 0, 300, 50), 0, 3 * sqrt(2.0 / 350));
}
END_TEST

START_TEST(constants)
{
	float x[3] = { 5, 5, 5 };
	init_fill(x, 0, 2, &(struct init_rule){ .type = INIT_ZEROS }, 1, 1, 1, 1);
	ck_assert(x[0] == 0 && x[1] == 0 && x[2] == 5);
	init_fill(x, 9, 2, &(struct init_rule){ .type = INIT_ONES }, 1, 1, 1, 1);
	ck_assert(x[0] == 1 && x[1] == 1 && x[2] == 5);
}
END_TEST

START_TEST(a_value_depends_on_its_place_alone)
{
	enum { M = 1000 };
	const struct init_rule rules[] = { { INIT_NORMAL, 0, 1 }, { INIT_UNIFORM, 0, 1 } };
	float whole[M], part[M];
	for (int r = 0; r < 2; r++) {
		init_fill(whole, 0, M, &rules[r], 1, 1, 3, 4);
		for (uint64_t first = 0; first < M; first += 37)
			init_fill(part + first, first, M - first < 37 ? M - first : 37, &rules[r], 1, 1, 3, 4);
		ck_assert_mem_eq(whole, part, sizeof(whole));
	}
	float low[8], high[8];
	init_fill(low, 0, 8, &rules[1], 1, 1, 3, 4);
	init_fill(high, UINT64_C(4) << 32, 8, &rules[1], 1, 1, 3, 4);
	ck_assert_mem_ne(low, high, sizeof(low));
}
END_TEST

START_TEST(seeds_and_tensors_are_independent)
{
	const struct init_rule rule = { INIT_NORMAL, 0, 1 };
	float *a = malloc(N * sizeof(*a)), *b = malloc(N * sizeof(*b));
	const uint64_t other[][2] = { { 2, 1 }, { 1, 2 }, { UINT64_C(1) << 32 | 1, 1 }, { 1, UINT64_C(1) << 32 | 1 } };
	init_fill(a, 0, N, &rule, 1, 1, 1, 1);
	for (int k = 0; k < 4; k++) {
		double product = 0;
		init_fill(b, 0, N, &rule, 1, 1, other[k][0], other[k][1]);
		for (int i = 0; i < N; i++)
			product += (double)a[i] * b[i];
		ck_assert_double_le(fabs(product / N), 5 / sqrt(N));
	}
	free(a);
	free(b);
}
END_TEST

START_TEST(uniform_stays_below_its_end)
{
	float x[4096];
	double a = 1, b = nextafterf(1, 2); /* half of all draws round to b */
	init_fill(x, 0, 4096, &(struct init_rule){ INIT_UNIFORM, a, b }, 1, 1, 1, 1);
	for (int i = 0; i < 4096; i++)
		ck_assert(x[i] == 1);
}
END_TEST

START_TEST(fans_are_those_of_torch)
{
	double in, out;
	init_fans((const int64_t[]){ 50, 300 }, 2, &in, &out);
	ck_assert(in == 300 && out == 50);
	init_fans((const int64_t[]){ 8, 4, 3, 5 }, 4, &in, &out);
	ck_assert(in == 60 && out == 120);
	init_fans((const int64_t[]){ 9 }, 1, &in, &out);
	ck_assert(in == 9 && out == 9);
	init_fans(NULL, 0, &in, &out);
	ck_assert(in == 1 && out == 1);
}
END_TEST

/* The first draws, so that a change of the generator is noticed: they are part of what a seed means. */
START_TEST(bits_of_a_seed_are_fixed)
{
	const struct init_rule rules[] = { { INIT_NORMAL, 0, 1 }, { INIT_UNIFORM, 0, 1 } };
	static const uint32_t want[2][4] = { { 0x3f8856dd, 0xbf51494d, 0xbf289034, 0x3f9101bf },
					     { 0x3ecfdcde, 0x3f655411, 0x3ed8fd94, 0x3eaae732 } };
	for (int r = 0; r < 2; r++) {
		float x[4];
		init_fill(x, 0, 4, &rules[r], 1, 1, 42, 7);
		ck_assert_mem_eq(x, want[r], sizeof(x));
	}
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("init");
	TCase *tc = tcase_create("draws");
	tcase_add_test(tc, philox_known_answers);
	tcase_add_test(tc, distributions);
	tcase_add_test(tc, constants);
	tcase_add_test(tc, a_value_depends_on_its_place_alone);
	tcase_add_test(tc, seeds_and_tensors_are_independent);
	tcase_add_test(tc, uniform_stays_below_its_end);
	tcase_add_test(tc, fans_are_those_of_torch);
	tcase_add_test(tc, bits_of_a_seed_are_fixed);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
