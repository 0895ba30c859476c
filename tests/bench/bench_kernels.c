/* Kernels against the memory: goals C1, C2, C9 and C12 of docs/performance.md.
 *
 *   bench_kernels [-m MB] [-t threads] [-r rounds] [-k table] [passes | scaling | cliffs]
 *
 * Every pass is timed right after its rival, round after round, and the ratio of the two is taken within the round, so that a
 * busy neighbour disturbs both. Printed are medians over the rounds. The rivals of `passes`: for passes out of place
 * a non-temporal triad of the same bytes; for updates in place a plain read of the bytes that the update
 * reads; for a pass with partials the same pass without. Work is handed out as the engine does it: 64Ki elements at a
 * time from a counter, updates in calls of 16384 elements, FTZ and DAZ on. Values are normal floats unless a line
 * says otherwise; arrays are touched and one round is run before anything is timed.
 */
#include "math/kernels.h"

#include <immintrin.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define CHUNK 65536
#define UPDATE_CHUNK 16384
#define MAX_THREADS 256
#define MAX_ROUNDS 101
#define N_ARRAYS 7
#define FTZ_DAZ 0x8040
#define AVX2 __attribute__((target("avx2")))

/* All that a pass may touch. */
struct arena {
	const struct kernels *k;
	float *f[N_ARRAYS];        /* destination or p; source or m; v or gradient; gradients; 4..6 subnormal in `cliffs` */
	uint16_t *h[2];            /* 16-bit gradient, 16-bit parameters */
	double *sumsq;             /* one per block */
	uint64_t *digest;
	uint32_t *nonfinite;
	struct {
		_Alignas(64) unsigned char area[KERNEL_UNDO_BYTES];
		_Alignas(64) _Atomic uint64_t stamp;
	} undo[MAX_THREADS];
	uint64_t counts[MAX_THREADS][16]; /* a cache line and more for each thread */
};

typedef void range_fn(struct arena *, size_t start, size_t n, int thread, int arg);

struct pass {
	const char *name;
	range_fn *run;
	int arg;
	int read, written;         /* bytes per element */
};

/* --- threads ---------------------------------------------------------------------------------------------------- */

static struct {
	int threads;
	pthread_t thread[MAX_THREADS];
	pthread_barrier_t start, end;
	struct arena *arena;
	const struct pass *pass; /* NULL: the threads return */
	size_t n;
	atomic_size_t next;
} pool;

static void work(int thread)
{
	for (;;) {
		size_t at = atomic_fetch_add_explicit(&pool.next, CHUNK, memory_order_relaxed);
		if (at >= pool.n)
			return;
		size_t n = pool.n - at < CHUNK ? pool.n - at : CHUNK;
		pool.pass->run(pool.arena, at, n, thread, pool.pass->arg);
	}
}

static void *worker(void *arg)
{
	_mm_setcsr(_mm_getcsr() | FTZ_DAZ);
	for (;;) {
		pthread_barrier_wait(&pool.start);
		if (!pool.pass)
			return NULL;
		work((int)(intptr_t)arg);
		pthread_barrier_wait(&pool.end);
	}
}

static void die(const char *what)
{
	fprintf(stderr, "bench_kernels: %s\n", what);
	exit(1);
}

static void pool_start(int threads)
{
	_mm_setcsr(_mm_getcsr() | FTZ_DAZ);
	pool.threads = threads;
	pthread_barrier_init(&pool.start, NULL, (unsigned)threads);
	pthread_barrier_init(&pool.end, NULL, (unsigned)threads);
	for (int i = 1; i < threads; i++)
		if (pthread_create(&pool.thread[i], NULL, worker, (void *)(intptr_t)i) != 0)
			die("cannot start a thread");
}

static void pool_stop(void)
{
	pool.pass = NULL;
	pthread_barrier_wait(&pool.start);
	for (int i = 1; i < pool.threads; i++)
		pthread_join(pool.thread[i], NULL);
	pthread_barrier_destroy(&pool.start);
	pthread_barrier_destroy(&pool.end);
}

