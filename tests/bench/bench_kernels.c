/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels against the memory: goals C1, C2, C9 and C12 of docs/performance.md.
 *
 *   bench_kernels [-m MB] [-t threads] [-r rounds] [-k table] [passes | updates | scaling | cliffs]
 *
 * Every pass is timed right after its rival, round after round, and the ratio of the two is taken within the round, so
 * that a busy neighbour disturbs both. Printed are medians over the rounds. The rivals of `passes`: for passes out of
 * place a non-temporal triad of the same bytes; for a pass that only reads a plain read of the same bytes; for a pass
 * with partials the same pass without. Those of `updates`: reading, reading as many arrays, and the same loads and
 * stores with next to no arithmetic. Work is handed out as the engine does it: 64Ki elements at a time from a counter,
 * updates in calls of 16384 elements, FTZ and DAZ on. Values are normal floats unless a line says otherwise; arrays are
 * touched and one round is run before anything is timed.
 */
#include "arena.h"

#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UPDATE_CHUNK 16384
#define MAX_ROUNDS 101

/* ---- kernels ---- */

/* Bits of `arg`; the number of slots is above them. */
enum {
	SUMSQ = 1,
	NONFINITE = 2,
	DIGEST = 4,
	FIRST = 8,
	BF16 = 16,
	F16 = 32,
	COUNT = 64,
	TINY = 128,
	ODD = 256,
	UNALIGNED = 512,
	NO_FTZ = 1024,
	UNDO = 2048,
	SLOTS = 4096
};
#define ALL (SUMSQ | NONFINITE | DIGEST | COUNT)

static struct kernel_partials partials_of(struct arena *a, size_t start, int arg)
{
	size_t block = start / KERNEL_BLOCK;
	return (struct kernel_partials){ .sumsq = arg & SUMSQ ? a->sumsq + block : NULL,
					 .digest = arg & DIGEST ? a->digest + block : NULL,
					 .nonfinite = arg & NONFINITE ? a->nonfinite + block : NULL };
}

static void run_accumulate(struct arena *a, size_t start, size_t n, int thread, int arg)
{
	struct kernel_src s[4];
	enum dtype t = arg & BF16 ? DTYPE_BF16 : arg & F16 ? DTYPE_F16 : DTYPE_F32;
	size_t shift = arg & UNALIGNED ? 1 : 0;
	for (int j = 0; j < 4; j++) {
		const float *f = a->f[arg & TINY ? 4 : 2 + j];
		s[j] = (struct kernel_src){ t == DTYPE_F32 ? (const void *)(f + start + shift) : a->h[0] + start,
					    0.25 };
	}
	struct kernel_partials out = partials_of(a, start, arg);
	a->k->accumulate(a->f[0] + start, a->f[1] + start, arg & FIRST, DTYPE_F32, s, arg / SLOTS, t,
			 n - (arg & ODD ? 13 : 0), arg & COUNT ? a->counts[thread] : NULL, &out);
}

static void run_inspect(struct arena *a, size_t start, size_t n, int thread, int arg)
{
	struct kernel_partials out = partials_of(a, start, arg);
	a->k->inspect(a->f[1] + start, DTYPE_F32, n, &out);
}

static void run_scale(struct arena *a, size_t start, size_t n, int thread, int arg)
{
	a->k->scale(a->f[0] + start, a->f[1] + start, DTYPE_F32, 0.25, 0, n);
}

/* Small steps, so that the parameters stay where they are however often it runs. */
static const struct kernel_update update = { .scale = 0.5f,
					     .lr = 1e-7f,
					     .weight_decay = 0.01f,
					     .momentum = 0.9f,
					     .one_minus_dampening = 1,
					     .one_minus_beta1 = 0.1f,
					     .beta2 = 0.999f,
					     .one_minus_beta2 = 0.001f,
					     .eps = 1e-8f,
					     .step_size = 1e-7f,
					     .inv_bias2_sqrt = 1.5f,
					     .decay = 1 };

static struct kernel_undo undo_at(struct arena *a, size_t start, int thread)
{
	return (struct kernel_undo){ a->undo[thread].area, &a->undo[thread].stamp, start / KERNEL_UNIT };
}

