/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a GPU through its driver, launches kernels and waits for them with a deadline. For the rest of the room; the
 * engine's main thread, cuda_enter and cuda_check also the thread that writes checkpoints. */
#include "cuda/device.h"

#include "base/log.h"
#include "cuda/choose.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_NS (UINT64_C(60) * 1000000000)
#define BYTES_PER_NS 5 /* slower than any device */
#define EAGER_NS 50000 /* asked again and again for so long: small passes are done then */
#define NAP_MS 100     /* the driver may not call after an error */
#define BLOCKS_EACH 4  /* blocks for a multiprocessor */

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

enum status cuda_check(const struct cuda_device *d, const char *what, cu_result result)
{
	if (result == CUDA_SUCCESS)
		return ST_OK;
	log_error("%s: %s", what, cuda_result_name(&d->cu, result));
	return result == CUDA_ERROR_OUT_OF_MEMORY ? ST_NO_MEMORY : ST_IO_ERROR;
}

/* ---- opening ---- */

static enum status refuse(char *why, size_t n_why, const char *reason)
{
	snprintf(why, n_why, "%s", reason);
	return ST_INVALID_CONFIG;
}

static enum status failed(const struct cuda_device *d, const char *what, cu_result r, char *why, size_t n_why)
{
	snprintf(why, n_why, "%s: %s", what, cuda_result_name(&d->cu, r));
	return r == CUDA_ERROR_OUT_OF_MEMORY ? ST_NO_MEMORY
	       : r == CUDA_ERROR_NO_DEVICE   ? ST_INVALID_CONFIG
					     : ST_IO_ERROR;
}

static int attribute(const struct cuda_device *d, cu_attribute which)
{
	int value = 0;
	return d->cu.cuDeviceGetAttribute(&value, which, d->number) ? 0 : value;
}

static enum status find(struct cuda_device *d, const char *gpu, char *why, size_t n_why)
{
	struct gpu_seen chosen;
	const cu_result r = d->cu.cuInit(0);
	if (r)
		return failed(d, "cuInit", r, why, n_why);
	const enum status st = cuda_choose(&d->cu, gpu, &chosen, why, n_why);
	if (st)
		return st;
	d->number = chosen.number;
	d->uuid = chosen.uuid;
	memcpy(d->name, chosen.name, sizeof(d->name));
	return ST_OK;
}

