/* SPDX-License-Identifier: Apache-2.0 */
/* A small job whose parameters a GPU updates, with a copy that the CPU updates: everything in one piece of memory,
 * which a killed process can leave to the next one. */
#ifndef GACC_TESTS_GPU_JOB_H
#define GACC_TESTS_GPU_JOB_H

#include "gpu.h"
#include "unit/math/sample.h"

#include "math/cuda/launches.h"
#include "math/optim.h"

#define JOB_UNITS 24
#define JOB_ELEMENTS (JOB_UNITS * KERNEL_BLOCK)
#define JOB_RANGES 6
#define JOB_SHARES 8
#define JOB_GROUPS 2

struct job_values {
	_Alignas(64) float p[JOB_ELEMENTS], m[JOB_ELEMENTS], v[JOB_ELEMENTS];
	_Alignas(64) uint16_t p16[JOB_ELEMENTS];
};

struct job {
	struct cuda_gate gate;
	cuda_word stamp[JOB_SHARES];
	_Alignas(16) float undo[JOB_SHARES][2][CUDA_UNDO_HALF];
	struct job_values gpu, cpu;
	_Alignas(64) float g[JOB_ELEMENTS];
	cuda_word digest[JOB_UNITS];
	uint32_t nonfinite[JOB_UNITS];
	double param[JOB_UNITS], direction[JOB_UNITS];

	struct optim_config optim;
	struct kernel_update update[JOB_GROUPS]; /* of the step at hand */
	struct cuda_scalars scalars[JOB_GROUPS];
	struct cuda_range range[JOB_RANGES];
	uint64_t start[JOB_RANGES]; /* element of the arrays */
	uint32_t n_ranges, shares;
	uint64_t n_units;
	enum sample kind;
};

/* Draws ranges of all sorts (f32; f32 with a copy of 16 bits; 16 bits alone; frozen), shares and initial values. */
void job_draw(struct job *, enum optim_type, enum sample, struct rng *);
/* Draws gradients for applied step t, and the scalars. */
void job_step(struct job *, uint64_t t, struct rng *);

/* What the CPU makes of that step: job->cpu, and per unit digests, counts and LAMB's sums. */
struct job_results {
	uint64_t digest[JOB_UNITS];
	uint32_t nonfinite[JOB_UNITS];
	double param[JOB_UNITS], direction[JOB_UNITS];
};
void job_on_cpu(struct job *, const struct kernels *, struct job_results *);

/* The argument of the job's update kernels, and the last one's name. Units of LAMB's second phase begin at
 * job_second_phase. */
struct cuda_update job_launch(struct job *, cuda_word generation, cuda_word window);
const char *job_kernel(const struct job *);
uint64_t job_second_phase(const struct job *);
/* LAMB: the second phase's learning rates, from sums of squares. */
void job_set_ratios(struct job *, const double *param, const double *direction);

/* Fails the test if the two copies differ; any two NaNs are equal. */
void job_check_same(const struct job *);
unsigned job_held(const struct job *); /* stamps that are held */

#endif
