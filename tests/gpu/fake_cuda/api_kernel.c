/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: modules, kernels and host functions. The image of a module is not looked at: kernels are those of
 * FAKE_CUDA_KERNELS. */
#include "api.h"

#include "driver.h"
#include "faults.h"
#include "kernels.h"
#include "stream.h"

#include <string.h>

static char the_module; /* there is one; its address is the handle */

cu_result cuModuleLoadData(cu_module *out, const void *image)
{
	ENTER(NEEDS_CONTEXT);
	if (!image)
		return CUDA_ERROR_INVALID_VALUE;
	driver_lock();
	cu_result result = kernels_load();
	driver_unlock();
	if (!result)
		*out = (cu_module)(void *)&the_module;
	return result;
}

cu_result cuModuleUnload(cu_module module)
{
	ENTER(NEEDS_CONTEXT);
	return module == (cu_module)(void *)&the_module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

cu_result cuModuleGetFunction(cu_function *out, cu_module module, const char *name)
{
	ENTER(NEEDS_CONTEXT);
	if (module != (cu_module)(void *)&the_module)
		return CUDA_ERROR_INVALID_HANDLE;
	host_kernel *kernel = kernels_find(name);
	if (!kernel)
		return CUDA_ERROR_NOT_FOUND;
	memcpy(out, &kernel, sizeof(*out));
	return CUDA_SUCCESS;
}

/* With the lock. */
static cu_result launch(cu_function function, unsigned grid, unsigned block, cu_stream handle, const void *param)
{
	struct stream *s = stream_find(handle);
	if (!s || s->context != context_current())
		return CUDA_ERROR_INVALID_HANDLE;
	struct operation *op = stream_operation(OPERATION_KERNEL, KERNELS_MAX_PARAMS);
	if (!op)
		return CUDA_ERROR_OUT_OF_MEMORY;
	kernels_copy_params(op->params, param, KERNELS_MAX_PARAMS);
	memcpy(&op->kernel, &function, sizeof(function));
	op->grid = grid;
	op->block = block;
	op->counted = faults_count_launch();
	stream_queue(s, op);
	return CUDA_SUCCESS;
}

/* One dimension, and one parameter, by value: that is what gacc's kernels are. */
cu_result cuLaunchKernel(cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
			 unsigned block_y, unsigned block_z, unsigned shared_bytes, cu_stream stream, void **params,
			 void **extra)
{
	ENTER(NEEDS_CONTEXT);
	if (!function)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!grid_x || grid_y != 1 || grid_z != 1 || !block_x || block_x > 1024 || block_y != 1 || block_z != 1 ||
	    shared_bytes || extra || !params)
		return CUDA_ERROR_INVALID_VALUE;
	driver_lock();
	cu_result result = launch(function, grid_x, block_x, stream, params[0]);
	driver_unlock();
	return result;
}

cu_result cuLaunchHostFunc(cu_stream handle, cu_host_function function, void *arg)
{
	ENTER(NEEDS_CONTEXT);
	if (!function)
		return CUDA_ERROR_INVALID_VALUE;
	cu_result result = CUDA_ERROR_INVALID_HANDLE;
	driver_lock();
	struct stream *s = stream_find(handle);
	struct operation *op = s ? stream_operation(OPERATION_HOST_FUNCTION, 0) : NULL;
	if (op) {
		op->function = function;
		op->arg = arg;
		stream_queue(s, op);
		result = CUDA_SUCCESS;
	}
	driver_unlock();
	return result;
}
