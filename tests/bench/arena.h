/* SPDX-License-Identifier: Apache-2.0 */
/* What bench_kernels runs its passes with: arrays, threads that share a pass as the engine's do, and the rivals, which
 * say what the memory allows. Failures end the program with a message.
 */
#ifndef GACC_TESTS_BENCH_ARENA_H
#define GACC_TESTS_BENCH_ARENA_H

#include "math/kernels.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHUNK 65536 /* elements that a thread takes at a time */
#define MAX_THREADS 256
#define N_ARRAYS 7
#define FTZ_DAZ 0x8040

/* All that a pass may touch. */
struct arena {
	const struct kernels *k;
	/* destination or p; source or m; v or gradient; gradients; 4..6 subnormal in `cliffs` */
	float *f[N_ARRAYS];
	uint16_t *h[2]; /* 16-bit gradient, 16-bit parameters */
	double *sumsq;	/* one per block */
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
	int read, written; /* bytes per element */
};

_Noreturn void die(const char *what);

/* ---- arrays ---- */

/* The first `arrays` f32 arrays of n elements, and room for the prefetches and shifts past them; those from 4 on are
 * subnormal when `tiny`. All values are touched. */
void arena_open(struct arena *, const struct kernels *, size_t n, int arrays, bool tiny);
void arena_close(struct arena *, size_t n, int arrays);

/* ---- threads ---- */

/* This thread and threads - 1 others, FTZ and DAZ on. */
void pool_start(int threads);
void pool_stop(void);

struct timing {
	double wall, cpu; /* seconds; cpu of all threads together */
};
/* One pass over n elements, a multiple of CHUNK. */
struct timing run_pass(struct arena *, const struct pass *, size_t n);

/* ---- rivals ---- */

/* f[1] is read; f[0] = f[1] + s f[2], non-temporal. */
range_fn run_read, run_triad;
extern const struct pass read_pass, triad_pass;

/* The loads and stores of an update with next to no arithmetic: f[0] to f[count - 1] are changed in place, f[count] is
 * read. With STREAMS_OUT16, 16 bits of each f[0] go to h[1], too, non-temporal. With STREAMS_READ nothing is stored. */
enum { STREAMS_OUT16 = 256, STREAMS_READ = 512 };
range_fn run_streams;

#endif
