/* SPDX-License-Identifier: Apache-2.0 */
/* One GPU, as an engine uses it: a context, a stream for everything that writes, the kernels, and waits that end.
 *
 * The engine uses one device of those that CUDA_VISIBLE_DEVICES leaves (choose.h). The context is the device's primary
 * one; it belongs to threads, so each thread but the one that opened the device calls cuda_enter before anything else.
 *
 * Errors. ST_NO_MEMORY: there is not so much. ST_INVALID_CONFIG: this GPU, or its driver, cannot do what is needed, and
 * `why` says it in a sentence. ST_IO_ERROR: the driver has reported an error, which is logged with its name, or the
 * device has not answered in time; nothing will succeed after it.
 */
#ifndef GACC_CUDA_DEVICE_H
#define GACC_CUDA_DEVICE_H

#include "cuda/device_file.h"
#include "math/cuda/kernels_cuda.h"
#include "proto/cuda_driver.h"
#include "proto/status.h"

#include <stddef.h>

struct cuda_device {
	struct cuda_driver cu;
	cu_device number;
	struct cu_uuid uuid;
	char name[CUDA_UUID_TEXT]; /* the UUID as text */
	unsigned processors;	   /* multiprocessors */
	cu_context context;
	cu_module module;
	cu_stream stream;
	int wake;	      /* eventfd, written when the stream has come so far */
	uint64_t patience_ns; /* of a wait, besides what its bytes need */
	bool may_rdma;
	/* Called at the end of each wait: so many calls in a row may take long, and each shows that the device gets on.
	 * NULL: nobody wants to know. May be set when it is open. */
	void (*at_work)(void *arg);
	void *at_work_arg;
};

/* gpu: as gpu_pick's name. image: a fat binary of math/cuda/kernels.cu, borrowed. For a thread that then is the
 * device's main thread. From then on the process may not fork or execute another program; one that is built with
 * assert() ends if it does. After an error there is nothing to close. */
enum status cuda_device_open(struct cuda_device *out, const char *gpu, const void *image, char *why, size_t n_why);
/* All memory has been given back before. */
void cuda_device_close(struct cuda_device *);

/* Makes the context this thread's. Any thread. */
enum status cuda_enter(const struct cuda_device *);

/* ST_OK for CUDA_SUCCESS; else the status, and `what` with the code's name in the log. Any thread. */
enum status cuda_check(const struct cuda_device *, const char *what, cu_result);

/* Queues a kernel with this argument, which is copied. Blocks: at least 1. */
enum status cuda_launch(const struct cuda_device *, const char *kernel, const void *argument, uint64_t blocks);
/* As many blocks as work and device call for, when one block takes `items` at a time. */
uint64_t cuda_blocks(const struct cuda_device *, uint64_t items);
/* Waits for all that is queued. bytes: about what it moves, for the deadline. */
enum status cuda_wait(const struct cuda_device *, uint64_t bytes);

/* Memory of this process alone, which ends with it: tables and results. Not zeroed. */
enum status cuda_private(const struct cuda_device *, uint64_t bytes, cu_memory *out);
void cuda_private_free(const struct cuda_device *, cu_memory); /* 0 is fine */
/* Copies between host memory and private memory, in the order of the stream. Device to host: nothing is on its way, so
 * cuda_wait comes before. */
enum status cuda_upload(const struct cuda_device *, cu_memory to, const void *from, uint64_t bytes);
enum status cuda_download(const struct cuda_device *, void *to, cu_memory from, uint64_t bytes);

/* Host memory that kernels can read; *out_seen is where. */
enum status cuda_pinned(const struct cuda_device *, uint64_t bytes, void **out, cu_memory *out_seen);
void cuda_pinned_free(const struct cuda_device *, void *); /* NULL is fine */
/* The same of memory that is there: whole pages, from the first one on, until cuda_unpin, before they are unmapped. */
enum status cuda_pin(const struct cuda_device *, void *pages, uint64_t bytes, cu_memory *out_seen);
void cuda_unpin(const struct cuda_device *, void *pages);

/* For arguments of kernels, which have pointers where the device has them. */
static inline void *cuda_pointer(cu_memory at)
{
	return (void *)(uintptr_t)at;
}

#endif
