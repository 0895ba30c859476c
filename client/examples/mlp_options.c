/* SPDX-License-Identifier: Apache-2.0 */
/* Command-line options that mlp and mlp_reference share: which samples, in which order, how many epochs. At the start
 * of both programs. */
#include "mlp_options.h"

#include "mlp_model.h"

#include <cblas.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATASETS "/usr/share/datasets"

enum { BATCH_MAX = 1 << 20, THREADS_MAX = 1024 };

uint64_t option_number(struct argp_state *state, const char *name, const char *text, uint64_t min, uint64_t max)
{
	char *end;

	errno = 0;
	unsigned long long value = strtoull(text, &end, 10);
	if (end == text || *end || errno || strchr(text, '-') || value < min || value > max)
		argp_error(state, "--%s %s: must be a whole number, %llu to %llu", name, text, (unsigned long long)min,
			   (unsigned long long)max);
	return value;
}

double option_amount(struct argp_state *state, const char *name, const char *text)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !isfinite(value) || value < 0)
		argp_error(state, "--%s %s: must be a number >= 0", name, text);
	return value;
}

static error_t parse_common(int key, char *arg, struct argp_state *state)
{
	struct mlp_options *o = state->input;

	switch (key) {
	case ARGP_KEY_INIT:
		*o = (struct mlp_options){ .data = "fashion-mnist", .batch = 32, .epochs = 1, .seed = 1 };
		return 0;
	case 'd':
		o->data = arg;
		return 0;
	case 'b':
		o->batch = (uint32_t)option_number(state, "batch", arg, 1, BATCH_MAX);
		return 0;
	case 'e':
		o->epochs = option_number(state, "epochs", arg, 1, UINT32_MAX);
		return 0;
	case 's':
		o->seed = option_number(state, "seed", arg, 0, UINT64_MAX);
		return 0;
	case 'x':
		o->max_samples = (uint32_t)option_number(state, "max-samples", arg, 1, UINT32_MAX);
		return 0;
	case 't':
		o->threads = (int)option_number(state, "threads", arg, 1, THREADS_MAX);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_option common_options[] = {
	{ "data", 'd', "DIR", 0, "Folder of the four IDX files, or a name under " DATASETS " (fashion-mnist)", 1 },
	{ "batch", 'b', "N", 0, "Samples of a micro-batch (32)", 1 },
	{ "epochs", 'e', "N", 0, "Passes over the training set (1)", 1 },
	{ "seed", 's', "N", 0, "Of the initial parameters and the order of the samples (1)", 1 },
	{ "max-samples", 'x', "N", 0, "Use the first N training samples only", 1 },
	{ "threads", 't', "N", 0, "Of OpenBLAS (OPENBLAS_NUM_THREADS or OMP_NUM_THREADS, else 1)", 1 },
	{ 0 },
};
const struct argp mlp_options_argp = { .options = common_options, .parser = parse_common };

void mlp_set_threads(const struct mlp_options *o)
{
	if (o->threads)
		openblas_set_num_threads(o->threads);
	else if (!getenv("OPENBLAS_NUM_THREADS") && !getenv("OMP_NUM_THREADS"))
		openblas_set_num_threads(1);
}

int mlp_open_data(const struct mlp_options *o, const char *prefix, uint32_t max, struct idx_set *out, char *why,
		  size_t n_why)
{
	char dir[PATH_MAX];
	int n = snprintf(dir, sizeof(dir), "%s%s", strchr(o->data, '/') ? "" : DATASETS "/", o->data);

	if (n >= (int)sizeof(dir)) {
		snprintf(why, n_why, "--data: the path is too long");
		return -1;
	}
	return idx_open(dir, prefix, max, MLP_PIXELS, MLP_CLASSES, out, why, n_why);
}
