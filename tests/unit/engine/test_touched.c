/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors a window has touched, and each tensor's own steps: the table of engine/touched.h. */
#include "engine/stepping.h"
#include "support/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { N = 11 }; /* the last one is an alias of the third */

Suite *touched_suite(void);

static struct {
	struct plan plan;
	struct plan_tensor tensor[N];
	struct plan_range range[N];
	struct optim_group group[2];
} job;
static struct control_page page;
static struct touched t;

static void setup(void)
{
	memset(&job, 0, sizeof(job));
	job.plan = (struct plan){ .n_tensors = N,
				  .tensors_offset = (uint64_t)((char *)job.tensor - (char *)&job),
				  .n_ranges = N - 1,
				  .ranges_offset = (uint64_t)((char *)job.range - (char *)&job),
				  .n_optim_groups = 2,
				  .optim_groups_offset = (uint64_t)((char *)job.group - (char *)&job),
				  .optim = { .type = OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8 },
				  .n_parts = 1,
				  .n_shards = 1,
				  .skip_untouched = 1 };
	job.group[0] = job.group[1] = (struct optim_group){ 1, 0.1, false };
	job.group[1].frozen = true;
	for (uint64_t i = 0; i < N; i++) {
		job.tensor[i] = (struct plan_tensor){ .start = i * 32, .count = 20, .alias = -1 };
		job.range[i] = (struct plan_range){ i * 32, 32, 0, i == 5 };
	}
	job.tensor[N - 1].alias = 2;
	job.tensor[N - 1].start = job.tensor[2].start;
	const uint64_t bytes = touched_control_bytes(1, 1, 1, N, true);
	ck_assert_uint_eq(bytes, control_page_bytes(1, 1, 1, N) + touched_bytes(N));
	ck_assert_uint_eq(touched_control_bytes(1, 1, 1, N, false), control_page_bytes(1, 1, 1, N));
	ck_assert_uint_eq(touched_control_bytes(UINT32_MAX, UINT32_MAX, 1, 1, true), 0);
	control_page_view(&page, calloc(1, bytes), 1, 1, 1, N);
	t = touched_view(&job.plan, &page);
	ck_assert_ptr_eq(t.left_out[1] + 16, page.base + bytes); /* all of it is inside, to the last byte */
}

static void teardown(void)
{
	free(page.base);
}

static void expect_set(uint32_t half, unsigned bits)
{
	for (uint64_t i = 0; i < N - 1; i++)
		ck_assert_msg(touched_has(&t, half, i) == (bits >> i & 1), "tensor %d", (int)i);
}

static void add(uint32_t dst, uint32_t src, bool first, unsigned bits)
{
	const unsigned char present[] = { bits & 0xff, bits >> 8 }, *all[] = { present };
	touched_add(&t, dst, src, first, all, 1);
}

START_TEST(a_pass_adds_to_the_set_of_the_half_it_comes_from)
{
	const unsigned char a[] = { 0x01, 0 }, b[] = { 0x80, 1 }, *both[] = { a, b }, *all[] = { a, NULL };
	touched_add(&t, 1, 0, true, both, 2);
	expect_set(1, 0x181);
	add(0, 1, false, 0x002);
	expect_set(0, 0x183);
	expect_set(1, 0x181); /* what the record speaks of stays */
	add(0, 1, false, 0);  /* repeated, without what it had */
	expect_set(0, 0x181);
	touched_add(&t, 1, 0, false, all, 2);
	expect_set(1, 0x3ff);
	add(0, 1, true, 0x010); /* a new window's first pass: nothing is left of the last one */
	expect_set(0, 0x010);
	add(0, 0, true, 0x020); /* in one half: a sum in its slot */
	expect_set(0, 0x020);
}
END_TEST

START_TEST(an_alias_stands_for_its_target)
{
	add(1, 0, true, 1u << (N - 1));
	expect_set(1, 1u << 2);
}
END_TEST

START_TEST(the_sets_of_all_parts_are_joined)
{
	unsigned char sets[3 * 64] = { 0 };
	sets[0] = 0x01;
	sets[64] = 0x04;
	sets[129] = 0x02;
	memset(t.set[1], 0xff, t.n_bytes);
	touched_join(&t, 1, sets, 3);
	expect_set(1, 0x205);
	touched_join(&t, 1, sets, 2);
	expect_set(1, 0x005);
}
END_TEST

