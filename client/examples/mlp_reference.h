/* SPDX-License-Identifier: Apache-2.0 */
/* What a job of `mlp` must compute, by one process: the same samples in the same order, plain SGD. Two programs:
 *
 *   mlp_reference  f64, each window as one big batch: how far rounding has carried the job from the truth
 *   mlp_replay     f32, micro-batch by micro-batch in gaccd's order of adding: must agree with the job bit by bit
 */
#ifndef GACC_EXAMPLES_MLP_REFERENCE_H
#define GACC_EXAMPLES_MLP_REFERENCE_H

#include "mlp_model.h"
#include "sampler.h"

struct reference {
	double lr;
	struct idx_set train, test;
	struct sampler sampler;
	struct mlp model;
	real *params[MLP_TENSORS];
	real *grads[MLP_TENSORS]; /* of a batch */
	real *sums[MLP_TENSORS];  /* of the window */
};

/* The program's one-line description. */
extern const char reference_doc[];

/* Trains on one window: updates the parameters, adds the samples' losses to *loss, returns how many there were. */
uint64_t reference_step(struct reference *, uint64_t window, double *loss);

/* Samples that reference_step computes at once. */
uint64_t reference_batch(const struct sampler *);

#endif
