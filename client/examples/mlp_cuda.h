/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of mlp_cuda.cu and their arguments: each kernel has one, a struct. For C and for C++. */
#ifndef GACC_EXAMPLES_MLP_CUDA_H
#define GACC_EXAMPLES_MLP_CUDA_H

enum {
	MLP_THREADS = 256, /* of a block of all kernels */
	MLP_TILE = 32,	   /* rows and columns of the product that a block of mlp_gemm makes */
};

enum mlp_after {
	MLP_AS_IS,
	MLP_BIAS,      /* + extra[column] */
	MLP_BIAS_RELU, /* the same, and at least 0 */
	MLP_MASK,      /* 0 where extra, of the same shape as c, is not above 0 */
};

/* mlp_gemm: c [rows][columns] = scale * a b, and then what `after` says. Element (i, k) of a is a[i * a_row + k *
 * a_column], b's likewise. One block for each tile, row by row. */
struct mlp_gemm_args {
	const float *a, *b, *extra;
	float *c;
	unsigned rows, columns, depth;
	unsigned a_row, a_column, b_row, b_column;
	float scale;
	enum mlp_after after;
};

/* mlp_sum_rows: out [columns] = scale * the sum of the rows of in [rows][columns]. A thread for each column. */
struct mlp_sum_args {
	const float *in;
	float *out;
	unsigned rows, columns;
	float scale;
};

/* mlp_loss: turns each row of logits [rows][classes] into softmax - onehot(label), and writes its cross-entropy. A
 * thread for each row. */
struct mlp_loss_args {
	float *logits;
	const unsigned char *labels;
	double *loss;
	unsigned rows, classes;
};

#endif
