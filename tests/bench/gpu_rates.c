/* SPDX-License-Identifier: Apache-2.0 */
/* gpu_probe rates: passes and updates of arenas in a GPU's memory, each right after a copy there, round after round, so
 * that a busy neighbour disturbs both. Printed are medians. */
#include "gpu_kernels.h"
#include "gpu_probe.h"

#include <stdio.h>
#include <stdlib.h>

#define ARRAYS 6
#define ELEMENTS_LEAST ((uint64_t)64 << 10)
#define ELEMENTS_MOST ((uint64_t)256 << 20) /* 1 GiB of f32 */
#define BYTES_EACH 32			    /* of all arrays, for an element; some are left free */
#define LONG_S 2e-3			    /* a pass that is not lost in the cost of its launch */
#define SLOW_S 2e-2			    /* a simulator: few rounds will do */
#define ROUNDS 11

struct arena {
	struct gpu gpu;
	uint64_t n; /* elements in use */
	cu_memory array[ARRAYS], norm;
	struct gpu_adamw adamw;
	int rounds, launches; /* in each round */
	uint64_t window;
};

/* A pass over an arena: what it reads and writes for each element, in bytes. */
struct kind {
	const char *what;
	double bytes;
	enum { COPY, ADD, UPDATE } sort;
	enum dtype dtype;
	uint32_t n_sources;
	bool first, norm, p16;
};

static const struct kind kinds[] = {
	{ "add, 1 gradient of f32", 12, ADD, DTYPE_F32, 1, false, false, false },
	{ "add, 2 gradients of f32", 16, ADD, DTYPE_F32, 2, false, false, false },
	{ "add, 4 gradients of f32", 24, ADD, DTYPE_F32, 4, false, false, false },
	{ "add, 1 gradient of bf16", 10, ADD, DTYPE_BF16, 1, false, false, false },
	{ "add, 2 gradients of bf16", 12, ADD, DTYPE_BF16, 2, false, false, false },
	{ "add, 4 gradients of bf16", 16, ADD, DTYPE_BF16, 4, false, false, false },
	{ "add, 1 gradient of bf16, with norm and digest", 10, ADD, DTYPE_BF16, 1, false, true, false },
	{ "set, 1 gradient of bf16", 6, ADD, DTYPE_BF16, 1, true, false, false },
	{ "AdamW with its undo areas and digest, f32", 28, UPDATE, DTYPE_F32, 0, false, false, false },
	{ "AdamW with its undo areas and digest, bf16 copy", 30, UPDATE, DTYPE_F32, 0, false, false, true },
};

static void launch(struct arena *a, const struct kind *k)
{
	const struct gpu *g = &a->gpu;

	if (k->sort == COPY) {
		gpu_call(g, "cuMemcpyDtoDAsync",
			 g->device.cu.cuMemcpyDtoDAsync(a->array[0], a->array[1], a->n * 4, g->device.stream));
	} else if (k->sort == UPDATE) {
		gpu_adamw(g, &a->adamw, ++a->window);
	} else {
		gpu_add(g, &(struct gpu_add){ .dst = a->array[0],
					      .src = k->first ? 0 : a->array[1],
					      .g = { a->array[2], a->array[3], a->array[4], a->array[5] },
					      .dtype = k->dtype,
					      .n_sources = k->n_sources,
					      .coef = 0.25f,
					      .norm = k->norm ? a->norm : 0,
					      .n = a->n });
	}
}

static double time_of(struct arena *a, const struct kind *k, int launches)
{
	double begun = seconds_now();

	for (int i = 0; i < launches; i++)
		launch(a, k);
	gpu_call(&a->gpu, "cuStreamSynchronize", a->gpu.device.cu.cuStreamSynchronize(a->gpu.device.stream));
	return (seconds_now() - begun) / launches;
}

