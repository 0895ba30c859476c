/* SPDX-License-Identifier: Apache-2.0 */
/* The perceptron's gradients against differences of its loss, and its parameter file against a reader's rules. Built
 * twice, for f32 and f64. */
#include "mlp_model.h"
#include "params_file.h"
#include "support/suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 5, SAMPLES = 8 };

/* Half the distance of the two losses, and how far slopes may be off: rounding of the loss over the distance. */
#ifdef MLP_DOUBLE
static const double h = 1e-6, tolerance = 1e-8;
#else
static const double h = 1e-2, tolerance = 2e-4;
#endif

static struct mlp model;
static real *params[MLP_TENSORS], *grads[MLP_TENSORS];
static float *values[MLP_TENSORS];
static uint8_t images[SAMPLES * MLP_PIXELS], labels[SAMPLES];
static const struct idx_set set = { SAMPLES, MLP_PIXELS, images, labels };
static const uint32_t ids[N] = { 6, 0, 3, 3, 7 };

static void set_up(void)
{
	ck_assert_int_eq(mlp_init(&model, N), 0);
	for (int t = 0; t < MLP_TENSORS; t++) {
		params[t] = malloc(mlp_tensors[t].count * sizeof(real));
		grads[t] = malloc(mlp_tensors[t].count * sizeof(real));
		values[t] = malloc(mlp_tensors[t].count * sizeof(float));
		mlp_init_tensor(t, 11, values[t]);
		for (size_t i = 0; i < mlp_tensors[t].count; i++)
			params[t][i] = values[t][i];
	}
	for (size_t i = 0; i < sizeof(images); i++)
		images[i] = (uint8_t)(i * 2654435761u >> 24);
	for (int i = 0; i < SAMPLES; i++)
		labels[i] = (uint8_t)(i % MLP_CLASSES);
	mlp_load(&model, &set, ids, N);
}

static void tear_down(void)
{
	for (int t = 0; t < MLP_TENSORS; t++) {
		free(params[t]);
		free(grads[t]);
		free(values[t]);
	}
	mlp_fini(&model);
}

static double loss(void)
{
	return mlp_forward(&model, (const real *const *)params, N, NULL);
}

START_TEST(gradients_are_the_slopes_of_the_loss)
{
	loss();
	mlp_backward(&model, (const real *const *)params, N, 1, grads);
	for (int t = 0; t < MLP_TENSORS; t++) {
		for (size_t k = 0; k < 7; k++) {
			size_t i = (k * 7919 + 3) % mlp_tensors[t].count;
			real was = params[t][i];
			params[t][i] = was + (real)h;
			double up = loss();
			params[t][i] = was - (real)h;
			double slope = (up - loss()) / (2 * h);
			params[t][i] = was;
			ck_assert_msg(fabs(slope - grads[t][i]) <= tolerance, "%s[%zu]: %g, not %g",
				      mlp_tensors[t].name, i, (double)grads[t][i], slope);
		}
	}
}
END_TEST

START_TEST(gradients_carry_the_scale)
{
	real one = 0;

	loss();
	mlp_backward(&model, (const real *const *)params, N, 1, grads);
	one = grads[4][77];
	loss();
	mlp_backward(&model, (const real *const *)params, N, 1024, grads);
	ck_assert(one != 0 && fabs(grads[4][77] / one - 1024) < 1e-3);
}
END_TEST

START_TEST(a_mean_over_parts_is_the_mean)
{
	double whole = loss(), parts = 0;

	for (int i = 0; i < N; i++) {
		mlp_load(&model, &set, ids + i, 1);
		parts += mlp_forward(&model, (const real *const *)params, 1, NULL) / N;
	}
	ck_assert_double_eq_tol(whole, parts, 1e-6);
}
END_TEST

START_TEST(the_loss_of_even_odds_is_log_10)
{
	uint32_t right = 0;

	memset(params[4], 0, mlp_tensors[4].count * sizeof(real));
	memset(params[5], 0, mlp_tensors[5].count * sizeof(real));
	ck_assert_double_eq_tol(loss(), log(10), 1e-6);
	params[5][3] = 40; /* class 3, sure: right for the samples 3 and 3 */
	ck_assert_double_eq_tol(mlp_forward(&model, (const real *const *)params, N, &right), 40 * 3.0 / N, 1e-5);
	ck_assert_uint_eq(right, 2);
}
END_TEST

