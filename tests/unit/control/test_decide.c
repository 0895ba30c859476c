/* Loss scale, values that change, and what becomes of a window. */
#include "control/decide.h"

#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define BAD WINDOW_NOT_FINITE
#define FIN WINDOW_FINITE
#define NO WINDOW_NO_SIGN

static struct job_spec spec;

static void setup(void)
{
	const char *field;
	char why[200] = "";
	spec = (struct job_spec){ .name = "t", .ranks = 2, .micro_size = 4, .steps = 0 };
	spec.optim = (struct optim_config){ .type = OPTIM_SGD, .lr = 0.1 };
	spec.master_f32 = true;
	ck_assert_msg(job_spec_check(&spec, &field, why, sizeof why) == ST_OK, "%s", why);
}

/* ---- loss scale ---- */

/* torch.amp.GradScaler (2.13) on the CPU: after each of these steps (1: an infinite gradient), get_scale() and
 * _get_growth_tracker(). First with init_scale 1024, growth_interval 3, then with init_scale 96, factors 4 and 0.25, interval 2. */
static const int torch_steps[] = { 0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0 };
static const struct {
	struct loss_scale_rules rules;
	double first;
	struct {
		double scale;
		uint32_t tracker;
	} after[20];
} torch[] = {
	{ { true, 2, 0.5, 3, 1, 1, 1 << 24 }, 1024,
	  { { 1024, 1 }, { 1024, 2 }, { 2048, 0 }, { 1024, 0 }, { 1024, 1 }, { 1024, 2 }, { 2048, 0 }, { 2048, 1 }, { 1024, 0 },
	    { 512, 0 }, { 512, 1 }, { 512, 2 }, { 1024, 0 }, { 1024, 1 }, { 1024, 2 }, { 2048, 0 }, { 1024, 0 }, { 1024, 1 },
	    { 1024, 2 }, { 2048, 0 } } },
	{ { true, 4, 0.25, 2, 1, 1, 1 << 24 }, 96,
	  { { 96, 1 }, { 384, 0 }, { 384, 1 }, { 96, 0 }, { 96, 1 }, { 384, 0 }, { 384, 1 }, { 1536, 0 }, { 384, 0 }, { 96, 0 },
	    { 96, 1 }, { 384, 0 }, { 384, 1 }, { 1536, 0 }, { 1536, 1 }, { 6144, 0 }, { 1536, 0 }, { 1536, 1 }, { 6144, 0 },
	    { 6144, 1 } } },
};

START_TEST(the_scale_goes_as_pytorchs)
{
	struct loss_scale s = loss_scale_first(&torch[_i].rules, torch[_i].first);
	for (int i = 0; i < 20; i++) {
		s = loss_scale_next(&torch[_i].rules, s, torch_steps[i] ? BAD : FIN);
		ck_assert_msg(s.scale == torch[_i].after[i].scale && s.good == torch[_i].after[i].tracker,
			      "step %d: %g, %u", i, s.scale, s.good);
	}
}
END_TEST

/* Megatron-LM's rule by hand, hysteresis 2, interval 2, scales in [4, 16]. */
static const struct {
	enum window_finite what;
	double scale;
	uint32_t good, allowance;
} by_hand[] = {
	{ BAD, 8, 0, 1 },  /* one is forgiven */
	{ FIN, 8, 1, 1 },  { NO, 8, 1, 1 },   { BAD, 4, 0, 0 }, /* the second shrinks, and so does every further one */
	{ BAD, 4, 0, 0 },  /* not below min */
	{ FIN, 4, 1, 0 },  { FIN, 8, 0, 2 },  /* growth fills the hysteresis */
	{ BAD, 8, 0, 1 },  { FIN, 8, 1, 1 },  { FIN, 16, 0, 2 }, { FIN, 16, 1, 2 }, { FIN, 16, 0, 2 }, /* not above max */
};

START_TEST(hysteresis_forgives)
{
	const struct loss_scale_rules rules = { true, 2, 0.5, 2, 2, 4, 16 };
	struct loss_scale s = loss_scale_first(&rules, 8);
	for (size_t i = 0; i < sizeof by_hand / sizeof *by_hand; i++) {
		s = loss_scale_next(&rules, s, by_hand[i].what);
		ck_assert_msg(s.scale == by_hand[i].scale && s.good == by_hand[i].good &&
				      s.allowance == by_hand[i].allowance,
			      "row %zu: %g, %u, %u", i, s.scale, s.good, s.allowance);
	}
}
END_TEST

