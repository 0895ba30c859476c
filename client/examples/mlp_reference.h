/* SPDX-License-Identifier: Apache-2.0 */
/* What a job of `mlp` must compute, by one process: the same samples in the same order, plain SGD. Two programs:
 *
 *   mlp_reference  f64, each window as one big batch: how far rounding has carried the job from the truth
 *   mlp_replay     f32, micro-batch by micro-batch in gaccd's order of adding: must agree with the job bit by bit. Of a
 *                  job of several parts it adds up each part's ranks first, then the parts
 */
#ifndef GACC_EXAMPLES_MLP_REFERENCE_H
#define GACC_EXAMPLES_MLP_REFERENCE_H

#include "mlp_model.h"
#include "sampler.h"

struct reference {
	double lr;
	uint32_t parts; /* of the job; only mlp_replay looks at it */
	struct idx_set train, test;
	struct sampler sampler;
	struct mlp model;
	real *params[MLP_TENSORS];
	real *grads[MLP_TENSORS]; /* of a batch */
	real *part[MLP_TENSORS];  /* the window's sum over one part's ranks */
	real *sums[MLP_TENSORS];  /* and over all parts */
};

/* The program's one-line description. */
extern const char reference_doc[];

/* Trains on one window: updates the parameters, adds the samples' losses to *loss, returns how many there were. */
uint64_t reference_step(struct reference *, uint64_t window, double *loss);

/* Samples that reference_step computes at once. */
uint64_t reference_batch(const struct sampler *);

#endif
