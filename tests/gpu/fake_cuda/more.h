/* SPDX-License-Identifier: Apache-2.0 */
/* What the fake driver has and gacc does not call: for trainers, which may use all of CUDA. As CUDA_FUNCTIONS. */
#ifndef GACC_FAKE_CUDA_MORE_H
#define GACC_FAKE_CUDA_MORE_H

#include "proto/cuda_types.h"

typedef unsigned cu_proc_status; /* CUdriverProcAddressQueryResult */
struct cu_context_params;	 /* CUctxCreateParams; the fake takes NULL only */
typedef struct CUgraph_st *cu_graph;
typedef struct CUgraphExec_st *cu_graph_exec;

#define CUDA_MORE_FUNCTIONS(X)                                                                                         \
	X(cuGetErrorString, , (cu_result, const char **out))                                                           \
	X(cuGetProcAddress, _v2,                                                                                       \
	  (const char *symbol, void **out, int version, uint64_t flags, cu_proc_status *out_status))                   \
	X(cuDeviceTotalMem, _v2, (size_t * out, cu_device))                                                            \
	X(cuDeviceGetPCIBusId, , (char *out, int n, cu_device))                                                        \
	X(cuDevicePrimaryCtxGetState, , (cu_device, unsigned *out_flags, int *out_active))                             \
	X(cuDevicePrimaryCtxReset, _v2, (cu_device))                                                                   \
	X(cuCtxCreate, _v4, (cu_context * out, struct cu_context_params *, unsigned flags, cu_device))                 \
	X(cuCtxDestroy, _v2, (cu_context))                                                                             \
	X(cuCtxPushCurrent, _v2, (cu_context))                                                                         \
	X(cuCtxPopCurrent, _v2, (cu_context * out))                                                                    \
	X(cuMemcpyHtoD, _v2, (cu_memory to, const void *from, size_t n))                                               \
	X(cuMemcpyDtoH, _v2, (void *to, cu_memory from, size_t n))                                                     \
	X(cuMemsetD32, _v2, (cu_memory to, unsigned value, size_t n))                                                  \
	X(cuStreamBeginCapture, _v2, (cu_stream, cu_capture_mode))                                                     \
	X(cuStreamEndCapture, , (cu_stream, cu_graph * out))                                                           \
	X(cuGraphInstantiateWithFlags, , (cu_graph_exec * out, cu_graph, unsigned long long flags))                    \
	X(cuGraphLaunch, , (cu_graph_exec, cu_stream))                                                                 \
	X(cuGraphExecDestroy, , (cu_graph_exec))                                                                       \
	X(cuGraphDestroy, , (cu_graph))                                                                                \
	X(cuEventElapsedTime, _v2, (float *out_ms, cu_event from, cu_event to))

#endif
