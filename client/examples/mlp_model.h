/* SPDX-License-Identifier: Apache-2.0 */
/* A multi-layer perceptron 784-512-512-10 with ReLU and mean cross-entropy: forward and backward on OpenBLAS.
 *
 * Compiled once per program, in f32 or, with MLP_DOUBLE, in f64. Parameters and gradients are not held here: the caller
 * passes one pointer per tensor, which may lie in shared memory. Tensors are those of three torch.nn.Linear, weights
 * [out][in]. Used by one thread at a time. */
#ifndef GACC_EXAMPLES_MLP_MODEL_H
#define GACC_EXAMPLES_MLP_MODEL_H

#include "idx.h"

#include <stddef.h>
#include <stdint.h>

#ifdef MLP_DOUBLE
typedef double real;
#else
typedef float real;
#endif

enum { MLP_PIXELS = 784, MLP_CLASSES = 10, MLP_LAYERS = 3, MLP_TENSORS = 2 * MLP_LAYERS };

struct mlp_tensor {
	const char *name; /* "fc1.weight" */
	int n_dims;
	int64_t shape[2];
	size_t count; /* elements */
};
extern const struct mlp_tensor mlp_tensors[MLP_TENSORS];
extern const int mlp_width[MLP_LAYERS + 1]; /* of the input and of each layer */

struct mlp {
	int max_batch;
	real pixel[256];	   /* normalised value of a byte */
	real *act[MLP_LAYERS + 1]; /* [max_batch][width]: input, two hidden layers, logits or their gradient */
	real *delta[MLP_LAYERS];   /* gradient of a hidden layer, [max_batch][width]; 0 unused */
	uint8_t *labels;	   /* [max_batch] */
};

/* Memory for up to max_batch samples at once. 0, or -1 when out of memory; then too mlp_fini frees. */
int mlp_init(struct mlp *, int max_batch);
void mlp_fini(struct mlp *);

/* Value i of tensor t as torch.nn.Linear draws it, Kaiming-uniform with a = sqrt(5): uniform in +-1/sqrt(fan_in), for
 * weights and biases. Always an f32 value. */
void mlp_init_tensor(int t, uint64_t seed, float *to);

/* Loads the n samples `ids` of the set: bytes / 255, less 0.1307, over 0.3081. */
void mlp_load(struct mlp *, const struct idx_set *, const uint32_t *ids, int n);

/* Mean loss of the n samples loaded; adds the number of right answers to *correct unless NULL. */
double mlp_forward(struct mlp *, const real *const *params, int n, uint32_t *correct);
/* After mlp_forward on the same samples: writes the gradients of scale times the mean loss. */
void mlp_backward(struct mlp *, const real *const *params, int n, double scale, real *const *grads);

/* Mean loss over a whole set, and the share of right answers. */
double mlp_test(struct mlp *, const real *const *params, const struct idx_set *, double *out_accuracy);

#endif
