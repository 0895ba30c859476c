/* SPDX-License-Identifier: Apache-2.0 */
/* mlp on an NVIDIA GPU: parameters go up, gradients come down by copies that are queued in the stream of the passes,
 * and gaccd adds and updates in host memory, or on a GPU (device: cuda; with slots_on: device the copies stay on the
 * GPU). This is all of gacc in it. One thread.
 *
 *     gaccctl run -n 1 --micro-size 4 --set slots_per_rank=2 --set optimizer.type=sgd --set optimizer.lr=0.01
 *             -- mlp_cuda --batch 32
 */
#include "mlp_compute.h"
#include "mlp_gpu.h"

#include <gacc/gacc_cuda.h>
#include <stdio.h>
#include <stdlib.h>

struct mlp_compute {
	gacc_job *job;
	struct mlp *model;
	struct mlp_gpu *gpu;
	struct mlp_gpu_layout layout;
	real *host;	 /* the parameters, of a job that has them on the GPU; NULL: not read yet */
	uint64_t window; /* whose parameters are on the device; UINT64_MAX: none */
};

static void read_layout(gacc_job *job, struct mlp_gpu_layout *out)
{
	for (size_t i = 0; i < MLP_TENSORS; i++) {
		size_t bytes = mlp_tensors[i].count * sizeof(float);

		out->param[i] = gacc_param_offset(job, i);
		out->grad[i] = gacc_offset(job, i);
		out->param_bytes = out->param[i] + bytes > out->param_bytes ? out->param[i] + bytes : out->param_bytes;
		out->grad_bytes = out->grad[i] + bytes > out->grad_bytes ? out->grad[i] + bytes : out->grad_bytes;
	}
}

struct mlp_compute *mlp_compute_new(gacc_job *job, struct mlp *model, const real *const *params, char *why,
				    size_t n_why)
{
	struct mlp_compute *c = calloc(1, sizeof(*c));

	(void)params;
	if (!c) {
		snprintf(why, n_why, "out of memory");
		return NULL;
	}
	*c = (struct mlp_compute){ .job = job, .model = model, .window = UINT64_MAX };
	read_layout(job, &c->layout);
	c->gpu = mlp_gpu_new(&c->layout, model->max_batch, why, n_why);
	if (c->gpu && gacc_cuda_register(job, NULL) == GACC_OK)
		return c;
	if (c->gpu)
		snprintf(why, n_why, "register the GPU: %s", gacc_last_error(job));
	mlp_compute_free(c);
	return NULL;
}

static gacc_status read_params(struct mlp_compute *c, const void **base)
{
	if (!gacc_cuda_is_on_device(c->job))
		return gacc_params(c->job, base, NULL);
	if (!c->host)
		c->host = malloc(c->layout.param_bytes);
	*base = c->host;
	return c->host ? gacc_cuda_read_params(c->job, c->host, 0, c->layout.param_bytes) : GACC_ENOMEM;
}

gacc_status mlp_compute_params(struct mlp_compute *c, const real **params)
{
	const void *base;
	gacc_status status = read_params(c, &base);

	for (size_t i = 0; i < MLP_TENSORS && !status; i++)
		params[i] = (const real *)((const char *)base + c->layout.param[i]);
	return status;
}

void mlp_compute_free(struct mlp_compute *c)
{
	if (c) {
		mlp_gpu_free(c->gpu);
		free(c->host);
	}
	free(c);
}

gacc_status mlp_compute_push(struct mlp_compute *c, const gacc_position *at, int n, gacc_push_opts *push,
			     const char **out_what)
{
	gacc_cuda_stream stream = mlp_gpu_stream(c->gpu);
	void *slot;
	gacc_status status;

	*out_what = "copy the parameters to the GPU";
	if (c->window != at->window) {
		status = gacc_cuda_copy_params(c->job, stream, mlp_gpu_params(c->gpu), 0, c->layout.param_bytes);
		if (status)
			return status;
		c->window = at->window;
	}
	push->loss = mlp_gpu_forward(c->gpu, c->model, n);
	mlp_gpu_backward(c->gpu, n, at->loss_scale);
	*out_what = "get a gradient buffer";
	status = gacc_grad_buffer(c->job, &slot, NULL);
	if (status)
		return status;
	*out_what = "copy the gradients from the GPU";
	status = gacc_cuda_copy_gradient(c->job, stream, 0, mlp_gpu_grads(c->gpu), c->layout.grad_bytes);
	if (status)
		return status;
	*out_what = "push";
	return gacc_cuda_push(c->job, stream, push, NULL);
}