static void run_sgd(struct arena *a, size_t start, size_t n, int thread, int arg)
{
	for (size_t i = start; i < start + n; i += UPDATE_CHUNK) {
		struct kernel_params p = { .p = a->f[0] + i, .m = arg / SLOTS ? a->f[1] + i : NULL };
		struct kernel_undo undo = undo_at(a, i, thread);
		struct kernel_partials out = partials_of(a, i, arg);
		a->k->sgd(&p, a->f[2] + i, DTYPE_F32, UPDATE_CHUNK, &update, arg & UNDO ? &undo : NULL, &out);
	}
}

static void run_adamw(struct arena *a, size_t start, size_t n, int thread, int arg)
{
	float *const *state = a->f + (arg & TINY ? 4 : 1);
	unsigned mode = _mm_getcsr();
	size_t end = start + n - (arg & ODD ? 13 : 0);
	if (arg & NO_FTZ)
		_mm_setcsr(mode & ~(unsigned)FTZ_DAZ);
	for (size_t i = start; i < end; i += UPDATE_CHUNK) {
		struct kernel_params p = { .p = a->f[0] + i,
					   .m = state[0] + i,
					   .v = state[1] + i,
					   .p16 = arg & BF16 ? a->h[1] + i : NULL,
					   .p16_dtype = DTYPE_BF16 };
		struct kernel_undo undo = undo_at(a, i, thread);
		struct kernel_partials out = partials_of(a, i, arg);
		a->k->adamw(&p, state[2] + i, DTYPE_F32, end - i < UPDATE_CHUNK ? end - i : UPDATE_CHUNK, &update,
			    arg & UNDO ? &undo : NULL, &out);
	}
	_mm_setcsr(mode);
}

/* ---- measuring ---- */

/* A pass, what it is compared with, and what came out. */
struct duel {
	struct pass pass, rival;
	enum { BY_BYTES, BY_READ, BY_TIME } measure; /* of the ratio: same bytes, same bytes read, plain times */
	double wall[MAX_ROUNDS], ratio[MAX_ROUNDS], cpu_ratio[MAX_ROUNDS];
};

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Value below which `part` of the n values lie. */
static double quantile(const double *v, int n, double part)
{
	double sorted[MAX_ROUNDS];
	memcpy(sorted, v, sizeof(*v) * (size_t)n);
	qsort(sorted, (size_t)n, sizeof(*v), compare);
	return sorted[(int)(part * (n - 1) + 0.5)];
}

/* How much faster than its rival the pass used the memory; by time, how much longer the pass took. */
static double ratio_of(const struct duel *d, double pass, double rival)
{
	if (d->measure == BY_TIME)
		return pass / rival;
	int extra = d->measure == BY_BYTES;
	double per_byte = rival / (d->rival.read + extra * d->rival.written);
	return per_byte * (d->pass.read + extra * d->pass.written) / pass;
}

static void fight(struct arena *a, struct duel *d, size_t n_duels, size_t n, int rounds)
{
	for (int round = -1; round < rounds; round++)
		for (size_t i = 0; i < n_duels; i++) {
			int slot = round < 0 ? 0 : round; /* the round before the first warms up */
			struct timing rival = run_pass(a, &d[i].rival, n), pass = run_pass(a, &d[i].pass, n);
			d[i].wall[slot] = pass.wall;
			d[i].ratio[slot] = ratio_of(&d[i], pass.wall, rival.wall);
			d[i].cpu_ratio[slot] = ratio_of(&d[i], pass.cpu, rival.cpu);
		}
}

static void print_duels(const struct duel *d, size_t n_duels, size_t n, int rounds)
{
	printf("%-32s %3s %8s %7s  %-22s %6s %15s %6s\n", "pass", "B", "ns/el", "GB/s", "against", "ratio",
	       "middle half", "by cpu");
	for (size_t i = 0; i < n_duels; i++, d++) {
		double t = quantile(d->wall, rounds, 0.5);
		int bytes = d->pass.read + d->pass.written;
		printf("%-32s %3d %8.4f %7.2f  %-22s %6.3f   %.3f .. %.3f %6.3f\n", d->pass.name, bytes,
		       t / (double)n * 1e9, (double)n * bytes / t * 1e-9, d->rival.name,
		       quantile(d->ratio, rounds, 0.5), quantile(d->ratio, rounds, 0.25),
		       quantile(d->ratio, rounds, 0.75), quantile(d->cpu_ratio, rounds, 0.5));
	}
}

