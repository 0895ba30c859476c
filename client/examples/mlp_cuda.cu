/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of mlp_cuda: matrix products by tiles in shared memory, and the rest of a perceptron. For GPUs by nvcc,
 * and for the simulator of tests/gpu, whose header defines the same names, by a C++ compiler. A product is added in the
 * order of k, a sum in the order of rows, and nothing is added by atomic operations: the same inputs give the same
 * bits. */
#include "mlp_cuda.h"

#ifndef CUDA_ON_HOST
#define SHARED(type, name) __shared__ type name
#define KERNEL(name, type)                                                                                             \
	extern "C" __global__ void __launch_bounds__(MLP_THREADS) name(const __grid_constant__ type a)

template <class T> static __device__ __forceinline__ void put(T *to, T value)
{
	*to = value;
}
#endif

enum { DEPTH = 16, SIDE = 16, EACH = MLP_TILE / SIDE }; /* a thread makes EACH x EACH elements of a tile */

struct tiles {
	float a[DEPTH][MLP_TILE + 1], b[DEPTH][MLP_TILE + 1]; /* + 1: columns lie in different banks */
};

/* A tile of `m`, of which `at` is the first row (or column) and k the first of the depth; zeros beyond its end. */
static __device__ __forceinline__ void load_tile(float (*to)[MLP_TILE + 1], const float *m, unsigned at, unsigned end,
						 unsigned k, unsigned depth, unsigned step, unsigned step_k)
{
	for (unsigned i = threadIdx.x; i < DEPTH * MLP_TILE; i += MLP_THREADS) {
		/* neighbours in memory by neighbouring threads */
		const unsigned x = step_k == 1 ? i / DEPTH : i % MLP_TILE, y = step_k == 1 ? i % DEPTH : i / MLP_TILE;
		const bool inside = at + x < end && k + y < depth;
		to[y][x] = inside ? m[(at + x) * step + (k + y) * step_k] : 0;
	}
}

static __device__ __forceinline__ float finish(const struct mlp_gemm_args &a, float sum, unsigned row, unsigned column)
{
	const float x = a.scale * sum;
	switch (a.after) {
	case MLP_BIAS:
		return x + a.extra[column];
	case MLP_BIAS_RELU:
		return x + a.extra[column] > 0 ? x + a.extra[column] : 0;
	case MLP_MASK:
		return a.extra[row * a.columns + column] > 0 ? x : 0;
	default:
		return x;
	}
}

KERNEL(mlp_gemm, struct mlp_gemm_args)
{
	SHARED(struct tiles, sh);
	const unsigned across = (a.columns + MLP_TILE - 1) / MLP_TILE;
	const unsigned row = blockIdx.x / across * MLP_TILE, column = blockIdx.x % across * MLP_TILE;
	const unsigned y = threadIdx.x / SIDE, x = threadIdx.x % SIDE;
	float sum[EACH][EACH] = {};

	for (unsigned k = 0; k < a.depth; k += DEPTH) {
		load_tile(sh.a, a.a, row, a.rows, k, a.depth, a.a_row, a.a_column);
		load_tile(sh.b, a.b, column, a.columns, k, a.depth, a.b_column, a.b_row);
		__syncthreads();
		for (unsigned d = 0; d < DEPTH; d++)
			for (unsigned i = 0; i < EACH; i++)
				for (unsigned j = 0; j < EACH; j++)
					sum[i][j] += sh.a[d][y + i * SIDE] * sh.b[d][x + j * SIDE];
		__syncthreads();
	}
	for (unsigned i = 0; i < EACH; i++) {
		for (unsigned j = 0; j < EACH; j++) {
			const unsigned r = row + y + i * SIDE, c = column + x + j * SIDE;
			if (r < a.rows && c < a.columns)
				put(&a.c[r * a.columns + c], finish(a, sum[i][j], r, c));
		}
	}
}

KERNEL(mlp_sum_rows, struct mlp_sum_args)
{
	const unsigned c = blockIdx.x * MLP_THREADS + threadIdx.x;
	float sum = 0;

	for (unsigned r = 0; r < a.rows && c < a.columns; r++)
		sum += a.scale * a.in[r * a.columns + c];
	if (c < a.columns)
		put(&a.out[c], sum);
}

/* In f64, as mlp_model.c has it: it is ten numbers of each sample. */
KERNEL(mlp_loss, struct mlp_loss_args)
{
	const unsigned r = blockIdx.x * MLP_THREADS + threadIdx.x;
	if (r >= a.rows)
		return;
	float *row = a.logits + r * a.classes;
	const unsigned label = a.labels[r];
	const double of_label = row[label];
	double top = row[0], sum = 0;

	for (unsigned c = 1; c < a.classes; c++)
		top = row[c] > top ? row[c] : top;
	for (unsigned c = 0; c < a.classes; c++)
		sum += exp(row[c] - top);
	for (unsigned c = 0; c < a.classes; c++)
		put(&row[c], (float)(exp(row[c] - top) / sum - (c == label)));
	put(&a.loss[r], log(sum) + top - of_label);
}
