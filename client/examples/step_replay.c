/* SPDX-License-Identifier: Apache-2.0 */
/* The step of mlp_replay: adds each rank's gradients in the order of docs/gradient.md (micro-major, rank-minor,
 * weight times gradient, rounded to f32 after each operation; with several parts each one's sum first, then part by
 * part), divides once and steps. Bits must equal gaccd's. */
#include "mlp_reference.h"

#include <stdbool.h>

const char reference_doc[] = "Replay a job of `mlp` in one process, with the same arithmetic in the same order.";

uint64_t reference_batch(const struct sampler *s)
{
	return s->batch;
}

/* to = weight * from, or to += weight * from. */
static void add(real *const *to, real *const *from, real weight, bool first)
{
	for (int t = 0; t < MLP_TENSORS; t++) {
		real *sum = to[t];
		for (size_t i = 0; i < mlp_tensors[t].count; i++)
			sum[i] = (first ? 0 : sum[i]) + weight * from[t][i];
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

/* One micro-batch into the part's sum; returns its samples: 0 at the end of an epoch. */
static uint32_t add_micro(struct reference *r, uint64_t window, uint32_t rank, uint32_t micro, bool first, double *loss)
{
	const real *const *params = (const real *const *)r->params;
	const uint32_t *ids;
	uint32_t n = sampler_micro(&r->sampler, window, rank, micro, &ids);

	if (n == 0)
		return 0;
	mlp_load(&r->model, &r->train, ids, (int)n);
	*loss += n * mlp_forward(&r->model, params, (int)n, NULL);
	mlp_backward(&r->model, params, (int)n, 1, r->grads);
	add(r->part, r->grads, (real)n, first);
	return n;
}

/* The sum over the ranks first..end-1, and its weight. */
static uint64_t add_part(struct reference *r, uint64_t window, uint32_t first, uint32_t end, double *loss)
{
	uint64_t weight = 0;

	for (uint32_t micro = 0; micro < r->sampler.micro_size; micro++) {
		for (uint32_t rank = first; rank < end; rank++)
			weight += add_micro(r, window, rank, micro, weight == 0, loss);
	}
	return weight;
}

uint64_t reference_step(struct reference *r, uint64_t window, double *loss)
{
	const uint64_t ranks = r->sampler.ranks;
	uint64_t weight = 0;

	for (uint32_t i = 0; i < r->parts; i++) {
		uint32_t first = (uint32_t)(ranks * i / r->parts), end = (uint32_t)(ranks * (i + 1) / r->parts);
		uint64_t added = add_part(r, window, first, end, loss);

		if (added > 0)
			add(r->sums, r->part, 1, weight == 0);
		weight += added;
	}
	apply(r, weight);
	return weight;
}
