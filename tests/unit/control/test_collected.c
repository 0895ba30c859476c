/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor sets in portions: order, repeats, other ranks, sessions that end, and what is kept. */
#include "control/collected.h"

#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MANY 40

static struct collected p;
static struct tensor_set known;
static char why[320];
static struct tensor_spec set[MANY]; /* "t0", "t1", .. */
static char name[MANY][8];
static uint64_t generation[4]; /* of the ranks' sessions */

static void setup(void)
{
	p = (struct collected){ 0 };
	known = (struct tensor_set){ .n = MANY, .tensor = set };
	why[0] = '\0';
	for (int i = 0; i < MANY; i++) {
		snprintf(name[i], sizeof(name[i]), "t%d", i);
		set[i] = (struct tensor_spec){ .name = name[i], .dtype = DTYPE_F32, .n_dims = 1, .shape = { i + 1 } };
	}
	set[7].alias_of = name[6];
	for (int i = 0; i < 4; i++)
		generation[i] = 1;
}

static void teardown(void)
{
	collected_fini(&p);
	ck_assert_uint_eq(p.bytes, 0);
}

static bool is_current(const void *ctx, uint32_t rank, uint64_t g)
{
	return generation[rank] == g;
}

/* As the edge does it. */
static enum status give_of(uint32_t rank, const struct tensor_spec *t, uint64_t first, uint64_t n, uint64_t total,
			   const struct tensor_set *of)
{
	struct portion q = { .rank = rank, .generation = generation[rank], .first = first, .n = n, .total = total };
	uint64_t keep = collected_prune(&p, is_current, NULL);
	enum status st = collected_admit(&p, &q, of, why, sizeof(why));
	if (st)
		return st;
	collected_trim(&p, of ? 0 : keep);
	st = collected_take(&p, &q, t, of, why, sizeof(why));
	return st ? st : collected_note(&p, &q, 5);
}

static enum status give(uint32_t rank, uint64_t first, uint64_t n)
{
	return give_of(rank, set + first, first, n, MANY, NULL);
}

static void has_first(uint64_t n)
{
	struct tensor_spec *all = collected_join(&p);
	ck_assert_uint_eq(p.n, n);
	for (uint64_t i = 0; i < n; i++) {
		ck_assert(all[i].name != name[i]);
		ck_assert_str_eq(all[i].name, name[i]);
		ck_assert_int_eq(all[i].shape[0], (int64_t)i + 1);
		ck_assert_str_eq(all[i].alias_of ? all[i].alias_of : "-", i == 7 ? "t6" : "-");
	}
	free(all);
}

START_TEST(in_order)
{
	ck_assert_int_eq(give(0, 0, 5), ST_OK);
	ck_assert_int_eq(give(0, 5, 3), ST_OK);
	ck_assert_uint_eq(collected_from(&p, 0, 1), 8);
	has_first(8);
	ck_assert_int_eq(give(0, 8, MANY - 8), ST_OK);
	has_first(MANY);
}
END_TEST

START_TEST(a_wrong_place_names_what_is_expected)
{
	ck_assert_int_eq(give(0, 1, 5), ST_OUT_OF_ORDER);
	ck_assert_ptr_nonnull(strstr(why, "tensor 0 is expected"));
	ck_assert_int_eq(give(0, 0, 5), ST_OK);
	ck_assert_int_eq(give(0, 6, 2), ST_OUT_OF_ORDER);
	ck_assert_ptr_nonnull(strstr(why, "tensor 5 is expected"));
	ck_assert_int_eq(give(1, 5, 5), ST_OUT_OF_ORDER); /* another rank has its own place */
	has_first(5);
}
END_TEST

START_TEST(a_repeat_is_taken_again_however_it_is_cut)
{
	ck_assert_int_eq(give(0, 0, 5), ST_OK);
	ck_assert_int_eq(give(0, 0, 5), ST_OK);
	ck_assert_int_eq(give(0, 5, 5), ST_OK);
	ck_assert_int_eq(give(0, 2, 5), ST_OK);
	ck_assert_uint_eq(collected_from(&p, 0, 1), 10);
	ck_assert_int_eq(give(0, 3, 20), ST_OK); /* part repeated, part new */
	ck_assert_uint_eq(collected_from(&p, 0, 1), 23);
	has_first(23);
}
END_TEST

