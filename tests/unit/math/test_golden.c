/* SPDX-License-Identifier: Apache-2.0 */
/* Whole windows against PyTorch: accumulate micro-batches, norm, clip, update, for ten steps, on every table.
 *
 * Bounds: after step t each f32 parameter is within t * 2 eps32 of the size that took part, |p| plus the largest move
 * of the case, since each step rounds the sum, the update and p a few times; m and v are within 8 eps32 of |m| +
 * max|m|. 16-bit parameters are within one unit in the last place (a rounding border may lie between two equal-enough
 * f32).
 */
#include "golden.h"
#include "sample.h"
#include "math/init.h"
#include "math/optim.h"
#include "support/suite.h"

#include <check.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N 67
#define HALF 32
#define STEPS 10
#define EPS32 0x1p-23

static const char *const names[] = { "sgd",	    "sgd_decay",  "momentum",	    "dampening",
				     "nesterov",    "adam",	  "adam_decay",	    "adamw",
				     "adamw_slow",  "groups",	  "clip_norm",	    "clip_norm_groups",
				     "clip_value",  "micro",	  "micro_bf16",	    "micro_f16",
				     "master_bf16", "master_f16", "no_master_bf16", "no_master_sgd_f16",
				     "schedule",    "lamb",	  "lamb_groups",    "lamb_master_bf16" };
#define N_NAMES (int)(sizeof(names) / sizeof(names[0]))

struct golden_case {
	const char *name;
	struct optim_config optim;
	struct optim_group group[2];
	double clip_norm, clip_value;
	int micro;
	enum dtype grad, p16;
	bool master;
	const void *gradients;
	const double *weights, *lr;
	const float *start, *params, *m, *v;
	const uint16_t *params16;
};

/* What our side trains. */
struct model {
	float *p, *m, *v, *sum[2];
	uint16_t *p16;
};

static const void *find(const char *name, const char *what, size_t element_bytes, size_t count)
{
	char key[96];
	size_t n;
	snprintf(key, sizeof(key), "%s/%s", name, what);
	const void *p = golden_find(key, element_bytes, &n);
	if (p)
		ck_assert_uint_eq(n, count);
	return p;
}

static struct golden_case load_case(const char *name)
{
	const double *c = find(name, "config", 8, 16 + 1);
	ck_assert_ptr_nonnull(c);
	struct golden_case g = { .name = name,
				 .optim = { .type = (enum optim_type)c[0],
					    .lr = c[1],
					    .momentum = c[2],
					    .dampening = c[3],
					    .nesterov = c[4] != 0,
					    .weight_decay = c[5],
					    .beta1 = c[6],
					    .beta2 = c[7],
					    .eps = c[8] },
				 .group = { { 1, c[5], false }, { c[15], c[16], false } },
				 .clip_norm = c[9],
				 .clip_value = c[10],
				 .micro = (int)c[11],
				 .grad = (enum dtype)c[12],
				 .p16 = (enum dtype)c[13],
				 .master = c[14] != 0 };
	size_t micros = (size_t)(STEPS * g.micro);
	g.gradients = find(name, "gradients", dtype_size(g.grad), micros * N);
	g.weights = find(name, "weights", 8, micros);
	g.lr = find(name, "lr", 8, STEPS);
	g.start = find(name, "start", 4, N);
	g.params = find(name, "params", 4, STEPS * N);
	g.params16 = find(name, "params16", 2, STEPS * N);
	g.m = find(name, "m", 4, N);
	g.v = find(name, "v", 4, N);
	ck_assert(g.gradients && g.weights && g.lr && g.start && g.params && !g.p16 == !g.params16);
	ck_assert_int_eq(optim_info(g.optim.type)->n_state(&g.optim), !!g.m + !!g.v);
	return g;
}

static struct model model_new(const struct golden_case *c, const struct kernels *k)
{
	struct model m = { .p = sample_alloc(DTYPE_F32, N),
			   .sum = { sample_alloc(DTYPE_F32, N), sample_alloc(DTYPE_F32, N) } };
	memcpy(m.p, c->start, N * sizeof(*m.p));
	if (c->m)
		m.m = sample_alloc(DTYPE_F32, N);
	if (c->v)
		m.v = sample_alloc(DTYPE_F32, N);
	if (c->p16) {
		m.p16 = sample_alloc(c->p16, N);
		k->from_f32(m.p16, c->p16, c->start, N);
	}
	return m;
}

static void model_free(struct model *m)
{
	free(m->p);
	free(m->m);
	free(m->v);
	free(m->p16);
	free(m->sum[0]);
	free(m->sum[1]);
}

