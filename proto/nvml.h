/* SPDX-License-Identifier: Apache-2.0 */
/* NVIDIA's management library, libnvidia-ml.so.1, as gacc uses it: what a node's GPUs are and which processes have
 * them, without a context on any. Found at run time, as cuda_driver.h is. The names are those of nvml.h with the
 * suffixes that its macros give; all of them are in drivers for CUDA 12.0 (R525) and later.
 */
#ifndef GACC_PROTO_NVML_H
#define GACC_PROTO_NVML_H

#include <stddef.h>

typedef unsigned nvml_result;
typedef unsigned nvml_compute_mode; /* the values of CU_COMPUTEMODE_.. in cuda_types.h */
typedef unsigned nvml_enabled;	    /* 0 or 1 */
typedef struct nvmlDevice_st *nvml_device;

struct nvml_memory { /* bytes */
	unsigned long long total, free, used;
};

struct nvml_process { /* nvmlProcessInfo_v2_t */
	unsigned pid;
	unsigned long long used_memory;		 /* bytes; all ones: not known */
	unsigned gpu_instance, compute_instance; /* all ones without MIG */
};

enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7, /* a list is longer than there is room; its length is told */
	NVML_ERROR_DRIVER_NOT_LOADED = 9,
	NVML_ERROR_GPU_IS_LOST = 15,
	NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18, /* the library is of another version than the kernel's module */
	NVML_ERROR_UNKNOWN = 999,
};

/* X(name, suffix of the symbol, parameters) */
#define NVML_FUNCTIONS(X)                                                                                              \
	X(nvmlInit, _v2, (void))                                                                                       \
	X(nvmlShutdown, , (void))                                                                                      \
	X(nvmlSystemGetDriverVersion, , (char *out, unsigned size))                                                    \
	X(nvmlDeviceGetCount, _v2, (unsigned *out))                                                                    \
	X(nvmlDeviceGetHandleByIndex, _v2, (unsigned number, nvml_device *out))                                        \
	X(nvmlDeviceGetUUID, , (nvml_device, char *out, unsigned size))                                                \
	X(nvmlDeviceGetComputeMode, , (nvml_device, nvml_compute_mode * out))                                          \
	X(nvmlDeviceGetPersistenceMode, , (nvml_device, nvml_enabled * out))                                           \
	X(nvmlDeviceGetMemoryInfo, , (nvml_device, struct nvml_memory * out))                                          \
	X(nvmlDeviceGetComputeRunningProcesses, _v3, (nvml_device, unsigned *n, struct nvml_process *out))             \
	X(nvmlDeviceGetMPSComputeRunningProcesses, _v3, (nvml_device, unsigned *n, struct nvml_process *out))

struct nvml {
#define NVML_MEMBER(name, suffix, params) nvml_result(*name) params;
	NVML_FUNCTIONS(NVML_MEMBER)
#undef NVML_MEMBER
};

enum nvml_found { NVML_LOADED, NVML_ABSENT, NVML_TOO_OLD };

/* As cuda_driver_load, for libnvidia-ml.so.1; `why` is written unless it is loaded. nvmlInit is the caller's. */
enum nvml_found nvml_load(struct nvml *out, char *why, size_t size);

#endif
