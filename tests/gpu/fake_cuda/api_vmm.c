/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: allocations without an address, their addresses, and their descriptors. */
#include "api.h"

#include "device.h"
#include "driver.h"
#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>

static char *pointer(cu_memory memory)
{
	return (char *)(uintptr_t)memory;
}

static cu_result check(const struct cu_allocation *what)
{
	if (!device_attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED))
		return CUDA_ERROR_NOT_SUPPORTED;
	if (what->type != CU_MEM_ALLOCATION_TYPE_PINNED || what->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    what->win32_handle_metadata || what->requested_handle_types & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_is(what->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	if (what->requested_handle_types &&
	    !device_attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
		return CUDA_ERROR_NOT_SUPPORTED;
	if (what->flags.gpu_direct_rdma_capable &&
	    !device_attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED))
		return CUDA_ERROR_NOT_SUPPORTED;
	return CUDA_SUCCESS;
}

cu_result cuMemGetAllocationGranularity(size_t *out, const struct cu_allocation *what, cu_granularity which)
{
	ENTER(NEEDS_INIT);
	*out = GRANULARITY;
	return which > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED ? CUDA_ERROR_INVALID_VALUE : check(what);
}

cu_result cuMemCreate(cu_handle *out, size_t n, const struct cu_allocation *what, unsigned long long flags)
{
	struct allocation *a;
	ENTER(NEEDS_INIT);
	cu_result result = !n || n % GRANULARITY || flags ? CUDA_ERROR_INVALID_VALUE : check(what);
	if (result)
		return result;
	driver_lock();
	result = allocation_make(device_on_machine(what->location.id), n, what->requested_handle_types != 0, &a);
	driver_unlock();
	if (!result)
		*out = allocation_handle(a);
	return result;
}

cu_result cuMemRelease(cu_handle handle)
{
	ENTER(NEEDS_INIT);
	driver_lock();
	struct allocation *a = allocation_find(handle);
	if (a) {
		a->n_handles--;
		allocation_drop(a);
	}
	driver_unlock();
	return a ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

cu_result cuMemExportToShareableHandle(void *out, cu_handle handle, cu_handle_type type, unsigned long long flags)
{
	ENTER(NEEDS_INIT);
	int fd = -1;
	driver_lock();
	struct allocation *a = allocation_find(handle);
	bool right = a && a->exportable && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && !flags;
	if (right)
		fd = fcntl(a->fd, F_DUPFD_CLOEXEC, 0);
	driver_unlock();
	if (!right)
		return CUDA_ERROR_INVALID_VALUE;
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	*(int *)out = fd;
	return CUDA_SUCCESS;
}

cu_result cuMemImportFromShareableHandle(cu_handle *out, void *fd, cu_handle_type type)
{
	struct allocation *a;
	ENTER(NEEDS_INIT);
	if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	driver_lock();
	cu_result result = allocation_import((int)(intptr_t)fd, &a);
	driver_unlock();
	if (!result)
		*out = allocation_handle(a);
	return result;
}

cu_result cuMemAddressReserve(cu_memory *out, size_t n, size_t align, cu_memory at, unsigned long long flags)
{
	char *p;
	ENTER(NEEDS_INIT);
	if (n % GRANULARITY || flags)
		return CUDA_ERROR_INVALID_VALUE;
	driver_lock();
	cu_result result = memory_reserve(n, align, &p); /* `at` is a hint */
	driver_unlock();
	if (!result)
		*out = (cu_memory)(uintptr_t)p;
	return result;
}

cu_result cuMemAddressFree(cu_memory memory, size_t n)
{
	ENTER(NEEDS_INIT);
	driver_lock();
	cu_result result = memory_unreserve(pointer(memory), n);
	driver_unlock();
	return result;
}

cu_result cuMemMap(cu_memory memory, size_t n, size_t offset, cu_handle handle, unsigned long long flags)
{
	ENTER(NEEDS_INIT);
	driver_lock();
	struct allocation *a = allocation_find(handle);
	cu_result result = a && !flags ? memory_map(pointer(memory), n, offset, a) : CUDA_ERROR_INVALID_VALUE;
	driver_unlock();
	return result;
}

cu_result cuMemUnmap(cu_memory memory, size_t n)
{
	ENTER(NEEDS_INIT);
	driver_lock();
	cu_result result = memory_unmap(pointer(memory), n);
	driver_unlock();
	return result;
}

static cu_result set_access(cu_memory memory, size_t n, const struct cu_access *access)
{
	static const int of_flags[] = { PROT_NONE, PROT_READ, -1, PROT_READ | PROT_WRITE };
	if (access->flags > 3 || of_flags[access->flags] < 0 || access->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_is(access->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	return memory_set_access(pointer(memory), n, device_on_machine(access->location.id), of_flags[access->flags]);
}

cu_result cuMemSetAccess(cu_memory memory, size_t n, const struct cu_access *access, size_t n_access)
{
	ENTER(NEEDS_INIT);
	cu_result result = n_access ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	driver_lock();
	for (size_t i = 0; i < n_access && !result; i++)
		result = set_access(memory, n, &access[i]);
	driver_unlock();
	return result;
}