START_TEST(a_test_covers_the_set)
{
	double accuracy;

	memset(params[4], 0, mlp_tensors[4].count * sizeof(real));
	memset(params[5], 0, mlp_tensors[5].count * sizeof(real));
	params[5][7] = 40;
	ck_assert_double_eq_tol(mlp_test(&model, (const real *const *)params, &set, &accuracy), 40 * 7.0 / 8, 1e-5);
	ck_assert_double_eq_tol(accuracy, 1.0 / 8, 1e-12);
}
END_TEST

START_TEST(initial_values_fill_their_range)
{
	for (int t = 0; t < MLP_TENSORS; t++) {
		double bound = 1 / sqrt(t < 2 ? 784 : 512), most = 0, sum = 0;
		for (size_t i = 0; i < mlp_tensors[t].count; i++) {
			most = fmax(most, fabs(values[t][i]));
			sum += values[t][i];
		}
		double n = (double)mlp_tensors[t].count;
		ck_assert(most <= bound * (1 + 1e-6) && most >= bound * (n > 100 ? 0.98 : 0.5));
		ck_assert(fabs(sum) <= 5 * bound * sqrt(n / 3));
	}
}
END_TEST

START_TEST(a_parameter_file_comes_back)
{
	char path[] = "/tmp/gacc-test-params-XXXXXX", why[256];
	float *back[MLP_TENSORS];

	close(mkstemp(path));
	ck_assert_int_eq(params_write(path, (const float *const *)values, why, sizeof(why)), 0);
	for (int t = 0; t < MLP_TENSORS; t++)
		back[t] = calloc(mlp_tensors[t].count, sizeof(float));
	ck_assert_int_eq(params_read(path, back, why, sizeof(why)), 0);
	for (int t = 0; t < MLP_TENSORS; t++)
		ck_assert_mem_eq(back[t], values[t], mlp_tensors[t].count * sizeof(float));
	FILE *f = fopen(path, "ab");
	fputc(0, f);
	fclose(f);
	ck_assert_int_eq(params_read(path, back, why, sizeof(why)), -1);
	ck_assert_int_eq(truncate(path, 1000000), 0);
	ck_assert_int_eq(params_read(path, back, why, sizeof(why)), -1);
	for (int t = 0; t < MLP_TENSORS; t++)
		free(back[t]);
	unlink(path);
}
END_TEST

START_TEST(a_parameter_file_is_safetensors)
{
	char path[] = "/tmp/gacc-test-params-XXXXXX", why[256], json[1024] = "";
	uint64_t length, count = 0;

	for (int t = 0; t < MLP_TENSORS; t++)
		count += mlp_tensors[t].count;
	close(mkstemp(path));
	ck_assert_int_eq(params_write(path, (const float *const *)values, why, sizeof(why)), 0);
	FILE *f = fopen(path, "rb");
	ck_assert_uint_eq(fread(&length, 1, 8, f), 8);
	ck_assert(length < sizeof(json) && length % 8 == 0);
	ck_assert_uint_eq(fread(json, 1, length, f), length);
	fseek(f, 0, SEEK_END);
	ck_assert_uint_eq((uint64_t)ftell(f), 8 + length + 4 * count);
	fclose(f);
	ck_assert_msg(strncmp(json,
			      "{\"fc1.weight\":{\"dtype\":\"F32\",\"shape\":[512,784],\"data_offsets\":[0,1605632]},"
			      "\"fc1.bias\":{\"dtype\":\"F32\",\"shape\":[512],\"data_offsets\":[1605632,1607680]},",
			      132) == 0,
		      "%s", json);
	unlink(path);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("mlp");
	TCase *c = tcase_create("mlp");

	tcase_add_checked_fixture(c, set_up, tear_down);
	tcase_add_test(c, gradients_are_the_slopes_of_the_loss);
	tcase_add_test(c, gradients_carry_the_scale);
	tcase_add_test(c, a_mean_over_parts_is_the_mean);
	tcase_add_test(c, the_loss_of_even_odds_is_log_10);
	tcase_add_test(c, a_test_covers_the_set);
	tcase_add_test(c, initial_values_fill_their_range);
	tcase_add_test(c, a_parameter_file_comes_back);
	tcase_add_test(c, a_parameter_file_is_safetensors);
	suite_add_tcase(s, c);
	return suite_run(s);
}