/* ---- the tables ---- */

#define OUT_OF_PLACE(name_, run_, arg_, read_)                                                                         \
	{                                                                                                              \
		.pass = { name_, run_, arg_, read_, 4 }, .rival = { "triad, non-temporal", run_triad, 0, 8, 4 },       \
		.measure = BY_BYTES                                                                                    \
	}
#define IN_PLACE(name_, run_, arg_, read_, written_)                                                                   \
	{                                                                                                              \
		.pass = { name_, run_, arg_, read_, written_ }, .rival = { "read", run_read, 0, 4, 0 },                \
		.measure = BY_READ                                                                                     \
	}
#define FUSED(name_, arg_, without_, read_)                                                                            \
	{                                                                                                              \
		.pass = { name_, run_accumulate, arg_, read_, 4 },                                                     \
		.rival = { "without (time)", run_accumulate, without_, read_, 4 }, .measure = BY_TIME                  \
	}

static void passes(const struct kernels *k, size_t n, int rounds)
{
	static struct duel d[] = {
		OUT_OF_PLACE("accumulate f32", run_accumulate, SLOTS, 8),
		OUT_OF_PLACE("accumulate f32, norm", run_accumulate, SLOTS | SUMSQ, 8),
		OUT_OF_PLACE("accumulate f32, all partials", run_accumulate, SLOTS | ALL, 8),
		OUT_OF_PLACE("accumulate bf16", run_accumulate, SLOTS | BF16, 6),
		OUT_OF_PLACE("accumulate bf16, all partials", run_accumulate, SLOTS | BF16 | ALL, 6),
		OUT_OF_PLACE("accumulate f16", run_accumulate, SLOTS | F16, 6),
		OUT_OF_PLACE("accumulate 2 slots", run_accumulate, 2 * SLOTS, 12),
		OUT_OF_PLACE("accumulate 3 slots", run_accumulate, 3 * SLOTS, 16),
		OUT_OF_PLACE("accumulate 4 slots", run_accumulate, 4 * SLOTS, 20),
		OUT_OF_PLACE("accumulate 4 slots, all partials", run_accumulate, 4 * SLOTS | ALL, 20),
		OUT_OF_PLACE("first f32", run_accumulate, SLOTS | FIRST, 4),
		OUT_OF_PLACE("first f32, all partials", run_accumulate, SLOTS | FIRST | ALL, 4),
		OUT_OF_PLACE("first bf16", run_accumulate, SLOTS | FIRST | BF16, 2),
		OUT_OF_PLACE("scale", run_scale, 0, 4),
		FUSED("accumulate f32, norm", SLOTS | SUMSQ, SLOTS, 8),
		FUSED("accumulate bf16, norm", SLOTS | BF16 | SUMSQ, SLOTS | BF16, 6),
		FUSED("first f32, norm", SLOTS | FIRST | SUMSQ, SLOTS | FIRST, 4),
		IN_PLACE("norm", run_inspect, SUMSQ, 4, 0),
		IN_PLACE("digest", run_inspect, DIGEST, 4, 0),
	};
	struct arena a;
	arena_open(&a, k, n, 6, false);
	fight(&a, d, sizeof(d) / sizeof(d[0]), n, rounds);
	print_duels(d, sizeof(d) / sizeof(d[0]), n, rounds);
}

/* C2: an update, and what the memory allows it. `limit`: how many arrays it changes in place, and bits. */
struct contest {
	struct pass pass;
	int limit;
	double wall[MAX_ROUNDS], of_read[MAX_ROUNDS], reads[MAX_ROUNDS], streams[MAX_ROUNDS], share[MAX_ROUNDS],
		cpu_share[MAX_ROUNDS];
};

