/* SPDX-License-Identifier: Apache-2.0 */
/* Launches gacc's kernels as daemon/cuda does, without a job. */
#include "proto/cuda_driver.h"
#include "gpu_kernels.h"

#include "cuda/image.h"
#include "gpu_probe.h"
#include "math/cuda/launches.h"
#include "math/kernels_scalar.h"

#include <stdio.h>
#include <stdlib.h>

#define SHARES_EACH 2 /* for a multiprocessor, as in cuda/memory.c */

static void fail(const struct gpu *g, const char *text)
{
	row(g->number, g->what, "FAILED: %s", text);
	exit(1);
}

void gpu_must(const struct gpu *g, enum status st)
{
	if (st)
		fail(g, "the driver has failed, as said above");
}

void gpu_call(const struct gpu *g, const char *name, cu_result r)
{
	char text[200];

	snprintf(text, sizeof(text), "%s: %s", name, r ? cuda_result_name(&g->device.cu, r) : "");
	if (r)
		fail(g, text);
}

void gpu_launch(const struct gpu *g, const char *kernel, const void *argument, uint64_t blocks)
{
	gpu_must(g, cuda_launch(&g->device, kernel, argument, blocks));
}

void gpu_wait(const struct gpu *g)
{
	gpu_must(g, cuda_wait(&g->device, 0));
}

void gpu_upload(const struct gpu *g, cu_memory to, const void *from, uint64_t bytes)
{
	gpu_must(g, cuda_upload(&g->device, to, from, bytes));
	gpu_wait(g);
}

void gpu_download(const struct gpu *g, void *to, cu_memory from, uint64_t bytes)
{
	gpu_wait(g);
	gpu_must(g, cuda_download(&g->device, to, from, bytes));
}

cu_memory gpu_alloc(const struct gpu *g, uint64_t bytes)
{
	cu_memory at = 0;

	gpu_must(g, cuda_private(&g->device, bytes, &at));
	return at;
}

void gpu_open_gate(struct gpu *g, cu_memory gate)
{
	struct cuda_open a;

	g->gate = gate;
	g->pass = (struct cuda_pass){ cuda_pointer(gate), 1 };
	a.pass = g->pass;
	gpu_launch(g, "open_gate", &a, 1);
	gpu_wait(g);
}

/* Processes that hand memory to each other are on the same GPU: the first one. "": the driver does not say. */
static void first_gpu(char name[CUDA_UUID_TEXT])
{
	struct cuda_driver cu;
	struct cu_uuid uuid;
	cu_device first;
	char why[300];

	*name = '\0';
	if (cuda_driver_load(&cu, why, sizeof(why)) && !cu.cuInit(0) && !cu.cuDeviceGet(&first, 0) &&
	    !cu.cuDeviceGetUuid(&uuid, first))
		cuda_uuid_text(&uuid, name);
}

bool gpu_open(struct gpu *g, int number, const char *what)
{
	static const struct cuda_gate closed;
	char why[300], name[CUDA_UUID_TEXT];

	*g = (struct gpu){ .number = number, .what = what };
	if (!cuda_image()) {
		row(number, what, "not run: this build has no kernels for GPUs, as there was no nvcc");
		return false;
	}
	first_gpu(name);
	if (cuda_device_open(&g->device, name, cuda_image(), why, sizeof(why)))
		fail(g, why);
	g->keys = gpu_alloc(g, sizeof(digest_key));
	gpu_upload(g, g->keys, digest_key, sizeof(digest_key));
	g->gate = gpu_alloc(g, sizeof(closed));
	gpu_upload(g, g->gate, &closed, sizeof(closed));
	gpu_open_gate(g, g->gate);
	return true;
}

/* ---- passes ---- */

