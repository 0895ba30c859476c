/* SPDX-License-Identifier: Apache-2.0 */
/* See arena.h. Values are normal floats unless asked otherwise; work is handed out from a counter. */
#include "arena.h"

#include <immintrin.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define AVX2 __attribute__((target("avx2")))

/* ---- threads ---- */

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

_Noreturn void die(const char *what)
{
	fprintf(stderr, "bench_kernels: %s\n", what);
	exit(1);
}

void pool_start(int threads)
{
	_mm_setcsr(_mm_getcsr() | FTZ_DAZ);
	pool.threads = threads;
	pthread_barrier_init(&pool.start, NULL, (unsigned)threads);
	pthread_barrier_init(&pool.end, NULL, (unsigned)threads);
	for (int i = 1; i < threads; i++)
		if (pthread_create(&pool.thread[i], NULL, worker, (void *)(intptr_t)i) != 0)
			die("cannot start a thread");
}

void pool_stop(void)
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

struct timing run_pass(struct arena *a, const struct pass *p, size_t n)
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

/* ---- memory ---- */

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

void arena_open(struct arena *a, const struct kernels *k, size_t n, int arrays, bool tiny)
{
	*a = (struct arena){ .k = k };
	for (int i = 0; i < arrays; i++) {
		a->f[i] = map(n, sizeof(*a->f[i]));
		fill(a->f[i], n, tiny && i >= 4 ? 1e-40f : 1e-3f);
	}
	for (int i = 0; i < 2; i++) {
		a->h[i] = map(n, sizeof(*a->h[i]));
		k->from_f32(a->h[i], DTYPE_F16, a->f[0], n);
	}
	a->sumsq = map(n / KERNEL_BLOCK, sizeof(*a->sumsq));
	a->digest = map(n / KERNEL_BLOCK, sizeof(*a->digest));
	a->nonfinite = map(n / KERNEL_BLOCK, sizeof(*a->nonfinite));
}

static void unmap(void *p, size_t n, size_t element_bytes)
{
	munmap(p, (n + CHUNK) * element_bytes);
}

void arena_close(struct arena *a, size_t n, int arrays)
{
	for (int i = 0; i < arrays; i++)
		unmap(a->f[i], n, sizeof(*a->f[i]));
	for (int i = 0; i < 2; i++)
		unmap(a->h[i], n, sizeof(*a->h[i]));
	unmap(a->sumsq, n / KERNEL_BLOCK, sizeof(*a->sumsq));
	unmap(a->digest, n / KERNEL_BLOCK, sizeof(*a->digest));
	unmap(a->nonfinite, n / KERNEL_BLOCK, sizeof(*a->nonfinite));
}

/* ---- rivals ---- */

AVX2 void run_read(struct arena *a, size_t start, size_t n, int thread, int arg)
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

AVX2 void run_triad(struct arena *a, size_t start, size_t n, int thread, int arg)
{
	__m256 s = _mm256_set1_ps(0.25f);
	for (size_t i = start; i < start + n; i += 8) {
		__m256 product = _mm256_mul_ps(s, _mm256_load_ps(a->f[2] + i));
		_mm256_stream_ps(a->f[0] + i, _mm256_add_ps(_mm256_load_ps(a->f[1] + i), product));
	}
	_mm_sfence();
}

const struct pass read_pass = { "read", run_read, 0, 4, 0 };
const struct pass triad_pass = { "triad", run_triad, 0, 8, 4 };

/* 64 elements of the in-place arrays x[0] .. x[count - 1], from element i on. Too little is added to change a value,
 * but the compiler cannot know. */
AVX2 static inline void stream_unit(float *const *x, int count, size_t i, const __m256 g[8])
{
	__m256 tiny = _mm256_set1_ps(1e-12f);
	for (int c = 0; c < count; c++)
		for (int j = 0; j < 8; j++) {
			float *at = x[c] + i + j * 8;
			_mm256_store_ps(at, _mm256_add_ps(_mm256_load_ps(at), _mm256_mul_ps(tiny, g[j])));
		}
}

AVX2 static inline void ahead(const float *p)
{
	for (int line = 0; line < 4; line++)
		_mm_prefetch((const char *)p + line * 64 + 2048, _MM_HINT_T0);
}

AVX2 static void stream_halves(uint16_t *to, const float *from)
{
	for (int j = 0; j < 64; j += 16) {
		__m256i low = _mm256_srli_epi32(_mm256_load_si256((const __m256i *)(from + j)), 16);
		__m256i high = _mm256_srli_epi32(_mm256_load_si256((const __m256i *)(from + j + 8)), 16);
		_mm256_stream_si256((__m256i *)(to + j), _mm256_packus_epi32(low, high));
	}
}

AVX2 static void read_unit(struct arena *a, int count, size_t i, int thread)
{
	__m256i any = { 0 };
	for (int c = 0; c <= count; c++)
		for (int j = 0; j < 8; j++)
			any = _mm256_or_si256(any, _mm256_load_si256((const __m256i *)(a->f[c] + i + j * 8)));
	a->counts[thread][15] += (uint64_t)_mm256_movemask_epi8(any);
}

AVX2 void run_streams(struct arena *a, size_t start, size_t n, int thread, int arg)
{
	const int count = arg & (STREAMS_OUT16 - 1);
	for (size_t i = start; i < start + n; i += 64) {
		for (int c = 0; c <= count; c++)
			ahead(a->f[c] + i);
		if (arg & STREAMS_READ) {
			read_unit(a, count, i, thread);
			continue;
		}
		__m256 g[8];
		for (int j = 0; j < 8; j++)
			g[j] = _mm256_load_ps(a->f[count] + i + j * 8);
		stream_unit(a->f, count, i, g);
		if (arg & STREAMS_OUT16)
			stream_halves(a->h[1] + i, a->f[0] + i);
	}
	_mm_sfence();
}