START_TEST(a_repeat_with_another_tensor_is_refused)
{
	struct tensor_spec other[5];
	memcpy(other, set + 3, sizeof(other));
	other[3].shape[0] = 99;
	ck_assert_int_eq(give(0, 0, 5), ST_OK);
	ck_assert_int_eq(give(0, 5, 5), ST_OK);
	ck_assert_int_eq(give_of(0, other, 3, 5, MANY, NULL), ST_LAYOUT_MISMATCH);
	ck_assert_str_eq(why, "rank 0: tensor 6 't6': shape [7] against [99]");
	has_first(10);
}
END_TEST

START_TEST(ranks_give_the_same_set_and_one_copy_is_kept)
{
	ck_assert_int_eq(give(0, 0, 10), ST_OK);
	size_t bytes = p.bytes;
	ck_assert_int_eq(give(1, 0, 4), ST_OK);
	ck_assert_int_eq(give(1, 4, 6), ST_OK);
	ck_assert_uint_eq(p.bytes, bytes);
	ck_assert_int_eq(give(1, 10, 10), ST_OK); /* overtakes */
	ck_assert_int_eq(give(0, 10, 15), ST_OK);
	has_first(25);
	ck_assert_uint_eq(collected_from(&p, 1, 1), 20);
}
END_TEST

START_TEST(another_ranks_tensor_that_differs_is_named)
{
	struct tensor_spec other[10];
	memcpy(other, set, sizeof(other));
	other[8].name = "x";
	ck_assert_int_eq(give(0, 0, 3), ST_OK);
	ck_assert_int_eq(give(0, 3, 9), ST_OK);
	ck_assert_int_eq(give_of(1, other, 0, 10, MANY, NULL), ST_LAYOUT_MISMATCH);
	ck_assert_str_eq(why, "rank 1: tensor 8 is named 't8' in one set and 'x' in the other");
	ck_assert_uint_eq(collected_from(&p, 1, 1), 0);
	ck_assert_int_eq(give_of(1, set, 0, 10, MANY - 1, NULL), ST_LAYOUT_MISMATCH);
	ck_assert_str_eq(why, "rank 1: total is 39, the job's set has 40 tensors");
}
END_TEST