/* Normal numbers below 1, the same every 64Ki elements. */
static void fill(const struct arena *a, cu_memory at)
{
	static float piece[64 << 10];
	const struct gpu *g = &a->gpu;

	for (size_t i = 0; i < sizeof(piece) / 4; i++)
		piece[i] = (float)((i * 2654435761u >> 8) % 65536 + 1) / 65536;
	gpu_upload(g, at, piece, sizeof(piece));
	for (uint64_t done = sizeof(piece), all = a->n * 4; done < all; done *= 2)
		gpu_call(g, "cuMemcpyDtoDAsync",
			 g->device.cu.cuMemcpyDtoDAsync(at + done, at, done < all - done ? done : all - done,
							g->device.stream));
	gpu_wait(g);
}

static void size_up(struct arena *a)
{
	struct gpu *g = &a->gpu;
	size_t free_bytes = 0, total = 0;
	double took;

	gpu_call(g, "cuMemGetInfo", g->device.cu.cuMemGetInfo(&free_bytes, &total));
	uint64_t most = free_bytes / BYTES_EACH / ELEMENTS_LEAST * ELEMENTS_LEAST;
	most = most > ELEMENTS_MOST ? ELEMENTS_MOST : most < ELEMENTS_LEAST ? ELEMENTS_LEAST : most;
	for (int i = 0; i < ARRAYS; i++)
		a->array[i] = gpu_alloc(g, most * 4);
	a->norm = gpu_alloc(g, most / KERNEL_BLOCK * 20);
	a->n = ELEMENTS_LEAST;
	time_of(a, &kinds[0], 1);
	while ((took = time_of(a, &kinds[0], 1)) < LONG_S && a->n < most)
		a->n = a->n * 2 < most ? a->n * 2 : most;
	a->rounds = took > SLOW_S ? 1 : ROUNDS;
	a->launches = took > SLOW_S ? 1 : 8;
	for (int i = 0; i < ARRAYS; i++)
		fill(a, a->array[i]);
}

/* Array 4 holds the 16-bit copy. */
static void open_update(struct arena *a, bool p16)
{
	const cu_memory *x = a->array;

	a->adamw = (struct gpu_adamw){ x[0], x[1], x[2], x[3], p16 ? x[4] : 0, .n = a->n, .update = gpu_small_steps() };
	gpu_adamw_open(&a->gpu, &a->adamw);
}

static int work(void *arg)
{
	static const struct kind copy = { "copy", 8, COPY, DTYPE_F32, 0, false, false, false };
	static double of_copies[ROUNDS * sizeof(kinds) / sizeof(*kinds)];
	struct arena a = { .n = 0 };
	int n_copies = 0;

	if (!gpu_open(&a.gpu, *(int *)arg, "copy, and gacc's passes beside it"))
		return 0;
	size_up(&a);
	row(a.gpu.number, "elements of an array", "%llu, %d rounds of %d launches", (unsigned long long)a.n, a.rounds,
	    a.launches);
	for (size_t k = 0; k < sizeof(kinds) / sizeof(*kinds); k++) {
		double took[ROUNDS], share[ROUNDS];

		a.gpu.what = kinds[k].what;
		if (kinds[k].sort == UPDATE)
			open_update(&a, kinds[k].p16);
		time_of(&a, &kinds[k], 1);
		for (int i = 0; i < a.rounds; i++) {
			const double copied = time_of(&a, &copy, a.launches) / copy.bytes;

			of_copies[n_copies++] = copied;
			took[i] = time_of(&a, &kinds[k], a.launches);
			share[i] = copied * kinds[k].bytes / took[i];
		}
		const double s = quantile(took, a.rounds, 0.5);
		row(a.gpu.number, kinds[k].what, "%.0f %% of copy, %.1f GB/s, %.3g ms for 10^9 elements",
		    100 * quantile(share, a.rounds, 0.5), kinds[k].bytes * (double)a.n / s / 1e9,
		    s / (double)a.n * 1e12);
	}
	row(a.gpu.number, "copy, read and written", "%.1f GB/s",
	    (double)a.n / quantile(of_copies, n_copies, 0.5) / 1e9);
	return 0;
}

int rates(int number)
{
	return run_rows(number, "copy, and gacc's passes beside it", work, &number) != 0;
}
