/* SPDX-License-Identifier: Apache-2.0 */
/* mlp_model.h's perceptron with its forward and backward passes on an NVIDIA GPU, queued in one stream. It knows
 * nothing of gacc. Failures of the driver end the program, with a message: a trainer that is started again goes on
 * where gaccd is. One thread. */
#ifndef GACC_EXAMPLES_MLP_GPU_H
#define GACC_EXAMPLES_MLP_GPU_H

#include "mlp_model.h"

typedef unsigned long long mlp_memory; /* CUdeviceptr */

struct CUstream_st;
struct mlp_gpu;

/* Where the tensors lie in parameters and gradients, in bytes from their beginning, and how long those are. */
struct mlp_gpu_layout {
	size_t param[MLP_TENSORS], grad[MLP_TENSORS], param_bytes, grad_bytes;
};

/* Loads driver and kernels, and makes the primary context of a GPU current: LOCAL_RANK's, counted over those that there
 * are. NULL: there is no driver, GPU or file of kernels, or no memory; why says which. */
struct mlp_gpu *mlp_gpu_new(const struct mlp_gpu_layout *, int max_batch, char *why, size_t n_why);
void mlp_gpu_free(struct mlp_gpu *);

struct CUstream_st *mlp_gpu_stream(struct mlp_gpu *);
mlp_memory mlp_gpu_params(struct mlp_gpu *), mlp_gpu_grads(struct mlp_gpu *); /* on the device */

/* Mean loss of the n samples that are loaded in the model; waits for it, since the push wants to have it. */
double mlp_gpu_forward(struct mlp_gpu *, const struct mlp *, int n);
/* Queues the gradients of scale times the mean loss, after mlp_gpu_forward. */
void mlp_gpu_backward(struct mlp_gpu *, int n, double scale);

#endif
