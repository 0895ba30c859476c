/* SPDX-License-Identifier: Apache-2.0 */
/* Types and constants of NVIDIA's driver interface, as much of them as gacc and its tests use, so that both compile
 * without the CUDA toolkit. Constants have NVIDIA's names, types have names of ours. Sizes, layouts and values are
 * those of cuda.h 13.0; tests/gpu/unit/cuda_header.c compares them with a real one. A file that needs cuda.h as well
 * includes it first.
 *
 * Enumerations of cuda.h are `unsigned` here, as the C compilers have it.
 */
#ifndef GACC_PROTO_CUDA_TYPES_H
#define GACC_PROTO_CUDA_TYPES_H

#include <stddef.h>
#include <stdint.h>

typedef unsigned cu_result;	      /* CUDA_RESULTS */
typedef int cu_device;		      /* number of a device that this process sees */
typedef unsigned long long cu_memory; /* an address of device memory, or of host memory as devices see it */
typedef unsigned long long cu_handle; /* an allocation without an address */
typedef unsigned cu_attribute;	      /* CUDA_ATTRIBUTES */
typedef unsigned cu_handle_type;
typedef unsigned cu_granularity;
typedef unsigned cu_capture_mode;
typedef unsigned cu_capture_status;
typedef struct CUctx_st *cu_context;
typedef struct CUstream_st *cu_stream; /* NULL: the default stream, which waits for the others and they for it */
typedef struct CUevent_st *cu_event;
typedef struct CUmod_st *cu_module;
typedef struct CUfunc_st *cu_function;
typedef void (*cu_host_function)(void *);

struct cu_uuid {
	char bytes[16];
};

struct cu_location {
	unsigned type; /* CU_MEM_LOCATION_TYPE_DEVICE */
	int id;	       /* cu_device */
};

struct cu_allocation { /* CUmemAllocationProp */
	unsigned type; /* CU_MEM_ALLOCATION_TYPE_PINNED */
	cu_handle_type requested_handle_types;
	struct cu_location location;
	void *win32_handle_metadata;
	struct {
		unsigned char compression_type, gpu_direct_rdma_capable;
		unsigned short usage;
		unsigned char reserved[4];
	} flags;
};

struct cu_access { /* CUmemAccessDesc */
	struct cu_location location;
	unsigned flags; /* CU_MEM_ACCESS_FLAGS_.. */
};