static void contend(struct arena *a, struct contest *c, size_t n, int slot)
{
	const struct pass reads = { "", run_streams, c->limit | STREAMS_READ, 0, 0 },
			  streams = { "", run_streams, c->limit, 0, 0 };
	struct timing read = run_pass(a, &read_pass, n), all_read = run_pass(a, &reads, n),
		      limit = run_pass(a, &streams, n);
	struct timing ours = run_pass(a, &c->pass, n);
	double floor = read.wall * c->pass.read / read_pass.read;
	c->wall[slot] = ours.wall;
	c->of_read[slot] = floor / ours.wall;
	c->reads[slot] = floor / all_read.wall;
	c->streams[slot] = floor / limit.wall;
	c->share[slot] = limit.wall / ours.wall;
	c->cpu_share[slot] = limit.cpu / ours.cpu;
}

/* The floor of an update is to read its bytes at the speed of reading one array. Shown are the shares of that speed
 * which reading all its arrays at once has, which the same loads and stores have, and which the update has; then the
 * update beside the same loads and stores. */
static void updates(const struct kernels *k, size_t n, int rounds)
{
	static struct contest all[] = {
		{ .pass = { "sgd", run_sgd, 0, 8, 4 }, .limit = 1 },
		{ .pass = { "momentum", run_sgd, SLOTS, 12, 8 }, .limit = 2 },
		{ .pass = { "adamw", run_adamw, 0, 16, 12 }, .limit = 3 },
		{ .pass = { "adamw, bf16 out", run_adamw, BF16, 16, 14 }, .limit = 3 | STREAMS_OUT16 },
		{ .pass = { "sgd, digest, undo", run_sgd, DIGEST | NONFINITE | UNDO, 8, 4 }, .limit = 1 },
		{ .pass = { "momentum, digest, undo", run_sgd, SLOTS | DIGEST | NONFINITE | UNDO, 12, 8 }, .limit = 2 },
		{ .pass = { "adamw, digest, undo", run_adamw, DIGEST | NONFINITE | UNDO, 16, 12 }, .limit = 3 },
		{ .pass = { "adamw, bf16 out, digest, undo", run_adamw, BF16 | DIGEST | NONFINITE | UNDO, 16, 14 },
		  .limit = 3 | STREAMS_OUT16 },
	};
	const size_t count = sizeof(all) / sizeof(*all);
	struct arena a;
	arena_open(&a, k, n, 4, false);
	for (int round = -1; round < rounds; round++) /* the first warms up */
		for (size_t i = 0; i < count; i++)
			contend(&a, &all[i], n, round < 0 ? 0 : round);
	printf("%-32s %3s %8s %7s  %-28s  %6s %15s %6s\n%52s  %8s %8s %8s\n", "update", "B", "ns/el", "GB/s",
	       "shares of reading one array:", "ratio", "middle half", "by cpu", "", "reads", "stores", "ours");
	for (size_t i = 0; i < count; i++) {
		const struct contest *c = &all[i];
		double t = quantile(c->wall, rounds, 0.5);
		int bytes = c->pass.read + c->pass.written;
		printf("%-32s %3d %8.4f %7.2f  %8.3f %8.3f %8.3f    %6.3f   %.3f .. %.3f %6.3f\n", c->pass.name, bytes,
		       t / (double)n * 1e9, (double)n * bytes / t * 1e-9, quantile(c->reads, rounds, 0.5),
		       quantile(c->streams, rounds, 0.5), quantile(c->of_read, rounds, 0.5),
		       quantile(c->share, rounds, 0.5), quantile(c->share, rounds, 0.25),
		       quantile(c->share, rounds, 0.75), quantile(c->cpu_share, rounds, 0.5));
	}
}

/* C9: the cost of an element as arrays grow from 1M elements to those of -m. */
static void scaling(const struct kernels *k, size_t n, int rounds)
{
	static struct duel d[] = { OUT_OF_PLACE("accumulate f32, norm", run_accumulate, SLOTS | SUMSQ, 8),
				   IN_PLACE("adamw", run_adamw, 0, 16, 12) };
	struct arena a;
	arena_open(&a, k, n, 4, false);
	for (size_t size = 1u << 20; size <= n; size *= 4) {
		printf("%zu Mi elements\n", size >> 20);
		fight(&a, d, 2, size, rounds);
		print_duels(d, 2, size, rounds);
	}
}

