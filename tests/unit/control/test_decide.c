/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of a window. */
#include "decide_rig.h"

#include "engine/channel.h"
#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static struct window_sums full(double norm)
{
	/* weighted mean, all weights 1: divisor 8 */
	return (struct window_sums){
		.window = 5, .count = 8, .expected = 8, .sum_weight = 8, .sum_loss = 16, .sumsq = norm * norm * 64
	};
}

static struct commit decide(struct window_sums in, const struct carry *carry)
{
	struct window_base base = { .applied_step = 3, .values = values_of(&spec), .carry = *carry };
	struct commit k = { .job_id = 1 };
	commit_decide(&spec, &in, &base, &k);
	return k;
}

START_TEST(the_window_is_divided_by_its_own_scale)
{
	struct carry c = carry_first(&spec);
	c.scale.scale = 16;
	struct window_sums in = full(16 * 3);
	struct commit k = decide(in, &c);
	ck_assert_int_eq(k.outcome, OUTCOME_APPLIED);
	ck_assert_double_eq(k.grad_norm, 3);
	ck_assert_double_eq(k.scale, 1.0 / (8 * 16));
	ck_assert_double_eq(k.loss_scale, 16);
	ck_assert_uint_eq(k.applied_step, 4);
	ck_assert_double_eq(k.mean_loss, 2);
	ck_assert_double_eq(k.lr, 0.1);
}
END_TEST

/* It takes the schedule's place for its window, also in the warm-up's first step, whose own is 0. */
START_TEST(pushes_may_give_the_learning_rate)
{
	struct carry c = carry_first(&spec);
	struct window_sums in = full(1);
	spec.schedule = (struct schedule){ .type = SCHEDULE_LINEAR_WARMUP, .warmup_steps = 100 };
	double own = decide(in, &c).lr;
	ck_assert(own < 0.1);
	in.lr = 0.7;
	ck_assert_double_eq(decide(in, &c).lr, 0.7);
	in.lr = 0;
	ck_assert_double_eq(decide(in, &c).lr, own);
	in.lr = 0.7;
	in.nonfinite = 1;
	ck_assert_double_eq(decide(in, &c).lr, 0); /* no step */
}
END_TEST

START_TEST(a_partial_window_is_divided_by_what_it_has)
{
	struct carry c = carry_first(&spec);
	spec.reduction = REDUCE_MEAN;
	struct window_sums in = full(1);
	in.count = 5;
	ck_assert_double_eq(decide(in, &c).divisor, 5);
}
END_TEST

START_TEST(the_schedule_follows_applied_steps)
{
	struct carry c = carry_first(&spec);
	spec.schedule = (struct schedule){ .type = SCHEDULE_STEP, .step_size = 4, .gamma = 0.5 };
	ck_assert_double_eq(decide(full(1), &c).lr, 0.1); /* window 5, but only 3 steps were applied before it */
}
END_TEST

/* Weights that f32 does not have: the sum is of zeros, and what multiplies it infinite. Unless the clipping brings it
 * back. */
START_TEST(a_factor_beyond_f32_is_no_step)
{
	struct carry c = carry_first(&spec);
	struct window_sums in = full(0);
	in.sum_weight = 1e-40;
	struct commit k = decide(in, &c);
	ck_assert_int_eq(k.outcome, OUTCOME_SKIPPED);
	ck_assert_int_eq(k.skip_reason, SKIP_NONFINITE);
	ck_assert_double_eq(k.scale, 0);
	in.sumsq = 1;
	spec.clip_norm = 1;
	k = decide(in, &c);
	ck_assert_int_eq(k.outcome, OUTCOME_APPLIED);
	ck_assert_double_eq_tol(k.scale, 1, 1e-6);
}
END_TEST

/* The sum is finite, and what the optimizer would make of it is not: the gradient itself, or its square in v. */
static const struct {
	enum optim_type type;
	double norm, clip_norm, clip_value;
	enum outcome outcome;
} large[] = {
	{ OPTIM_SGD, 3.4e38, 0, 0, OUTCOME_APPLIED },	   { OPTIM_SGD, 3.5e38, 0, 0, OUTCOME_SKIPPED },
	{ OPTIM_SGD, 3.5e38, 1, 0, OUTCOME_APPLIED },	   { OPTIM_SGD, 3.5e38, 0, 1, OUTCOME_APPLIED },
	{ OPTIM_CLIENT, 3.4e38, 0, 0, OUTCOME_APPLIED },   { OPTIM_CLIENT, 3.5e38, 0, 0, OUTCOME_SKIPPED },
	{ OPTIM_ADAM, 1.8e19, 0, 0, OUTCOME_APPLIED },	   { OPTIM_ADAM, 1.9e19, 0, 0, OUTCOME_SKIPPED },
	{ OPTIM_ADAMW, 1.9e19, 0, 0, OUTCOME_SKIPPED },	   { OPTIM_LAMB, 1.9e19, 0, 0, OUTCOME_SKIPPED },
	{ OPTIM_ADAMW, 1.9e19, 1, 0, OUTCOME_APPLIED },	   { OPTIM_ADAMW, 1.9e19, 0, 1, OUTCOME_APPLIED },
	{ OPTIM_ADAMW, 1.9e19, 0, 1e20, OUTCOME_SKIPPED },
};

