/* SPDX-License-Identifier: Apache-2.0 */
/* Captures and graphs, and what gpu_probe needs of the fake. */
#include "rig.h"

#include "fake_cuda/more.h"
#include "support/suite.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

#define N ((size_t)4096)

#define DECLARE(name, suffix, params) static cu_result(*name) params;
CUDA_MORE_FUNCTIONS(DECLARE)

static cu_capture_status status;

static void begin(void)
{
	rig_begin();
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
#define FIND(name, suffix, params)                                                                                     \
	*(void **)&name = dlsym(library, #name #suffix);                                                               \
	ck_assert_ptr_nonnull(*(void **)&name);
	CUDA_MORE_FUNCTIONS(FIND)
}

static void count(void *arg)
{
	atomic_fetch_add((_Atomic int *)arg, 1);
}

/* Nothing of it runs while it is captured, and all of it with each launch. */
START_TEST(a_captured_stream_runs_with_each_launch)
{
	static _Atomic int counted;
	cu_graph graph;
	cu_graph_exec executable;
	begin();
	unsigned char *host = rig_shared(N, NULL);
	SUCCEEDS(cu.cuMemHostRegister(host, N, 0));
	cu_memory device = rig_alloc(N);
	cu_stream stream = rig_stream();
	SUCCEEDS(cu.cuStreamIsCapturing(stream, &status));
	ck_assert_uint_eq(status, CU_STREAM_CAPTURE_STATUS_NONE);
	SUCCEEDS(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	SUCCEEDS(cu.cuStreamIsCapturing(stream, &status));
	ck_assert_uint_eq(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
	SUCCEEDS(cu.cuMemsetD8Async(device, 5, N, stream));
	SUCCEEDS(cu.cuMemcpyDtoHAsync(host, device, N, stream));
	SUCCEEDS(cu.cuLaunchHostFunc(stream, count, &counted));
	SUCCEEDS(cuStreamEndCapture(stream, &graph));
	SUCCEEDS(cu.cuStreamIsCapturing(stream, &status));
	ck_assert_uint_eq(status, CU_STREAM_CAPTURE_STATUS_NONE);
	SUCCEEDS(cu.cuStreamSynchronize(stream));
	ck_assert(!counted && !host[0]);
	SUCCEEDS(cuGraphInstantiateWithFlags(&executable, graph, 0));
	SUCCEEDS(cuGraphDestroy(graph)); /* the executable one is its own */
	for (int i = 1; i <= 3; i++) {
		memset(host, 0, N);
		SUCCEEDS(cuGraphLaunch(executable, stream));
		SUCCEEDS(cu.cuStreamSynchronize(stream));
		ck_assert_int_eq(counted, i);
		ck_assert(host[0] == 5 && host[N - 1] == 5);
	}
	SUCCEEDS(cuGraphLaunch(executable, stream));
	SUCCEEDS(cuGraphExecDestroy(executable)); /* what is launched still runs */
	SUCCEEDS(cu.cuStreamSynchronize(stream));
	ck_assert_int_eq(counted, 4);
	FAILS(cuGraphExecDestroy(executable), CUDA_ERROR_INVALID_HANDLE);
	FAILS(cuGraphDestroy(graph), CUDA_ERROR_INVALID_HANDLE);
}
END_TEST

START_TEST(what_a_capture_cannot_have_invalidates_it)
{
	static unsigned char pageable[N];
	cu_graph graph;
	cu_event event;
	begin();
	cu_memory device = rig_alloc(N);
	cu_stream stream = rig_stream();
	SUCCEEDS(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	for (int i = 0; i < 5; i++) {
		SUCCEEDS(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
		cu_result result = i == 0   ? cu.cuStreamSynchronize(stream)
				   : i == 1 ? cu.cuStreamQuery(stream)
				   : i == 2 ? cu.cuMemcpyDtoHAsync(pageable, device, N, stream)
				   : i == 3 ? cu.cuEventRecord(event, stream)
					    : cu.cuStreamWaitEvent(stream, event, 0);
		FAILS(result, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
		SUCCEEDS(cu.cuStreamIsCapturing(stream, &status));
		ck_assert_uint_eq(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
		FAILS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
		ck_assert_ptr_null(graph);
		SUCCEEDS(cu.cuStreamSynchronize(stream));
	}
}
END_TEST

START_TEST(captures_have_a_beginning_and_an_end)
{
	cu_graph graph;
	begin();
	cu_stream stream = rig_stream();
	FAILS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
	SUCCEEDS(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	FAILS(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_ILLEGAL_STATE);
	SUCCEEDS(cuStreamEndCapture(stream, &graph));
	FAILS(cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	FAILS(cuStreamBeginCapture(stream, 3), CUDA_ERROR_INVALID_VALUE);
	FAILS(cuGraphLaunch((cu_graph_exec)(void *)graph, stream), CUDA_ERROR_INVALID_HANDLE);
}
END_TEST

START_TEST(words_are_set)
{
	unsigned got[3];
	begin();
	cu_memory device = rig_alloc(N);
	SUCCEEDS(cuMemsetD32(device + 4, 0x12345678, 2));
	SUCCEEDS(cuMemcpyDtoH(got, device, sizeof(got)));
	ck_assert(!got[0] && got[1] == 0x12345678 && got[2] == 0x12345678);
	FAILS(cuMemsetD32(device + 2, 1, 1), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(devices_have_bus_addresses)
{
	char a[13], b[13];
	begin();
	SUCCEEDS(cuDeviceGetPCIBusId(a, sizeof(a), 0));
	SUCCEEDS(cuDeviceGetPCIBusId(b, sizeof(b), 1));
	ck_assert_str_eq(a, "0000:A0:00.0");
	ck_assert_str_ne(a, b);
	FAILS(cuDeviceGetPCIBusId(a, 12, 0), CUDA_ERROR_INVALID_VALUE);
	FAILS(cuDeviceGetPCIBusId(a, sizeof(a), 2), CUDA_ERROR_INVALID_DEVICE);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("fake_cuda_graph");
	TCase *t = tcase_create("graph");
	tcase_add_test(t, a_captured_stream_runs_with_each_launch);
	tcase_add_test(t, what_a_capture_cannot_have_invalidates_it);
	tcase_add_test(t, captures_have_a_beginning_and_an_end);
	tcase_add_test(t, words_are_set);
	tcase_add_test(t, devices_have_bus_addresses);
	suite_add_tcase(s, t);
	return suite_run(s);
}