/* X(name, value) */
#define CUDA_RESULTS(X)                                                                                                \
	X(CUDA_SUCCESS, 0)                                                                                             \
	X(CUDA_ERROR_INVALID_VALUE, 1)                                                                                 \
	X(CUDA_ERROR_OUT_OF_MEMORY, 2)                                                                                 \
	X(CUDA_ERROR_NOT_INITIALIZED, 3)                                                                               \
	X(CUDA_ERROR_DEINITIALIZED, 4)                                                                                 \
	X(CUDA_ERROR_STUB_LIBRARY, 34)                                                                                 \
	X(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, 36)                                                                   \
	X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46)                                                                           \
	X(CUDA_ERROR_NO_DEVICE, 100)                                                                                   \
	X(CUDA_ERROR_INVALID_DEVICE, 101)                                                                              \
	X(CUDA_ERROR_INVALID_IMAGE, 200)                                                                               \
	X(CUDA_ERROR_INVALID_CONTEXT, 201)                                                                             \
	X(CUDA_ERROR_CONTEXT_ALREADY_CURRENT, 202)                                                                     \
	X(CUDA_ERROR_MAP_FAILED, 205)                                                                                  \
	X(CUDA_ERROR_UNMAP_FAILED, 206)                                                                                \
	X(CUDA_ERROR_ALREADY_MAPPED, 208)                                                                              \
	X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209)                                                                           \
	X(CUDA_ERROR_NOT_MAPPED, 211)                                                                                  \
	X(CUDA_ERROR_ECC_UNCORRECTABLE, 214)                                                                           \
	X(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, 216)                                                                      \
	X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217)                                                                     \
	X(CUDA_ERROR_INVALID_PTX, 218)                                                                                 \
	X(CUDA_ERROR_NVLINK_UNCORRECTABLE, 220)                                                                        \
	X(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222)                                                                     \
	X(CUDA_ERROR_CONTAINED, 226)                                                                                   \
	X(CUDA_ERROR_OPERATING_SYSTEM, 304)                                                                            \
	X(CUDA_ERROR_INVALID_HANDLE, 400)                                                                              \
	X(CUDA_ERROR_ILLEGAL_STATE, 401)                                                                               \
	X(CUDA_ERROR_NOT_FOUND, 500)                                                                                   \
	X(CUDA_ERROR_NOT_READY, 600)                                                                                   \
	X(CUDA_ERROR_ILLEGAL_ADDRESS, 700)                                                                             \
	X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701)                                                                     \
	X(CUDA_ERROR_LAUNCH_TIMEOUT, 702)                                                                              \
	X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, 704)                                                                 \
	X(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, 705)                                                                     \
	X(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, 708)                                                                      \
	X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709)                                                                        \
	X(CUDA_ERROR_ASSERT, 710)                                                                                      \
	X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712)                                                              \
	X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713)                                                                  \
	X(CUDA_ERROR_HARDWARE_STACK_ERROR, 714)                                                                        \
	X(CUDA_ERROR_ILLEGAL_INSTRUCTION, 715)                                                                         \
	X(CUDA_ERROR_MISALIGNED_ADDRESS, 716)                                                                          \
	X(CUDA_ERROR_INVALID_ADDRESS_SPACE, 717)                                                                       \
	X(CUDA_ERROR_INVALID_PC, 718)                                                                                  \
	X(CUDA_ERROR_LAUNCH_FAILED, 719)                                                                               \
	X(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, 720)                                                                \
	X(CUDA_ERROR_NOT_PERMITTED, 800)                                                                               \
	X(CUDA_ERROR_NOT_SUPPORTED, 801)                                                                               \
	X(CUDA_ERROR_SYSTEM_NOT_READY, 802)                                                                            \
	X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803)                                                                      \
	X(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, 804)                                                              \
	X(CUDA_ERROR_MPS_CONNECTION_FAILED, 805)                                                                       \
	X(CUDA_ERROR_MPS_RPC_FAILURE, 806)                                                                             \
	X(CUDA_ERROR_MPS_SERVER_NOT_READY, 807)                                                                        \
	X(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, 808)                                                                     \
	X(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, 809)                                                                 \
	X(CUDA_ERROR_MPS_CLIENT_TERMINATED, 810)                                                                       \
	X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900)                                                                  \
	X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901)                                                                  \
	X(CUDA_ERROR_STREAM_CAPTURE_MERGE, 902)                                                                        \
	X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, 903)                                                                    \
	X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, 904)                                                                     \
	X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, 905)                                                                    \
	X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906)                                                                     \
	X(CUDA_ERROR_CAPTURED_EVENT, 907)                                                                              \
	X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, 908)                                                                 \
	X(CUDA_ERROR_TIMEOUT, 909)                                                                                     \
	X(CUDA_ERROR_EXTERNAL_DEVICE, 911)                                                                             \
	X(CUDA_ERROR_FUNCTION_NOT_LOADED, 913)                                                                         \
	X(CUDA_ERROR_UNKNOWN, 999)

