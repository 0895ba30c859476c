/* SPDX-License-Identifier: Apache-2.0 */
/* A data-parallel trainer in C: a perceptron on Fashion-MNIST, its gradients summed and its steps taken by gaccd.
 *
 *     gaccctl run -n 4 --micro-size 4 --set optimizer.type=sgd --set optimizer.lr=0.01 -- mlp --batch 8
 *
 * mlp computes on the CPU (mlp_cpu.c). mlp_cuda is the same program with its forward and backward passes on an NVIDIA
 * GPU (mlp_cuda.c). A rank that is killed and started again computes what is missing, no more. */
#include "mlp_compute.h"
#include "mlp_model.h"
#include "mlp_options.h"
#include "params_file.h"
#include "sampler.h"

#include <gacc/gacc.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PRINT_EVERY = 100, TEST_CHUNK = 500 };

const char *argp_program_version = "mlp " GACC_VERSION;

struct options {
	struct mlp_options common;
	const char *job, *optimizer, *log_dir, *dump;
	int rank, ranks;
	uint32_t micro_size;
	uint64_t steps;
	double lr;
	const char *spec_option; /* an option that describes the job, if one was given */
};

struct trainer {
	struct options o;
	gacc_client *client;
	gacc_job *job;
	int rank;
	struct idx_set train, test; /* test: rank 0 only */
	struct sampler sampler;
	struct mlp model;
	const real *params[MLP_TENSORS];
	struct mlp_compute *compute;
	FILE *log; /* beside stdout, or NULL */
	double epoch_loss, epoch_weight;
	uint64_t applied;
	double counted; /* samples in the steps that this process saw */
	char why[512];	/* what went wrong, if it was not gacc */
};

