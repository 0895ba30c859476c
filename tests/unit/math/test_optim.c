/* SPDX-License-Identifier: Apache-2.0 */
#include "math/optim.h"

#include "support/suite.h"

#include <check.h>
#include <math.h>
#include <string.h>

static char why[200];

static const struct optim_config sgd = { .type = OPTIM_SGD, .lr = 0.1, .momentum = 0.9 };
static const struct optim_config adamw = {
	.type = OPTIM_ADAMW, .lr = 1e-3, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8
};

START_TEST(one_row_per_optimizer)
{
	static const char *const names[] = { "client", "sgd", "adam", "adamw", "lamb" };
	for (int i = 0; i < 5; i++) {
		const struct optim_info *info = optim_info((enum optim_type)(i + 1));
		ck_assert_ptr_nonnull(info);
		ck_assert_int_eq(info->type, i + 1);
		ck_assert_str_eq(info->name, names[i]);
	}
	ck_assert_ptr_null(optim_info((enum optim_type)0));
	struct optim_config plain = sgd;
	plain.momentum = 0;
	ck_assert_int_eq(optim_info(OPTIM_CLIENT)->n_state(&sgd), 0);
	ck_assert_int_eq(optim_info(OPTIM_SGD)->n_state(&plain), 0);
	ck_assert_int_eq(optim_info(OPTIM_SGD)->n_state(&sgd), 1);
	ck_assert_int_eq(optim_info(OPTIM_ADAM)->n_state(&adamw), 2);
}
END_TEST

static void assert_refused(struct optim_config c, const char *field)
{
	why[0] = 0;
	ck_assert_int_eq(optim_check(&c, why, sizeof(why)), ST_INVALID_SPEC);
	ck_assert_msg(strstr(why, field) == why, "'%s' does not begin with '%s'", why, field);
}