#define CUDA_ATTRIBUTES(X)                                                                                             \
	X(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1)                                                                \
	X(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 8)                                                          \
	X(CU_DEVICE_ATTRIBUTE_WARP_SIZE, 10)                                                                           \
	X(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16)                                                                \
	X(CU_DEVICE_ATTRIBUTE_INTEGRATED, 18)                                                                          \
	X(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 19)                                                                 \
	X(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 20)                                                                        \
	X(CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 31)                                                                  \
	X(CU_DEVICE_ATTRIBUTE_ECC_ENABLED, 32)                                                                         \
	X(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 38)                                                                       \
	X(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 39)                                                      \
	X(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 40)                                                                  \
	X(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 41)                                                                  \
	X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)                                                            \
	X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76)                                                            \
	X(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 88)                                                              \
	X(CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 90)                                                        \
	X(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 91)                                             \
	X(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 95)                                                                  \
	X(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 99)                                                             \
	X(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, 100)                                       \
	X(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 102)                                                \
	X(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 103)                                        \
	X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 110)                                            \
	X(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 113)                                                  \
	X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 116)                                                          \
	X(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 122)                                                      \
	X(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 125)                                                                \
	X(CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, 129)                                                          \
	X(CU_DEVICE_ATTRIBUTE_MPS_ENABLED, 133)

#define CUDA_CONSTANTS(X)                                                                                              \
	X(CU_STREAM_DEFAULT, 0)                                                                                        \
	X(CU_STREAM_NON_BLOCKING, 1)                                                                                   \
	X(CU_EVENT_DEFAULT, 0)                                                                                         \
	X(CU_EVENT_BLOCKING_SYNC, 1)                                                                                   \
	X(CU_EVENT_DISABLE_TIMING, 2)                                                                                  \
	X(CU_EVENT_WAIT_DEFAULT, 0)                                                                                    \
	X(CU_STREAM_WRITE_VALUE_DEFAULT, 0)                                                                            \
	X(CU_STREAM_WAIT_VALUE_GEQ, 0)                                                                                 \
	X(CU_STREAM_WAIT_VALUE_EQ, 1)                                                                                  \
	X(CU_STREAM_CAPTURE_STATUS_NONE, 0)                                                                            \
	X(CU_STREAM_CAPTURE_STATUS_ACTIVE, 1)                                                                          \
	X(CU_STREAM_CAPTURE_STATUS_INVALIDATED, 2)                                                                     \
	X(CU_STREAM_CAPTURE_MODE_GLOBAL, 0)                                                                            \
	X(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, 1)                                                                      \
	X(CU_STREAM_CAPTURE_MODE_RELAXED, 2)                                                                           \
	X(CU_MEM_ALLOCATION_TYPE_PINNED, 1)                                                                            \
	X(CU_MEM_HANDLE_TYPE_NONE, 0)                                                                                  \
	X(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1)                                                                 \
	X(CU_MEM_LOCATION_TYPE_DEVICE, 1)                                                                              \
	X(CU_MEM_ACCESS_FLAGS_PROT_NONE, 0)                                                                            \
	X(CU_MEM_ACCESS_FLAGS_PROT_READ, 1)                                                                            \
	X(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 3)                                                                       \
	X(CU_MEM_ALLOC_GRANULARITY_MINIMUM, 0)                                                                         \
	X(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, 1)                                                                     \
	X(CU_MEMHOSTALLOC_PORTABLE, 1)                                                                                 \
	X(CU_MEMHOSTALLOC_DEVICEMAP, 2)                                                                                \
	X(CU_MEMHOSTREGISTER_PORTABLE, 1)                                                                              \
	X(CU_MEMHOSTREGISTER_DEVICEMAP, 2)                                                                             \
	X(CU_MEMHOSTREGISTER_READ_ONLY, 8)                                                                             \
	X(CU_COMPUTEMODE_DEFAULT, 0)                                                                                   \
	X(CU_COMPUTEMODE_PROHIBITED, 2)                                                                                \
	X(CU_COMPUTEMODE_EXCLUSIVE_PROCESS, 3)

#ifndef CUDA_VERSION /* cuda.h has them */
#define CUDA_CONSTANT(name, value) name = (value),
enum { CUDA_RESULTS(CUDA_CONSTANT) CUDA_ATTRIBUTES(CUDA_CONSTANT) CUDA_CONSTANTS(CUDA_CONSTANT) };
#undef CUDA_CONSTANT
#endif

#endif
