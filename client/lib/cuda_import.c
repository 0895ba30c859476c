/* SPDX-License-Identifier: Apache-2.0 */
/* Imports a job's slots and parameters from a GPU's memory, and exchanges them beneath the same addresses. For map.c;
 * the job's thread. The descriptors come over the attach socket (daemon/cuda/memory.h says what they are). */
#include "lib/internal.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define FILL_BYTES ((size_t)16 << 20)

static struct cu_location location(const struct cuda *c)
{
	return (struct cu_location){ CU_MEM_LOCATION_TYPE_DEVICE, c->device };
}

/* In the context. As whoever made it has rounded it up. */
static cu_result measure(const struct cuda *c, size_t bytes, size_t *out)
{
	struct cu_allocation what = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
				      .requested_handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				      .location = location(c) };
	size_t grain = 0;
	int rdma = 0;
	cu_result code = c->api.cuDeviceGetAttribute(&rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
						     c->device);

	what.flags.gpu_direct_rdma_capable = rdma != 0;
	if (!code)
		code = c->api.cuMemGetAllocationGranularity(&grain, &what, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
	if (!code)
		*out = (bytes + grain - 1) / grain * grain;
	return code;
}

/* At an address that is reserved. */
static cu_result map_at(const struct cuda *c, const struct cuda_imported *m, bool writable)
{
	const struct cu_access access = { location(c), writable ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
								: CU_MEM_ACCESS_FLAGS_PROT_READ };
	cu_result code = c->api.cuMemMap(m->at, m->bytes, 0, m->handle, 0);

	if (code)
		return code;
	code = c->api.cuMemSetAccess(m->at, m->bytes, &access, 1);
	if (code)
		c->api.cuMemUnmap(m->at, m->bytes);
	return code;
}

static cu_result import_it(const struct cuda *c, int fd, bool writable, struct cuda_imported *m, const char **what)
{
	cu_result code;

	*what = "cuMemImportFromShareableHandle";
	code = c->api.cuMemImportFromShareableHandle(&m->handle, (void *)(intptr_t)fd,
						     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (code)
		return code;
	*what = "cuMemAddressReserve";
	code = c->api.cuMemAddressReserve(&m->at, m->bytes, 0, 0, 0);
	if (!code) {
		*what = "cuMemMap";
		code = map_at(c, m, writable);
		if (code)
			c->api.cuMemAddressFree(m->at, m->bytes);
	}
	if (code)
		c->api.cuMemRelease(m->handle);
	return code;
}

enum status cuda_import(const struct cuda *c, int fd, size_t bytes, bool writable, struct cuda_imported *out, char *why,
			size_t size)
{
	const char *what = "cuMemGetAllocationGranularity";
	struct cuda_imported m = { 0 };
	cu_context before;
	cu_result code = cuda_enter(c, &before);

	if (!code) {
		code = measure(c, bytes, &m.bytes);
		if (!code)
			code = import_it(c, fd, writable, &m, &what);
		cuda_leave(c, before);
	}
	if (!code) {
		*out = m;
		return ST_OK;
	}
	*out = (struct cuda_imported){ 0 };
	snprintf(why, size, "%s: %s", what, cuda_result_name(&c->api, code));
	return code == CUDA_ERROR_OUT_OF_MEMORY ? ST_NO_MEMORY : ST_IO_ERROR;
}

static void drop_in_context(const struct cuda *c, struct cuda_imported *m)
{
	c->api.cuMemUnmap(m->at, m->bytes);
	c->api.cuMemAddressFree(m->at, m->bytes);
	c->api.cuMemRelease(m->handle);
	*m = (struct cuda_imported){ 0 };
}

void cuda_drop(const struct cuda *c, struct cuda_imported *m)
{
	cu_context before;
	const bool entered = !cuda_enter(c, &before);

	drop_in_context(c, m);
	if (entered)
		cuda_leave(c, before);
}

/* In the context. The old memory is given back; its addresses get the fresh one. */
static cu_result replace(const struct cuda *c, struct cuda_imported *old, struct cuda_imported *fresh, bool writable,
			 size_t data_offset)
{
	struct cuda_imported m = { old->at, fresh->bytes, fresh->handle };
	cu_result code = CUDA_SUCCESS;

	if (fresh->bytes != old->bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (writable)
		code = c->api.cuMemcpyDtoDAsync(fresh->at + data_offset, old->at + data_offset,
						old->bytes - data_offset, c->side);
	if (!code && writable)
		code = c->api.cuStreamSynchronize(c->side);
	if (code)
		return code;
	c->api.cuMemUnmap(fresh->at, fresh->bytes);
	c->api.cuMemAddressFree(fresh->at, fresh->bytes);
	c->api.cuMemUnmap(old->at, old->bytes);
	c->api.cuMemRelease(old->handle);
	*old = m;
	*fresh = (struct cuda_imported){ 0 };
	return map_at(c, old, writable);
}

enum status cuda_replace(const struct cuda *c, struct cuda_imported *old, struct cuda_imported *fresh, bool writable,
			 size_t data_offset)
{
	cu_context before;
	cu_result code = cuda_enter(c, &before);

	if (code)
		return ST_IO_ERROR;
	code = replace(c, old, fresh, writable, data_offset);
	cuda_leave(c, before);
	return code ? ST_IO_ERROR : ST_OK;
}

/* In the context. */
static cu_result fill(const struct cuda *c, const struct layout *l, const void *const *values, size_t offset, size_t n,
		      cu_memory to, unsigned char *piece)
{
	cu_result code = CUDA_SUCCESS;

	for (size_t at = 0, k; at < n && !code; at += k) {
		k = n - at < FILL_BYTES ? n - at : FILL_BYTES;
		layout_gather(l, values, offset + at, piece, k);
		code = c->api.cuMemcpyHtoDAsync(to + at, piece, k, c->side);
		if (!code)
			code = c->api.cuStreamSynchronize(c->side);
	}
	return code;
}

enum status cuda_fill(const struct cuda *c, const struct layout *l, const void *const *values, size_t offset, size_t n,
		      cu_memory to, char *why, size_t size)
{
	unsigned char *piece = malloc(n < FILL_BYTES ? n : FILL_BYTES);
	cu_context before;
	cu_result code = piece ? cuda_enter(c, &before) : CUDA_ERROR_OUT_OF_MEMORY;

	if (!code) {
		code = fill(c, l, values, offset, n, to, piece);
		cuda_leave(c, before);
	}
	free(piece);
	if (!code)
		return ST_OK;
	snprintf(why, size, "%s", cuda_result_name(&c->api, code));
	return code == CUDA_ERROR_OUT_OF_MEMORY ? ST_NO_MEMORY : ST_IO_ERROR;
}
