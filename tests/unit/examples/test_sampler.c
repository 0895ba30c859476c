/* SPDX-License-Identifier: Apache-2.0 */
/* Each sample of an epoch is dealt exactly once, whatever the shape, and by nothing but the arguments. */
#include "sampler.h"
#include "support/suite.h"

#include <stdlib.h>
#include <string.h>

struct shape {
	uint32_t n, batch, ranks, micro_size;
};
static const struct shape shapes[] = {
	{ 1, 1, 1, 1 }, { 96, 8, 3, 4 },  { 97, 8, 3, 4 },    { 100, 8, 3, 4 },
	{ 5, 8, 3, 4 }, { 191, 1, 4, 2 }, { 60000, 8, 4, 4 }, { 1000, 7, 2, 16 },
};
enum { N_SHAPES = sizeof(shapes) / sizeof(*shapes) };

static void open_shape(struct sampler *s, const struct shape *x, uint64_t seed)
{
	ck_assert_int_eq(sampler_init(s, seed, x->n, x->batch, x->ranks, x->micro_size), 0);
}

START_TEST(deals_each_sample_once)
{
	const struct shape *x = &shapes[_i];
	struct sampler s;
	const uint32_t *ids;
	uint8_t *seen = calloc(x->n, 1);

	open_shape(&s, x, 3);
	uint64_t windows = sampler_windows(&s);
	for (uint64_t w = 2 * windows; w < 3 * windows; w++) {
		for (uint32_t m = 0; m < x->micro_size; m++) {
			for (uint32_t r = 0; r < x->ranks; r++) {
				uint32_t n = sampler_micro(&s, w, r, m, &ids);
				ck_assert_uint_le(n, x->batch);
				for (uint32_t i = 0; i < n; i++)
					ck_assert_uint_eq(seen[ids[i]]++, 0);
			}
		}
	}
	for (uint32_t i = 0; i < x->n; i++)
		ck_assert_uint_eq(seen[i], 1);
	sampler_fini(&s);
	free(seen);
}
END_TEST

START_TEST(a_window_is_its_micro_batches_in_the_order_of_adding)
{
	const struct shape *x = &shapes[_i];
	struct sampler s;
	const uint32_t *all, *ids;

	open_shape(&s, x, 3);
	for (uint64_t w = 0; w < sampler_windows(&s); w++) {
		uint32_t n = sampler_window(&s, w, &all), at = 0;
		ck_assert_uint_gt(n, 0);
		for (uint32_t g = 0; g < x->micro_size * x->ranks; g++) {
			uint32_t k = sampler_micro(&s, w, g % x->ranks, g / x->ranks, &ids);
			ck_assert(k == 0 || memcmp(ids, all + at, k * sizeof(*ids)) == 0);
			at += k;
		}
		ck_assert_uint_eq(at, n);
	}
	sampler_fini(&s);
}
END_TEST

START_TEST(a_restarted_rank_gets_the_same_samples)
{
	const struct shape *x = &shapes[7];
	struct sampler first, again;
	const uint32_t *a, *b;

	open_shape(&first, x, 5);
	for (uint64_t w = 0; w < 40; w++) { /* across epochs, forth and back */
		open_shape(&again, x, 5);
		uint32_t n = sampler_micro(&first, w, 1, 3, &a);
		ck_assert_uint_eq(sampler_micro(&again, w, 1, 3, &b), n);
		ck_assert(n == 0 || memcmp(a, b, n * sizeof(*a)) == 0);
		sampler_micro(&first, w * 7 % 40, 0, 0, &a);
		sampler_fini(&again);
	}
	sampler_fini(&first);
}
END_TEST

/* How many places of the first window's order agree, between (seed, epoch) pairs. */
static uint32_t agreeing(uint64_t seed_a, uint64_t epoch_a, uint64_t seed_b, uint64_t epoch_b)
{
	struct shape x = { 10000, 10000, 1, 1 };
	struct sampler a, b;
	const uint32_t *ids_a, *ids_b;
	uint32_t same = 0;

	open_shape(&a, &x, seed_a);
	open_shape(&b, &x, seed_b);
	sampler_window(&a, epoch_a, &ids_a);
	sampler_window(&b, epoch_b, &ids_b);
	for (uint32_t i = 0; i < x.n; i++)
		same += ids_a[i] == ids_b[i];
	sampler_fini(&a);
	sampler_fini(&b);
	return same;
}

START_TEST(seed_and_epoch_change_the_order)
{
	/* two random orders agree in one place on average; in ten with odds of 1 to 10^7 */
	ck_assert_uint_le(agreeing(1, 0, 2, 0), 10);
	ck_assert_uint_le(agreeing(1, 0, 1, 1), 10);
	ck_assert_uint_le(agreeing(1, 1, 2, 0), 10);
	ck_assert_uint_eq(agreeing(1, 1, 1, 1), 10000);
}
END_TEST

START_TEST(a_new_size_deals_as_a_sampler_of_that_size)
{
	struct sampler a, b;
	const uint32_t *ids_a, *ids_b;

	ck_assert_int_eq(sampler_init(&a, 3, 1000, 8, 2, 4), 0);
	ck_assert_int_eq(sampler_init(&b, 3, 1000, 8, 2, 6), 0);
	ck_assert_uint_eq(sampler_window(&a, 2, &ids_a), 64);
	sampler_resize(&a, 6);
	ck_assert_uint_eq(sampler_windows(&a), sampler_windows(&b));
	for (uint64_t w = 3; w < 25; w++) { /* into the third epoch */
		uint32_t n = sampler_micro(&b, w, 1, 5, &ids_b);
		ck_assert_uint_eq(sampler_micro(&a, w, 1, 5, &ids_a), n);
		if (n)
			ck_assert_mem_eq(ids_a, ids_b, n * sizeof(*ids_a));
	}
	sampler_fini(&a);
	sampler_fini(&b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("sampler");
	TCase *c = tcase_create("sampler");

	tcase_add_loop_test(c, deals_each_sample_once, 0, N_SHAPES);
	tcase_add_loop_test(c, a_window_is_its_micro_batches_in_the_order_of_adding, 0, N_SHAPES);
	tcase_add_test(c, a_restarted_rank_gets_the_same_samples);
	tcase_add_test(c, seed_and_epoch_change_the_order);
	tcase_add_test(c, a_new_size_deals_as_a_sampler_of_that_size);
	suite_add_tcase(s, c);
	return suite_run(s);
}