START_TEST(a_fixed_scale_stays)
{
	struct loss_scale s = loss_scale_first(&spec.dynamic_loss_scale, 3);
	for (int i = 0; i < 5000; i++)
		s = loss_scale_next(&spec.dynamic_loss_scale, s, i % 7 ? FIN : BAD);
	ck_assert_double_eq(s.scale, 3);
}
END_TEST

/* ---- values that change ---- */

static struct update change(uint64_t window, uint32_t set, uint32_t micro_size, double lr)
{
	return (struct update){ window, set, { micro_size, lr, 7, 8 } };
}

START_TEST(each_change_holds_from_its_window)
{
	struct updates u = { 0 };
	struct update made[] = { change(20, VALUE_LR, 0, 0.3), change(10, VALUE_LR, 0, 0.2), change(10, VALUE_MICRO_SIZE, 8, 0),
				 change(10, VALUE_LR, 0, 0.25), change(30, VALUE_CLIP_NORM | VALUE_CLIP_VALUE, 0, 0),
				 change(15, VALUE_MICRO_SIZE, 2, 0) };
	for (size_t i = 0; i < 6; i++)
		ck_assert_int_eq(updates_put(&u, &made[i]), ST_OK);
	struct values v = values_of(&spec);
	ck_assert_double_eq(updates_at(&u, v, 9).lr, 0.1);
	ck_assert_double_eq(updates_at(&u, v, 10).lr, 0.25); /* of two for one window the later one */
	ck_assert_uint_eq(updates_at(&u, v, 10).micro_size, 8);
	ck_assert_double_eq(updates_at(&u, v, 29).lr, 0.3);
	v = updates_take(&u, v, 14);
	ck_assert_uint_eq(u.n, 3);
	ck_assert_uint_eq(v.micro_size, 8);
	ck_assert_double_eq(v.lr, 0.25);
	ck_assert_double_eq(updates_take(&u, v, 9).lr, 0.25); /* nothing left of the past */
	v = updates_take(&u, v, 30);
	ck_assert_uint_eq(u.n, 0);
	ck_assert_double_eq(v.lr, 0.3);
	ck_assert_uint_eq(v.micro_size, 2);
	ck_assert(v.clip_norm == 7 && v.clip_value == 8);
	updates_fini(&u);
}
END_TEST

START_TEST(a_checkpoint_has_what_is_not_the_specs)
{
	struct updates u = { 0 };
	struct update out[UPDATES_MAX_PENDING + 1];
	struct values v = values_of(&spec);
	ck_assert_uint_eq(updates_beyond_spec(&u, v, &spec, 5, out), 0);
	struct update made[] = { change(5, VALUE_LR, 0, 0.2), change(6, VALUE_LR, 0, 0.3), change(6, VALUE_LR, 0, 0.4) };
	for (size_t i = 0; i < 3; i++)
		ck_assert_int_eq(updates_put(&u, &made[i]), ST_OK);
	v.clip_norm = 5; /* of an update that is in force already */
	ck_assert_uint_eq(updates_beyond_spec(&u, v, &spec, 5, out), 3);
	ck_assert(out[0].window == 5 && out[0].set == (VALUE_LR | VALUE_CLIP_NORM));
	ck_assert(out[0].to.lr == 0.2 && out[0].to.clip_norm == 5);
	ck_assert(out[1].window == 6 && out[1].to.lr == 0.3 && out[2].to.lr == 0.4);
	updates_fini(&u);
}
END_TEST

START_TEST(updates_stand_in_the_order_of_their_windows)
{
	struct update list[] = { change(5, VALUE_LR, 0, 0.2), change(9, VALUE_LR, 0, 0.3), change(9, VALUE_CLIP_VALUE, 0, 0),
				 change(8, VALUE_LR, 0, 0.1) };
	ck_assert(updates_ascend(list, 0) && updates_ascend(list, 1) && updates_ascend(list, 3));
	ck_assert(!updates_ascend(list, 4));
}
END_TEST

