/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: memory of devices that has an address, and pinned memory of the host. */
#include "api.h"

#include "context.h"
#include "driver.h"
#include "holders.h"
#include "host_memory.h"
#include "memory.h"
#include "options.h"
#include "stream.h"

cu_result cuMemGetInfo_v2(size_t *out_free, size_t *out_total)
{
	ENTER(NEEDS_CONTEXT);
	*out_free = holders_free(context_current()->on_machine);
	*out_total = options()->memory;
	return CUDA_SUCCESS;
}

cu_result cuMemAlloc_v2(cu_memory *out, size_t n)
{
	char *p;
	ENTER(NEEDS_CONTEXT);
	driver_lock();
	cu_result result = memory_alloc(context_current()->on_machine, n, &p);
	driver_unlock();
	if (!result)
		*out = (cu_memory)(uintptr_t)p;
	return result;
}

/* Waits until the device is idle, as the real one does. */
cu_result cuMemFree_v2(cu_memory memory)
{
	ENTER(NEEDS_CONTEXT);
	if (!memory)
		return CUDA_SUCCESS;
	driver_lock();
	stream_wait_all(context_current());
	cu_result result = memory_free((char *)(uintptr_t)memory);
	driver_unlock();
	return result;
}

cu_result cuMemHostAlloc(void **out, size_t n, unsigned flags)
{
	ENTER(NEEDS_CONTEXT);
	driver_lock();
	cu_result result = host_memory_alloc(n, out);
	driver_unlock();
	return result;
}

cu_result cuMemFreeHost(void *p)
{
	ENTER(NEEDS_CONTEXT);
	driver_lock();
	stream_wait_all(context_current());
	cu_result result = host_memory_free(p);
	driver_unlock();
	return result;
}

cu_result cuMemHostRegister_v2(void *p, size_t n, unsigned flags)
{
	ENTER(NEEDS_CONTEXT);
	driver_lock();
	cu_result result = host_memory_register(p, n, flags);
	driver_unlock();
	return result;
}

/* Does not wait: a copy that is queued then fails with ILLEGAL_ADDRESS, if the memory is shared. */
cu_result cuMemHostUnregister(void *p)
{
	ENTER(NEEDS_CONTEXT);
	driver_lock();
	cu_result result = host_memory_unregister(p);
	driver_unlock();
	return result;
}

cu_result cuMemHostGetDevicePointer_v2(cu_memory *out, void *p, unsigned flags)
{
	ENTER(NEEDS_CONTEXT);
	driver_lock();
	void *found = flags ? NULL : host_memory_device_pointer(p);
	driver_unlock();
	if (!found)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (cu_memory)(uintptr_t)found;
	return CUDA_SUCCESS;
}