START_TEST(a_gradient_that_overflows_is_no_step)
{
	struct carry c = carry_first(&spec);
	struct window_sums in = full(large[_i].norm * 1e-30);
	in.sum_weight = 8e-30;
	spec.optim.type = large[_i].type;
	spec.clip_norm = large[_i].clip_norm;
	spec.clip_value = large[_i].clip_value;
	struct commit k = decide(in, &c);
	ck_assert_double_eq_tol(k.grad_norm / large[_i].norm, 1, 1e-9);
	ck_assert_int_eq(k.outcome, large[_i].outcome);
	ck_assert_int_eq(k.skip_reason, large[_i].outcome == OUTCOME_SKIPPED ? SKIP_NONFINITE : SKIP_NONE);
}
END_TEST

START_TEST(the_windows_values_count_not_the_specs)
{
	struct carry c = carry_first(&spec);
	struct window_sums in = full(4);
	struct window_base base = { .values = { 4, 0.7, 2, 0.5 }, .carry = c };
	struct commit k = { .job_id = 1 };
	commit_decide(&spec, &in, &base, &k);
	ck_assert_double_eq(k.lr, 0.7);
	ck_assert_double_eq(k.clip_value, 0.5);
	ck_assert_double_eq_tol(k.scale, 0.5 / 8, 1e-6);
}
END_TEST

START_TEST(outliers_are_skipped_and_do_not_move_the_mean)
{
	spec.outlier_skip = (struct outlier_skip){ .factor = 3, .decay = 0.5, .warmup_steps = 2 };
	struct carry c = carry_first(&spec);
	const double norms[] = { 100, 1, 4 };
	double sum = 0, weight = 0;
	for (int i = 0; i < 3; i++) { /* 100 comes in the warm-up; 4 is above 3 times 1, not above 3 times the mean */
		struct commit k = decide(full(norms[i]), &c);
		ck_assert_int_eq(k.outcome, OUTCOME_APPLIED);
		sum = sum / 2 + norms[i];
		weight = weight / 2 + 1;
		c = k.next;
		ck_assert_double_eq_tol(c.norms.sum / c.norms.weight, sum / weight, 1e-12);
	}
	struct commit k = decide(full(3.01 * sum / weight), &c);
	ck_assert_int_eq(k.outcome, OUTCOME_SKIPPED);
	ck_assert_int_eq(k.skip_reason, SKIP_OUTLIER);
	ck_assert_double_eq_tol(k.usual_norm, sum / weight, 1e-12);
	ck_assert_uint_eq(k.applied_step, 3);
	ck_assert(k.next.norms.sum == c.norms.sum && k.next.norms.weight == c.norms.weight && k.next.norms.steps == 3);
	ck_assert_uint_eq(k.next.counters.skipped_outlier, 1);
	k = decide(full(2.99 * sum / weight), &c);
	ck_assert_int_eq(k.outcome, OUTCOME_APPLIED);
}
END_TEST

/* One letter for a window: 1 the usual norm, X ten times that, n not finite; what becomes of it: A applied, S skipped.
 */
static void check_run(const char *windows, const char *outcomes)
{
	spec.outlier_skip = (struct outlier_skip){ .factor = 3, .decay = 0.5, .warmup_steps = 3 };
	struct carry c = carry_first(&spec);
	for (int i = 0; windows[i]; i++) {
		struct window_sums in = full(windows[i] == 'X' ? 10 : 1);
		in.nonfinite = windows[i] == 'n';
		struct commit k = decide(in, &c);
		ck_assert_msg(k.outcome == (outcomes[i] == 'A' ? OUTCOME_APPLIED : OUTCOME_SKIPPED),
			      "%s, %s: window %d", windows, outcomes, i);
		c = k.next;
	}
}

START_TEST(outliers_in_a_row_are_a_new_level)
{
	check_run("111XX1XX1", "AAASSASSA"); /* not in a row */
	check_run("111XXXXXX", "AAASSSAAA"); /* warm-up anew */
	check_run("111XnXnXX", "AAASSSSSA"); /* not finite says nothing */
	check_run("111XXX111", "AAASSSAAA");
	check_run("111XXXXXXX1X", "AAASSSAAAAAA");
	check_run("111XXX111XXXX", "AAASSSAAASSSA");
}
END_TEST

