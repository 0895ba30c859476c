/* SPDX-License-Identifier: Apache-2.0 */
/* The loss scale, and values that change while a job runs. */
#include "decide_rig.h"

#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

Suite *values_suite(void);

#define BAD WINDOW_NOT_FINITE
#define FIN WINDOW_FINITE
#define NO WINDOW_NO_SIGN

/* ---- loss scale ---- */

/* torch.amp.GradScaler (2.13) on the CPU: after each of these steps (1: an infinite gradient), get_scale() and
 * _get_growth_tracker(). First with init_scale 1024, growth_interval 3, then with init_scale 96, factors 4 and 0.25,
 * interval 2. */
static const int torch_steps[] = { 0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0 };
static const struct {
	struct loss_scale_rules rules;
	double first;
	struct {
		double scale;
		uint32_t tracker;
	} after[20];
} torch[] = {
	{ { true, 2, 0.5, 3, 1, 1, 1 << 24 },
	  1024,
	  { { 1024, 1 }, { 1024, 2 }, { 2048, 0 }, { 1024, 0 }, { 1024, 1 }, { 1024, 2 }, { 2048, 0 },
	    { 2048, 1 }, { 1024, 0 }, { 512, 0 },  { 512, 1 },	{ 512, 2 },  { 1024, 0 }, { 1024, 1 },
	    { 1024, 2 }, { 2048, 0 }, { 1024, 0 }, { 1024, 1 }, { 1024, 2 }, { 2048, 0 } } },
	{ { true, 4, 0.25, 2, 1, 1, 1 << 24 },
	  96,
	  { { 96, 1 },	 { 384, 0 },  { 384, 1 },  { 96, 0 },	{ 96, 1 },   { 384, 0 }, { 384, 1 },
	    { 1536, 0 }, { 384, 0 },  { 96, 0 },   { 96, 1 },	{ 384, 0 },  { 384, 1 }, { 1536, 0 },
	    { 1536, 1 }, { 6144, 0 }, { 1536, 0 }, { 1536, 1 }, { 6144, 0 }, { 6144, 1 } } },
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
	{ BAD, 8, 0, 1 }, /* one is forgiven */
	{ FIN, 8, 1, 1 },
	{ NO, 8, 1, 1 },
	{ BAD, 4, 0, 0 }, /* the second shrinks, and so does every further one */
	{ BAD, 4, 0, 0 }, /* not below min */
	{ FIN, 4, 1, 0 },
	{ FIN, 8, 0, 2 }, /* growth fills the hysteresis */
	/* not above max */
	{ BAD, 8, 0, 1 },
	{ FIN, 8, 1, 1 },
	{ FIN, 16, 0, 2 },
	{ FIN, 16, 1, 2 },
	{ FIN, 16, 0, 2 },
};

