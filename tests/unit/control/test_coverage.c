/* SPDX-License-Identifier: Apache-2.0 */
/* Which bytes have come, compared with one flag for each byte. */
#include "control/coverage.h"

#include "support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES 200

static struct coverage c;

static void teardown(void)
{
	coverage_fini(&c);
}

static bool all(const bool *came, uint64_t from, uint64_t to)
{
	for (; from < to; from++)
		if (!came[from])
			return false;
	return true;
}

START_TEST(it_says_what_a_flag_for_each_byte_says)
{
	srand((unsigned)_i + 1);
	for (int round = 0; round < 40; round++) {
		bool came[BYTES] = { false };
		for (int piece = 0; piece < 25; piece++) {
			uint64_t from = (uint64_t)rand() % BYTES, n = (uint64_t)rand() % 12,
				 to = from + n < BYTES ? from + n : BYTES;
			ck_assert_int_eq(coverage_add(&c, from, to), ST_OK);
			for (uint64_t i = from; i < to; i++)
				came[i] = true;
			for (int look = 0; look < 40; look++) {
				uint64_t a = (uint64_t)rand() % BYTES, b = a + (uint64_t)rand() % (BYTES - a + 1);
				ck_assert_int_eq(coverage_has(&c, a, b), all(came, a, b));
			}
			for (uint32_t i = 1; i < c.n; i++)
				ck_assert_uint_lt(c.piece[i - 1].end, c.piece[i].start);
		}
		coverage_fini(&c);
	}
}
END_TEST

START_TEST(pieces_are_bounded)
{
	for (uint64_t i = 0; i < COVERAGE_MAX; i++)
		ck_assert_int_eq(coverage_add(&c, 2 * i, 2 * i + 1), ST_OK);
	ck_assert_int_eq(coverage_add(&c, 2 * COVERAGE_MAX, 2 * COVERAGE_MAX + 1), ST_RESOURCE_EXHAUSTED);
	ck_assert(!coverage_has(&c, 2 * COVERAGE_MAX, 2 * COVERAGE_MAX + 1) && coverage_has(&c, 0, 1));
	ck_assert_int_eq(coverage_add(&c, 1, 2), ST_OK); /* joins two */
	ck_assert_uint_eq(c.n, COVERAGE_MAX - 1);
	ck_assert_int_eq(coverage_add(&c, 0, 2 * COVERAGE_MAX), ST_OK);
	ck_assert_uint_eq(c.n, 1);
}
END_TEST

/* f32 parameters with bf16 gradients: the two layouts differ. Tensor 2 is tied to tensor 0. */
START_TEST(gaps_need_not_come_and_tied_tensors_have_one_place)
{
	static const struct tensor_spec t[] = {
		{ .name = "a", .dtype = DTYPE_F32, .n_dims = 1, .shape = { 3 } },
		{ .name = "b", .dtype = DTYPE_F32, .n_dims = 1, .shape = { 5 } },
		{ .name = "tied", .dtype = DTYPE_F32, .n_dims = 1, .shape = { 3 }, .alias_of = "a" }
	};
	struct arena a;
	char why[200];
	uint64_t from, to;
	ck_assert_int_eq(arena_init(&a, t, 3, DTYPE_BF16, why, sizeof(why)), ST_OK);
	const uint64_t slot_a = a.tensor[0].slot_offset, slot_b = a.tensor[1].slot_offset,
		       param_b = a.tensor[1].param_offset;
	ck_assert_uint_eq(coverage_missing(&c, &a, COVERAGE_SLOT, NULL, &from, &to), 0);
	ck_assert(from == slot_a && to == slot_a + 6);
	/* "tied" alone is there */
	ck_assert_uint_eq(coverage_missing(&c, &a, COVERAGE_SLOT, (const uint8_t *)"\4", &from, &to), 2);
	ck_assert_uint_eq(coverage_missing(&c, &a, COVERAGE_SLOT, (const uint8_t *)"\2", &from, &to), 1);
	coverage_add(&c, slot_a, slot_a + 6);
	ck_assert_uint_eq(coverage_missing(&c, &a, COVERAGE_SLOT, (const uint8_t *)"\5", &from, &to), 3);
	coverage_add(&c, slot_b, slot_b + 9); /* a byte is missing */
	ck_assert_uint_eq(coverage_missing(&c, &a, COVERAGE_SLOT, NULL, &from, &to), 1);
	coverage_add(&c, slot_b + 9, slot_b + 10);
	ck_assert_uint_eq(coverage_missing(&c, &a, COVERAGE_SLOT, NULL, &from, &to), 3);
	ck_assert_uint_eq(coverage_missing(&c, &a, COVERAGE_PARAMS, NULL, &from, &to), 0);
	coverage_add(&c, 0, 12);
	coverage_add(&c, param_b, param_b + 19);
	ck_assert_uint_eq(coverage_missing(&c, &a, COVERAGE_PARAMS, NULL, &from, &to), 1);
	coverage_add(&c, param_b + 16, param_b + 20);
	ck_assert_uint_eq(coverage_missing(&c, &a, COVERAGE_PARAMS, NULL, &from, &to), 3);
	arena_fini(&a);
}
END_TEST

/* The search goes on from the piece before, which may lie behind the tensor. */
START_TEST(the_first_missing_tensor_is_found)
{
	struct tensor_spec t[60];
	static char name[60][8];
	struct arena a;
	char why[200];
	uint64_t from, to;
	uint32_t seed = 11 + (uint32_t)_i;
	for (int i = 0; i < 60; i++) { /* two groups, so that places do not ascend with the tensors' numbers */
		snprintf(name[i], sizeof(name[i]), "t%d", i);
		t[i] = (struct tensor_spec){
			.name = name[i], .dtype = i % 3 ? DTYPE_F32 : DTYPE_BF16, .n_dims = 1, .shape = { 1 + i }
		};
	}
	ck_assert_int_eq(arena_init(&a, t, 60, DTYPE_NONE, why, sizeof(why)), ST_OK);
	for (int n = 0; n < 400; n++) {
		uint64_t expected = 0;
		seed = seed * 1664525 + 1013904223;
		uint64_t start = (seed >> 8) % a.param_bytes, end = start + (seed >> 4) % 512;
		ck_assert_int_eq(coverage_add(&c, start, end < a.param_bytes ? end : a.param_bytes), ST_OK);
		for (; expected < 60; expected++) {
			const struct arena_tensor *at = &a.tensor[expected];
			if (!coverage_has(&c, at->param_offset,
					  at->param_offset + at->count * dtype_size(t[expected].dtype)))
				break;
		}
		ck_assert_uint_eq(coverage_missing(&c, &a, COVERAGE_PARAMS, NULL, &from, &to), expected);
	}
	arena_fini(&a);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("coverage");
	TCase *t = tcase_create("coverage");
	tcase_add_checked_fixture(t, NULL, teardown);
	suite_add_tcase(s, t);
	tcase_add_loop_test(t, it_says_what_a_flag_for_each_byte_says, 0, 5);
	tcase_add_test(t, pieces_are_bounded);
	tcase_add_test(t, gaps_need_not_come_and_tied_tensors_have_one_place);
	tcase_add_loop_test(t, the_first_missing_tensor_is_found, 0, 5);
	return suite_run(s);
}
