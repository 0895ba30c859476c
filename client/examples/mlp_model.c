/* SPDX-License-Identifier: Apache-2.0 */
/* Forward and backward pass of the example perceptron on OpenBLAS, in f32 or (MLP_DOUBLE) f64. Used by mlp and its
 * references; one thread. */
#include "mlp_model.h"

#include "random.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef MLP_DOUBLE
#define gemm cblas_dgemm
#else
#define gemm cblas_sgemm
#endif

enum { CHUNK = 1000 };

const int mlp_width[MLP_LAYERS + 1] = { MLP_PIXELS, 512, 512, MLP_CLASSES };

const struct mlp_tensor mlp_tensors[MLP_TENSORS] = {
	{ "fc1.weight", 2, { 512, MLP_PIXELS }, 512 * MLP_PIXELS },
	{ "fc1.bias", 1, { 512 }, 512 },
	{ "fc2.weight", 2, { 512, 512 }, 512 * 512 },
	{ "fc2.bias", 1, { 512 }, 512 },
	{ "fc3.weight", 2, { MLP_CLASSES, 512 }, MLP_CLASSES * 512 },
	{ "fc3.bias", 1, { MLP_CLASSES }, MLP_CLASSES },
};

int mlp_init(struct mlp *m, int max_batch)
{
	*m = (struct mlp){ .max_batch = max_batch };
	for (int byte = 0; byte < 256; byte++)
		m->pixel[byte] = (real)((byte / 255.0 - 0.1307) / 0.3081);
	m->labels = malloc((size_t)max_batch);
	if (!m->labels)
		return -1;
	for (int l = 0; l <= MLP_LAYERS; l++) {
		size_t bytes = (size_t)max_batch * (size_t)mlp_width[l] * sizeof(real);
		if (!(m->act[l] = malloc(bytes)))
			return -1;
		if (l > 0 && l < MLP_LAYERS && !(m->delta[l] = malloc(bytes)))
			return -1;
	}
	return 0;
}

void mlp_fini(struct mlp *m)
{
	free(m->labels);
	for (int l = 0; l <= MLP_LAYERS; l++)
		free(m->act[l]);
	for (int l = 1; l < MLP_LAYERS; l++)
		free(m->delta[l]);
}

void mlp_init_tensor(int t, uint64_t seed, float *to)
{
	uint64_t key = random_mix(seed + (uint64_t)t);
	int layer = t / 2;
	double bound = 1 / sqrt(mlp_width[layer]);

	for (size_t i = 0; i < mlp_tensors[t].count; i++)
		to[i] = (float)(((double)(random_at(key, i) >> 11) * 0x1p-52 - 1) * bound);
}

void mlp_load(struct mlp *m, const struct idx_set *set, const uint32_t *ids, int n)
{
	for (int i = 0; i < n; i++) {
		const uint8_t *image = set->images + (size_t)ids[i] * MLP_PIXELS;
		real *x = m->act[0] + (size_t)i * MLP_PIXELS;
		for (int p = 0; p < MLP_PIXELS; p++)
			x[p] = m->pixel[image[p]];
		m->labels[i] = set->labels[ids[i]];
	}
}

/* out [n][wide] = in W^T + b, then ReLU between layers. */
static void layer_forward(struct mlp *m, const real *const *params, int l, int n)
{
	const real *w = params[2 * l], *b = params[2 * l + 1];
	int in = mlp_width[l], wide = mlp_width[l + 1];
	real *out = m->act[l + 1];

	for (int i = 0; i < n; i++)
		memcpy(out + (size_t)i * (size_t)wide, b, (size_t)wide * sizeof(*b));
	gemm(CblasRowMajor, CblasNoTrans, CblasTrans, n, wide, in, 1, m->act[l], in, w, in, 1, out, wide);
	if (l + 1 == MLP_LAYERS)
		return;
	for (size_t i = 0; i < (size_t)n * (size_t)wide; i++)
		out[i] = out[i] > 0 ? out[i] : 0;
}

/* Cross-entropy of one row of logits, which it turns into softmax(row) - onehot(label); whether the label won. */
static double row_loss(real *row, int label, uint32_t *correct)
{
	double sum = 0, z = row[label];
	int best = 0;

	for (int c = 1; c < MLP_CLASSES; c++)
		best = row[c] > row[best] ? c : best;
	if (correct)
		*correct += best == label;
	double top = row[best];
	for (int c = 0; c < MLP_CLASSES; c++)
		sum += exp(row[c] - top);
	for (int c = 0; c < MLP_CLASSES; c++)
		row[c] = (real)(exp(row[c] - top) / sum - (c == label));
	return log(sum) + top - z;
}

double mlp_forward(struct mlp *m, const real *const *params, int n, uint32_t *correct)
{
	double loss = 0;

	for (int l = 0; l < MLP_LAYERS; l++)
		layer_forward(m, params, l, n);
	for (int i = 0; i < n; i++)
		loss += row_loss(m->act[MLP_LAYERS] + (size_t)i * MLP_CLASSES, m->labels[i], correct);
	return loss / n;
}

/* grad_w [out][in] = scale * delta^T x, grad_b = scale * the column sums of delta. */
static void layer_gradients(struct mlp *m, const real *delta, int l, int n, real scale, real *grad_w, real *grad_b)
{
	int in = mlp_width[l], wide = mlp_width[l + 1];

	gemm(CblasRowMajor, CblasTrans, CblasNoTrans, wide, in, n, scale, delta, wide, m->act[l], in, 0, grad_w, in);
	memset(grad_b, 0, (size_t)wide * sizeof(*grad_b));
	for (int i = 0; i < n; i++) {
		for (int j = 0; j < wide; j++)
			grad_b[j] += scale * delta[(size_t)i * (size_t)wide + (size_t)j];
	}
}

void mlp_backward(struct mlp *m, const real *const *params, int n, double scale, real *const *grads)
{
	const real *delta = m->act[MLP_LAYERS];

	for (int l = MLP_LAYERS - 1; l >= 0; l--) {
		layer_gradients(m, delta, l, n, (real)(scale / n), grads[2 * l], grads[2 * l + 1]);
		if (l == 0)
			break;
		gemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, mlp_width[l], mlp_width[l + 1], 1, delta,
		     mlp_width[l + 1], params[2 * l], mlp_width[l], 0, m->delta[l], mlp_width[l]);
		for (size_t i = 0; i < (size_t)n * (size_t)mlp_width[l]; i++)
			m->delta[l][i] = m->act[l][i] > 0 ? m->delta[l][i] : 0;
		delta = m->delta[l];
	}
}

double mlp_test(struct mlp *m, const real *const *params, const struct idx_set *set, double *out_accuracy)
{
	uint32_t ids[CHUNK], right = 0, step = m->max_batch < CHUNK ? (uint32_t)m->max_batch : CHUNK;
	double loss = 0;

	for (uint32_t at = 0; at < set->n; at += step) {
		uint32_t n = set->n - at < step ? set->n - at : step;
		for (uint32_t i = 0; i < n; i++)
			ids[i] = at + i;
		mlp_load(m, set, ids, (int)n);
		loss += n * mlp_forward(m, params, (int)n, &right);
	}
	*out_accuracy = (double)right / set->n;
	return loss / set->n;
}