START_TEST(hysteresis_forgives)
{
	const struct loss_scale_rules rules = { true, 2, 0.5, 2, 2, 4, 16 };
	struct loss_scale s = loss_scale_first(&rules, 8);
	for (size_t i = 0; i < sizeof(by_hand) / sizeof(*by_hand); i++) {
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
	struct update made[] = { change(20, VALUE_LR, 0, 0.3),
				 change(10, VALUE_LR, 0, 0.2),
				 change(10, VALUE_MICRO_SIZE, 8, 0),
				 change(10, VALUE_LR, 0, 0.25),
				 change(30, VALUE_CLIP_NORM | VALUE_CLIP_VALUE, 0, 0),
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
	struct update made[] = { change(5, VALUE_LR, 0, 0.2), change(6, VALUE_LR, 0, 0.3),
				 change(6, VALUE_LR, 0, 0.4) };
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
	struct update list[] = { change(5, VALUE_LR, 0, 0.2), change(9, VALUE_LR, 0, 0.3),
				 change(9, VALUE_CLIP_VALUE, 0, 0), change(8, VALUE_LR, 0, 0.1) };
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
	{ { 1, VALUE_MICRO_SIZE, { .micro_size = 65 } },
	  "values.micro_size",
	  "micro_size is 65, must be 1..64 (max_micro_size of the job)" },
	{ { 1, VALUE_LR, { .lr = -1 } }, "values.lr", "lr is -1, must be 0..3.40282e+38" },
	{ { 1, VALUE_LR, { .lr = INFINITY } }, "values.lr", "lr is inf, must be 0..3.40282e+38" },
	{ { 1, VALUE_CLIP_NORM, { .clip_norm = NAN } },
	  "values.clip_norm",
	  "clip_norm is nan, must be finite and >= 0 (0: off)" },
	{ { 1, VALUE_CLIP_VALUE, { .clip_value = -2 } },
	  "values.clip_value",
	  "clip_value is -2, must be 0 (off) or 1.17549e-38..3.40282e+38, where f32 is normal" },
};

START_TEST(values_are_checked_as_the_specs)
{
	const char *field = NULL;
	char why[200] = "";
	ck_assert_int_eq(update_check(&refused[_i].u, &spec, &field, why, sizeof(why)), ST_INVALID_ARGUMENT);
	ck_assert_str_eq(field, refused[_i].field);
	ck_assert_str_eq(why, refused[_i].why);
}
END_TEST

START_TEST(a_job_whose_trainers_step_has_no_lr)
{
	const char *field;
	char why[200];
	struct update u = change(3, VALUE_LR, 0, 0.1);
	ck_assert_int_eq(update_check(&u, &spec, &field, why, sizeof(why)), ST_OK);
	spec.optim.type = OPTIM_CLIENT;
	ck_assert_int_eq(update_check(&u, &spec, &field, why, sizeof(why)), ST_INVALID_ARGUMENT);
}
END_TEST

START_TEST(a_change_says_old_and_new)
{
	char text[160];
	struct update u = change(3, VALUE_LR | VALUE_MICRO_SIZE, 8, 0.05);
	update_describe(&u, values_of(&spec), text, sizeof(text));
	ck_assert_str_eq(text, "micro_size 4 -> 8, lr 0.1 -> 0.05");
}
END_TEST

/* What an engine will refuse, or would take for something else, is refused before a job begins. */
static const struct {
	double loss_scale, clip_value, lr, gamma;
	uint64_t steps;
	const char *field;
} numbers[] = {
	{ 1, 0, 0.1, 2, 0, NULL },
	{ 1e-310, 0, 0.1, 2, 0, "loss_scale" },
	{ 1e39, 0, 0.1, 2, 0, "loss_scale" },
	{ 1, 1e-310, 0.1, 2, 0, "clip_value" },
	{ 1, 1e39, 0.1, 2, 0, "clip_value" },
	{ 1, 0, 1e39, 2, 0, "optimizer.lr" },
	{ 1, 0, 0.1, 1e308, 0, "schedule.gamma" },
	{ 1, 0, 0.1, 2, 4000, "schedule.gamma" },
	{ 1, 0, 0.1, 2, 400, NULL },
	{ 1, 0, 0, 1e38, 3, NULL },
	{ 1, 0, 0.1, 1e-300, 4000, NULL }, /* a learning rate that falls to 0 is good */
};

START_TEST(numbers_that_no_engine_takes_are_refused)
{
	const char *field = NULL;
	char why[200] = "";
	struct job_spec s = { .name = "t",
			      .ranks = 1,
			      .micro_size = 1,
			      .master_f32 = true,
			      .loss_scale = numbers[_i].loss_scale,
			      .clip_value = numbers[_i].clip_value,
			      .steps = numbers[_i].steps };
	s.optim = (struct optim_config){ .type = OPTIM_SGD, .lr = numbers[_i].lr };
	s.schedule = (struct schedule){ .type = SCHEDULE_STEP, .step_size = 10, .gamma = numbers[_i].gamma };
	enum status st = job_spec_check(&s, &field, why, sizeof(why));
	ck_assert_msg(st == (numbers[_i].field ? ST_INVALID_SPEC : ST_OK), "%s", why);
	if (numbers[_i].field)
		ck_assert_str_eq(field, numbers[_i].field);
}
END_TEST

Suite *values_suite(void)
{
	Suite *s = suite_create("values");
	TCase *c = tcase_create("values");
	tcase_add_checked_fixture(c, setup, NULL);
	tcase_add_loop_test(c, the_scale_goes_as_pytorchs, 0, 2);
	tcase_add_test(c, hysteresis_forgives);
	tcase_add_test(c, a_fixed_scale_stays);
	tcase_add_test(c, each_change_holds_from_its_window);
	tcase_add_test(c, a_checkpoint_has_what_is_not_the_specs);
	tcase_add_test(c, updates_stand_in_the_order_of_their_windows);
	tcase_add_test(c, a_new_specification_wins_over_old_updates);
	tcase_add_loop_test(c, values_are_checked_as_the_specs, 0, sizeof(refused) / sizeof(*refused));
	tcase_add_test(c, a_job_whose_trainers_step_has_no_lr);
	tcase_add_test(c, a_change_says_old_and_new);
	tcase_add_loop_test(c, numbers_that_no_engine_takes_are_refused, 0, sizeof(numbers) / sizeof(*numbers));
	suite_add_tcase(s, c);
	return s;
}