/* Adds the step's micro-batches in one pass: weighted mean of gradients of means. Returns the divisor. */
static double accumulate(const struct golden_case *c, const struct kernels *k, struct model *m, int step, double *norm)
{
	struct kernel_src s[KERNEL_MAX_SLOTS];
	double sum_weight = 0, sumsq;
	for (int j = 0; j < c->micro; j++) {
		int micro = step * c->micro + j;
		const char *g = (const char *)c->gradients + (size_t)(micro * N) * dtype_size(c->grad);
		s[j] = (struct kernel_src){ g,
					    reduce_coefficient(REDUCE_WEIGHTED_MEAN, GRAD_OF_MEAN, c->weights[micro]) };
		sum_weight += c->weights[micro];
	}
	k->accumulate(m->sum[0], NULL, true, DTYPE_F32, s, c->micro, c->grad, N, NULL,
		      &(struct kernel_partials){ .sumsq = &sumsq });
	double divisor = reduce_divisor(REDUCE_WEIGHTED_MEAN, GRAD_OF_MEAN, sum_weight, (uint64_t)c->micro, 0);
	*norm = sqrt(kernel_sum(&sumsq, 1)) / divisor;
	return divisor;
}

/* torch.nn.utils.clip_grad_norm_ */
static double clip_factor(double max_norm, double norm)
{
	return max_norm == 0 ? 1 : fmin(1, max_norm / (norm + 1e-6));
}

/* LAMB's first phase of a tensor of less than a block; the ratio goes into the learning rate. */
static void adapt(const struct golden_case *c, const struct kernels *k, const struct kernel_params *p, const float *g,
		  size_t n, int part, double lr, struct kernel_update *u)
{
	double param, direction;
	k->lamb_moments(p, g, DTYPE_F32, n, u, NULL, &(struct kernel_lamb_norms){ &param, &direction });
	u->lr = (float)(lr * c->group[part].lr_scale * optim_trust_ratio(&c->group[part], param, direction));
}

static void train_step(const struct golden_case *c, const struct kernels *k, struct model *m, int step)
{
	double norm, divisor = accumulate(c, k, m, step, &norm);
	double scale = clip_factor(c->clip_norm, norm) / divisor;
	for (int part = 0; part < 2; part++) {
		size_t at = part ? HALF : 0, n = part ? N - HALF : HALF;
		struct kernel_update u;
		optim_step(&c->optim, &c->group[part], (uint64_t)step + 1, c->lr[step], scale, c->clip_value, &u);
		struct kernel_params params = { .p = c->master ? m->p + at : NULL,
						.p16 = m->p16 ? m->p16 + at : NULL,
						.p16_dtype = c->p16,
						.m = m->m ? m->m + at : NULL,
						.v = m->v ? m->v + at : NULL };
		if (c->optim.type == OPTIM_LAMB)
			adapt(c, k, &params, m->sum[0] + at, n, part, c->lr[step], &u);
		optim_apply(k, &c->optim, &params, m->sum[0] + at, DTYPE_F32, n, &u, NULL, NULL);
	}
}

static double largest(const float *a, const float *b)
{
	double most = 0;
	for (int i = 0; i < N; i++)
		most = fmax(most, fabs((double)a[i] - (b ? b[i] : 0)));
	return most;
}

static void check_params(const struct golden_case *c, const struct model *m, int step)
{
	const float *want = c->params + step * N;
	double move = largest(want, step ? want - N : c->start);
	for (int i = 0; i < N && c->master; i++)
		ck_assert_msg(fabs((double)m->p[i] - want[i]) <= (step + 1) * 2 * EPS32 * (fabs(want[i]) + move),
			      "%s: step %d p[%d] is %.9g, torch has %.9g", c->name, step, i, m->p[i], want[i]);
	for (int i = 0; i < N && c->p16; i++)
		ck_assert_msg(abs((int)m->p16[i] - c->params16[step * N + i]) <= 1,
			      "%s: step %d p16[%d] is %#x, torch has %#x", c->name, step, i, m->p16[i],
			      c->params16[step * N + i]);
}

static void check_state(const struct golden_case *c, const float *got, const float *want, const char *what)
{
	double size = want ? largest(want, NULL) : 0;
	for (int i = 0; want && i < N; i++)
		ck_assert_msg(fabs((double)got[i] - want[i]) <= 8 * EPS32 * (fabs(want[i]) + size),
			      "%s: %s[%d] is %.9g, torch has %.9g", c->name, what, i, got[i], want[i]);
}

