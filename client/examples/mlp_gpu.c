/* SPDX-License-Identifier: Apache-2.0 */
/* The perceptron's passes on a GPU, for mlp_cuda: device memory, and the launches of mlp_cuda.cu's kernels. By the
 * driver's interface, which is found when the program runs, so that it builds and starts anywhere. One thread. */
#include "mlp_gpu.h"

#include "mlp_cuda.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The functions of cuda.h that are called here; a program that has the toolkit includes that instead. */
#define DRIVER(X)                                                                                                      \
	X(cuInit, "cuInit", (unsigned))                                                                                \
	X(cuDeviceGetCount, "cuDeviceGetCount", (int *))                                                               \
	X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (void **, int))                                        \
	X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (int))                                            \
	X(cuCtxSetCurrent, "cuCtxSetCurrent", (void *))                                                                \
	X(cuStreamCreate, "cuStreamCreate", (struct CUstream_st **, unsigned))                                         \
	X(cuStreamSynchronize, "cuStreamSynchronize", (struct CUstream_st *))                                          \
	X(cuMemAlloc, "cuMemAlloc_v2", (mlp_memory *, size_t))                                                         \
	X(cuMemsetD8Async, "cuMemsetD8Async", (mlp_memory, unsigned char, size_t, struct CUstream_st *))               \
	X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (mlp_memory, const void *, size_t, struct CUstream_st *))         \
	X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void *, mlp_memory, size_t, struct CUstream_st *))               \
	X(cuModuleLoadData, "cuModuleLoadData", (void **, const void *))                                               \
	X(cuModuleGetFunction, "cuModuleGetFunction", (void **, void *, const char *))                                 \
	X(cuLaunchKernel, "cuLaunchKernel",                                                                            \
	  (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, struct CUstream_st *,         \
	   void **, void **))

struct mlp_gpu {
#define MEMBER(name, symbol, arguments) int(*name) arguments;
	DRIVER(MEMBER)
#undef MEMBER
	struct mlp_gpu_layout layout;
	int device;
	void *gemm, *sum_rows, *loss_of; /* kernels */
	struct CUstream_st *stream;
	/* the last but the gradients' are [max_batch][..]; act[MLP_LAYERS] becomes the gradient of the logits */
	mlp_memory params, grads, act[MLP_LAYERS + 1], delta[MLP_LAYERS], labels, loss;
	double *host_loss;
};

static void check(int code, const char *what)
{
	if (!code)
		return;
	fprintf(stderr, "mlp_cuda: %s: CUDA error %d\n", what, code);
	exit(1);
}
#define CALL(g, name, ...) check((g)->name(__VA_ARGS__), #name)

/* ---- what is needed ---- */

static int find_driver(struct mlp_gpu *g, char *why, size_t n_why)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);

	if (!library) {
		snprintf(why, n_why, "no NVIDIA driver: %s", dlerror());
		return -1;
	}
#define FIND(name, symbol, arguments)                                                                                  \
	*(void **)&g->name = dlsym(library, symbol);                                                                   \
	if (!g->name) {                                                                                                \
		snprintf(why, n_why, "NVIDIA's driver has no " symbol ": install a later one");                        \
		return -1;                                                                                             \
	}
	DRIVER(FIND)
#undef FIND
	return 0;
}

/* MLP_CUDA_KERNELS, or lib/mlp_cuda.fatbin in the folder in whose bin this program is. */
static char *read_kernels(char *why, size_t n_why)
{
	char program[PATH_MAX], path[PATH_MAX + 32];
	const char *named = getenv("MLP_CUDA_KERNELS");
	ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);
	char *image = NULL, *slash;
	FILE *f;

	program[n > 0 ? n : 0] = 0;
	for (int up = 0; up < 2 && (slash = strrchr(program, '/')); up++)
		*slash = 0;
	snprintf(path, sizeof(path), "%s/lib/mlp_cuda.fatbin", program);
	f = fopen(named ? named : path, "rb");
	if (f && !fseek(f, 0, SEEK_END) && (n = ftell(f)) >= 0) {
		image = calloc(1, (size_t)n + 1);
		rewind(f);
		if (image && fread(image, 1, (size_t)n, f) < (size_t)n) {
			free(image);
			image = NULL;
		}
	}
	if (f)
		fclose(f);
	if (!image)
		snprintf(why, n_why, "cannot read the kernels, %s, which are built where nvcc is",
			 named ? named : path);
	return image;
}