START_TEST(a_tensor_counts_the_steps_that_it_took_part_in)
{
	static const unsigned windows[] = { 0x3ff, 0x3fe, 0x3fe, 0x001, 0x000, 0x3ff };
	uint64_t own[N] = { 0 };
	for (uint64_t w = 0; w < 6; w++) {
		add(w % 2, 1 - w % 2, true, windows[w]);
		for (uint64_t i = 0; i < N - 1; i++)
			if (windows[w] >> i & 1)
				ck_assert_uint_eq(touched_step(&t, w + 1, i), ++own[i]);
		touched_note(&t, w + 1, w % 2);
		touched_note(&t, w + 1, w % 2); /* by a successor, once more */
	}
}
END_TEST

START_TEST(the_half_is_the_one_with_the_sum)
{
	const struct control_record r = { .x = 1 };
	ck_assert_uint_eq(touched_half(&job.plan, &r), 1);
	job.plan.n_parts = 2;
	ck_assert_uint_eq(touched_half(&job.plan, &r), 0);
}
END_TEST

START_TEST(a_job_that_steps_all_has_none)
{
	job.plan.skip_untouched = 0;
	ck_assert_ptr_null(touched_view(&job.plan, &page).plan);
}
END_TEST

static void same_scalars(const struct kernel_update *is, uint64_t step)
{
	struct kernel_update want;
	optim_step(&job.plan.optim, &job.group[0], step, 0.5, 0.25, 0, &want);
	ck_assert(is->step_size == want.step_size && is->inv_bias2_sqrt == want.inv_bias2_sqrt);
	ck_assert(is->decay == want.decay && is->scale == want.scale && is->first == want.first);
}

/* Tensor 3 was left out of step 1; a cut has given it two ranges; 5 is frozen; 7 is not touched now. */
START_TEST(a_step_leaves_out_ranges_and_has_scalars_for_each_of_the_others)
{
	struct stepping s;
	const struct control_record r = { .x = 1, .commit_applied_step = 2, .commit_lr = 0.5, .commit_scale = 0.25 };
	job.range[4] = (struct plan_range){ 3 * 32 + 16, 16, 0, 0 };
	ck_assert_int_eq(stepping_init(&s, &job.plan, &page), ST_OK);
	ck_assert_uint_eq(s.n_scalars, job.plan.n_ranges);
	add(0, 1, true, 0x3f7);
	touched_note(&t, 1, 0);
	add(1, 0, true, 0x37f);
	stepping_begin(&s, &r);
	for (uint64_t i = 0; i < N - 1; i++) {
		ck_assert_msg(s.left_out[i] == (i == 5 || i == 7), "range %d", (int)i);
		ck_assert_uint_eq(stepping_row(&s, i), i);
		if (!s.left_out[i])
			same_scalars(&s.scalars[i], i == 3 || i == 4 ? 1 : 2);
	}
	ck_assert(stepping_trust(&s, 7, 9, 4) == 1);
	ck_assert(stepping_trust(&s, 6, 9, 4) == 1.5);
	job.group[0].lr_scale = 0.5;
	ck_assert(stepping_lr(&s, 6, 8, 1.5) == 6);
	stepping_fini(&s);
}
END_TEST

START_TEST(without_skip_there_are_scalars_for_each_group)
{
	struct stepping s;
	const struct control_record r = { .commit_applied_step = 2, .commit_lr = 0.5, .commit_scale = 0.25 };
	job.plan.skip_untouched = 0;
	ck_assert_int_eq(stepping_init(&s, &job.plan, &page), ST_OK);
	ck_assert_uint_eq(s.n_scalars, 2);
	stepping_begin(&s, &r);
	for (uint64_t i = 0; i < N - 1; i++) {
		ck_assert(s.left_out[i] == (i == 5));
		ck_assert_uint_eq(stepping_row(&s, i), i == 5);
	}
	same_scalars(&s.scalars[0], 2);
	stepping_fini(&s);
}
END_TEST

Suite *touched_suite(void)
{
	Suite *s = suite_create("touched");
	TCase *c = tcase_create("touched");
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, a_pass_adds_to_the_set_of_the_half_it_comes_from);
	tcase_add_test(c, an_alias_stands_for_its_target);
	tcase_add_test(c, the_sets_of_all_parts_are_joined);
	tcase_add_test(c, a_tensor_counts_the_steps_that_it_took_part_in);
	tcase_add_test(c, the_half_is_the_one_with_the_sum);
	tcase_add_test(c, a_job_that_steps_all_has_none);
	tcase_add_test(c, a_step_leaves_out_ranges_and_has_scalars_for_each_of_the_others);
	tcase_add_test(c, without_skip_there_are_scalars_for_each_group);
	suite_add_tcase(s, c);
	return s;
}