START_TEST(training_matches_torch)
{
	const struct kernels *const *table;
	int n_tables = kernels_list(&table);
	struct golden_case c = load_case(names[_i]);
	for (int t = 0; t < n_tables; t++) {
		struct model m = model_new(&c, table[t]);
		for (int step = 0; step < STEPS; step++) {
			train_step(&c, table[t], &m, step);
			check_params(&c, &m, step);
		}
		check_state(&c, m.m, c.m, "m");
		check_state(&c, m.v, c.v, "v");
		model_free(&m);
	}
}
END_TEST

static void check_schedule(const char *name, const struct schedule *s)
{
	char key[64];
	size_t n;
	snprintf(key, sizeof(key), "schedule/%s", name);
	const double *want = golden_find(key, 8, &n);
	ck_assert_uint_gt(n, 15);
	ck_assert_int_eq(schedule_check(s, key, sizeof(key)), ST_OK);
	for (size_t i = 0; i < n; i++)
		ck_assert_msg(fabs(schedule_factor(s, i) - want[i]) <= 1e-13, "%s: step %zu is %.17g, torch has %.17g",
			      name, i, schedule_factor(s, i), want[i]);
}

START_TEST(schedules_match_torch)
{
	check_schedule(
		"warmup",
		&(struct schedule){ .type = SCHEDULE_LINEAR_WARMUP, .warmup_steps = 7, .warmup_start_factor = 0.1 });
	check_schedule("cosine", &(struct schedule){ .type = SCHEDULE_COSINE, .total_steps = 30, .min_factor = 0.05 });
	check_schedule("step", &(struct schedule){ .type = SCHEDULE_STEP, .step_size = 4, .gamma = 0.3 });
	check_schedule("warmup_cosine", &(struct schedule){ .type = SCHEDULE_COSINE,
							    .warmup_steps = 5,
							    .total_steps = 30,
							    .min_factor = 0.1,
							    .warmup_start_factor = 0.2 });
	check_schedule("warmup_step", &(struct schedule){ .type = SCHEDULE_STEP,
							  .warmup_steps = 3,
							  .step_size = 5,
							  .gamma = 0.5,
							  .warmup_start_factor = 0.5 });
}
END_TEST

/* A rule with fans draws the same numbers as the plain rule with torch's bounds. */
static void check_init(enum init_type type, double gain, const double fan[2], enum init_type plain,
		       const double bounds[2])
{
	float got[64], want[64];
	init_fill(got, 0, 64, &(struct init_rule){ type, gain, 0 }, fan[0], fan[1], 1, 2);
	init_fill(want, 0, 64, &(struct init_rule){ plain, bounds[0], bounds[1] }, 1, 1, 1, 2);
	for (int i = 0; i < 64; i++)
		ck_assert_double_le(fabs((double)got[i] - want[i]), EPS32 * fabs(want[i]) + 1e-12);
}

START_TEST(initial_values_match_torch)
{
	enum { ROW = 4 + 2 + 5 * 2 };
	size_t n;
	const double *row = golden_find("init", 8, &n);
	ck_assert_uint_eq(n % ROW, 0);
	ck_assert_uint_gt(n, 0);
	for (size_t r = 0; r < n / ROW; r++, row += ROW) {
		int64_t shape[4];
		int n_dims = 0;
		double fan[2];
		for (int i = 0; i < 4 && row[i]; i++)
			shape[n_dims++] = (int64_t)row[i];
		init_fans(shape, n_dims, &fan[0], &fan[1]);
		ck_assert(fan[0] == row[4] && fan[1] == row[5]);
		check_init(INIT_KAIMING_UNIFORM, 0, fan, INIT_UNIFORM, row + 6);
		check_init(INIT_KAIMING_UNIFORM, sqrt(2 / 6.0), fan, INIT_UNIFORM, row + 8);
		check_init(INIT_KAIMING_NORMAL, 0, fan, INIT_NORMAL, row + 10);
		check_init(INIT_XAVIER_UNIFORM, 0, fan, INIT_UNIFORM, row + 12);
		check_init(INIT_XAVIER_NORMAL, 5 / 3.0, fan, INIT_NORMAL, row + 14);
	}
}
END_TEST

int main(void)
{
	const char *moved = getenv("GACC_SOURCE_DIR"); /* in a bundle */
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/tests/golden/golden.bin", moved ? moved : SOURCE_DIR);
	golden_load(path);
	Suite *suite = suite_create("golden");
	TCase *tc = tcase_create("against torch");
	tcase_add_loop_test(tc, training_matches_torch, 0, N_NAMES);
	tcase_add_test(tc, schedules_match_torch);
	tcase_add_test(tc, initial_values_match_torch);
	suite_add_tcase(suite, tc);
	int code = suite_run(suite);
	golden_unload();
	return code;
}