/* What is needed and may be missing. */
static enum status examine(struct cuda_device *d, char *why, size_t n_why)
{
	if (!attribute(d, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED))
		return refuse(why, n_why,
			      "this GPU's driver has no virtual memory management, which shared memory needs");
	if (!attribute(d, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
		return refuse(why, n_why, "this GPU's driver cannot hand memory to other processes as descriptors");
	const int mode = attribute(d, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
	if (mode == CU_COMPUTEMODE_EXCLUSIVE_PROCESS || mode == CU_COMPUTEMODE_PROHIBITED)
		return refuse(
			why, n_why,
			"this GPU's compute mode lets no two processes share it: nvidia-smi -c DEFAULT changes it");
	d->may_rdma = attribute(d, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
	const int n = attribute(d, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
	d->processors = n > 0 ? (unsigned)n : 1;
	return ST_OK;
}

static enum status begin(struct cuda_device *d, const void *image, char *why, size_t n_why)
{
	cu_result r = d->cu.cuDevicePrimaryCtxRetain(&d->context, d->number);
	if (r) {
		d->context = NULL;
		return failed(d, "cuDevicePrimaryCtxRetain", r, why, n_why);
	}
	if ((r = d->cu.cuCtxSetCurrent(d->context)))
		return failed(d, "cuCtxSetCurrent", r, why, n_why);
	if ((r = d->cu.cuStreamCreate(&d->stream, CU_STREAM_NON_BLOCKING)))
		return failed(d, "cuStreamCreate", r, why, n_why);
	if ((r = d->cu.cuModuleLoadData(&d->module, image)))
		return failed(d, "loading the kernels", r, why, n_why);
	d->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (d->wake >= 0)
		return ST_OK;
	snprintf(why, n_why, "eventfd: %s", strerror(errno));
	return ST_IO_ERROR;
}

/* A child would share the open files of the device and keep its queues alive after this process' death: then nobody
 * could say any more when its work is over. Builds without assert() do not look. */
static void forbid_forks(void)
{
#ifndef NDEBUG
	pthread_atfork(abort, NULL, NULL);
#endif
}

enum status cuda_device_open(struct cuda_device *out, const char *gpu, const void *image, char *why, size_t n_why)
{
	struct cuda_device d = { .wake = -1, .patience_ns = PATIENCE_NS };
	if (!cuda_driver_load(&d.cu, why, n_why))
		return ST_INVALID_CONFIG;
	enum status st = find(&d, gpu, why, n_why);
	if (!st)
		st = examine(&d, why, n_why);
	if (!st)
		st = begin(&d, image, why, n_why);
	if (st) {
		cuda_device_close(&d);
		return st;
	}
	forbid_forks();
	*out = d;
	return ST_OK;
}

void cuda_device_close(struct cuda_device *d)
{
	if (d->module)
		d->cu.cuModuleUnload(d->module);
	if (d->stream)
		d->cu.cuStreamDestroy(d->stream);
	if (d->context)
		d->cu.cuDevicePrimaryCtxRelease(d->number);
	if (d->wake >= 0)
		close(d->wake);
	d->module = NULL;
	d->stream = NULL;
	d->context = NULL;
	d->wake = -1;
}

enum status cuda_enter(const struct cuda_device *d)
{
	return cuda_check(d, "cuCtxSetCurrent", d->cu.cuCtxSetCurrent(d->context));
}

/* ---- kernels ---- */

enum status cuda_launch(const struct cuda_device *d, const char *kernel, const void *argument, uint64_t blocks)
{
	void *params[] = { (void *)argument }; /* read only */
	cu_function f;
	enum status st = cuda_check(d, kernel, d->cu.cuModuleGetFunction(&f, d->module, kernel));
	return st ? st
		  : cuda_check(d, kernel,
			       d->cu.cuLaunchKernel(f, (unsigned)blocks, 1, 1, CUDA_THREADS, 1, 1, 0, d->stream, params,
						    NULL));
}

uint64_t cuda_blocks(const struct cuda_device *d, uint64_t items)
{
	const uint64_t most = (uint64_t)d->processors * BLOCKS_EACH;
	return items < 1 ? 1 : items < most ? items : most;
}

/* Called by the driver, on a thread of its own. */
static void wake_up(void *arg)
{
	const uint64_t one = 1;
	ssize_t n = write((int)(intptr_t)arg, &one, sizeof(one));
	(void)n; /* full is as good */
}

static void drain(int fd)
{
	uint64_t count;
	ssize_t n = read(fd, &count, sizeof(count));
	(void)n; /* it may be empty */
}

enum status cuda_wait(const struct cuda_device *d, uint64_t bytes)
{
	const uint64_t begun = now_ns(), end = begun + d->patience_ns + bytes / BYTES_PER_NS;
	uint64_t eager = begun + EAGER_NS;
	bool called = false;
	for (uint64_t now = begun;; now = now_ns()) {
		const cu_result r = d->cu.cuStreamQuery(d->stream);
		if (r != CUDA_ERROR_NOT_READY) {
			if (d->at_work)
				d->at_work(d->at_work_arg);
			return cuda_check(d, "the GPU", r);
		}
		if (now >= end) {
			log_error("the GPU has not answered for %llu ms",
				  (unsigned long long)((now - begun) / 1000000));
			return ST_IO_ERROR;
		}
		if (now < eager)
			continue;
		if (!called) {
			drain(d->wake);
			const enum status st =
				cuda_check(d, "cuLaunchHostFunc",
					   d->cu.cuLaunchHostFunc(d->stream, wake_up, (void *)(intptr_t)d->wake));
			if (st)
				return st;
			called = true;
		}
		const uint64_t left_ms = (end - now) / 1000000 + 1;
		if (poll(&(struct pollfd){ .fd = d->wake, .events = POLLIN }, 1,
			 left_ms < NAP_MS ? (int)left_ms : NAP_MS) > 0) {
			drain(d->wake);
			eager = now_ns() + EAGER_NS; /* the call that woke us is on the stream, too, and has to end */
			called = false;		     /* if that takes longer, the next one wakes us */
		}
	}
}

/* ---- memory of this process ---- */

enum status cuda_private(const struct cuda_device *d, uint64_t bytes, cu_memory *out)
{
	return cuda_check(d, "cuMemAlloc", d->cu.cuMemAlloc(out, bytes ? bytes : 1));
}

void cuda_private_free(const struct cuda_device *d, cu_memory at)
{
	if (at)
		d->cu.cuMemFree(at);
}

enum status cuda_upload(const struct cuda_device *d, cu_memory to, const void *from, uint64_t bytes)
{
	return bytes ? cuda_check(d, "a copy to the GPU", d->cu.cuMemcpyHtoDAsync(to, from, bytes, d->stream)) : ST_OK;
}

enum status cuda_download(const struct cuda_device *d, void *to, cu_memory from, uint64_t bytes)
{
	enum status st =
		bytes ? cuda_check(d, "a copy from the GPU", d->cu.cuMemcpyDtoHAsync(to, from, bytes, d->stream))
		      : ST_OK;
	return st ? st : cuda_wait(d, bytes);
}

enum status cuda_pinned(const struct cuda_device *d, uint64_t bytes, void **out, cu_memory *out_seen)
{
	enum status st =
		cuda_check(d, "cuMemHostAlloc",
			   d->cu.cuMemHostAlloc(out, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
	if (st)
		return st;
	st = cuda_check(d, "cuMemHostGetDevicePointer", d->cu.cuMemHostGetDevicePointer(out_seen, *out, 0));
	if (st)
		cuda_pinned_free(d, *out);
	return st;
}

void cuda_pinned_free(const struct cuda_device *d, void *p)
{
	if (p)
		d->cu.cuMemFreeHost(p);
}

enum status cuda_pin(const struct cuda_device *d, void *pages, uint64_t bytes, cu_memory *out_seen)
{
	const unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
	enum status st = cuda_check(d, "cuMemHostRegister", d->cu.cuMemHostRegister(pages, bytes, flags));
	if (st)
		return st;
	st = cuda_check(d, "cuMemHostGetDevicePointer", d->cu.cuMemHostGetDevicePointer(out_seen, pages, 0));
	if (st)
		cuda_unpin(d, pages);
	return st;
}

void cuda_unpin(const struct cuda_device *d, void *pages)
{
	cuda_check(d, "cuMemHostUnregister", d->cu.cuMemHostUnregister(pages));
}