/* C12: subnormal values, odd sizes and unaligned gradients against the normal case, in time. */
static void cliffs(const struct kernels *k, size_t n, int rounds)
{
#define ACCUMULATE(name_, arg_)                                                                                        \
	{                                                                                                              \
		.pass = { name_, run_accumulate, SLOTS | ALL | arg_, 8, 4 },                                           \
		.rival = { "normal case (time)", run_accumulate, SLOTS | ALL, 8, 4 }, .measure = BY_TIME               \
	}
#define UPDATE(name_, arg_)                                                                                            \
	{                                                                                                              \
		.pass = { name_, run_adamw, arg_, 16, 12 }, .rival = { "normal case (time)", run_adamw, 0, 16, 12 },   \
		.measure = BY_TIME                                                                                     \
	}
	static struct duel d[] = {
		ACCUMULATE("accumulate, subnormal gradients", TINY),
		ACCUMULATE("accumulate, odd sizes", ODD),
		ACCUMULATE("accumulate, unaligned gradients", UNALIGNED),
		UPDATE("adamw, odd sizes", ODD),
		UPDATE("adamw, all subnormal", TINY),
		UPDATE("adamw, so without FTZ and DAZ", TINY | NO_FTZ),
	};
	struct arena a;
	arena_open(&a, k, n, N_ARRAYS, true);
	fight(&a, d, sizeof(d) / sizeof(d[0]), n, rounds);
	print_duels(d, sizeof(d) / sizeof(d[0]), n, rounds);
}

static void print_limits(const struct kernels *k, int threads, size_t n, int rounds)
{
	struct arena a;
	double read[MAX_ROUNDS], triad[MAX_ROUNDS], load[1] = { 0 };
	arena_open(&a, k, n, 3, false);
	for (int i = 0; i < rounds; i++) {
		read[i] = 4e-9 * (double)n / run_pass(&a, &read_pass, n).wall;
		triad[i] = 12e-9 * (double)n / run_pass(&a, &triad_pass, n).wall;
	}
	if (getloadavg(load, 1) < 1)
		load[0] = -1;
	printf("table %s, %d threads, %zu elements, %d rounds, load %.2f; read %.1f GB/s, triad %.1f GB/s\n", k->name,
	       threads, n, rounds, load[0], quantile(read, rounds, 0.5), quantile(triad, rounds, 0.5));
	arena_close(&a, n, 3);
}

static _Noreturn void usage(void)
{
	fprintf(stderr,
		"usage: bench_kernels [-m MB of an f32 array] [-t threads] [-r rounds, 5..%d] [-k table]\n"
		"                     [passes | updates | scaling | cliffs]\n",
		MAX_ROUNDS);
	exit(2);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(const struct kernels *, size_t n, int rounds);
	} tables[] = { { "passes", passes }, { "updates", updates }, { "scaling", scaling }, { "cliffs", cliffs } };
	long megabytes = 400, threads = sysconf(_SC_NPROCESSORS_ONLN), rounds = 9;
	const char *name = NULL;
	for (int option; (option = getopt(argc, argv, "m:t:r:k:")) != -1;) {
		switch (option) {
		case 'm':
			megabytes = strtol(optarg, NULL, 10);
			break;
		case 't':
			threads = strtol(optarg, NULL, 10);
			break;
		case 'r':
			rounds = strtol(optarg, NULL, 10);
			break;
		case 'k':
			name = optarg;
			break;
		default:
			usage();
		}
	}
	const struct kernels *k = kernels_get(name);
	const char *what = optind < argc ? argv[optind] : "passes";
	size_t n = (size_t)megabytes * 1000000 / sizeof(float) / CHUNK * CHUNK;
	if (!k || n == 0 || threads < 1 || threads > MAX_THREADS || rounds < 5 || rounds > MAX_ROUNDS)
		usage();
	pool_start((int)threads);
	print_limits(k, (int)threads, n, (int)rounds);
	for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
		if (strcmp(what, tables[i].name) == 0) {
			tables[i].run(k, n, (int)rounds);
			pool_stop();
			return 0;
		}
	usage();
}
