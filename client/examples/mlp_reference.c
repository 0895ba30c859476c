/* SPDX-License-Identifier: Apache-2.0 */
/* The main program of mlp_reference and mlp_replay: computes what a job of `mlp` must compute, in one process and one
 * thread, so that a test can compare the parameters. */
#include "mlp_reference.h"

#include "mlp_options.h"
#include "params_file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TEST_CHUNK = 500, ALIGN = 64 };

const char *argp_program_version = "gacc " GACC_VERSION;

struct options {
	struct mlp_options common;
	uint32_t ranks, parts, micro_size;
	uint64_t steps;
	double lr, bound;
	const char *compare, *dump;
};

/* What main needs besides. */
struct program {
	struct options o;
	struct reference ref;
	float *file[MLP_TENSORS]; /* as in a parameter file */
	char why[512];
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct options *o = state->input;

	switch (key) {
	case ARGP_KEY_INIT:
		*o = (struct options){ .ranks = 1, .parts = 1, .micro_size = 1, .lr = 0.01, .bound = INFINITY };
		state->child_inputs[0] = &o->common;
		return 0;
	case 'n':
		o->ranks = (uint32_t)option_number(state, "ranks", arg, 1, 1 << 16);
		return 0;
	case 'P':
		o->parts = (uint32_t)option_number(state, "parts", arg, 1, 1 << 16);
		return 0;
	case 'm':
		o->micro_size = (uint32_t)option_number(state, "micro-size", arg, 1, 1 << 16);
		return 0;
	case 'S':
		o->steps = option_number(state, "steps", arg, 1, UINT64_MAX);
		return 0;
	case 'l':
		o->lr = option_amount(state, "lr", arg);
		return 0;
	case 'B':
		o->bound = option_amount(state, "bound", arg);
		return 0;
	case 'c':
		o->compare = arg;
		return 0;
	case 'p':
		o->dump = arg;
		return 0;
	case ARGP_KEY_END:
		if (o->parts > o->ranks)
			argp_error(state, "--parts: a part has one rank at least");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_option options[] = {
	{ "ranks", 'n', "N", 0, "Ranks of the job (1)", 0 },
	{ "parts", 'P', "N", 0, "Parts of the job, equal blocks of its ranks; only mlp_replay adds part by part (1)",
	  0 },
	{ "micro-size", 'm', "N", 0, "Micro-batches of each rank in a step (1)", 0 },
	{ "lr", 'l', "LR", 0, "Learning rate of plain SGD (0.01)", 0 },
	{ "steps", 'S', "N", 0, "Stop after N steps", 0 },
	{ "compare", 'c', "FILE", 0, "Print the largest difference to these parameters", 2 },
	{ "bound", 'B', "X", 0, "Fail if that difference is larger than X", 2 },
	{ "dump-params", 'p', "FILE", 0, "Write the final parameters, rounded to f32, as safetensors", 2 },
	{ 0 },
};

static struct options get_options(int argc, char **argv)
{
	static const struct argp_child children[] = { { &mlp_options_argp, 0, NULL, 0 }, { 0 } };
	static const struct argp argp = {
		.options = options, .parser = parse, .children = children, .doc = reference_doc
	};
	struct options o;

	argp_err_exit_status = 2;
	argp_parse(&argp, argc, argv, 0, NULL, &o);
	return o;
}

static int out_of_memory(struct program *p)
{
	snprintf(p->why, sizeof(p->why), "out of memory");
	return -1;
}

/* Aligned as gaccd aligns tensors, so that BLAS finds the same conditions. */
static void *new_array(size_t count, size_t size)
{
	return aligned_alloc(ALIGN, (count * size + ALIGN - 1) / ALIGN * ALIGN);
}

static int set_up_tensor(struct program *p, int t)
{
	struct reference *r = &p->ref;
	size_t n = mlp_tensors[t].count;

	r->params[t] = new_array(n, sizeof(real));
	r->grads[t] = new_array(n, sizeof(real));
	r->part[t] = new_array(n, sizeof(real));
	r->sums[t] = new_array(n, sizeof(real));
	p->file[t] = new_array(n, sizeof(float));
	if (!r->params[t] || !r->grads[t] || !r->part[t] || !r->sums[t] || !p->file[t])
		return out_of_memory(p);
	mlp_init_tensor(t, p->o.common.seed, p->file[t]);
	for (size_t i = 0; i < n; i++)
		r->params[t][i] = p->file[t][i];
	return 0;
}

static int set_up(struct program *p)
{
	const struct mlp_options *c = &p->o.common;
	struct reference *r = &p->ref;

	r->lr = p->o.lr;
	r->parts = p->o.parts;
	mlp_set_threads(c);
	if (mlp_open_data(c, "train", c->max_samples, &r->train, p->why, sizeof(p->why)) ||
	    mlp_open_data(c, "t10k", 0, &r->test, p->why, sizeof(p->why)))
		return -1;
	if (sampler_init(&r->sampler, c->seed, r->train.n, c->batch, p->o.ranks, p->o.micro_size))
		return out_of_memory(p);
	uint64_t batch = reference_batch(&r->sampler);
	if (mlp_init(&r->model, batch > TEST_CHUNK ? (int)batch : TEST_CHUNK))
		return out_of_memory(p);
	for (int t = 0; t < MLP_TENSORS; t++) {
		if (set_up_tensor(p, t))
			return -1;
	}
	return 0;
}

static void train(struct program *p)
{
	struct reference *r = &p->ref;
	uint64_t windows = sampler_windows(&r->sampler), total = windows * p->o.common.epochs, seen = 0;
	double loss = 0, accuracy;

	if (p->o.steps && p->o.steps < total)
		total = p->o.steps;
	for (uint64_t w = 0; w < total; w++) {
		seen += reference_step(r, w, &loss);
		if ((w + 1) % windows && w + 1 < total)
			continue;
		double test = mlp_test(&r->model, (const real *const *)r->params, &r->test, &accuracy);
		printf("epoch: %llu steps: %llu, loss is %.4f, test loss is %.4f, test accuracy is %.2f %%\n",
		       (unsigned long long)(w / windows + 1), (unsigned long long)(w + 1), loss / (double)seen, test,
		       100 * accuracy);
		fflush(stdout);
		loss = 0;
		seen = 0;
	}
}

static int compare(struct program *p)
{
	double worst = 0;
	size_t differ = 0, total = 0;
	int where = 0;

	if (params_read(p->o.compare, p->file, p->why, sizeof(p->why)))
		return -1;
	for (int t = 0; t < MLP_TENSORS; t++) {
		total += mlp_tensors[t].count;
		for (size_t i = 0; i < mlp_tensors[t].count; i++) {
			double d = fabs((double)p->file[t][i] - (double)p->ref.params[t][i]);
			differ += p->file[t][i] != (float)p->ref.params[t][i];
			if (!(d <= worst)) {
				worst = isnan(d) ? INFINITY : d;
				where = t;
			}
		}
	}
	printf("largest parameter difference: %.3g%s%s; %zu of %zu differ as f32\n", worst, worst > 0 ? " in " : "",
	       worst > 0 ? mlp_tensors[where].name : "", differ, total);
	if (worst <= p->o.bound)
		return 0;
	snprintf(p->why, sizeof(p->why), "the difference exceeds its bound of %.3g", p->o.bound);
	return -1;
}

static int dump(struct program *p)
{
	for (int t = 0; t < MLP_TENSORS; t++) {
		for (size_t i = 0; i < mlp_tensors[t].count; i++)
			p->file[t][i] = (float)p->ref.params[t][i];
	}
	return params_write(p->o.dump, (const float *const *)p->file, p->why, sizeof(p->why));
}

static void tear_down(struct program *p)
{
	for (int t = 0; t < MLP_TENSORS; t++) {
		free(p->ref.params[t]);
		free(p->ref.grads[t]);
		free(p->ref.part[t]);
		free(p->ref.sums[t]);
		free(p->file[t]);
	}
	mlp_fini(&p->ref.model);
	sampler_fini(&p->ref.sampler);
	idx_close(&p->ref.train);
	idx_close(&p->ref.test);
}

static int run(struct program *p)
{
	if (set_up(p))
		return -1;
	train(p);
	if (p->o.compare && compare(p))
		return -1;
	return p->o.dump ? dump(p) : 0;
}

int main(int argc, char **argv)
{
	struct program p = { .o = get_options(argc, argv) };
	int rc = run(&p);

	if (rc)
		fprintf(stderr, "%s: %s\n", program_invocation_short_name, p.why);
	tear_down(&p);
	return rc ? 1 : 0;
}