START_TEST(a_new_specification_wins_over_old_updates)
{
	struct job_spec now = spec;
	struct update list[] = { change(5, VALUE_LR | VALUE_MICRO_SIZE, 8, 0.2), change(9, VALUE_LR, 0, 0.3),
				 change(9, VALUE_CLIP_VALUE, 0, 0) };
	uint32_t n = 3;
	ck_assert_uint_eq(updates_inherit(list, &n, &spec, &now), 0);
	ck_assert_uint_eq(n, 3);
	now.optim.lr = 7;
	now.clip_norm = 3;
	ck_assert_uint_eq(updates_inherit(list, &n, &spec, &now), VALUE_LR);
	ck_assert_uint_eq(n, 2);
	ck_assert(list[0].window == 5 && list[0].set == VALUE_MICRO_SIZE && list[0].to.micro_size == 8);
	ck_assert(list[1].window == 9 && list[1].set == VALUE_CLIP_VALUE);
}
END_TEST

static const struct {
	struct update u;
	const char *field, *why;
} refused[] = {
	{ { 1, 0, { 0 } }, "values", "values is empty: set micro_size, lr, clip_norm or clip_value" },
	{ { 1, VALUE_MICRO_SIZE, { .micro_size = 65 } }, "values.micro_size",
	  "micro_size is 65, must be 1..64 (max_micro_size of the job)" },
	{ { 1, VALUE_LR, { .lr = -1 } }, "values.lr", "lr is -1, must be 0..3.40282e+38" },
	{ { 1, VALUE_LR, { .lr = INFINITY } }, "values.lr", "lr is inf, must be 0..3.40282e+38" },
	{ { 1, VALUE_CLIP_NORM, { .clip_norm = NAN } }, "values.clip_norm", "clip_norm is nan, must be finite and >= 0 (0: off)" },
	{ { 1, VALUE_CLIP_VALUE, { .clip_value = -2 } }, "values.clip_value",
	  "clip_value is -2, must be 0 (off) or 1.17549e-38..3.40282e+38, where f32 is normal" },
};

START_TEST(values_are_checked_as_the_specs)
{
	const char *field = NULL;
	char why[200] = "";
	ck_assert_int_eq(update_check(&refused[_i].u, &spec, &field, why, sizeof why), ST_INVALID_ARGUMENT);
	ck_assert_str_eq(field, refused[_i].field);
	ck_assert_str_eq(why, refused[_i].why);
}
END_TEST

START_TEST(a_job_whose_trainers_step_has_no_lr)
{
	const char *field;
	char why[200];
	struct update u = change(3, VALUE_LR, 0, 0.1);
	ck_assert_int_eq(update_check(&u, &spec, &field, why, sizeof why), ST_OK);
	spec.optim.type = OPTIM_CLIENT;
	ck_assert_int_eq(update_check(&u, &spec, &field, why, sizeof why), ST_INVALID_ARGUMENT);
}
END_TEST

START_TEST(a_change_says_old_and_new)
{
	char text[160];
	struct update u = change(3, VALUE_LR | VALUE_MICRO_SIZE, 8, 0.05);
	update_describe(&u, values_of(&spec), text, sizeof text);
	ck_assert_str_eq(text, "micro_size 4 -> 8, lr 0.1 -> 0.05");
}
END_TEST

/* ---- outcomes ---- */