START_TEST(counters_count_each_outcome)
{
	struct carry c = carry_first(&spec);
	struct window_sums partial = full(1), bad = full(1), empty = { .expected = 8, .voided = 2 }, voids = full(1);
	partial.count = 6;
	bad.nonfinite = 1;
	voids.count = 7;
	voids.voided = 1;
	struct window_sums in[] = { full(1), partial, bad, empty, voids };
	for (int i = 0; i < 5; i++)
		c = decide(in[i], &c).next;
	spec.uneven = UNEVEN_DROP;
	struct commit k = decide(partial, &c);
	ck_assert_int_eq(k.outcome, OUTCOME_DROPPED);
	struct counters want = {
		.applied = 3, .partial = 2, .skipped_nonfinite = 1, .empty = 1, .rejected_micros = 3, .dropped = 1
	};
	ck_assert_mem_eq(&k.next.counters, &want, sizeof(want));
}
END_TEST

/* reject_micro takes the non-finite values out of the sum: the void micro-batches speak for them. */
START_TEST(void_micro_batches_speak_against_the_scale)
{
	spec.dynamic_loss_scale.enabled = true;
	spec.loss_scale = 64;
	struct carry c = carry_first(&spec);
	struct window_sums in = full(1);
	in.count = 7;
	in.voided = 1;
	struct commit k = decide(in, &c);
	ck_assert_int_eq(k.outcome, OUTCOME_APPLIED);
	ck_assert_double_eq(k.next.scale.scale, 32);
	in = full(1);
	in.nonfinite = 3;
	k = decide(in, &k.next);
	ck_assert_int_eq(k.skip_reason, SKIP_NONFINITE);
	ck_assert_double_eq(k.loss_scale, 32);
	ck_assert_double_eq(k.next.scale.scale, 16);
	struct window_sums none = { .expected = 8 };
	ck_assert_double_eq(decide(none, &k.next).next.scale.scale, 16);
}
END_TEST

static const struct {
	struct loss_scale_rules rules;
	struct outlier_skip outlier;
	double first;
	enum nonfinite nonfinite;
	const char *field;
} specs[] = {
	{ { .enabled = true, .growth_factor = 1 }, { .factor = 0 }, 0, 0, "dynamic_loss_scale.growth_factor" },
	{ { .enabled = true, .backoff_factor = 1.5 }, { .factor = 0 }, 0, 0, "dynamic_loss_scale.backoff_factor" },
	{ { .enabled = true, .min = 8, .max = 4 }, { .factor = 0 }, 0, 0, "dynamic_loss_scale.min_scale" },
	{ { .enabled = true, .min = 8 }, { .factor = 0 }, 4, 0, "loss_scale" },
	{ { .enabled = true }, { .factor = 0 }, 0, NONFINITE_ERROR, "dynamic_loss_scale.enabled" },
	{ { .enabled = false }, { .factor = 0.5 }, 0, 0, "outlier_skip.factor" },
	{ { .enabled = false }, { .factor = 2, .decay = 1 }, 0, 0, "outlier_skip.decay" },
	{ { .enabled = true }, { .factor = 2 }, 65536, 0, NULL },
};

START_TEST(rules_are_checked)
{
	const char *field = NULL;
	char why[256] = "";
	struct job_spec s = { .name = "t",
			      .ranks = 1,
			      .micro_size = 1,
			      .master_f32 = true,
			      .loss_scale = specs[_i].first,
			      .dynamic_loss_scale = specs[_i].rules,
			      .outlier_skip = specs[_i].outlier,
			      .nonfinite = specs[_i].nonfinite };
	s.optim = spec.optim;
	enum status st = job_spec_check(&s, &field, why, sizeof(why));
	ck_assert_msg(st == (specs[_i].field ? ST_INVALID_SPEC : ST_OK), "%s", why);
	if (specs[_i].field)
		ck_assert_str_eq(field, specs[_i].field);
}
END_TEST