static int choose_device(struct mlp_gpu *g, char *why, size_t n_why)
{
	const char *local_rank = getenv("LOCAL_RANK");
	int n = 0, code = g->cuInit(0);

	if (!code)
		code = g->cuDeviceGetCount(&n);
	if (code || !n) {
		snprintf(why, n_why, "no GPU (CUDA error %d)", code);
		return -1;
	}
	g->device = local_rank ? abs(atoi(local_rank)) % n : 0;
	return 0;
}

static void load_kernels(struct mlp_gpu *g, const char *image)
{
	void *module;

	CALL(g, cuModuleLoadData, &module, image);
	CALL(g, cuModuleGetFunction, &g->gemm, module, "mlp_gemm");
	CALL(g, cuModuleGetFunction, &g->sum_rows, module, "mlp_sum_rows");
	CALL(g, cuModuleGetFunction, &g->loss_of, module, "mlp_loss");
}

static void allocate(struct mlp_gpu *g, size_t max_batch)
{
	CALL(g, cuMemAlloc, &g->params, g->layout.param_bytes);
	CALL(g, cuMemAlloc, &g->grads, g->layout.grad_bytes);
	CALL(g, cuMemsetD8Async, g->grads, 0, g->layout.grad_bytes, g->stream); /* also between the tensors */
	for (int l = 0; l <= MLP_LAYERS; l++) {
		size_t bytes = max_batch * (size_t)mlp_width[l] * sizeof(float);

		CALL(g, cuMemAlloc, &g->act[l], bytes);
		if (l > 0 && l < MLP_LAYERS)
			CALL(g, cuMemAlloc, &g->delta[l], bytes);
	}
	CALL(g, cuMemAlloc, &g->labels, max_batch);
	CALL(g, cuMemAlloc, &g->loss, max_batch * sizeof(double));
}

struct mlp_gpu *mlp_gpu_new(const struct mlp_gpu_layout *layout, int max_batch, char *why, size_t n_why)
{
	struct mlp_gpu *g = calloc(1, sizeof(*g));
	char *image = NULL;
	void *context;

	snprintf(why, n_why, "out of memory");
	if (!g)
		return NULL;
	g->host_loss = malloc((size_t)max_batch * sizeof(double));
	if (!g->host_loss || find_driver(g, why, n_why) || choose_device(g, why, n_why) ||
	    !(image = read_kernels(why, n_why))) {
		free(g->host_loss);
		free(g);
		return NULL;
	}
	g->layout = *layout;
	CALL(g, cuDevicePrimaryCtxRetain, &context, g->device);
	CALL(g, cuCtxSetCurrent, context);
	load_kernels(g, image);
	free(image);
	CALL(g, cuStreamCreate, &g->stream, 1); /* CU_STREAM_NON_BLOCKING */
	allocate(g, (size_t)max_batch);
	return g;
}

/* The context stays until the process ends: memory of the job is still pinned in it. */
void mlp_gpu_free(struct mlp_gpu *g)
{
	if (!g)
		return;
	CALL(g, cuStreamSynchronize, g->stream);
	free(g->host_loss);
	free(g);
}

struct CUstream_st *mlp_gpu_stream(struct mlp_gpu *g)
{
	return g->stream;
}

mlp_memory mlp_gpu_params(struct mlp_gpu *g)
{
	return g->params;
}

mlp_memory mlp_gpu_grads(struct mlp_gpu *g)
{
	return g->grads;
}

/* ---- the passes ---- */

/* An address on the device, for a kernel. */
static float *at(mlp_memory memory, size_t bytes)
{
	return (float *)(uintptr_t)(memory + bytes);
}

static void launch(struct mlp_gpu *g, void *kernel, unsigned blocks, void *args)
{
	CALL(g, cuLaunchKernel, kernel, blocks, 1, 1, MLP_THREADS, 1, 1, 0, g->stream, (void *[]){ args }, NULL);
}

static void gemm(struct mlp_gpu *g, struct mlp_gemm_args a)
{
	launch(g, g->gemm, (a.rows + MLP_TILE - 1) / MLP_TILE * ((a.columns + MLP_TILE - 1) / MLP_TILE), &a);
}