static struct window_sums full(double norm)
{
	/* weighted mean, all weights 1: divisor 8 */
	return (struct window_sums){ .window = 5, .count = 8, .expected = 8, .sum_weight = 8, .sum_loss = 16,
				     .sumsq = norm * norm * 64 };
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

/* Weights that f32 does not have: the sum is of zeros, and what multiplies it infinite. Unless the clipping brings it back. */
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
	{ OPTIM_SGD, 3.4e38, 0, 0, OUTCOME_APPLIED },   { OPTIM_SGD, 3.5e38, 0, 0, OUTCOME_SKIPPED },
	{ OPTIM_SGD, 3.5e38, 1, 0, OUTCOME_APPLIED },   { OPTIM_SGD, 3.5e38, 0, 1, OUTCOME_APPLIED },
	{ OPTIM_CLIENT, 3.4e38, 0, 0, OUTCOME_APPLIED }, { OPTIM_CLIENT, 3.5e38, 0, 0, OUTCOME_SKIPPED },
	{ OPTIM_ADAM, 1.8e19, 0, 0, OUTCOME_APPLIED },  { OPTIM_ADAM, 1.9e19, 0, 0, OUTCOME_SKIPPED },
	{ OPTIM_ADAMW, 1.9e19, 0, 0, OUTCOME_SKIPPED }, { OPTIM_LAMB, 1.9e19, 0, 0, OUTCOME_SKIPPED },
	{ OPTIM_ADAMW, 1.9e19, 1, 0, OUTCOME_APPLIED }, { OPTIM_ADAMW, 1.9e19, 0, 1, OUTCOME_APPLIED },
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

/* One letter for a window: 1 the usual norm, X ten times that, n not finite; what becomes of it: A applied, S skipped. */
static void check_run(const char *windows, const char *outcomes)
{
	spec.outlier_skip = (struct outlier_skip){ .factor = 3, .decay = 0.5, .warmup_steps = 3 };
	struct carry c = carry_first(&spec);
	for (int i = 0; windows[i]; i++) {
		struct window_sums in = full(windows[i] == 'X' ? 10 : 1);
		in.nonfinite = windows[i] == 'n';
		struct commit k = decide(in, &c);
		ck_assert_msg(k.outcome == (outcomes[i] == 'A' ? OUTCOME_APPLIED : OUTCOME_SKIPPED), "%s, %s: window %d", windows,
			      outcomes, i);
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
	struct counters want = { .applied = 3, .partial = 2, .skipped_nonfinite = 1, .empty = 1, .rejected_micros = 3,
				 .dropped = 1 };
	ck_assert_mem_eq(&k.next.counters, &want, sizeof want);
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
	struct job_spec s = { .name = "t", .ranks = 1, .micro_size = 1, .master_f32 = true, .loss_scale = specs[_i].first,
			      .dynamic_loss_scale = specs[_i].rules, .outlier_skip = specs[_i].outlier,
			      .nonfinite = specs[_i].nonfinite };
	s.optim = spec.optim;
	enum status st = job_spec_check(&s, &field, why, sizeof why);
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
	struct spec_group group = { pattern, scalars[_i].group, scalars[_i].group.weight_decay != 0 };
	struct job_spec s = { .name = "t", .ranks = 1, .micro_size = 1, .master_f32 = true, .optim = scalars[_i].optim, .group = &group,
			      .n_groups = 1 };
	enum status st = job_spec_check(&s, &field, why, sizeof why);
	ck_assert_msg(st == (scalars[_i].field ? ST_INVALID_SPEC : ST_OK), "%s", why);
	if (scalars[_i].field)
		ck_assert_str_eq(field, scalars[_i].field);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("decide");
	TCase *c = tcase_create("decide");
	tcase_add_checked_fixture(c, setup, NULL);
	tcase_add_loop_test(c, the_scale_goes_as_pytorchs, 0, 2);
	tcase_add_test(c, hysteresis_forgives);
	tcase_add_test(c, a_fixed_scale_stays);
	tcase_add_test(c, each_change_holds_from_its_window);
	tcase_add_test(c, a_checkpoint_has_what_is_not_the_specs);
	tcase_add_test(c, updates_stand_in_the_order_of_their_windows);
	tcase_add_test(c, a_new_specification_wins_over_old_updates);
	tcase_add_loop_test(c, values_are_checked_as_the_specs, 0, sizeof refused / sizeof *refused);
	tcase_add_test(c, a_job_whose_trainers_step_has_no_lr);
	tcase_add_test(c, a_change_says_old_and_new);
	tcase_add_test(c, the_window_is_divided_by_its_own_scale);
	tcase_add_test(c, a_partial_window_is_divided_by_what_it_has);
	tcase_add_test(c, pushes_may_give_the_learning_rate);
	tcase_add_test(c, the_schedule_follows_applied_steps);
	tcase_add_test(c, a_factor_beyond_f32_is_no_step);
	tcase_add_loop_test(c, a_gradient_that_overflows_is_no_step, 0, sizeof large / sizeof *large);
	tcase_add_loop_test(c, scalars_beyond_f32_are_refused, 0, sizeof scalars / sizeof *scalars);
	tcase_add_test(c, the_windows_values_count_not_the_specs);
	tcase_add_test(c, outliers_are_skipped_and_do_not_move_the_mean);
	tcase_add_test(c, outliers_in_a_row_are_a_new_level);
	tcase_add_test(c, counters_count_each_outcome);
	tcase_add_test(c, void_micro_batches_speak_against_the_scale);
	tcase_add_loop_test(c, rules_are_checked, 0, sizeof specs / sizeof *specs);
	suite_add_tcase(s, c);
	return s;
}

int main(void)
{
	return suite_run(suite());
}