static double seconds(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

struct timing {
	double wall, cpu; /* seconds; cpu of all threads together */
};

static struct timing run_pass(struct arena *a, const struct pass *p, size_t n)
{
	pool.arena = a;
	pool.pass = p;
	pool.n = n;
	atomic_store(&pool.next, 0);
	struct timing t = { -seconds(CLOCK_MONOTONIC), -seconds(CLOCK_PROCESS_CPUTIME_ID) };
	pthread_barrier_wait(&pool.start);
	work(0);
	pthread_barrier_wait(&pool.end);
	t.wall += seconds(CLOCK_MONOTONIC);
	t.cpu += seconds(CLOCK_PROCESS_CPUTIME_ID);
	return t;
}

/* --- rivals ----------------------------------------------------------------------------------------------------- */

AVX2 static void run_read(struct arena *a, size_t start, size_t n, int thread, int arg)
{
	__m256i x[8] = { 0 };
	for (size_t i = start; i < start + n; i += 64)
		for (int j = 0; j < 8; j++) {
			const float *p = a->f[1] + i + j * 8;
			_mm_prefetch((const char *)p + 2048, _MM_HINT_T0);
			x[j] = _mm256_or_si256(x[j], _mm256_load_si256((const __m256i *)p));
		}
	for (int j = 1; j < 8; j++)
		x[0] = _mm256_or_si256(x[0], x[j]);
	a->counts[thread][15] += (uint64_t)_mm256_movemask_epi8(x[0]);
}

AVX2 static void run_triad(struct arena *a, size_t start, size_t n, int thread, int arg)
{
	__m256 s = _mm256_set1_ps(0.25f);
	for (size_t i = start; i < start + n; i += 8) {
		__m256 product = _mm256_mul_ps(s, _mm256_load_ps(a->f[2] + i));
		_mm256_stream_ps(a->f[0] + i, _mm256_add_ps(_mm256_load_ps(a->f[1] + i), product));
	}
	_mm_sfence();
}

static const struct pass read_pass = { "read", run_read, 0, 4, 0 };
static const struct pass triad_pass = { "triad", run_triad, 0, 8, 4 };

/* --- kernels ---------------------------------------------------------------------------------------------------- */

/* Bits of `arg`; the number of slots is above them. */
enum { SUMSQ = 1, NONFINITE = 2, DIGEST = 4, FIRST = 8, BF16 = 16, F16 = 32, COUNT = 64, TINY = 128, ODD = 256,
       UNALIGNED = 512, NO_FTZ = 1024, UNDO = 2048, SLOTS = 4096 };
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
		s[j] = (struct kernel_src){ t == DTYPE_F32 ? (const void *)(f + start + shift) : a->h[0] + start, 0.25 };
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
static const struct kernel_update update = { .scale = 0.5f, .lr = 1e-7f, .weight_decay = 0.01f, .momentum = 0.9f,
					     .one_minus_dampening = 1, .one_minus_beta1 = 0.1f, .beta2 = 0.999f,
					     .one_minus_beta2 = 0.001f, .eps = 1e-8f, .step_size = 1e-7f,
					     .inv_bias2_sqrt = 1.5f, .decay = 1 };

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
		struct kernel_params p = { .p = a->f[0] + i, .m = state[0] + i, .v = state[1] + i,
					   .p16 = arg & BF16 ? a->h[1] + i : NULL, .p16_dtype = DTYPE_BF16 };
		struct kernel_undo undo = undo_at(a, i, thread);
		struct kernel_partials out = partials_of(a, i, arg);
		a->k->adamw(&p, state[2] + i, DTYPE_F32, end - i < UPDATE_CHUNK ? end - i : UPDATE_CHUNK, &update,
			    arg & UNDO ? &undo : NULL, &out);
	}
	_mm_setcsr(mode);
}

/* --- measuring -------------------------------------------------------------------------------------------------- */

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
	memcpy(sorted, v, sizeof *v * (size_t)n);
	qsort(sorted, (size_t)n, sizeof *v, compare);
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
	printf("%-32s %3s %8s %7s  %-22s %6s %15s %6s\n", "pass", "B", "ns/el", "GB/s", "against", "ratio", "middle half",
	       "by cpu");
	for (size_t i = 0; i < n_duels; i++, d++) {
		double t = quantile(d->wall, rounds, 0.5);
		int bytes = d->pass.read + d->pass.written;
		printf("%-32s %3d %8.4f %7.2f  %-22s %6.3f   %.3f .. %.3f %6.3f\n", d->pass.name, bytes, t / (double)n * 1e9,
		       (double)n * bytes / t * 1e-9, d->rival.name, quantile(d->ratio, rounds, 0.5),
		       quantile(d->ratio, rounds, 0.25), quantile(d->ratio, rounds, 0.75),
		       quantile(d->cpu_ratio, rounds, 0.5));
	}
}

/* --- memory ----------------------------------------------------------------------------------------------------- */