START_TEST(numbers_that_make_no_set_are_refused)
{
	ck_assert_int_eq(give_of(0, set, 0, 2, ARENA_MAX_TENSORS + 1ull, NULL), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(give_of(0, set, 0, 3, 2, NULL), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(give_of(0, set, 2, 1, 2, NULL), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(give_of(0, set, UINT64_MAX, 2, 2, NULL), ST_INVALID_ARGUMENT);
	ck_assert_int_eq(give_of(0, set, 0, 2, ARENA_MAX_TENSORS, NULL), ST_OK);
}
END_TEST

START_TEST(a_new_session_of_the_rank_begins_again)
{
	struct tensor_spec other[5];
	memcpy(other, set, sizeof(other));
	other[0].name = "x";
	ck_assert_int_eq(give(0, 0, 10), ST_OK);
	generation[0] = 2;
	ck_assert_uint_eq(collected_from(&p, 0, 2), 0);
	ck_assert_int_eq(give(0, 10, 5), ST_OUT_OF_ORDER);
	ck_assert_int_eq(give_of(0, other, 0, 5, 5, NULL), ST_OK); /* even another set */
	ck_assert_uint_eq(p.n, 5);
	ck_assert_str_eq(p.block[0].tensor[0].name, "x");
	ck_assert_uint_eq(p.total, 5);
}
END_TEST

START_TEST(what_other_ranks_have_given_too_is_kept)
{
	ck_assert_int_eq(give(0, 0, 10), ST_OK);
	ck_assert_int_eq(give(0, 10, 10), ST_OK);
	ck_assert_int_eq(give(1, 0, 13), ST_OK);
	generation[0] = 2;
	ck_assert_int_eq(give(2, 0, 1), ST_OK);
	has_first(13);
	ck_assert_int_eq(give(1, 13, 5), ST_OK);
	ck_assert_int_eq(give(0, 0, 18), ST_OK);
	has_first(18);
}
END_TEST

/* A portion whose session ended while it was compared is in the blocks, and nobody has given it. */
START_TEST(a_portion_that_was_not_noted_is_dropped)
{
	struct portion q = { .rank = 0, .generation = 1, .first = 0, .n = 10, .total = MANY };
	ck_assert_int_eq(collected_take(&p, &q, set, NULL, why, sizeof(why)), ST_OK);
	ck_assert(collected_over(&p, 5));
	ck_assert_int_eq(give(1, 0, 3), ST_OK);
	has_first(3);
}
END_TEST

START_TEST(a_known_set_is_only_compared_with)
{
	struct tensor_spec other[5];
	memcpy(other, set + 10, sizeof(other));
	other[4].dtype = DTYPE_BF16;
	ck_assert_int_eq(give_of(0, set, 0, 10, MANY, &known), ST_OK);
	ck_assert_int_eq(give_of(0, other, 10, 5, MANY, &known), ST_LAYOUT_MISMATCH);
	ck_assert_str_eq(why, "rank 0: tensor 14 't14': dtype f32 against bf16");
	ck_assert_int_eq(give_of(0, set + 10, 10, MANY - 10, MANY, &known), ST_OK);
	ck_assert_int_eq(give_of(1, set, 0, 1, MANY + 1, &known), ST_LAYOUT_MISMATCH);
	ck_assert_uint_eq(p.bytes, 0);
	ck_assert_uint_eq(collected_from(&p, 0, 1), MANY);
}
END_TEST

START_TEST(it_is_over_when_nobody_goes_on)
{
	ck_assert_int_eq(give(0, 0, 10), ST_OK);
	ck_assert(!collected_over(&p, 5 + COLLECTED_KEEP_NS));
	ck_assert(collected_over(&p, 6 + COLLECTED_KEEP_NS));
	generation[0] = 2;
	collected_prune(&p, is_current, NULL);
	ck_assert(collected_over(&p, 5));
}
END_TEST

START_TEST(memory_is_counted)
{
	ck_assert_int_eq(give(0, 0, 10), ST_OK);
	ck_assert_uint_ge(p.bytes, 10 * sizeof(*set) + 10 * 3 + 3);
	size_t ten = p.bytes;
	ck_assert_int_eq(give(0, 10, 10), ST_OK);
	ck_assert_uint_gt(p.bytes, 2 * ten - 20);
	collected_trim(&p, 10);
	ck_assert_uint_eq(p.bytes, ten);
	collected_trim(&p, 4);
	has_first(4);
	collected_trim(&p, 0);
	ck_assert_uint_eq(p.bytes, 0);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("collected");
	TCase *tc = tcase_create("collected");
	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, in_order);
	tcase_add_test(tc, a_wrong_place_names_what_is_expected);
	tcase_add_test(tc, a_repeat_is_taken_again_however_it_is_cut);
	tcase_add_test(tc, a_repeat_with_another_tensor_is_refused);
	tcase_add_test(tc, ranks_give_the_same_set_and_one_copy_is_kept);
	tcase_add_test(tc, another_ranks_tensor_that_differs_is_named);
	tcase_add_test(tc, numbers_that_make_no_set_are_refused);
	tcase_add_test(tc, a_new_session_of_the_rank_begins_again);
	tcase_add_test(tc, what_other_ranks_have_given_too_is_kept);
	tcase_add_test(tc, a_portion_that_was_not_noted_is_dropped);
	tcase_add_test(tc, a_known_set_is_only_compared_with);
	tcase_add_test(tc, it_is_over_when_nobody_goes_on);
	tcase_add_test(tc, memory_is_counted);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
