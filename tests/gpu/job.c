/* SPDX-License-Identifier: Apache-2.0 */
#include "job.h"

#include "math/kernels_scalar.h"

#include <check.h>
#include <math.h>
#include <string.h>

enum sort { ALL_F32, MASTER, ONLY_16 };

static uint64_t below(struct rng *rng, uint64_t n)
{
	return rng_next(rng) % n;
}

static struct optim_config draw_optim(enum optim_type type, struct rng *rng)
{
	struct optim_config c = {
		.type = type, .lr = 0.01, .weight_decay = 0.02, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8
	};
	if (type == OPTIM_SGD && below(rng, 3)) {
		c.momentum = 0.9;
		c.nesterov = below(rng, 2);
		c.dampening = c.nesterov ? 0 : 0.1;
	}
	return c;
}

static void draw_range(struct job *j, uint32_t i, uint64_t start, struct rng *rng)
{
	const enum sort sort = (enum sort)below(rng, 3);
	const enum dtype t = below(rng, 2) ? DTYPE_BF16 : DTYPE_F16;
	const int n_state = optim_info(j->optim.type)->n_state(&j->optim);
	struct cuda_range *r = &j->range[i];
	j->start[i] = start;
	*r = (struct cuda_range){ .first_unit = j->n_units,
				  .count = 32 * (1 + below(rng, 3 * KERNEL_BLOCK / 32)),
				  .p = sort == ONLY_16 ? NULL : j->gpu.p + start,
				  .p16 = sort == ALL_F32 ? NULL : j->gpu.p16 + start,
				  .m = n_state > 0 ? j->gpu.m + start : NULL,
				  .v = n_state > 1 ? j->gpu.v + start : NULL,
				  .g = j->g + start,
				  .scalars = (uint32_t)below(rng, JOB_GROUPS),
				  .p16_dtype = t,
				  .frozen = below(rng, 6) == 0 };
	j->n_units += (r->count + KERNEL_BLOCK - 1) / KERNEL_BLOCK;
}

static void draw_values(struct job *j, struct rng *rng)
{
	sample_fill(j->gpu.p, DTYPE_F32, JOB_ELEMENTS, j->kind, rng);
	sample_fill(j->gpu.m, DTYPE_F32, JOB_ELEMENTS, j->kind, rng);
	sample_fill(j->gpu.v, DTYPE_F32, JOB_ELEMENTS, j->kind, rng);
	for (uint32_t i = 0; i < j->n_ranges; i++)
		sample_fill(j->gpu.p16 + j->start[i], (enum dtype)j->range[i].p16_dtype, j->range[i].count, j->kind,
			    rng);
	for (size_t i = 0; i < JOB_ELEMENTS && j->kind != SAMPLE_SPECIAL; i++)
		j->gpu.v[i] = fabsf(j->gpu.v[i]);
	j->cpu = j->gpu;
}

void job_draw(struct job *j, enum optim_type type, enum sample kind, struct rng *rng)
{
	uint64_t start = 0;
	memset(j, 0, sizeof(*j));
	j->kind = kind;
	j->optim = draw_optim(type, rng);
	j->n_ranges = 1 + (uint32_t)below(rng, JOB_RANGES);
	j->shares = 1 + (uint32_t)below(rng, JOB_SHARES);
	for (uint32_t i = 0; i < j->n_ranges; i++) {
		draw_range(j, i, start, rng);
		start += j->range[i].count;
	}
	draw_values(j, rng);
}

void job_step(struct job *j, uint64_t t, struct rng *rng)
{
	sample_fill(j->g, DTYPE_F32, JOB_ELEMENTS, j->kind, rng);
	for (int i = 0; i < JOB_GROUPS; i++) {
		const struct optim_group group = { .lr_scale = 1 + i, .weight_decay = i ? 0.1 : 0 };
		optim_step(&j->optim, &group, t, 0.01, rng_unit(rng), t % 2 ? 0 : 0.7, &j->update[i]);
		cuda_scalars_of(&j->update[i], &j->scalars[i]);
	}
	for (uint32_t i = 0; i < j->n_ranges; i++)
		j->range[i].lr = j->update[j->range[i].scalars].lr;
}

