/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of jobs on a node begin with: a small specification as a message, and a configuration that is the default
 * one whatever the machine's own says. */
#ifndef GACC_TESTS_SMALL_JOB_H
#define GACC_TESTS_SMALL_JOB_H

#include "gacc/v1/common.pb-c.h"
#include "host/conf.h"

/* A message and what it points to; it stays where it was made. */
struct small_job {
	Gacc__V1__JobSpec spec;
	Gacc__V1__Optimizer optimizer;
	Gacc__V1__InitRule ones, *init[1];
	Gacc__V1__TensorSpec tensor[2], *tensors[2];
	int64_t shape[2][2];
};

/* Two ranks with two micro-batches each, SGD with lr 0.5, all parameters 1 at the start, no tensors. */
void small_job(struct small_job *);
/* One more tensor, f32; columns 0: it has one dimension. The name is borrowed. */
void small_job_add(struct small_job *, const char *name, int64_t rows, int64_t columns);

/* The defaults and these settings ("key=value", ended by NULL), with an empty file in a scratch directory instead of
 * the machine's. For conf_free. */
struct conf *small_conf(const char *const *set);

#endif
