/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: copies, sets, and single words. A copy to or from host memory that is not registered is synchronous. */
#include "api.h"

#include "device.h"
#include "driver.h"
#include "faults.h"
#include "graph.h"
#include "host_memory.h"
#include "memory.h"
#include "options.h"
#include "stream.h"

/* One side of a copy, or of the first part of one. */
struct side {
	char *at; /* where its pages are */
	size_t n; /* bytes there */
	bool is_pageable;
};

/* What a device's address means: its memory, or pinned memory of the host. False: nothing, or not all of it. */
static bool find_device(cu_memory memory, size_t n, struct side *out)
{
	void *pages = (char *)(uintptr_t)memory;
	*out = (struct side){ pages, n, false };
	if (memory_is_device(pages, n))
		return true;
	bool pinned = host_memory_find(pages, n, &pages, &out->n) == PINNED_ALL;
	out->at = pages;
	return pinned;
}

static bool find_host(cu_memory memory, size_t n, struct side *out)
{
	void *pages = (char *)(uintptr_t)memory;
	enum pinned pinned = host_memory_find(pages, n, &pages, &out->n);
	out->at = pages;
	out->is_pageable = pinned == PINNED_NOT;
	return memory && pinned != PINNED_PARTLY;
}

typedef bool find_fn(cu_memory, size_t n, struct side *out);

/* The number of the operation in its stream; 0: no memory. */
static uint64_t queue_part(struct stream *s, const struct side *to, const struct side *from, size_t n)
{
	struct operation *op = stream_operation(OPERATION_COPY, 0);
	if (!op)
		return 0;
	op->counted = faults_count_copy();
	op->to = to->at;
	op->from = from->at;
	op->n = n;
	return stream_queue(s, op);
}

/* With the lock. Memory that several registrations cover is copied part by part. */
static cu_result queue_copy(struct stream *s, cu_memory to, find_fn *find_to, cu_memory from, find_fn *find_from,
			    size_t n)
{
	struct side target, source;
	uint64_t number = 0;
	if (!s)
		return CUDA_ERROR_INVALID_HANDLE;
	for (size_t part; n; to += part, from += part, n -= part) {
		if (!find_to(to, n, &target) || !find_from(from, n, &source))
			return CUDA_ERROR_INVALID_VALUE;
		if (target.is_pageable && n > options()->pageable)
			return CUDA_ERROR_INVALID_VALUE;
		if (s->capture && (target.is_pageable || source.is_pageable))
			return graph_break(s);
		part = target.n < source.n ? target.n : source.n;
		number = queue_part(s, &target, &source, part);
		if (!number)
			return CUDA_ERROR_OUT_OF_MEMORY;
		if (target.is_pageable || source.is_pageable)
			stream_wait(s, number);
	}
	return CUDA_SUCCESS;
}

static cu_result copy(cu_memory to, find_fn *find_to, cu_memory from, find_fn *find_from, size_t n, cu_stream handle)
{
	driver_lock();
	cu_result result = queue_copy(stream_find(handle), to, find_to, from, find_from, n);
	driver_unlock();
	return result;
}

static cu_memory host(const void *p)
{
	return (cu_memory)(uintptr_t)p;
}

cu_result cuMemcpyHtoDAsync_v2(cu_memory to, const void *from, size_t n, cu_stream stream)
{
	ENTER(NEEDS_CONTEXT);
	return copy(to, find_device, host(from), find_host, n, stream);
}

cu_result cuMemcpyDtoHAsync_v2(void *to, cu_memory from, size_t n, cu_stream stream)
{
	ENTER(NEEDS_CONTEXT);
	return copy(host(to), find_host, from, find_device, n, stream);
}

cu_result cuMemcpyDtoDAsync_v2(cu_memory to, cu_memory from, size_t n, cu_stream stream)
{
	ENTER(NEEDS_CONTEXT);
	return copy(to, find_device, from, find_device, n, stream);
}

/* The rest of the copies that are not asynchronous. */
static cu_result wait_for_default(cu_result result)
{
	if (result)
		return result;
	driver_lock();
	struct stream *s = stream_find(NULL);
	if (s)
		stream_wait(s, s->queued);
	driver_unlock();
	return driver_sticky();
}

cu_result cuMemcpyHtoD_v2(cu_memory to, const void *from, size_t n)
{
	ENTER(NEEDS_CONTEXT);
	return wait_for_default(copy(to, find_device, host(from), find_host, n, NULL));
}

cu_result cuMemcpyDtoH_v2(void *to, cu_memory from, size_t n)
{
	ENTER(NEEDS_CONTEXT);
	return wait_for_default(copy(host(to), find_host, from, find_device, n, NULL));
}

/* With the lock: a set, or a word. */
static cu_result queue_value(enum operation_kind kind, cu_memory to, uint64_t value, size_t n, cu_stream handle)
{
	struct side target;
	struct stream *s = stream_find(handle);
	if (!s)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!find_device(to, n, &target) || target.n != n)
		return CUDA_ERROR_INVALID_VALUE;
	struct operation *op = stream_operation(kind, 0);
	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (kind != OPERATION_WRITE)
		op->counted = faults_count_copy();
	op->to = target.at;
	op->n = n;
	op->value = value;
	stream_queue(s, op);
	return CUDA_SUCCESS;
}

cu_result cuMemsetD8Async(cu_memory to, unsigned char value, size_t n, cu_stream stream)
{
	ENTER(NEEDS_CONTEXT);
	driver_lock();
	cu_result result = n ? queue_value(OPERATION_SET, to, value, n, stream) : CUDA_SUCCESS;
	driver_unlock();
	return result;
}

cu_result cuMemsetD32_v2(cu_memory to, unsigned value, size_t n)
{
	ENTER(NEEDS_CONTEXT);
	if (to % sizeof(value))
		return CUDA_ERROR_INVALID_VALUE;
	driver_lock();
	cu_result result = n ? queue_value(OPERATION_SET_WORDS, to, value, n * sizeof(value), NULL) : CUDA_SUCCESS;
	driver_unlock();
	return result;
}

cu_result cuStreamWriteValue64_v2(cu_stream stream, cu_memory to, uint64_t value, unsigned flags)
{
	ENTER(NEEDS_CONTEXT);
	if (!device_attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS))
		return CUDA_ERROR_NOT_SUPPORTED;
	if (flags != CU_STREAM_WRITE_VALUE_DEFAULT || to % sizeof(value))
		return CUDA_ERROR_INVALID_VALUE;
	driver_lock();
	cu_result result = queue_value(OPERATION_WRITE, to, value, sizeof(value), stream);
	driver_unlock();
	return result;
}
