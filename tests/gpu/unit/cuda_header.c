/* SPDX-License-Identifier: Apache-2.0 */
/* Compares what gacc and the fake driver declare with a real cuda.h: types, values and prototypes while
 * it compiles, the names of symbols when it runs. */
#include <cuda.h>

#include "fake_cuda/more.h"
#include "proto/cuda_driver.h"

#include <stdio.h>
#include <string.h>

#define SAME_VALUE(name, value) _Static_assert((name) == (value), "value of " #name);
CUDA_RESULTS(SAME_VALUE)
CUDA_ATTRIBUTES(SAME_VALUE)
CUDA_CONSTANTS(SAME_VALUE)

#define SAME_SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), "size of " #ours)
#define SAME_PLACE(ours, member, theirs, their_member)                                                                 \
	_Static_assert(offsetof(ours, member) == offsetof(theirs, their_member) &&                                     \
			       sizeof(((ours *)0)->member) == sizeof(((theirs *)0)->their_member),                     \
		       "place of " #member)
SAME_SIZE(cu_result, CUresult);
SAME_SIZE(cu_attribute, CUdevice_attribute);
SAME_SIZE(cu_handle_type, CUmemAllocationHandleType);
SAME_SIZE(cu_granularity, CUmemAllocationGranularity_flags);
SAME_SIZE(cu_capture_mode, CUstreamCaptureMode);
SAME_SIZE(cu_capture_status, CUstreamCaptureStatus);
SAME_SIZE(cu_proc_status, CUdriverProcAddressQueryResult);
SAME_SIZE(struct cu_uuid, CUuuid);
SAME_SIZE(struct cu_location, CUmemLocation);
SAME_PLACE(struct cu_location, type, CUmemLocation, type);
SAME_PLACE(struct cu_location, id, CUmemLocation, id);
SAME_SIZE(struct cu_allocation, CUmemAllocationProp);
SAME_PLACE(struct cu_allocation, type, CUmemAllocationProp, type);
SAME_PLACE(struct cu_allocation, requested_handle_types, CUmemAllocationProp, requestedHandleTypes);
SAME_PLACE(struct cu_allocation, location, CUmemAllocationProp, location);
SAME_PLACE(struct cu_allocation, win32_handle_metadata, CUmemAllocationProp, win32HandleMetaData);
SAME_PLACE(struct cu_allocation, flags.gpu_direct_rdma_capable, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
SAME_PLACE(struct cu_allocation, flags.usage, CUmemAllocationProp, allocFlags.usage);
SAME_SIZE(struct cu_access, CUmemAccessDesc);
SAME_PLACE(struct cu_access, location, CUmemAccessDesc, location);
SAME_PLACE(struct cu_access, flags, CUmemAccessDesc, flags);

/* In the parameters of the functions our types stand for theirs, so that the prototypes can be compared. */
#define cu_result CUresult
#define cu_device CUdevice
#define cu_memory CUdeviceptr
#define cu_handle CUmemGenericAllocationHandle
#define cu_attribute CUdevice_attribute
#define cu_handle_type CUmemAllocationHandleType
#define cu_granularity CUmemAllocationGranularity_flags
#define cu_capture_mode CUstreamCaptureMode
#define cu_capture_status CUstreamCaptureStatus
#define cu_proc_status CUdriverProcAddressQueryResult
#define cu_context CUcontext
#define cu_stream CUstream
#define cu_event CUevent
#define cu_module CUmodule
#define cu_function CUfunction
#define cu_host_function CUhostFn
#define cu_uuid CUuuid_st
#define cu_allocation CUmemAllocationProp_st
#define cu_access CUmemAccessDesc_st
#define cu_context_params CUctxCreateParams_st
#define cu_graph CUgraph
#define cu_graph_exec CUgraphExec

#define SAME_PROTOTYPE(name, suffix, params)                                                                           \
	_Static_assert(__builtin_types_compatible_p(__typeof__(name##suffix), CUresult params), "prototype "           \
												"of " #name);
CUDA_FUNCTIONS(SAME_PROTOTYPE)
CUDA_MORE_FUNCTIONS(SAME_PROTOTYPE)

/* The symbol with our suffix, and the one that cuda.h's macro makes of the name. */
#define TEXT(name) TEXT_OF(name)
#define TEXT_OF(name) #name
#define ROW(name, suffix, params) { #name #suffix, TEXT(name) },
static const struct {
	const char *ours, *theirs;
} symbols[] = { CUDA_FUNCTIONS(ROW) CUDA_MORE_FUNCTIONS(ROW) };

int main(void)
{
	int wrong = 0;
	for (size_t i = 0; i < sizeof(symbols) / sizeof(*symbols); i++)
		if (strcmp(symbols[i].ours, symbols[i].theirs)) {
			printf("%s is %s in cuda.h %d\n", symbols[i].ours, symbols[i].theirs, CUDA_VERSION);
			wrong = 1;
		}
	return wrong;
}