/* The job exists when GACC_JOB_ID names it; options that describe it would be ignored in silence. */
static void check_options(struct argp_state *state, const struct options *o)
{
	const char *id = getenv("GACC_JOB_ID");

	if (o->spec_option && id && !o->job)
		argp_error(state, "--%s: job %s exists already; give this to gaccctl run", o->spec_option, id);
	if ((o->rank < 0) != (o->ranks < 0))
		argp_error(state, "--rank and --ranks go together");
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct options *o = state->input;

	switch (key) {
	case ARGP_KEY_INIT:
		*o = (struct options){ .optimizer = "sgd", .rank = -1, .ranks = -1, .micro_size = 1, .lr = 0.01 };
		state->child_inputs[0] = &o->common;
		return 0;
	case 'j':
		o->job = arg;
		return 0;
	case 'r':
		o->rank = (int)option_number(state, "rank", arg, 0, INT_MAX);
		return 0;
	case 'n':
		o->ranks = (int)option_number(state, "ranks", arg, 1, INT_MAX);
		return 0;
	case 'm':
		o->spec_option = "micro-size";
		o->micro_size = (uint32_t)option_number(state, "micro-size", arg, 1, UINT32_MAX);
		return 0;
	case 'S':
		o->spec_option = "steps";
		o->steps = option_number(state, "steps", arg, 1, UINT64_MAX);
		return 0;
	case 'o':
		o->spec_option = "optimizer";
		o->optimizer = arg;
		return 0;
	case 'l':
		o->spec_option = "lr";
		o->lr = option_amount(state, "lr", arg);
		return 0;
	case 'L':
		o->log_dir = arg;
		return 0;
	case 'p':
		o->dump = arg;
		return 0;
	case ARGP_KEY_END:
		check_options(state, o);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_option options[] = {
	{ 0, 0, 0, 0, "The job, where gaccctl run has not created it (there, tell gaccctl run)", 2 },
	{ "job", 'j', "NAME", 0, "Name of the job to join or create (mlp)", 2 },
	{ "rank", 'r', "R", 0, "This process's rank (from the environment)", 2 },
	{ "ranks", 'n', "N", 0, "Processes of the job (from the environment)", 2 },
	{ "micro-size", 'm', "N", 0, "Micro-batches of each rank in a step (1)", 2 },
	{ "steps", 'S', "N", 0, "Stop after N steps (when the epochs are over)", 2 },
	{ "optimizer", 'o', "NAME", 0, "sgd, adam, adamw or lamb (sgd)", 2 },
	{ "lr", 'l', "LR", 0, "Learning rate (0.01)", 2 },
	{ 0, 0, 0, 0, "Results", 3 },
	{ "log-dir", 'L', "DIR", 0,
	  "Also write DIR/worker_RANK.log; not when GACC_LOG_DIR is set, because then gaccctl run "
	  "collects the standard output there",
	  3 },
	{ "dump-params", 'p', "FILE", 0, "Rank 0 writes the final parameters, as safetensors", 3 },
	{ 0 },
};

static struct options get_options(int argc, char **argv)
{
	static const struct argp_child children[] = { { &mlp_options_argp, 0, NULL, 0 }, { 0 } };
	static const struct argp argp = {
		.options = options,
		.parser = parse,
		.children = children,
		.doc = "Train a perceptron on Fashion-MNIST or MNIST as one rank of a gacc job.",
	};
	struct options o;

	argp_err_exit_status = 2;
	argp_parse(&argp, argc, argv, 0, NULL, &o);
	return o;
}

static void __attribute__((format(printf, 2, 3))) say(struct trainer *t, const char *format, ...)
{
	FILE *to[] = { stdout, t->log };

	for (int i = 0; i < 2 && to[i]; i++) {
		va_list args;
		va_start(args, format);
		vfprintf(to[i], format, args);
		va_end(args);
		fflush(to[i]);
	}
}

static int __attribute__((format(printf, 2, 3))) fail(struct trainer *t, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(t->why, sizeof(t->why), format, args);
	va_end(args);
	return -1;
}

static int gacc_failed(struct trainer *t, const char *what)
{
	return fail(t, "%s: %s", what, t->job ? gacc_last_error(t->job) : gacc_client_error(t->client));
}

/* Creates the job unless the environment names one. */
static int attach(struct trainer *t)
{
	const struct options *o = &t->o;
	const char *run_id = getenv("TORCHELASTIC_RUN_ID");
	const char *name = o->job ? o->job : run_id ? run_id : "mlp";
	bool exists = getenv("GACC_JOB_ID") && !o->job;
	char spec[512];
	gacc_attach_opts opts = { .struct_size = sizeof(opts),
				  .rank = o->rank,
				  .world_size = o->ranks,
				  .job = exists ? NULL : name,
				  .spec_yaml = exists ? NULL : spec };

	snprintf(spec, sizeof(spec),
		 "metadata: {name: \"%s\"}\n"
		 "spec: {micro_size: %u, steps: %llu, batch: %u, optimizer: {type: %s, lr: %.17g}}\n",
		 name, o->micro_size, (unsigned long long)o->steps, o->common.batch, o->optimizer, o->lr);
	gacc_status status = gacc_open(NULL, &t->client);
	if (status)
		return fail(t, "cannot set up a connection to gaccd: %s", gacc_strerror(status));
	if (gacc_attach(t->client, &opts, &t->job))
		return gacc_failed(t, "attach");
	t->rank = gacc_rank(t->job);
	return 0;
}

static int open_log(struct trainer *t)
{
	char path[PATH_MAX];

	if (!t->o.log_dir || getenv("GACC_LOG_DIR"))
		return 0;
	if (snprintf(path, sizeof(path), "%s/worker_%d.log", t->o.log_dir, t->rank) >= (int)sizeof(path))
		return fail(t, "--log-dir: the path is too long");
	t->log = fopen(path, "a");
	return t->log ? 0 : fail(t, "%s: %s", path, strerror(errno));
}

static int load_data(struct trainer *t)
{
	const struct mlp_options *c = &t->o.common;

	if (mlp_open_data(c, "train", c->max_samples, &t->train, t->why, sizeof(t->why)))
		return -1;
	if (t->rank == 0 && mlp_open_data(c, "t10k", 0, &t->test, t->why, sizeof(t->why)))
		return -1;
	if (mlp_init(&t->model, (int)(c->batch > TEST_CHUNK ? c->batch : TEST_CHUNK)))
		return fail(t, "out of memory");
	return 0;
}

static int upload_params(struct trainer *t)
{
	float *values[MLP_TENSORS] = { NULL };
	int rc = 0;

	for (int i = 0; i < MLP_TENSORS && !rc; i++) {
		values[i] = malloc(mlp_tensors[i].count * sizeof(float));
		if (values[i])
			mlp_init_tensor(i, t->o.common.seed, values[i]);
		else
			rc = fail(t, "out of memory");
	}
	if (!rc && gacc_put_params(t->job, (const void *const *)values))
		rc = gacc_failed(t, "upload the initial parameters");
	for (int i = 0; i < MLP_TENSORS; i++)
		free(values[i]);
	return rc;
}

static int declare_tensors(struct trainer *t)
{
	gacc_tensor tensors[MLP_TENSORS] = { 0 };

	for (int i = 0; i < MLP_TENSORS; i++) {
		const struct mlp_tensor *x = &mlp_tensors[i];
		tensors[i] = (gacc_tensor){
			.name = x->name, .dtype = GACC_F32, .ndim = x->n_dims, .shape = { x->shape[0], x->shape[1] }
		};
	}
	if (gacc_register(t->job, tensors, MLP_TENSORS))
		return gacc_failed(t, "declare the tensors");
	for (int i = 0; i < MLP_TENSORS; i++) {
		if (gacc_grad_dtype(t->job, (size_t)i) != GACC_F32)
			return fail(t,
				    "the job wants gradients of another type than f32, which this program cannot give");
	}
	t->compute = mlp_compute_new(t->job, &t->model, t->params, t->why, sizeof(t->why));
	if (!t->compute)
		return -1;
	return gacc_params_needed(t->job) ? upload_params(t) : 0;
}

/* Waits for the other ranks; the parameters stay mapped at one place from here on. */
static int get_ready(struct trainer *t)
{
	const struct mlp_options *c = &t->o.common;
	gacc_position at;
	uint32_t ranks = (uint32_t)gacc_size(t->job);

	if (gacc_ready(t->job, -1, &at) || mlp_compute_params(t->compute, t->params))
		return gacc_failed(t, "wait for the job to start");
	if (sampler_init(&t->sampler, c->seed, t->train.n, c->batch, ranks, at.micro_size))
		return fail(t, "out of memory");
	if (t->rank == 0)
		say(t, "job %llu: %u samples, effective batch %u x %u x %u = %llu, %llu steps per epoch\n",
		    (unsigned long long)gacc_job_id(t->job), t->train.n, c->batch, at.micro_size, ranks,
		    (unsigned long long)c->batch * at.micro_size * ranks,
		    (unsigned long long)sampler_windows(&t->sampler));
	t->applied = at.applied_step;
	if (at.window > 0)
		say(t, "rank %d resumes in window %llu\n", t->rank, (unsigned long long)at.window);
	return 0;
}

/* FNV-1a: a resent micro-batch must have the same samples. */
static uint64_t hash_ids(const uint32_t *ids, uint32_t n)
{
	uint64_t hash = 0xcbf29ce484222325u;

	for (uint32_t i = 0; i < n; i++)
		hash = (hash ^ ids[i]) * 0x100000001b3u;
	return hash;
}

static void print_loss(struct trainer *t, const gacc_position *at, double loss)
{
	uint64_t windows = sampler_windows(&t->sampler);
	uint64_t step = at->window % windows * at->micro_size + at->micro + 1;

	if (step % PRINT_EVERY == 0)
		say(t, "epoch: %llu step: %llu, loss is %.4f\n", (unsigned long long)(at->window / windows + 1),
		    (unsigned long long)step, loss);
}

/* A window that an operator closed, or a micro-batch refused as non-finite, is no reason to stop. */
static int judge(struct trainer *t, const char *what, gacc_status status)
{
	if (status != GACC_ESTALE && status != GACC_ENONFINITE)
		return gacc_failed(t, what);
	say(t, "rank %d: %s: %s\n", t->rank, what, gacc_last_error(t->job));
	return 0;
}

/* Forward, backward into the slot, push. */
static int give_micro(struct trainer *t, const gacc_position *at, const uint32_t *ids, uint32_t n)
{
	gacc_push_opts opts = { .struct_size = sizeof(opts), .weight = n, .async = 1, .data_key = hash_ids(ids, n) };
	const char *what;

	mlp_load(&t->model, &t->train, ids, (int)n);
	gacc_status status = mlp_compute_push(t->compute, at, (int)n, &opts, &what);
	if (status)
		return judge(t, what, status);
	print_loss(t, at, opts.loss);
	return 0;
}

static int report_epoch(struct trainer *t, uint64_t window)
{
	uint64_t windows = sampler_windows(&t->sampler);
	double accuracy, loss;

	if (mlp_compute_params(t->compute, t->params))
		return gacc_failed(t, "read the parameters");
	loss = mlp_test(&t->model, t->params, &t->test, &accuracy);
	say(t, "epoch: %llu steps: %llu, loss is %.4f, test loss is %.4f, test accuracy is %.2f %%\n",
	    (unsigned long long)(window / windows + 1), (unsigned long long)t->applied,
	    t->epoch_loss / (t->epoch_weight > 0 ? t->epoch_weight : 1), loss, 100 * accuracy);
	t->epoch_loss = t->epoch_weight = 0;
	return 0;
}

static int await_step(struct trainer *t)
{
	static const char *const outcomes[] = { [GACC_STEP_SKIPPED] = "skipped, a gradient is not finite",
						[GACC_STEP_EMPTY] = "empty",
						[GACC_STEP_DROPPED] = "dropped" };
	gacc_step step;

	gacc_status status = gacc_wait(t->job, -1, &step);
	if (status)
		return judge(t, "wait for the step", status);
	if (step.reduced)
		return fail(t, "the job leaves the step to its trainers (optimizer client), this program to gaccd");
	t->applied = step.applied_step;
	t->epoch_loss += step.mean_loss * step.total_weight;
	t->epoch_weight += step.total_weight;
	t->counted += step.total_weight;
	if (t->rank != 0)
		return 0;
	if (step.outcome != GACC_STEP_APPLIED)
		say(t, "window %llu: %s\n", (unsigned long long)step.window, outcomes[step.outcome]);
	if ((step.window + 1) % sampler_windows(&t->sampler) == 0 || step.job_done)
		return report_epoch(t, step.window);
	return 0;
}

/* The micro-batch that gacc_next names, or word that this rank has none left in the epoch's last window. */
static int turn(struct trainer *t, const gacc_position *at)
{
	const uint32_t *ids;

	uint32_t n = sampler_micro(&t->sampler, at->window, (uint32_t)t->rank, at->micro, &ids);
	if (n > 0)
		return give_micro(t, at, ids, n);
	gacc_status status = gacc_flush(t->job);
	return status ? judge(t, "flush", status) : 0;
}

/* gaccctl update: the position tells the size of its window. */
static void follow_size(struct trainer *t, const gacc_position *at)
{
	if (at->micro_size == t->sampler.micro_size)
		return;
	sampler_resize(&t->sampler, at->micro_size);
	if (t->rank == 0)
		say(t, "window %llu: micro_size %u, %llu steps per epoch\n", (unsigned long long)at->window,
		    at->micro_size, (unsigned long long)sampler_windows(&t->sampler));
}

static int train(struct trainer *t)
{
	gacc_position at;

	for (;;) {
		gacc_status status = gacc_next(t->job, &at);
		if (status == GACC_OK)
			follow_size(t, &at);
		if (status == GACC_EDONE ||
		    (status == GACC_OK && at.window >= sampler_windows(&t->sampler) * t->o.common.epochs))
			return 0;
		if (status != GACC_OK && status != GACC_EAGAIN)
			return gacc_failed(t, "ask for the next micro-batch");
		if (status == GACC_OK ? turn(t, &at) : await_step(t))
			return -1;
	}
}

static int finish(struct trainer *t)
{
	if (t->rank != 0)
		return 0;
	say(t, "%llu steps applied, %.0f samples counted\n", (unsigned long long)t->applied, t->counted);
	if (t->o.dump && mlp_compute_params(t->compute, t->params))
		return gacc_failed(t, "read the parameters");
	return t->o.dump ? params_write(t->o.dump, t->params, t->why, sizeof(t->why)) : 0;
}

static int run(struct trainer *t)
{
	mlp_set_threads(&t->o.common);
	if (attach(t) || open_log(t) || load_data(t) || declare_tensors(t) || get_ready(t) || train(t))
		return -1;
	return finish(t);
}

static void tear_down(struct trainer *t, bool done)
{
	mlp_compute_free(t->compute);
	gacc_detach(t->job, done);
	gacc_close(t->client);
	sampler_fini(&t->sampler);
	mlp_fini(&t->model);
	idx_close(&t->train);
	idx_close(&t->test);
	if (t->log)
		fclose(t->log);
}

int main(int argc, char **argv)
{
	struct trainer t = { .o = get_options(argc, argv), .rank = -1 };
	int rc = run(&t);

	if (rc && t.rank >= 0)
		fprintf(stderr, "%s: rank %d: %s\n", program_invocation_short_name, t.rank, t.why);
	else if (rc)
		fprintf(stderr, "%s: %s\n", program_invocation_short_name, t.why);
	tear_down(&t, rc == 0);
	return rc ? 1 : 0;
}
