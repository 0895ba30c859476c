/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: contexts. */
#include "api.h"

#include "context.h"
#include "device.h"
#include "driver.h"
#include "stream.h"

cu_result cuDevicePrimaryCtxRetain(cu_context *out, cu_device device)
{
	struct context *c;
	ENTER(NEEDS_INIT);
	if (!device_is(device))
		return CUDA_ERROR_INVALID_DEVICE;
	driver_lock();
	cu_result result = context_retain_primary(device, &c);
	driver_unlock();
	if (!result)
		*out = context_handle(c);
	return result;
}

static cu_result release(cu_device device, bool all)
{
	if (!device_is(device))
		return CUDA_ERROR_INVALID_DEVICE;
	driver_lock();
	cu_result result = context_release_primary(device, all);
	driver_unlock();
	return result;
}

cu_result cuDevicePrimaryCtxRelease_v2(cu_device device)
{
	ENTER(NEEDS_INIT);
	return release(device, false);
}

cu_result cuDevicePrimaryCtxReset_v2(cu_device device)
{
	ENTER(NEEDS_INIT);
	return release(device, true);
}

cu_result cuDevicePrimaryCtxGetState(cu_device device, unsigned *out_flags, int *out_active)
{
	ENTER(NEEDS_INIT);
	if (!device_is(device))
		return CUDA_ERROR_INVALID_DEVICE;
	driver_lock();
	*out_active = context_primary_is_active(device);
	driver_unlock();
	*out_flags = 0;
	return CUDA_SUCCESS;
}

cu_result cuCtxCreate_v4(cu_context *out, struct cu_context_params *params, unsigned flags, cu_device device)
{
	struct context *c;
	ENTER(NEEDS_INIT);
	if (!device_is(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (params)
		return CUDA_ERROR_NOT_SUPPORTED;
	driver_lock();
	cu_result result = context_make(device, &c);
	if (!result)
		result = context_push(c);
	driver_unlock();
	if (!result)
		*out = context_handle(c);
	return result;
}

cu_result cuCtxDestroy_v2(cu_context handle)
{
	ENTER(NEEDS_INIT);
	driver_lock();
	struct context *c = context_find(handle);
	bool was_current = c && c == context_current();
	cu_result result = c ? context_destroy(c) : CUDA_ERROR_INVALID_CONTEXT;
	if (!result && was_current)
		context_pop();
	driver_unlock();
	return result;
}

cu_result cuCtxGetCurrent(cu_context *out)
{
	ENTER(NEEDS_INIT);
	struct context *c = context_current();
	*out = c ? context_handle(c) : NULL;
	return CUDA_SUCCESS;
}

/* SetCurrent and PushCurrent: NULL stands for none in the first, and is an error in the second. */
static cu_result make_current(cu_context handle, cu_result (*how)(struct context *))
{
	driver_lock();
	struct context *c = context_find(handle);
	cu_result result = c || (!handle && how == context_set_current) ? how(c) : CUDA_ERROR_INVALID_CONTEXT;
	driver_unlock();
	return result;
}

cu_result cuCtxSetCurrent(cu_context handle)
{
	ENTER(NEEDS_INIT);
	return make_current(handle, context_set_current);
}

cu_result cuCtxPushCurrent_v2(cu_context handle)
{
	ENTER(NEEDS_INIT);
	return make_current(handle, context_push);
}

cu_result cuCtxPopCurrent_v2(cu_context *out)
{
	ENTER(NEEDS_INIT);
	struct context *c = context_pop();
	if (!c)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (out)
		*out = context_handle(c);
	return CUDA_SUCCESS;
}

cu_result cuCtxGetDevice(cu_device *out)
{
	ENTER(NEEDS_CONTEXT);
	*out = context_current()->device;
	return CUDA_SUCCESS;
}

cu_result cuCtxSynchronize(void)
{
	ENTER(NEEDS_CONTEXT);
	driver_lock();
	stream_wait_all(context_current());
	driver_unlock();
	return driver_sticky();
}
