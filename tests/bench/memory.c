/* SPDX-License-Identifier: Apache-2.0 */
#include "memory.h"

#include "bench.h"
#include "engine/pass.h"
#include "engine/workers.h"
#include "math/kernels.h"

#include <immintrin.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define AVX2 __attribute__((target("avx2")))
#define PAD 4096 /* bytes that a prefetch may pass the end by */

struct memory_limits {
	size_t n;
	float *dst, *src, *gradient;
	const struct kernels *kernels;
	struct workers *workers;
	void (*run)(struct memory_limits *, size_t at, size_t n);
	_Atomic int seen; /* what reading found: keeps the loads */
};

AVX2 static void run_read(struct memory_limits *m, size_t at, size_t n)
{
	__m256i any[8] = { 0 };
	for (size_t i = at; i + 64 <= at + n; i += 64)
		for (int j = 0; j < 8; j++) {
			const float *p = m->src + i + j * 8;
			_mm_prefetch((const char *)p + 2048, _MM_HINT_T0);
			any[j] = _mm256_or_si256(any[j], _mm256_load_si256((const __m256i *)p));
		}
	for (int j = 1; j < 8; j++)
		any[0] = _mm256_or_si256(any[0], any[j]);
	m->seen |= _mm256_movemask_epi8(any[0]);
}

AVX2 static void run_triad(struct memory_limits *m, size_t at, size_t n)
{
	__m256 s = _mm256_set1_ps(0.25f);
	bool past_cache = m->n > KERNEL_CACHED_ELEMENTS;
	for (size_t i = at; i + 8 <= at + n; i += 8) {
		__m256 sum =
			_mm256_add_ps(_mm256_load_ps(m->src + i), _mm256_mul_ps(s, _mm256_load_ps(m->gradient + i)));
		if (past_cache)
			_mm256_stream_ps(m->dst + i, sum);
		else
			_mm256_store_ps(m->dst + i, sum);
	}
	_mm_sfence();
}

static void run_add(struct memory_limits *m, size_t at, size_t n)
{
	struct kernel_src s = { m->gradient + at, 0.25 };
	kernel_accumulate_fn *add =
		m->n > KERNEL_CACHED_ELEMENTS ? m->kernels->accumulate : m->kernels->accumulate_cached;
	add(m->dst + at, m->src + at, false, DTYPE_F32, &s, 1, DTYPE_F32, n, NULL, NULL);
}

static void run_item(void *arg, uint32_t item, uint32_t worker)
{
	struct memory_limits *m = arg;
	size_t at = (size_t)item * PASS_CHUNK, left = m->n - at;
	m->run(m, at, left < PASS_CHUNK ? left : PASS_CHUNK);
}

/* Values in [1e-3, 2e-3). */
static float *new_array(size_t n)
{
	uint32_t x = 12345;
	float *a = mmap(NULL, n * sizeof(*a) + PAD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (a == MAP_FAILED)
		bench_die("not enough memory for arrays of %zu floats", n);
	for (size_t i = 0; i < n; i++) {
		x = x * 1664525u + 1013904223u;
		a[i] = 1e-3f * (1 + (float)(x >> 8) * 0x1p-24f);
	}
	return a;
}

struct memory_limits *memory_limits_new(size_t n, unsigned threads)
{
	struct memory_limits *m = calloc(1, sizeof(*m));
	if (!m || workers_new(&m->workers, threads))
		bench_die("cannot start %u threads", threads);
	m->n = n;
	m->kernels = kernels_get(NULL);
	m->dst = new_array(n);
	m->src = new_array(n);
	m->gradient = new_array(n);
	return m;
}

void memory_limits_free(struct memory_limits *m)
{
	workers_free(m->workers);
	munmap(m->dst, m->n * sizeof(float) + PAD);
	munmap(m->src, m->n * sizeof(float) + PAD);
	munmap(m->gradient, m->n * sizeof(float) + PAD);
	free(m);
}

const void *memory_limits_data(const struct memory_limits *m)
{
	return m->gradient;
}

double memory_limits_time(struct memory_limits *m, enum memory_pass pass)
{
	double start = bench_seconds();
	if (pass == MEMORY_COPY) {
		memcpy(m->dst, m->src, m->n * sizeof(float));
		return bench_seconds() - start;
	}
	m->run = pass == MEMORY_READ ? run_read : pass == MEMORY_TRIAD ? run_triad : run_add;
	workers_run(m->workers, run_item, m, (uint32_t)((m->n + PASS_CHUNK - 1) / PASS_CHUNK), m->n < PASS_ALONE_BELOW);
	return bench_seconds() - start;
}
