/* SPDX-License-Identifier: Apache-2.0 */
/* mlp on the CPU: BLAS writes the gradients straight into a slot in shared memory, and reads the parameters where gaccd
 * writes them. Nothing is copied. One thread. */
#include "mlp_compute.h"

#include <stdio.h>
#include <stdlib.h>

struct mlp_compute {
	gacc_job *job;
	struct mlp *model;
	const real *const *params;
};

struct mlp_compute *mlp_compute_new(gacc_job *job, struct mlp *model, const real *const *params, char *why,
				    size_t n_why)
{
	struct mlp_compute *c = malloc(sizeof(*c));

	if (c)
		*c = (struct mlp_compute){ job, model, params };
	else
		snprintf(why, n_why, "out of memory");
	return c;
}

gacc_status mlp_compute_params(struct mlp_compute *c, const real **params)
{
	const void *base;
	gacc_status status = gacc_params(c->job, &base, NULL);

	for (size_t i = 0; i < MLP_TENSORS && !status; i++)
		params[i] = (const real *)((const char *)base + gacc_param_offset(c->job, i));
	return status;
}

void mlp_compute_free(struct mlp_compute *c)
{
	free(c);
}

gacc_status mlp_compute_push(struct mlp_compute *c, const gacc_position *at, int n, gacc_push_opts *push,
			     const char **out_what)
{
	real *grads[MLP_TENSORS];
	void *slot;

	push->loss = mlp_forward(c->model, c->params, n, NULL);
	*out_what = "get a gradient buffer";
	gacc_status status = gacc_grad_buffer(c->job, &slot, NULL);
	if (status)
		return status;
	for (int i = 0; i < MLP_TENSORS; i++)
		grads[i] = (real *)((char *)slot + gacc_offset(c->job, (size_t)i));
	mlp_backward(c->model, c->params, n, at->loss_scale, grads);
	*out_what = "push";
	return gacc_push(c->job, push, NULL);
}