static void layer_forward(struct mlp_gpu *g, int l, unsigned n)
{
	unsigned in = (unsigned)mlp_width[l], wide = (unsigned)mlp_width[l + 1];

	gemm(g, (struct mlp_gemm_args){ .a = at(g->act[l], 0),
					.b = at(g->params, g->layout.param[2 * l]),
					.extra = at(g->params, g->layout.param[2 * l + 1]),
					.c = at(g->act[l + 1], 0),
					.rows = n,
					.columns = wide,
					.depth = in,
					.a_row = in,
					.a_column = 1,
					.b_row = 1,
					.b_column = in,
					.scale = 1,
					.after = l + 1 == MLP_LAYERS ? MLP_BIAS : MLP_BIAS_RELU });
}

double mlp_gpu_forward(struct mlp_gpu *g, const struct mlp *model, int n)
{
	struct mlp_loss_args args = { .logits = at(g->act[MLP_LAYERS], 0),
				      .labels = (const unsigned char *)at(g->labels, 0),
				      .loss = (double *)at(g->loss, 0),
				      .rows = (unsigned)n,
				      .classes = MLP_CLASSES };
	double loss = 0;

	CALL(g, cuMemcpyHtoDAsync, g->act[0], model->act[0], (size_t)n * MLP_PIXELS * sizeof(float), g->stream);
	CALL(g, cuMemcpyHtoDAsync, g->labels, model->labels, (size_t)n, g->stream);
	for (int l = 0; l < MLP_LAYERS; l++)
		layer_forward(g, l, (unsigned)n);
	launch(g, g->loss_of, ((unsigned)n + MLP_THREADS - 1) / MLP_THREADS, &args);
	CALL(g, cuMemcpyDtoHAsync, g->host_loss, g->loss, (size_t)n * sizeof(double), g->stream);
	CALL(g, cuStreamSynchronize, g->stream);
	for (int i = 0; i < n; i++)
		loss += g->host_loss[i];
	return loss / n;
}

/* From delta [n][wide], the gradient of what layer l gives, that of its weights and biases. */
static void layer_gradients(struct mlp_gpu *g, mlp_memory delta, int l, unsigned n, float scale)
{
	unsigned in = (unsigned)mlp_width[l], wide = (unsigned)mlp_width[l + 1];
	struct mlp_sum_args sum = { .in = at(delta, 0),
				    .out = at(g->grads, g->layout.grad[2 * l + 1]),
				    .rows = n,
				    .columns = wide,
				    .scale = scale };

	gemm(g, (struct mlp_gemm_args){ .a = at(delta, 0),
					.b = at(g->act[l], 0),
					.c = at(g->grads, g->layout.grad[2 * l]),
					.rows = wide,
					.columns = in,
					.depth = n,
					.a_row = 1,
					.a_column = wide,
					.b_row = in,
					.b_column = 1,
					.scale = scale,
					.after = MLP_AS_IS });
	launch(g, g->sum_rows, (wide + MLP_THREADS - 1) / MLP_THREADS, &sum);
}

/* And that of what layer l gets. */
static void layer_delta(struct mlp_gpu *g, mlp_memory delta, int l, unsigned n)
{
	unsigned in = (unsigned)mlp_width[l], wide = (unsigned)mlp_width[l + 1];

	gemm(g, (struct mlp_gemm_args){ .a = at(delta, 0),
					.b = at(g->params, g->layout.param[2 * l]),
					.extra = at(g->act[l], 0),
					.c = at(g->delta[l], 0),
					.rows = n,
					.columns = in,
					.depth = wide,
					.a_row = wide,
					.a_column = 1,
					.b_row = in,
					.b_column = 1,
					.scale = 1,
					.after = MLP_MASK });
}

void mlp_gpu_backward(struct mlp_gpu *g, int n, double scale)
{
	mlp_memory delta = g->act[MLP_LAYERS];

	for (int l = MLP_LAYERS - 1; l >= 0; l--) {
		layer_gradients(g, delta, l, (unsigned)n, (float)(scale / n));
		if (l == 0)
			break;
		layer_delta(g, delta, l, (unsigned)n);
		delta = g->delta[l];
	}
}
