/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, events and host functions. */
#include "rig.h"

#include "support/suite.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N ((size_t)1 << 20)

/* A host function that waits until it is told to go on: what is behind it in its stream waits as well. */
struct valve {
	_Atomic int entered, open;
};

static void wait_at(void *arg)
{
	struct valve *valve = arg;
	valve->entered = 1;
	while (!valve->open)
		usleep(100);
}

START_TEST(a_stream_keeps_its_order)
{
	static struct valve valve;
	unsigned char *host = rig_shared(N, NULL), *back = rig_shared(N, NULL);
	rig_begin();
	SUCCEEDS(cu.cuMemHostRegister(host, N, 0));
	SUCCEEDS(cu.cuMemHostRegister(back, N, 0));
	cu_memory device = rig_alloc(N);
	cu_stream stream = rig_stream();
	SUCCEEDS(cu.cuLaunchHostFunc(stream, wait_at, &valve));
	SUCCEEDS(cu.cuMemcpyHtoDAsync(device, host, N, stream));
	SUCCEEDS(cu.cuMemcpyDtoHAsync(back, device, N, stream));
	SUCCEEDS(cu.cuMemsetD8Async(device, 9, N, stream));
	FAILS(cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
	memset(host, 7, N); /* before it is copied */
	ck_assert_int_eq(back[N - 1], 0);
	valve.open = 1;
	SUCCEEDS(cu.cuStreamSynchronize(stream));
	SUCCEEDS(cu.cuStreamQuery(stream));
	ck_assert_int_eq(back[0], 7);
	ck_assert_int_eq(back[N - 1], 7);
	rig_read(back, device, N);
	ck_assert_int_eq(back[N - 1], 9);
}
END_TEST

START_TEST(streams_do_not_wait_for_each_other)
{
	static struct valve valve;
	rig_begin();
	cu_stream a = rig_stream(), b = rig_stream();
	cu_memory device = rig_alloc(N);
	SUCCEEDS(cu.cuLaunchHostFunc(a, wait_at, &valve));
	SUCCEEDS(cu.cuMemsetD8Async(device, 1, N, b));
	SUCCEEDS(cu.cuStreamSynchronize(b));
	FAILS(cu.cuStreamQuery(a), CUDA_ERROR_NOT_READY);
	valve.open = 1;
	SUCCEEDS(cu.cuCtxSynchronize());
	SUCCEEDS(cu.cuStreamQuery(a));
}
END_TEST

/* The default stream and streams made without NON_BLOCKING take turns. */
START_TEST(the_default_stream_waits_for_blocking_ones)
{
	static struct valve valve;
	cu_stream blocking;
	rig_begin();
	cu_memory device = rig_alloc(N);
	SUCCEEDS(cu.cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
	SUCCEEDS(cu.cuLaunchHostFunc(blocking, wait_at, &valve));
	SUCCEEDS(cu.cuMemsetD8Async(device, 1, N, NULL));
	SUCCEEDS(cu.cuMemsetD8Async(device, 2, N, blocking));
	FAILS(cu.cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
	valve.open = 1;
	SUCCEEDS(cu.cuStreamSynchronize(blocking));
	unsigned char last = 0;
	rig_read(&last, device + N - 1, 1);
	ck_assert_int_eq(last, 2);
	SUCCEEDS(cu.cuStreamQuery(NULL));
}
END_TEST

START_TEST(an_event_orders_two_streams)
{
	static struct valve valve;
	cu_event event, never;
	rig_begin();
	cu_stream a = rig_stream(), b = rig_stream();
	cu_memory device = rig_alloc(N);
	SUCCEEDS(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	SUCCEEDS(cu.cuEventCreate(&never, CU_EVENT_DISABLE_TIMING));
	SUCCEEDS(cu.cuEventQuery(never));
	SUCCEEDS(cu.cuLaunchHostFunc(a, wait_at, &valve));
	SUCCEEDS(cu.cuMemsetD8Async(device, 1, N, a));
	SUCCEEDS(cu.cuEventRecord(event, a));
	FAILS(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
	SUCCEEDS(cu.cuStreamWaitEvent(b, event, 0));
	SUCCEEDS(cu.cuStreamWaitEvent(b, never, 0));
	SUCCEEDS(cu.cuMemsetD8Async(device, 2, N, b));
	SUCCEEDS(cu.cuEventDestroy(event)); /* the wait stays */
	FAILS(cu.cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
	FAILS(cu.cuStreamQuery(b), CUDA_ERROR_NOT_READY);
	valve.open = 1;
	SUCCEEDS(cu.cuStreamSynchronize(b));
	unsigned char last = 0;
	rig_read(&last, device + N - 1, 1);
	ck_assert_int_eq(last, 2);
}
END_TEST

START_TEST(an_event_is_what_was_recorded_last)
{
	static struct valve valve;
	cu_event event;
	rig_begin();
	cu_stream a = rig_stream(), b = rig_stream();
	SUCCEEDS(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	SUCCEEDS(cu.cuLaunchHostFunc(a, wait_at, &valve));
	SUCCEEDS(cu.cuEventRecord(event, a));
	SUCCEEDS(cu.cuEventRecord(event, b));
	SUCCEEDS(cu.cuEventSynchronize(event));
	SUCCEEDS(cu.cuEventQuery(event));
	valve.open = 1;
	SUCCEEDS(cu.cuStreamSynchronize(a));
}
END_TEST

static void call_back(void *arg)
{
	int n;
	*(cu_result *)arg = cu.cuDeviceGetCount(&n);
}

START_TEST(a_host_function_may_not_call_the_driver)
{
	static cu_result result;
	rig_begin();
	cu_stream stream = rig_stream();
	SUCCEEDS(cu.cuLaunchHostFunc(stream, call_back, &result));
	SUCCEEDS(cu.cuStreamSynchronize(stream));
	FAILS(result, CUDA_ERROR_NOT_PERMITTED);
}
END_TEST

START_TEST(a_word_is_written_behind_the_work)
{
	static struct valve valve;
	cu_memory at;
	_Atomic uint64_t *word = rig_shared(4096, NULL);
	rig_begin();
	cu_stream stream = rig_stream();
	SUCCEEDS(cu.cuMemHostRegister((void *)word, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
	SUCCEEDS(cu.cuMemHostGetDevicePointer(&at, (void *)word, 0));
	SUCCEEDS(cu.cuLaunchHostFunc(stream, wait_at, &valve));
	SUCCEEDS(cu.cuStreamWriteValue64(stream, at, 12, CU_STREAM_WRITE_VALUE_DEFAULT));
	while (!valve.entered)
		usleep(100);
	ck_assert_uint_eq(*word, 0);
	valve.open = 1;
	SUCCEEDS(cu.cuStreamSynchronize(stream));
	ck_assert_uint_eq(*word, 12);
	FAILS(cu.cuStreamWriteValue64(stream, at, 13, 1),
	      CUDA_ERROR_INVALID_VALUE); /* NO_MEMORY_BARRIER is not in v2 */
	FAILS(cu.cuStreamWriteValue64(stream, at + 4, 13, 0), CUDA_ERROR_INVALID_VALUE);
	FAILS(cu.cuStreamWriteValue64(stream, at + 4096, 13, 0), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(words_need_the_attribute)
{
	cu_memory at;
	void *word = rig_shared(4096, NULL);
	setenv("FAKE_CUDA_ATTRIBUTES", "122=0", 1);
	rig_begin();
	SUCCEEDS(cu.cuMemHostRegister(word, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
	SUCCEEDS(cu.cuMemHostGetDevicePointer(&at, word, 0));
	FAILS(cu.cuStreamWriteValue64(rig_stream(), at, 12, 0), CUDA_ERROR_NOT_SUPPORTED);
}
END_TEST

START_TEST(handles_that_are_gone_are_refused)
{
	cu_event event;
	rig_begin();
	cu_stream stream = rig_stream();
	SUCCEEDS(cu.cuEventCreate(&event, 0));
	SUCCEEDS(cu.cuStreamDestroy(stream));
	FAILS(cu.cuStreamDestroy(stream), CUDA_ERROR_INVALID_HANDLE);
	FAILS(cu.cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
	FAILS(cu.cuEventRecord(event, stream), CUDA_ERROR_INVALID_HANDLE);
	SUCCEEDS(cu.cuEventDestroy(event));
	FAILS(cu.cuEventDestroy(event), CUDA_ERROR_INVALID_HANDLE);
	FAILS(cu.cuEventRecord(event, NULL), CUDA_ERROR_INVALID_HANDLE);
}
END_TEST

START_TEST(a_stream_that_is_destroyed_ends_its_work)
{
	static struct valve valve;
	unsigned char last = 0;
	rig_begin();
	cu_memory device = rig_alloc(N);
	cu_stream stream = rig_stream();
	SUCCEEDS(cu.cuLaunchHostFunc(stream, wait_at, &valve));
	SUCCEEDS(cu.cuMemsetD8Async(device, 3, N, stream));
	SUCCEEDS(cu.cuStreamDestroy(stream));
	valve.open = 1;
	SUCCEEDS(cu.cuCtxSynchronize());
	rig_read(&last, device + N - 1, 1);
	ck_assert_int_eq(last, 3);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("fake_cuda_stream");
	TCase *t = tcase_create("stream");
	tcase_add_test(t, a_stream_keeps_its_order);
	tcase_add_test(t, streams_do_not_wait_for_each_other);
	tcase_add_test(t, the_default_stream_waits_for_blocking_ones);
	tcase_add_test(t, an_event_orders_two_streams);
	tcase_add_test(t, an_event_is_what_was_recorded_last);
	tcase_add_test(t, a_host_function_may_not_call_the_driver);
	tcase_add_test(t, a_word_is_written_behind_the_work);
	tcase_add_test(t, words_need_the_attribute);
	tcase_add_test(t, handles_that_are_gone_are_refused);
	tcase_add_test(t, a_stream_that_is_destroyed_ends_its_work);
	suite_add_tcase(s, t);
	return suite_run(s);
}