void gpu_add(const struct gpu *g, const struct gpu_add *add)
{
	const uint64_t tiles = (add->n + CUDA_TILE * KERNEL_BLOCK - 1) / (CUDA_TILE * KERNEL_BLOCK);
	const uint64_t blocks = add->n / KERNEL_BLOCK;
	char kernel[CUDA_NAME_MAX];
	struct cuda_add a = { .pass = g->pass,
			      .dst = cuda_pointer(add->dst),
			      .src = cuda_pointer(add->src),
			      .n = add->n,
			      .n_sources = add->n_sources,
			      .keys = cuda_pointer(g->keys) };

	for (uint32_t i = 0; i < add->n_sources; i++) {
		a.g[i] = cuda_pointer(add->g[i]);
		a.coef[i] = add->coef;
	}
	if (add->norm)
		a.out = (struct cuda_partials){ cuda_pointer(add->norm), cuda_pointer(add->norm + blocks * 8),
						cuda_pointer(add->norm + blocks * 16) };
	cuda_add_name(add->dtype, add->n_sources, add->norm != 0, kernel);
	gpu_launch(g, kernel, &a, add->blocks ? add->blocks : cuda_blocks(&g->device, tiles));
}

/* ---- updates ---- */

struct kernel_update gpu_small_steps(void)
{
	const struct optim_config c = {
		.type = OPTIM_ADAMW, .lr = 1e-7, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01
	};
	const struct optim_group group = { .lr_scale = 1, .weight_decay = 0.01 };
	struct kernel_update u;

	optim_step(&c, &group, 3, c.lr, 1, 0, &u);
	return u;
}

void gpu_adamw_open(const struct gpu *g, struct gpu_adamw *a)
{
	struct {
		struct cuda_range range;
		struct cuda_scalars scalars;
	} table = { .range = { .count = a->n,
			       .p = cuda_pointer(a->p),
			       .m = cuda_pointer(a->m),
			       .v = cuda_pointer(a->v),
			       .p16 = cuda_pointer(a->p16),
			       .g = cuda_pointer(a->g),
			       .p16_dtype = a->p16 ? DTYPE_BF16 : DTYPE_NONE } };
	const uint64_t most = (uint64_t)g->device.processors * SHARES_EACH;

	cuda_scalars_of(&a->update, &table.scalars);
	table.range.lr = a->update.lr;
	a->units = (a->n + KERNEL_BLOCK - 1) / KERNEL_BLOCK;
	a->shares = a->units < most ? a->units : most;
	a->table = gpu_alloc(g, sizeof(table));
	gpu_upload(g, a->table, &table, sizeof(table));
	a->stamp = gpu_alloc(g, a->shares * sizeof(cuda_word));
	a->undo = gpu_alloc(g, a->shares * 2 * CUDA_UNDO_HALF * sizeof(float));
	a->partials = gpu_alloc(g, a->units * (sizeof(cuda_word) + sizeof(uint32_t)));
	gpu_call(g, "cuMemsetD8Async",
		 g->device.cu.cuMemsetD8Async(a->stamp, 0, a->shares * sizeof(cuda_word), g->device.stream));
	gpu_wait(g);
}

void gpu_adamw(const struct gpu *g, const struct gpu_adamw *a, uint64_t window)
{
	const struct cuda_update u = { .pass = g->pass,
				       .window = window,
				       .stamp = cuda_pointer(a->stamp),
				       .undo = cuda_pointer(a->undo),
				       .n = a->units,
				       .n_shares = a->shares,
				       .range = cuda_pointer(a->table),
				       .n_ranges = 1,
				       .scalars = cuda_pointer(a->table + sizeof(struct cuda_range)),
				       .digest = cuda_pointer(a->partials),
				       .nonfinite = cuda_pointer(a->partials + a->units * sizeof(cuda_word)),
				       .keys = cuda_pointer(g->keys) };

	gpu_launch(g, "update_begin", &u, cuda_blocks(&g->device, a->shares / CUDA_THREADS));
	gpu_launch(g, "adamw", &u, a->shares);
}