/* Takes `base` with one field changed. */
#define REFUSED(base, field, value)                                                                                    \
	do {                                                                                                           \
		struct optim_config c_ = base;                                                                         \
		c_.field = value;                                                                                      \
		assert_refused(c_, "optimizer." #field);                                                               \
	} while (0)

START_TEST(impossible_values_are_refused)
{
	ck_assert_int_eq(optim_check(&sgd, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(optim_check(&adamw, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(optim_check(&(struct optim_config){ .type = OPTIM_CLIENT }, why, sizeof(why)), ST_OK);
	REFUSED(sgd, type, (enum optim_type)9);
	REFUSED(sgd, lr, -1);
	REFUSED(sgd, lr, NAN);
	REFUSED(adamw, lr, INFINITY);
	REFUSED(sgd, weight_decay, -0.1);
	REFUSED(sgd, momentum, -0.1);
	REFUSED(sgd, momentum, INFINITY);
	REFUSED(sgd, dampening, NAN);
	REFUSED(adamw, beta1, 1);
	REFUSED(adamw, beta1, -0.5);
	REFUSED(adamw, beta1, NAN);
	REFUSED(adamw, beta2, 1.5);
	REFUSED(adamw, eps, 0);
	REFUSED(adamw, eps, 1e-40);
	REFUSED(adamw, eps, INFINITY);
	struct optim_config nesterov = sgd;
	nesterov.nesterov = true;
	ck_assert_int_eq(optim_check(&nesterov, why, sizeof(why)), ST_OK);
	nesterov.dampening = 0.5;
	assert_refused(nesterov, "optimizer.nesterov");
	nesterov.dampening = nesterov.momentum = 0;
	assert_refused(nesterov, "optimizer.nesterov");
}
END_TEST

START_TEST(scalars_of_a_step)
{
	const struct optim_group group = { .lr_scale = 0.5, .weight_decay = 0.2 };
	struct kernel_update u;
	optim_step(&adamw, &group, 3, 0.01, 0.25, 2, &u);
	ck_assert(u.scale == 0.25f && u.clip_value == 2 && u.lr == 0.005f && !u.first);
	ck_assert(u.step_size == (float)(0.005 / (1 - 0.9 * 0.9 * 0.9)));
	ck_assert_float_eq_tol(u.inv_bias2_sqrt, (float)(1 / sqrt(1 - 0.999 * 0.999 * 0.999)), 1e-6f);
	ck_assert(u.decay == (float)(1 - 0.005 * 0.2) && u.weight_decay == 0);
	ck_assert(u.one_minus_beta2 == (float)(1 - 0.999));
	optim_step(&sgd, &group, 1, 0.01, 1, 0, &u);
	ck_assert(u.first && u.weight_decay == 0.2f && u.one_minus_dampening == 1 && u.momentum == 0.9f);
}
END_TEST

/* docs/decisions.md 1 */
START_TEST(coefficients_and_divisors)
{
	static const struct {
		enum reduction reduction;
		enum grad_of of;
		double coefficient, divisor;
	} rows[] = {
		{ REDUCE_WEIGHTED_MEAN, GRAD_OF_MEAN, 8, 20 },
		{ REDUCE_WEIGHTED_MEAN, GRAD_OF_SUM, 1, 20 },
		{ REDUCE_MEAN, GRAD_OF_MEAN, 1, 3 },
		{ REDUCE_MEAN, GRAD_OF_SUM, 0.125, 3 },
		{ REDUCE_SUM, GRAD_OF_MEAN, 8, 1 },
		{ REDUCE_SUM, GRAD_OF_SUM, 1, 1 },
		{ REDUCE_FIXED, GRAD_OF_MEAN, 1, 64 },
		{ REDUCE_FIXED, GRAD_OF_SUM, 1, 64 },
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		ck_assert(reduce_coefficient(rows[i].reduction, rows[i].of, 8) == rows[i].coefficient);
		ck_assert(reduce_divisor(rows[i].reduction, rows[i].of, 20, 3, 64) == rows[i].divisor);
	}
}
END_TEST

START_TEST(schedule_edges)
{
	const struct schedule constant = { .type = SCHEDULE_CONSTANT };
	ck_assert(schedule_factor(&constant, 0) == 1 && schedule_factor(&constant, 1000000) == 1);
	const struct schedule warmup = { .type = SCHEDULE_LINEAR_WARMUP, .warmup_steps = 4 };
	ck_assert(schedule_factor(&warmup, 0) == 0 && schedule_factor(&warmup, 1) == 0.25);
	ck_assert(schedule_factor(&warmup, 4) == 1 && schedule_factor(&warmup, UINT64_MAX) == 1);
	const struct schedule cosine = {
		.type = SCHEDULE_COSINE, .warmup_steps = 2, .total_steps = 12, .min_factor = 0.1
	};
	ck_assert(schedule_factor(&cosine, 2) == 1);
	ck_assert_double_eq_tol(schedule_factor(&cosine, 7), 0.55, 1e-15);
	for (uint64_t applied = 12; applied < 40; applied++)
		ck_assert(schedule_factor(&cosine, applied) == 0.1);
}
END_TEST

static void assert_schedule_refused(struct schedule s, const char *field)
{
	why[0] = 0;
	ck_assert_int_eq(schedule_check(&s, why, sizeof(why)), ST_INVALID_SPEC);
	ck_assert_msg(strstr(why, field) == why, "'%s' does not begin with '%s'", why, field);
}

START_TEST(impossible_schedules_are_refused)
{
	const struct schedule cosine = {
		.type = SCHEDULE_COSINE, .warmup_steps = 2, .total_steps = 12, .min_factor = 0.1
	};
	const struct schedule step = { .type = SCHEDULE_STEP, .step_size = 3, .gamma = 0.5 };
	ck_assert_int_eq(schedule_check(&(struct schedule){ .type = SCHEDULE_CONSTANT }, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(schedule_check(&cosine, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(schedule_check(&step, why, sizeof(why)), ST_OK);
	assert_schedule_refused((struct schedule){ .type = (enum schedule_type)0 }, "schedule.type");
	assert_schedule_refused((struct schedule){ .type = SCHEDULE_CONSTANT, .warmup_steps = 5 },
				"schedule.warmup_steps");
	assert_schedule_refused((struct schedule){ .type = SCHEDULE_LINEAR_WARMUP }, "schedule.warmup_steps");
	struct schedule s = cosine;
	s.total_steps = 2;
	assert_schedule_refused(s, "schedule.total_steps");
	s = cosine;
	s.min_factor = 1.5;
	assert_schedule_refused(s, "schedule.min_factor");
	s = cosine;
	s.warmup_start_factor = NAN;
	assert_schedule_refused(s, "schedule.warmup_start_factor");
	s = step;
	s.step_size = 0;
	assert_schedule_refused(s, "schedule.step_size");
	s = step;
	s.gamma = 0;
	assert_schedule_refused(s, "schedule.gamma");
	s.gamma = INFINITY;
	assert_schedule_refused(s, "schedule.gamma");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("optim");
	TCase *tc = tcase_create("numbers");
	tcase_add_test(tc, one_row_per_optimizer);
	tcase_add_test(tc, impossible_values_are_refused);
	tcase_add_test(tc, scalars_of_a_step);
	tcase_add_test(tc, coefficients_and_divisors);
	tcase_add_test(tc, schedule_edges);
	tcase_add_test(tc, impossible_schedules_are_refused);
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