/* Room for n elements and for the prefetches and shifts past them. */
static void *map(size_t n, size_t element_bytes)
{
	void *p = mmap(NULL, (n + CHUNK) * element_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		die("not enough memory for the arrays; use a smaller -m");
	return p;
}

/* Values in [scale, 2 scale). */
static void fill(float *a, size_t n, float scale)
{
	uint32_t x = 12345;
	for (size_t i = 0; i < n + CHUNK; i++) {
		x = x * 1664525u + 1013904223u;
		a[i] = scale * (1 + (float)(x >> 8) * 0x1p-24f);
	}
}

/* The first `arrays` f32 arrays; those from 4 on are subnormal when `tiny`. */
static void arena_open(struct arena *a, const struct kernels *k, size_t n, int arrays, bool tiny)
{
	*a = (struct arena){ .k = k };
	for (int i = 0; i < arrays; i++) {
		a->f[i] = map(n, sizeof *a->f[i]);
		fill(a->f[i], n, tiny && i >= 4 ? 1e-40f : 1e-3f);
	}
	for (int i = 0; i < 2; i++) {
		a->h[i] = map(n, sizeof *a->h[i]);
		k->from_f32(a->h[i], DTYPE_F16, a->f[0], n);
	}
	a->sumsq = map(n / KERNEL_BLOCK, sizeof *a->sumsq);
	a->digest = map(n / KERNEL_BLOCK, sizeof *a->digest);
	a->nonfinite = map(n / KERNEL_BLOCK, sizeof *a->nonfinite);
}

/* --- the three tables ------------------------------------------------------------------------------------------- */

#define OUT_OF_PLACE(name_, run_, arg_, read_) \
	{ .pass = { name_, run_, arg_, read_, 4 }, .rival = { "triad, non-temporal", run_triad, 0, 8, 4 }, .measure = BY_BYTES }
#define IN_PLACE(name_, run_, arg_, read_, written_) \
	{ .pass = { name_, run_, arg_, read_, written_ }, .rival = { "read", run_read, 0, 4, 0 }, .measure = BY_READ }
#define FUSED(name_, arg_, without_, read_)                                                                        \
	{ .pass = { name_, run_accumulate, arg_, read_, 4 }, .rival = { "without (time)", run_accumulate, without_, read_, 4 }, \
	  .measure = BY_TIME }

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
		IN_PLACE("sgd", run_sgd, 0, 8, 4),
		IN_PLACE("momentum", run_sgd, SLOTS, 12, 8),
		IN_PLACE("adamw", run_adamw, 0, 16, 12),
		IN_PLACE("adamw, digest", run_adamw, DIGEST, 16, 12),
		IN_PLACE("adamw, bf16 out", run_adamw, BF16, 16, 14),
		IN_PLACE("sgd, digest, undo", run_sgd, DIGEST | NONFINITE | UNDO, 8, 4),
		IN_PLACE("momentum, digest, undo", run_sgd, SLOTS | DIGEST | NONFINITE | UNDO, 12, 8),
		IN_PLACE("adamw, digest, undo", run_adamw, DIGEST | NONFINITE | UNDO, 16, 12),
		IN_PLACE("adamw, bf16 out, digest, undo", run_adamw, BF16 | DIGEST | NONFINITE | UNDO, 16, 14),
	};
	struct arena a;
	arena_open(&a, k, n, 6, false);
	fight(&a, d, sizeof d / sizeof d[0], n, rounds);
	print_duels(d, sizeof d / sizeof d[0], n, rounds);
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
#define ACCUMULATE(name_, arg_)                                                                                          \
	{ .pass = { name_, run_accumulate, SLOTS | ALL | arg_, 8, 4 },                                                   \
	  .rival = { "normal case (time)", run_accumulate, SLOTS | ALL, 8, 4 }, .measure = BY_TIME }
#define UPDATE(name_, arg_)                                                                                              \
	{ .pass = { name_, run_adamw, arg_, 16, 12 }, .rival = { "normal case (time)", run_adamw, 0, 16, 12 },           \
	  .measure = BY_TIME }
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
	fight(&a, d, sizeof d / sizeof d[0], n, rounds);
	print_duels(d, sizeof d / sizeof d[0], n, rounds);
}

static void print_limits(const struct kernels *k, size_t n, int rounds)
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
	       pool.threads, n, rounds, load[0], quantile(read, rounds, 0.5), quantile(triad, rounds, 0.5));
	for (int i = 0; i < 3; i++)
		munmap(a.f[i], (n + CHUNK) * sizeof *a.f[i]);
}

static _Noreturn void usage(void)
{
	fprintf(stderr, "usage: bench_kernels [-m MB of an f32 array] [-t threads] [-r rounds, 5..%d] [-k table]\n"
			"                     [passes | scaling | cliffs]\n", MAX_ROUNDS);
	exit(2);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(const struct kernels *, size_t n, int rounds);
	} tables[] = { { "passes", passes }, { "scaling", scaling }, { "cliffs", cliffs } };
	long megabytes = 400, threads = sysconf(_SC_NPROCESSORS_ONLN), rounds = 9;
	const char *name = NULL;
	for (int option; (option = getopt(argc, argv, "m:t:r:k:")) != -1;) {
		switch (option) {
		case 'm': megabytes = strtol(optarg, NULL, 10); break;
		case 't': threads = strtol(optarg, NULL, 10); break;
		case 'r': rounds = strtol(optarg, NULL, 10); break;
		case 'k': name = optarg; break;
		default: usage();
		}
	}
	const struct kernels *k = kernels_get(name);
	const char *what = optind < argc ? argv[optind] : "passes";
	size_t n = (size_t)megabytes * 1000000 / sizeof(float) / CHUNK * CHUNK;
	if (!k || n == 0 || threads < 1 || threads > MAX_THREADS || rounds < 5 || rounds > MAX_ROUNDS)
		usage();
	pool_start((int)threads);
	print_limits(k, n, (int)rounds);
	for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
		if (strcmp(what, tables[i].name) == 0) {
			tables[i].run(k, n, (int)rounds);
			pool_stop();
			return 0;
		}
	usage();
}
