/* SPDX-License-Identifier: Apache-2.0 */
/* The few functions of the CUDA driver that gpu_probe measures with, found with dlopen. Names, types and values are
 * those of the driver's documented interface; nothing of CUDA is needed to compile this. */
#ifndef GACC_BENCH_CUDA_PROBE_H
#define GACC_BENCH_CUDA_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int cu_result; /* 0: success */
typedef int cu_device;
typedef uint64_t cu_deviceptr, cu_memory;
typedef void *cu_context;

struct cu_location {
	int type, id;
};
struct cu_allocation {
	int type, handle_types;
	struct cu_location location;
	void *win32;
	unsigned char compression, rdma;
	unsigned short usage;
	unsigned char reserved[4];
};
struct cu_access {
	struct cu_location location;
	int flags;
};
enum { CU_PINNED = 1, CU_POSIX_FD = 1, CU_LOCATION_DEVICE = 1, CU_READ_WRITE = 3 };

/* name in struct cuda, name in the library, parameters */
#define CUDA_FUNCTIONS(X)                                                                                              \
	X(init, "cuInit", (unsigned))                                                                                  \
	X(count, "cuDeviceGetCount", (int *))                                                                          \
	X(device, "cuDeviceGet", (cu_device *, int))                                                                   \
	X(bus, "cuDeviceGetPCIBusId", (char *, int, cu_device))                                                        \
	X(retain, "cuDevicePrimaryCtxRetain", (cu_context *, cu_device))                                               \
	X(set_current, "cuCtxSetCurrent", (cu_context))                                                                \
	X(sync, "cuCtxSynchronize", (void))                                                                            \
	X(create, "cuMemCreate", (cu_memory *, size_t, const struct cu_allocation *, unsigned long long))              \
	X(export_fd, "cuMemExportToShareableHandle", (void *, cu_memory, int, unsigned long long))                     \
	X(import_fd, "cuMemImportFromShareableHandle", (cu_memory *, void *, int))                                     \
	X(reserve, "cuMemAddressReserve", (cu_deviceptr *, size_t, size_t, cu_deviceptr, unsigned long long))          \
	X(map, "cuMemMap", (cu_deviceptr, size_t, size_t, cu_memory, unsigned long long))                              \
	X(set_access, "cuMemSetAccess", (cu_deviceptr, size_t, const struct cu_access *, size_t))                      \
	X(set32, "cuMemsetD32_v2", (cu_deviceptr, unsigned, size_t))                                                   \
	X(to_host, "cuMemcpyDtoH_v2", (void *, cu_deviceptr, size_t))                                                  \
	X(error_name, "cuGetErrorName", (cu_result, const char **))

struct cuda {
#define X(field, symbol, parameters) cu_result(*field) parameters;
	CUDA_FUNCTIONS(X)
#undef X
};

/* Of this process, opened on device 0 with its primary context current. False with why, a sentence without its end.
 * A process forks before it calls this, never afterwards: the driver does not survive fork. */
bool cuda_open(struct cuda *, cu_device *, char *why, size_t n_why);
/* "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY" */
const char *cuda_failure(const struct cuda *, const char *what, cu_result, char *text, size_t n);

#endif
