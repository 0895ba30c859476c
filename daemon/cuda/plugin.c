/* SPDX-License-Identifier: Apache-2.0 */
/* gacc_cuda.so: the table of engine/device_plugin.h for NVIDIA GPUs, with one device and one job in a process. For an
 * engine, on its main thread. */
#include "cuda/arith_cuda.h"
#include "cuda/image.h"
#include "engine/device_plugin.h"

#include <stdio.h>
#include <stdlib.h>

struct device {
	struct cuda_device gpu;
	struct cuda_memory memory;
	int *fds; /* [memory.n] */
};

extern const struct device_plugin gacc_device_plugin;

static void close_device(struct device *d)
{
	if (!d)
		return;
	cuda_memory_fini(&d->memory);
	cuda_device_close(&d->gpu);
	free(d->fds);
	free(d);
}

static enum status open_device(struct device **out, const struct device_log *log, char *why, size_t n_why)
{
	struct device *d = calloc(1, sizeof(*d));
	enum status st = ST_NO_MEMORY;
	snprintf(why, n_why, "%s", status_info(st)->text);
	if (!d)
		return st;
	log_init(log->ident, log->format, log->level);
	d->memory = CUDA_MEMORY_NONE;
	if (cuda_image()) {
		st = cuda_device_open(&d->gpu, cuda_image(), why, n_why);
	} else {
		snprintf(why, n_why, "this build of gacc has no kernels for GPUs: it was made without nvcc");
		st = ST_INVALID_CONFIG;
	}
	if (st)
		free(d);
	else
		*out = d;
	return st;
}

static enum status allocate(struct device *d, const struct plan *p, uint64_t generation, const int **fds, int *n,
			    char *why, size_t n_why)
{
	enum status st = cuda_memory_make(&d->memory, &d->gpu, p, generation, why, n_why);
	if (st)
		return st;
	d->fds = calloc((size_t)d->memory.n, sizeof(*d->fds));
	if (!d->fds) {
		cuda_memory_fini(&d->memory);
		snprintf(why, n_why, "%s", status_info(ST_NO_MEMORY)->text);
		return ST_NO_MEMORY;
	}
	for (int i = 0; i < d->memory.n; i++)
		d->fds[i] = d->memory.arena[i].fd;
	*fds = d->fds;
	*n = d->memory.n;
	return ST_OK;
}

static enum status adopt(struct device *d, const struct plan *p, uint64_t generation, const int *fds, int n, char *why,
			 size_t n_why)
{
	return cuda_memory_adopt(&d->memory, &d->gpu, p, generation, fds, n, why, n_why);
}

static enum status take_slot(struct device *d, uint32_t slot, void *pages, uint64_t bytes)
{
	return cuda_memory_slot(&d->memory, slot, pages, bytes);
}

static enum status make_arith(struct device *d, struct arith **out, const struct control_page *page,
			      bool others_are_over, uint64_t quiet_ns, char *why, size_t n_why)
{
	return arith_cuda_open(out, &d->memory, page, others_are_over, quiet_ns, why, n_why);
}

__attribute__((visibility("default"))) const struct device_plugin gacc_device_plugin = {
	.version = DEVICE_PLUGIN_VERSION,
	.name = "cuda",
	.takes = arith_cuda_takes,
	.open = open_device,
	.close = close_device,
	.allocate = allocate,
	.adopt = adopt,
	.slot = take_slot,
	.arith = make_arith,
};
