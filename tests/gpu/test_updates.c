/* SPDX-License-Identifier: Apache-2.0 */
/* Updates of the kernels for GPUs against the CPU's tables, bit for bit: some steps of random jobs with each optimizer,
 * in random orders of threads, with all kinds of values. */
#include "job.h"

#include "support/suite.h"

#include <check.h>
#include <string.h>

#define ROUNDS 96
#define STEPS 3

static struct job job;

static enum sample kind_of(int round)
{
#ifndef __x86_64__
	return SAMPLE_NORMAL; /* subnormals do not count as zero here */
#endif
	return (enum sample)(round / 4 % 3);
}

static const struct kernels *table_of(int round)
{
	const struct kernels *const *table;
	int n = kernels_list(&table);
	return table[round / 12 % n];
}

static void launch(const char *kernel, cuda_word window, uint64_t base)
{
	struct cuda_update a = job_launch(&job, 1, window);
	a.base = base;
	gpu_launch("update_begin", &a, 1);
	gpu_launch(kernel, &a, job.shares);
}

static bool finite_sums(const struct job_results *want)
{
	for (int i = 0; i < JOB_UNITS; i++)
		if (!(want->param[i] < 1e300 && want->direction[i] < 1e300))
			return false;
	return true;
}

/* The first phase's sums, as it went along and as a successor would take them again. */
static void check_lamb_sums(cuda_word window, const struct job_results *want)
{
	const struct cuda_update a = job_launch(&job, 1, window);
	for (int again = 0; again < 2; again++) {
		for (uint32_t i = 0; i < job.n_ranges; i++) {
			const struct cuda_range *r = &job.range[i];
			const uint64_t n = (r->count + KERNEL_BLOCK - 1) / KERNEL_BLOCK;
			if (r->frozen)
				continue;
			ck_assert_uint_eq(
				sample_differs(want->param + r->first_unit, job.param + r->first_unit, DTYPE_F64, n),
				n);
			ck_assert_uint_eq(sample_differs(want->direction + r->first_unit, job.direction + r->first_unit,
							 DTYPE_F64, n),
					  n);
		}
		memset(job.param, 0x55, sizeof(job.param));
		memset(job.direction, 0x55, sizeof(job.direction));
		gpu_launch("lamb_norms", &a, 3);
	}
}

static void check_results(const struct job_results *want)
{
	for (uint64_t u = 0; u < job.n_units; u++) {
		ck_assert_uint_eq(job.nonfinite[u], want->nonfinite[u]);
		if (job.kind != SAMPLE_SPECIAL) /* where there are NaNs */
			ck_assert_uint_eq(job.digest[u], want->digest[u]);
	}
}

static void check_stamps(cuda_word window, uint64_t base)
{
	for (uint64_t s = 0; s < job.shares; s++)
		ck_assert_uint_eq(job.stamp[s], CUDA_STAMP(window, 1, base + job.n_units * (s + 1) / job.shares, 0));
}

START_TEST(updates_give_the_bits_of_the_cpu)
{
	static const enum optim_type types[] = { OPTIM_SGD, OPTIM_ADAM, OPTIM_ADAMW, OPTIM_LAMB };
	struct rng rng = { (uint64_t)_i * 7919 + 3 };
	gpu_open();
	job_draw(&job, types[_i % 4], kind_of(_i), &rng);
	job.gate.generation = 1;
	for (uint64_t t = 1; t <= STEPS; t++) {
		struct job_results want;
		uint64_t base = 0;
		gpu_order(t == 2 ? 0 : rng_next(&rng), t != 1);
		job_step(&job, t, &rng);
		job_on_cpu(&job, table_of(_i), &want);
		if (job.optim.type == OPTIM_LAMB) {
			launch("lamb_moments", t, 0);
			if (job.kind != SAMPLE_SPECIAL)
				ck_assert(finite_sums(&want));
			check_lamb_sums(t, &want);
			job_set_ratios(&job, want.param, want.direction);
			base = job_second_phase(&job);
		}
		launch(job_kernel(&job), t, base);
		job_check_same(&job);
		check_results(&want);
		check_stamps(t, base);
	}
	ck_assert_mem_eq(job.gate.begun, job.gate.ended, sizeof(job.gate.begun));
	ck_assert_uint_eq(job.gate.left[1], 0);
}
END_TEST

START_TEST(nothing_is_updated_twice_or_with_another_stamp)
{
	struct rng rng = { 5 };
	struct job_results want;
	gpu_open();
	job_draw(&job, OPTIM_ADAMW, SAMPLE_NORMAL, &rng);
	job.gate.generation = 1;
	job_step(&job, 1, &rng);
	job_on_cpu(&job, kernels_get("reference"), &want);
	launch("adamw", 1, 0);
	struct cuda_update a = job_launch(&job, 1, 1);
	gpu_launch("adamw", &a, job.shares); /* all shares are at their end */
	job_check_same(&job);
	ck_assert_uint_eq(job.gate.left[1], 0);
	a.window = 2;
	gpu_launch("adamw", &a, job.shares);
	job_check_same(&job);
	ck_assert_uint_eq(job.gate.left[1], job.shares);
	job.stamp[0] = CUDA_STAMP(2, 1, job.n_units + 1, 0);
	gpu_launch("adamw", &a, job.shares);
	job_check_same(&job);
	ck_assert_uint_eq(job.gate.left[1], 2 * job.shares);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("gpu_updates");
	TCase *t = tcase_create("updates");
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, updates_give_the_bits_of_the_cpu, 0, ROUNDS);
	tcase_add_test(t, nothing_is_updated_twice_or_with_another_stamp);
	suite_add_tcase(s, t);
	return suite_run(s);
}
