/* SPDX-License-Identifier: Apache-2.0 */
/* NVIDIA's driver library, libcuda.so.1, as gacc uses it: found at run time, never linked, so that everything installs
 * and runs where there is no GPU. Trainers' library, engine plug-in and tests call it through this table.
 *
 * The names of the functions are those of cuda.h; the suffixes are the ones that its macros of version 13 give. All
 * of them are in drivers for CUDA 12.0 (R525) and later. No call is made here: cuInit is the caller's.
 */
#ifndef GACC_PROTO_CUDA_DRIVER_H
#define GACC_PROTO_CUDA_DRIVER_H

#include "proto/cuda_types.h"

#include <stdbool.h>

/* X(name, suffix of the symbol, parameters) */
#define CUDA_FUNCTIONS(X)                                                                                              \
	X(cuInit, , (unsigned flags))                                                                                  \
	X(cuDriverGetVersion, , (int *out))                                                                            \
	X(cuGetErrorName, , (cu_result, const char **out))                                                             \
	X(cuDeviceGetCount, , (int *out))                                                                              \
	X(cuDeviceGet, , (cu_device * out, int number))                                                                \
	X(cuDeviceGetName, , (char *out, int n, cu_device))                                                            \
	X(cuDeviceGetAttribute, , (int *out, cu_attribute, cu_device))                                                 \
	X(cuDeviceGetUuid, _v2, (struct cu_uuid * out, cu_device))                                                     \
	X(cuDevicePrimaryCtxRetain, , (cu_context * out, cu_device))                                                   \
	X(cuDevicePrimaryCtxRelease, _v2, (cu_device))                                                                 \
	X(cuCtxGetCurrent, , (cu_context * out))                                                                       \
	X(cuCtxSetCurrent, , (cu_context))                                                                             \
	X(cuCtxGetDevice, , (cu_device * out))                                                                         \
	X(cuCtxSynchronize, , (void))                                                                                  \
	X(cuMemGetInfo, _v2, (size_t * out_free, size_t * out_total))                                                  \
	X(cuMemAlloc, _v2, (cu_memory * out, size_t n))                                                                \
	X(cuMemFree, _v2, (cu_memory))                                                                                 \
	X(cuMemHostAlloc, , (void **out, size_t n, unsigned flags))                                                    \
	X(cuMemFreeHost, , (void *))                                                                                   \
	X(cuMemHostRegister, _v2, (void *, size_t n, unsigned flags))                                                  \
	X(cuMemHostUnregister, , (void *))                                                                             \
	X(cuMemHostGetDevicePointer, _v2, (cu_memory * out, void *, unsigned flags))                                   \
	X(cuMemcpyHtoDAsync, _v2, (cu_memory to, const void *from, size_t n, cu_stream))                               \
	X(cuMemcpyDtoHAsync, _v2, (void *to, cu_memory from, size_t n, cu_stream))                                     \
	X(cuMemcpyDtoDAsync, _v2, (cu_memory to, cu_memory from, size_t n, cu_stream))                                 \
	X(cuMemsetD8Async, , (cu_memory to, unsigned char, size_t n, cu_stream))                                       \
	X(cuMemGetAllocationGranularity, , (size_t * out, const struct cu_allocation *, cu_granularity))               \
	X(cuMemCreate, , (cu_handle * out, size_t n, const struct cu_allocation *, unsigned long long flags))          \
	X(cuMemRelease, , (cu_handle))                                                                                 \
	X(cuMemAddressReserve, , (cu_memory * out, size_t n, size_t align, cu_memory at, unsigned long long flags))    \
	X(cuMemAddressFree, , (cu_memory, size_t n))                                                                   \
	X(cuMemMap, , (cu_memory, size_t n, size_t offset, cu_handle, unsigned long long flags))                       \
	X(cuMemUnmap, , (cu_memory, size_t n))                                                                         \
	X(cuMemSetAccess, , (cu_memory, size_t n, const struct cu_access *, size_t n_access))                          \
	X(cuMemExportToShareableHandle, , (void *out, cu_handle, cu_handle_type, unsigned long long flags))            \
	X(cuMemImportFromShareableHandle, , (cu_handle * out, void *fd, cu_handle_type))                               \
	X(cuStreamCreate, , (cu_stream * out, unsigned flags))                                                         \
	X(cuStreamDestroy, _v2, (cu_stream))                                                                           \
	X(cuStreamQuery, , (cu_stream))                                                                                \
	X(cuStreamSynchronize, , (cu_stream))                                                                          \
	X(cuStreamWaitEvent, , (cu_stream, cu_event, unsigned flags))                                                  \
	X(cuStreamWriteValue64, _v2, (cu_stream, cu_memory, uint64_t value, unsigned flags))                           \
	X(cuStreamIsCapturing, , (cu_stream, cu_capture_status * out))                                                 \
	X(cuEventCreate, , (cu_event * out, unsigned flags))                                                           \
	X(cuEventDestroy, _v2, (cu_event))                                                                             \
	X(cuEventRecord, , (cu_event, cu_stream))                                                                      \
	X(cuEventQuery, , (cu_event))                                                                                  \
	X(cuEventSynchronize, , (cu_event))                                                                            \
	X(cuLaunchHostFunc, , (cu_stream, cu_host_function, void *arg))                                                \
	X(cuModuleLoadData, , (cu_module * out, const void *image))                                                    \
	X(cuModuleUnload, , (cu_module))                                                                               \
	X(cuModuleGetFunction, , (cu_function * out, cu_module, const char *name))                                     \
	X(cuLaunchKernel, ,                                                                                            \
	  (cu_function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,         \
	   unsigned block_z, unsigned shared_bytes, cu_stream, void **params, void **extra))

struct cuda_driver {
#define CUDA_MEMBER(name, suffix, params) cu_result(*name) params;
	CUDA_FUNCTIONS(CUDA_MEMBER)
#undef CUDA_MEMBER
};

/* Loads libcuda.so.1 from where the dynamic linker looks for it and fills `out`, from any thread. The library stays
 * loaded until the process ends. False when it is not there, or is too old: `why` then says so in one sentence
 * without a full stop, cut to `size` bytes, and `out` is all NULL. */
bool cuda_driver_load(struct cuda_driver *out, char *why, size_t size);

#define CUDA_UUID_TEXT 41 /* GPU-8-4-4-4-12 hexadecimal digits, and the end */
/* As nvidia-smi -L prints it. Any thread. */
void cuda_uuid_text(const struct cu_uuid *, char out[CUDA_UUID_TEXT]);

/* What CUDA calls the code, such as CUDA_ERROR_OUT_OF_MEMORY, or "CUDA error" for one that it does not know. Static.
 * Any thread. */
const char *cuda_result_name(const struct cuda_driver *, cu_result);

#endif
