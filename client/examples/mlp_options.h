/* SPDX-License-Identifier: Apache-2.0 */
/* What mlp and mlp_reference have in common on the command line: which samples, in which order, how often. */
#ifndef GACC_EXAMPLES_MLP_OPTIONS_H
#define GACC_EXAMPLES_MLP_OPTIONS_H

#include "idx.h"

#include <argp.h>
#include <stdint.h>

struct mlp_options {
	const char *data; /* folder, or a name under /usr/share/datasets */
	uint32_t batch;
	uint64_t epochs;
	uint64_t seed;
	uint32_t max_samples; /* 0 = all */
	int threads;	      /* of OpenBLAS; 0 = as the environment says, else 1 */
};

/* Child parser; its input is a struct mlp_options, which it fills with the defaults first. */
extern const struct argp mlp_options_argp;

/* Value of an option: a whole number in min..max, or a finite number >= 0. Otherwise ends the program with the usage.
 */
uint64_t option_number(struct argp_state *, const char *name, const char *text, uint64_t min, uint64_t max);
double option_amount(struct argp_state *, const char *name, const char *text);

/* One thread unless --threads, OPENBLAS_NUM_THREADS or OMP_NUM_THREADS says otherwise: ranks share the cores. */
void mlp_set_threads(const struct mlp_options *);

/* Set "train" or "t10k"; 0, or -1 with a sentence in why. */
int mlp_open_data(const struct mlp_options *, const char *prefix, uint32_t max, struct idx_set *out, char *why,
		  size_t n_why);

#endif
