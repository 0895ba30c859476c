/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_probe tiny: do a GPU and a CPU count the same results as zero? Both flush what is below the smallest normal
 * number, but whether a result is that may be judged before it is rounded or after: the only bits of gacc's kernels
 * that CUDA's documents do not settle. So sums and an AdamW of numbers right there, against the reference. */
#include "gpu_kernels.h"
#include "gpu_probe.h"

#include "math/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

#define N (64 * KERNEL_BLOCK)
#define ROUNDS 32
#define FTZ_DAZ 0x8040

static uint64_t state = 1;

static uint32_t draw(void)
{
	state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)(state >> 32);
}

static float of_bits(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

/* Either sign, any mantissa, 2^low to 2^high. */
static float number(int low, int high)
{
	const int exponent = low + (int)(draw() % (unsigned)(high - low));

	return ldexpf(of_bits((draw() & 0x807fffff) | 127u << 23), exponent);
}

/* A g whose product with c is within some units in the last place of the smallest normal number. */
static float beside(float c)
{
	const float g = 0x1p-126f / c;
	uint32_t bits;

	memcpy(&bits, &g, sizeof(bits));
	return of_bits((bits + draw() % 17 - 8) | (draw() & 0x80000000));
}

struct differing {
	uint64_t n, of;
	double here, there; /* the first one's */
};

static void compare(struct differing *d, const float *cpu, const float *gpu)
{
	for (size_t i = 0; i < N; i++, d->of++) {
		if (!memcmp(&cpu[i], &gpu[i], sizeof(float)))
			continue;
		if (!d->n++)
			d->here = (double)cpu[i], d->there = (double)gpu[i];
	}
}

static int say(const struct gpu *g, const struct differing *d)
{
	if (d->n)
		row(g->number, g->what, "FAILED: %llu of %llu differ, first %a on the host and %a on the GPU",
		    (unsigned long long)d->n, (unsigned long long)d->of, d->here, d->there);
	else
		row(g->number, g->what, "ok: %llu of %llu have the same bits", (unsigned long long)d->of,
		    (unsigned long long)d->of);
	return d->n > 0;
}

static float *array(void)
{
	float *a = aligned_alloc(64, N * sizeof(float));

	if (!a)
		exit(3);
	return a;
}

static int sums(struct gpu *g, const struct kernels *k)
{
	float *values = array(), *sum = array(), *cpu = array(), *gpu = array();
	cu_memory g_at = gpu_alloc(g, N * 4), src = gpu_alloc(g, N * 4), dst = gpu_alloc(g, N * 4);
	struct differing d = { 0 };

	g->what = "sums beside the smallest normal number";
	for (int round = 0; round < ROUNDS; round++) {
		const float c = fabsf(number(-4, 4));
		const struct kernel_src s = { values, (double)c };
		const bool first = round % 2;

		for (size_t i = 0; i < N; i++) {
			values[i] = i % 2 ? beside(c) : number(-132, -118);
			sum[i] = number(-130, -122);
		}
		gpu_upload(g, g_at, values, N * 4);
		gpu_upload(g, src, sum, N * 4);
		k->accumulate(cpu, sum, first, DTYPE_F32, &s, 1, DTYPE_F32, N, NULL, &(struct kernel_partials){ 0 });
		gpu_add(g, &(struct gpu_add){ .dst = dst,
					      .src = first ? 0 : src,
					      .g = { g_at },
					      .dtype = DTYPE_F32,
					      .n_sources = 1,
					      .coef = c,
					      .n = N });
		gpu_download(g, gpu, dst, N * 4);
		compare(&d, cpu, gpu);
	}
	free(values), free(sum), free(cpu), free(gpu);
	return say(g, &d);
}

/* p, m, v of the host, and what the GPU makes of them. */
static int updates(struct gpu *g, const struct kernels *k)
{
	float *host[4] = { array(), array(), array(), array() }, *gpu = array();
	cu_memory at[4];
	struct differing d = { 0 };
	struct gpu_adamw a;

	g->what = "AdamW beside the smallest normal number";
	for (int i = 0; i < 4; i++)
		at[i] = gpu_alloc(g, N * 4);
	a = (struct gpu_adamw){ at[0], at[1], at[2], at[3], .n = N, .update = gpu_small_steps() };
	gpu_adamw_open(g, &a);
	for (uint64_t window = 1; window <= ROUNDS; window++) {
		for (size_t i = 0; i < N; i++) {
			host[0][i] = number(-132, -118);
			host[1][i] = number(-132, -118);
			host[2][i] = fabsf(i % 2 ? number(-132, -118) : beside(a.update.beta2));
			host[3][i] = i % 3 ? number(-66, -58) : number(-132, -118);
		}
		for (int i = 0; i < 4; i++)
			gpu_upload(g, at[i], host[i], N * 4);
		k->adamw(&(struct kernel_params){ .p = host[0], .m = host[1], .v = host[2] }, host[3], DTYPE_F32, N,
			 &a.update, NULL, NULL);
		gpu_adamw(g, &a, window);
		for (int i = 0; i < 3; i++) {
			gpu_download(g, gpu, at[i], N * 4);
			compare(&d, host[i], gpu);
		}
	}
	for (int i = 0; i < 4; i++)
		free(host[i]);
	free(gpu);
	return say(g, &d);
}

static int work(void *arg)
{
	const struct kernels *reference = kernels_get("reference");
	struct gpu g;

	if (!gpu_open(&g, *(int *)arg, "numbers beside the smallest normal one"))
		return 0;
#ifdef __x86_64__
	_mm_setcsr(_mm_getcsr() | FTZ_DAZ);
	return sums(&g, reference) | updates(&g, reference);
#else
	row(g.number, g.what, "not run: subnormals do not count as zero on this CPU");
	(void)reference, (void)sums, (void)updates;
	return 0;
#endif
}

int tiny(int number)
{
	return run_rows(number, "numbers beside the smallest normal one", work, &number) != 0;
}
