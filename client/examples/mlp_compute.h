/* SPDX-License-Identifier: Apache-2.0 */
/* Where mlp.c's forward and backward passes run: on the CPU (mlp_cpu.c, the program mlp), or on an NVIDIA GPU
 * (mlp_cuda.c, the program mlp_cuda). All that these do with gacc for a gradient is in there. One thread. */
#ifndef GACC_EXAMPLES_MLP_COMPUTE_H
#define GACC_EXAMPLES_MLP_COMPUTE_H

#include "mlp_model.h"

#include <gacc/gacc.h>

struct mlp_compute;

/* After gacc_register. The model, into which mlp_load loads samples, and `params`, which mlp_compute_params fills, are
 * the caller's and must live as long. NULL, with a sentence in why. */
struct mlp_compute *mlp_compute_new(gacc_job *, struct mlp *, const real *const *params, char *why, size_t n_why);
/* After gacc_ready, and before they are read: where in host memory the parameters are, as of now. gacc's status. */
gacc_status mlp_compute_params(struct mlp_compute *, const real **params);
/* Before gacc_detach; NULL is nothing. */
void mlp_compute_free(struct mlp_compute *);

/* Pushes the gradients of the n samples that are loaded, scaled by at->loss_scale; sets push->loss to their mean loss.
 * gacc's status; *out_what says what was tried last. */
gacc_status mlp_compute_push(struct mlp_compute *, const gacc_position *at, int n, gacc_push_opts *push,
			     const char **out_what);

#endif