/* Range i in the CPU's copy. */
static struct kernel_params params_of(struct job *j, uint32_t i)
{
	const struct cuda_range *r = &j->range[i];
	const uint64_t start = j->start[i];
	return (struct kernel_params){ .p = r->p ? j->cpu.p + start : NULL,
				       .p16 = r->p16 ? j->cpu.p16 + start : NULL,
				       .p16_dtype = (enum dtype)r->p16_dtype,
				       .m = r->m ? j->cpu.m + start : NULL,
				       .v = r->v ? j->cpu.v + start : NULL };
}

void job_on_cpu(struct job *j, const struct kernels *k, struct job_results *out)
{
	memset(out, 0, sizeof(*out));
	for (uint32_t i = 0; i < j->n_ranges; i++) {
		const struct cuda_range *r = &j->range[i];
		const struct kernel_params p = params_of(j, i);
		const struct kernel_partials partials = { .digest = out->digest + r->first_unit,
							  .nonfinite = out->nonfinite + r->first_unit };
		const struct kernel_lamb_norms norms = { out->param + r->first_unit, out->direction + r->first_unit };
		if (r->frozen) {
			k->inspect(p.p ? (void *)p.p : p.p16, p.p ? DTYPE_F32 : p.p16_dtype, r->count,
				   &(struct kernel_partials){ .digest = partials.digest });
			continue;
		}
		struct kernel_update u = j->update[r->scalars];
		if (j->optim.type == OPTIM_LAMB) {
			k->lamb_moments(&p, r->g, DTYPE_F32, r->count, &u, NULL, &norms);
			u.lr = u.lr * 0.75f; /* job_set_ratios */
		}
		optim_apply(k, &j->optim, &p, r->g, DTYPE_F32, r->count, &u, NULL, &partials);
	}
}

/* Any ratio will do: kernels take it as it is. But it has to come from all of the sums. */
void job_set_ratios(struct job *j, const double *param, const double *direction)
{
	for (uint32_t i = 0; i < j->n_ranges; i++) {
		bool all = true;
		const uint64_t end = j->range[i].first_unit + (j->range[i].count + KERNEL_BLOCK - 1) / KERNEL_BLOCK;
		for (uint64_t u = j->range[i].first_unit; u < end && !j->range[i].frozen; u++)
			all = all && param[u] >= 0 && direction[u] >= 0;
		j->range[i].lr = j->update[j->range[i].scalars].lr * (all || j->kind == SAMPLE_SPECIAL ? 0.75f : 0);
	}
}

uint64_t job_second_phase(const struct job *j)
{
	return j->n_units + 1;
}

struct cuda_update job_launch(struct job *j, cuda_word generation, cuda_word window)
{
	return (struct cuda_update){ .pass = { &j->gate, generation },
				     .window = window,
				     .stamp = j->stamp,
				     .undo = j->undo[0][0],
				     .n = j->n_units,
				     .n_shares = j->shares,
				     .range = j->range,
				     .n_ranges = j->n_ranges,
				     .scalars = j->scalars,
				     .digest = j->digest,
				     .nonfinite = j->nonfinite,
				     .param = j->param,
				     .direction = j->direction,
				     .keys = digest_key };
}

const char *job_kernel(const struct job *j)
{
	return optim_info(j->optim.type)->name;
}

void job_check_same(const struct job *j)
{
	ck_assert_uint_eq(sample_differs(j->gpu.p, j->cpu.p, DTYPE_F32, JOB_ELEMENTS), JOB_ELEMENTS);
	ck_assert_uint_eq(sample_differs(j->gpu.m, j->cpu.m, DTYPE_F32, JOB_ELEMENTS), JOB_ELEMENTS);
	ck_assert_uint_eq(sample_differs(j->gpu.v, j->cpu.v, DTYPE_F32, JOB_ELEMENTS), JOB_ELEMENTS);
	for (uint32_t i = 0; i < j->n_ranges; i++)
		ck_assert_uint_eq(sample_differs(j->gpu.p16 + j->start[i], j->cpu.p16 + j->start[i],
						 (enum dtype)j->range[i].p16_dtype, j->range[i].count),
				  j->range[i].count);
}

unsigned job_held(const struct job *j)
{
	unsigned n = 0;
	for (uint32_t i = 0; i < j->shares; i++)
		n += CUDA_STAMP_HELD(j->stamp[i]) != 0;
	return n;
}
