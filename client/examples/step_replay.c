/* SPDX-License-Identifier: Apache-2.0 */
/* The step of mlp_replay: adds each rank's gradients in the order of docs/gradient.md (micro-major, rank-minor,
 * weight times gradient, rounded to f32 after each operation), divides once and steps. Bits must equal gaccd's. */
#include "mlp_reference.h"

const char reference_doc[] = "Replay a job of `mlp` in one process, with the same arithmetic in the same order.";

uint64_t reference_batch(const struct sampler *s)
{
	return s->batch;
}

static void add(struct reference *r, real weight, int first)
{
	for (int t = 0; t < MLP_TENSORS; t++) {
		real *sum = r->sums[t];
		for (size_t i = 0; i < mlp_tensors[t].count; i++)
			sum[i] = (first ? 0 : sum[i]) + weight * r->grads[t][i];
	}
}

static void apply(struct reference *r, uint64_t weight)
{
	real scale = (real)(1.0 / (double)weight), lr = (real)r->lr;

	for (int t = 0; t < MLP_TENSORS; t++) {
		for (size_t i = 0; i < mlp_tensors[t].count; i++)
			r->params[t][i] -= lr * (scale * r->sums[t][i]);
	}
}

uint64_t reference_step(struct reference *r, uint64_t window, double *loss)
{
	const real *const *params = (const real *const *)r->params;
	const struct sampler *s = &r->sampler;
	const uint32_t *ids;
	uint64_t weight = 0;

	for (uint64_t g = 0; g < (uint64_t)s->micro_size * s->ranks; g++) {
		uint32_t n =
			sampler_micro(&r->sampler, window, (uint32_t)(g % s->ranks), (uint32_t)(g / s->ranks), &ids);
		if (n == 0)
			break;
		mlp_load(&r->model, &r->train, ids, (int)n);
		*loss += n * mlp_forward(&r->model, params, (int)n, NULL);
		mlp_backward(&r->model, params, (int)n, 1, r->grads);
		add(r, (real)n, g == 0);
		weight += n;
	}
	apply(r, weight);
	return weight;
}
