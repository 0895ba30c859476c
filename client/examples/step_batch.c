/* SPDX-License-Identifier: Apache-2.0 */
/* The step of mlp_reference: a window is one large batch in f64, to see how far rounding carries a job from exact
 * arithmetic. One thread. */
#include "mlp_reference.h"

const char reference_doc[] =
	"Train the perceptron of `mlp` in one process, in double precision, with one batch per step.";

uint64_t reference_batch(const struct sampler *s)
{
	uint64_t window = (uint64_t)s->batch * s->ranks * s->micro_size;

	return window < s->n ? window : s->n;
}

uint64_t reference_step(struct reference *r, uint64_t window, double *loss)
{
	const real *const *params = (const real *const *)r->params;
	const uint32_t *ids;
	int n = (int)sampler_window(&r->sampler, window, &ids);

	mlp_load(&r->model, &r->train, ids, n);
	*loss += n * mlp_forward(&r->model, params, n, NULL);
	mlp_backward(&r->model, params, n, 1, r->grads);
	for (int t = 0; t < MLP_TENSORS; t++) {
		for (size_t i = 0; i < mlp_tensors[t].count; i++)
			r->params[t][i] -= (real)r->lr * r->grads[t][i];
	}
	return (uint64_t)n;
}