/* Scalars that f32 cannot hold, of whichever group. */
static const struct {
	struct optim_config optim;
	struct optim_group group;
	const char *field;
} scalars[] = {
	{ { .type = OPTIM_SGD, .lr = 1e38 }, { .lr_scale = 10 }, "param_groups" },
	{ { .type = OPTIM_SGD, .lr = 1e38 }, { .lr_scale = 3 }, NULL },
	{ { .type = OPTIM_SGD, .lr = 1e38 }, { .lr_scale = 10, .frozen = true }, NULL },
	{ { .type = OPTIM_SGD, .lr = 1, .momentum = 1e39 }, { .lr_scale = 1 }, "optimizer" },
	{ { .type = OPTIM_SGD, .lr = 1, .dampening = 1e39 }, { .lr_scale = 1 }, "optimizer" },
	{ { .type = OPTIM_SGD, .lr = 1, .weight_decay = 1e39 }, { .lr_scale = 1 }, "optimizer" },
	{ { .type = OPTIM_SGD, .lr = 1 }, { .lr_scale = 1, .weight_decay = 1e39 }, "param_groups" },
	{ { .type = OPTIM_ADAM, .lr = 1e37, .beta1 = 0.99, .eps = 1 }, { .lr_scale = 1 }, "optimizer" },
	{ { .type = OPTIM_ADAM, .lr = 1e36, .beta1 = 0.99, .eps = 1 }, { .lr_scale = 1 }, NULL },
	{ { .type = OPTIM_ADAMW, .lr = 1e20, .eps = 1 }, { .lr_scale = 1, .weight_decay = 1e20 }, "param_groups" },
	{ { .type = OPTIM_ADAM, .lr = 1e20, .eps = 1 }, { .lr_scale = 1, .weight_decay = 1e20 }, NULL },
	{ { .type = OPTIM_LAMB, .lr = 1e38, .eps = 1 }, { .lr_scale = 10 }, "param_groups" },
};

START_TEST(scalars_beyond_f32_are_refused)
{
	const char *field = NULL;
	char why[256] = "", pattern[] = "*";
	struct spec_group group = { .pattern = pattern,
				    .values = scalars[_i].group,
				    .override_weight_decay = scalars[_i].group.weight_decay != 0 };
	struct job_spec s = { .name = "t",
			      .ranks = 1,
			      .micro_size = 1,
			      .master_f32 = true,
			      .optim = scalars[_i].optim,
			      .group = &group,
			      .n_groups = 1 };
	enum status st = job_spec_check(&s, &field, why, sizeof(why));
	ck_assert_msg(st == (scalars[_i].field ? ST_INVALID_SPEC : ST_OK), "%s", why);
	if (scalars[_i].field)
		ck_assert_str_eq(field, scalars[_i].field);
}
END_TEST

/* What a trainer that waits in a mailbox reads of the window. */
START_TEST(the_engine_is_told_the_result)
{
	const struct commit k = { .outcome = OUTCOME_SKIPPED,
				  .skip_reason = SKIP_OUTLIER,
				  .total_weight = 1,
				  .divisor = 2,
				  .grad_norm = 3,
				  .mean_loss = 4,
				  .micro_count = 5,
				  .last_rank = 6,
				  .final = 1,
				  .last_lag_ns = 7 };
	struct engine_command c = { 0 };
	commit_fill_command(&k, &c);
	const struct step_result *r = &c.result;
	ck_assert(r->total_weight == 1 && r->divisor == 2 && r->grad_norm == 3 && r->mean_loss == 4);
	ck_assert(r->micro_count == 5 && r->last_rank == 6 && r->last_lag_ns == 7);
	ck_assert(r->skip_reason == SKIP_OUTLIER && r->final == 1);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("decide");
	TCase *c = tcase_create("decide");
	tcase_add_checked_fixture(c, setup, NULL);
	tcase_add_test(c, the_window_is_divided_by_its_own_scale);
	tcase_add_test(c, a_partial_window_is_divided_by_what_it_has);
	tcase_add_test(c, pushes_may_give_the_learning_rate);
	tcase_add_test(c, the_schedule_follows_applied_steps);
	tcase_add_test(c, a_factor_beyond_f32_is_no_step);
	tcase_add_loop_test(c, a_gradient_that_overflows_is_no_step, 0, sizeof(large) / sizeof(*large));
	tcase_add_loop_test(c, scalars_beyond_f32_are_refused, 0, sizeof(scalars) / sizeof(*scalars));
	tcase_add_test(c, the_windows_values_count_not_the_specs);
	tcase_add_test(c, outliers_are_skipped_and_do_not_move_the_mean);
	tcase_add_test(c, outliers_in_a_row_are_a_new_level);
	tcase_add_test(c, counters_count_each_outcome);
	tcase_add_test(c, the_engine_is_told_the_result);
	tcase_add_test(c, void_micro_batches_speak_against_the_scale);
	tcase_add_loop_test(c, rules_are_checked, 0, sizeof(specs) / sizeof(*specs));
	suite_add_tcase(s, c);
	return s;
}

Suite *values_suite(void); /* test_values.c */

int main(void)
{
	return suite_run(suite(), values_suite());
}
