/* SPDX-License-Identifier: Apache-2.0 */
/* gacc_cuda.so: the table of engine/device_plugin.h for NVIDIA GPUs, with one device and one job in a process. For an
 * engine, on its main thread. */
#include "cuda/arith_cuda.h"
#include "cuda/device_file.h"
#include "cuda/image.h"
#include "base/log.h"
#include "engine/device_plugin.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROC "/proc/driver/nvidia"

struct device {
	struct cuda_device gpu;
	struct cuda_memory memory;
	int file; /* SEG_DEVICE_FILE; -1: not open */
	int *fds; /* [memory.n + 1] */
};

extern const struct device_plugin gacc_device_plugin;

static void close_device(struct device *d)
{
	if (!d)
		return;
	cuda_memory_fini(&d->memory);
	cuda_device_close(&d->gpu);
	if (d->file >= 0)
		close(d->file);
	free(d->fds);
	free(d);
}

static enum status open_device(struct device **out, const char *gpu, const struct device_user *user, char *why,
			       size_t n_why)
{
	struct device *d = calloc(1, sizeof(*d));
	enum status st = ST_NO_MEMORY;
	snprintf(why, n_why, "%s", status_info(st)->text);
	if (!d)
		return st;
	log_init(user->ident, user->format, user->level);
	d->memory = CUDA_MEMORY_NONE;
	d->file = -1;
	if (cuda_image()) {
		st = cuda_device_open(&d->gpu, gpu, cuda_image(), why, n_why);
	} else {
		snprintf(why, n_why, "this build of gacc has no kernels for GPUs: it was made without nvcc");
		st = ST_INVALID_CONFIG;
	}
	if (st) {
		free(d);
		return st;
	}
	d->gpu.at_work = user->at_work;
	d->gpu.at_work_arg = user->arg;
	*out = d;
	return ST_OK;
}

/* The device's file. Where there is none to be found, /dev/null takes its place among the descriptors. */
static enum status open_file(struct device *d, char *why, size_t n_why)
{
	enum status st = device_file_open(PROC, "/dev", &d->gpu.uuid, &d->file, why, n_why);
	if (st != ST_IO_ERROR)
		return st;
	log_notice("gaccd does not hold the GPU's file open (%s): unless something else does, the job's memory is lost "
		   "when its engine ends",
		   why);
	d->file = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (d->file >= 0)
		return ST_OK;
	snprintf(why, n_why, "/dev/null: %s", strerror(errno));
	return ST_IO_ERROR;
}

static const char *name_device(const struct device *d)
{
	return d->gpu.name;
}

static enum status allocate(struct device *d, const struct plan *p, uint64_t generation, const int **fds, int *n,
			    char *why, size_t n_why)
{
	enum status st = d->file < 0 ? open_file(d, why, n_why) : ST_OK;
	if (!st)
		st = cuda_memory_make(&d->memory, &d->gpu, p, generation, why, n_why);
	if (st)
		return st;
	d->fds = calloc((size_t)d->memory.n + 1, sizeof(*d->fds));
	if (!d->fds) {
		cuda_memory_fini(&d->memory);
		snprintf(why, n_why, "%s", status_info(ST_NO_MEMORY)->text);
		return ST_NO_MEMORY;
	}
	for (int i = 0; i < d->memory.n; i++)
		d->fds[i] = d->memory.arena[i].fd;
	d->fds[d->memory.n] = d->file;
	*fds = d->fds;
	*n = d->memory.n + 1;
	return ST_OK;
}

static enum status adopt(struct device *d, const struct plan *p, uint64_t generation, const int *fds, int n, char *why,
			 size_t n_why)
{
	if (n > 0 && d->file < 0)
		d->file = fds[n - 1];
	else if (n > 0)
		close(fds[n - 1]);
	return cuda_memory_adopt(&d->memory, &d->gpu, p, generation, fds, n > 0 ? n - 1 : 0, why, n_why);
}

static enum status pin_slot(struct device *d, uint32_t slot, void *pages, uint64_t bytes)
{
	return cuda_memory_slot(&d->memory, slot, pages, bytes);
}

static enum status make_slot(struct device *d, uint32_t slot, uint64_t generation, int *fd, char *why, size_t n_why)
{
	return cuda_memory_make_slot(&d->memory, slot, generation, fd, why, n_why);
}

static enum status take_slot(struct device *d, uint32_t slot, uint64_t generation, int fd, char *why, size_t n_why)
{
	return cuda_memory_take_slot(&d->memory, slot, generation, fd, why, n_why);
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
	.identity = name_device,
	.allocate = allocate,
	.adopt = adopt,
	.slot = pin_slot,
	.make_slot = make_slot,
	.take_slot = take_slot,
	.arith = make_arith,
};
