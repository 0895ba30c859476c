/* SPDX-License-Identifier: Apache-2.0 */
/* Failures on demand: calls, launches, copies, deaths. */
#include "rig.h"

#include "host_kernels.h"
#include "support/scratch.h"
#include "support/suite.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define N ((size_t)1 << 20)

static cu_result launch(cu_memory to, uint64_t n)
{
	cu_module module;
	cu_function function;
	struct fill params = { (void *)(uintptr_t)to, n, 1 };
	void *list[] = { &params };
	SUCCEEDS(cu.cuModuleLoadData(&module, "image"));
	SUCCEEDS(cu.cuModuleGetFunction(&function, module, "fill"));
	return cu.cuLaunchKernel(function, 4, 1, 1, 32, 1, 1, 0, NULL, list, NULL);
}

START_TEST(the_nth_call_fails_once)
{
	cu_memory memory;
	setenv("FAKE_CUDA_FAIL", "cuMemAlloc:2:2,cuMemFree:1:999", 1);
	rig_begin();
	SUCCEEDS(cu.cuMemAlloc(&memory, 1));
	FAILS(cu.cuMemAlloc(&memory, 1), CUDA_ERROR_OUT_OF_MEMORY);
	SUCCEEDS(cu.cuMemAlloc(&memory, 1));
	FAILS(cu.cuMemFree(memory), CUDA_ERROR_UNKNOWN);
	SUCCEEDS(cu.cuMemFree(memory));
}
END_TEST

START_TEST(the_nth_call_and_all_later_ones_fail)
{
	setenv("FAKE_CUDA_FAIL", "cuStreamQuery:2+:46", 1);
	rig_begin();
	SUCCEEDS(cu.cuStreamQuery(NULL));
	for (int i = 0; i < 3; i++)
		FAILS(cu.cuStreamQuery(NULL), CUDA_ERROR_DEVICE_UNAVAILABLE);
	SUCCEEDS(cu.cuStreamSynchronize(NULL));
}
END_TEST

/* A name is that of one function, not the beginning of others. */
START_TEST(functions_with_a_name_in_front_do_not_fail)
{
	cu_stream stream;
	setenv("FAKE_CUDA_FAIL", "cuMemcpyDtoD:1+:1,cuStreamCrea:1+:1", 1);
	rig_begin();
	SUCCEEDS(cu.cuMemcpyDtoDAsync(0, 0, 0, NULL));
	SUCCEEDS(cu.cuStreamCreate(&stream, 0));
}
END_TEST

START_TEST(an_error_of_the_nth_launch_stays)
{
	cu_stream stream;
	uint64_t back[3] = { 9, 9, 9 };
	setenv("FAKE_CUDA_STICKY", "2:719", 1);
	rig_begin();
	cu_memory memory = rig_alloc(4096);
	SUCCEEDS(launch(memory, 1));
	SUCCEEDS(cu.cuCtxSynchronize());
	rig_read(back, memory, sizeof(back));
	SUCCEEDS(launch(memory, 3));
	FAILS(cu.cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
	FAILS(cu.cuStreamCreate(&stream, 0), CUDA_ERROR_LAUNCH_FAILED);
	FAILS(cu.cuStreamQuery(NULL), CUDA_ERROR_LAUNCH_FAILED);
	ck_assert_uint_eq(back[0], 1);
	ck_assert_uint_eq(back[1], 0);
}
END_TEST

static void expect_hang(void)
{
	usleep(50000);
	FAILS(cu.cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
}

START_TEST(the_nth_launch_hangs)
{
	setenv("FAKE_CUDA_HANG", "2", 1);
	rig_begin();
	cu_memory memory = rig_alloc(4096);
	SUCCEEDS(launch(memory, 1));
	SUCCEEDS(cu.cuCtxSynchronize());
	SUCCEEDS(launch(memory, 1));
	expect_hang();
}
END_TEST

START_TEST(the_nth_copy_hangs)
{
	setenv("FAKE_CUDA_HANG_COPY", "2", 1);
	rig_begin();
	cu_memory memory = rig_alloc(4096);
	SUCCEEDS(cu.cuMemcpyDtoDAsync(memory, memory + 2048, 1, NULL));
	SUCCEEDS(cu.cuCtxSynchronize());
	SUCCEEDS(cu.cuMemsetD8Async(memory, 0, 1, NULL));
	expect_hang();
}
END_TEST

static void store_many(void *arg)
{
	cu_memory at;
	rig_begin();
	SUCCEEDS(cu.cuMemHostRegister(arg, N, 0));
	SUCCEEDS(cu.cuMemHostGetDevicePointer(&at, arg, 0));
	SUCCEEDS(launch(at, 20));
	SUCCEEDS(launch(at + 1024, 20));
	cu.cuCtxSynchronize();
}

START_TEST(a_process_dies_after_n_stores)
{
	uint64_t *shared = rig_shared(N, NULL);
	setenv("FAKE_CUDA_KILL", "25", 1);
	rig_load();
	int status = rig_child(store_many, shared);
	ck_assert(WIFSIGNALED(status));
	ck_assert_int_eq(WTERMSIG(status), SIGKILL);
	ck_assert_uint_eq(shared[19], 20);
	ck_assert_uint_eq(shared[128 + 4], 5);
	ck_assert_uint_eq(shared[128 + 5], 0);
}
END_TEST

static void copy_twice(void *arg)
{
	rig_begin();
	cu_memory memory = rig_alloc(2 * N);
	SUCCEEDS(cu.cuMemHostRegister(arg, N, 0));
	SUCCEEDS(cu.cuMemsetD8Async(memory, 3, N, NULL));
	SUCCEEDS(cu.cuMemcpyDtoHAsync(arg, memory, N, NULL));
	cu.cuCtxSynchronize();
}

/* At the border, in the middle of a chunk, behind the last byte. */
START_TEST(a_process_dies_in_a_copy)
{
	static const size_t cases[] = { 0, 1, 300001, N };
	char text[32];
	unsigned char *shared = rig_shared(N, NULL);
	snprintf(text, sizeof(text), "2:%zu", cases[_i]);
	setenv("FAKE_CUDA_KILL_COPY", text, 1);
	rig_load();
	int status = rig_child(copy_twice, shared);
	ck_assert(WIFSIGNALED(status));
	size_t n = 0;
	while (n < N && shared[n])
		n++;
	ck_assert_uint_eq(n, cases[_i]);
	while (n < N && !shared[n])
		n++;
	ck_assert_uint_eq(n, N);
}
END_TEST

/* What it says before it ends: whether the call failed. */
static void allocate(void *arg)
{
	cu_memory memory;
	rig_begin();
	_exit(cu.cuMemAlloc(&memory, 1) ? 1 : 2);
}

START_TEST(an_armed_failure_happens_in_one_process)
{
	char folder[SCRATCH_PATH], file[SCRATCH_PATH + 16];
	struct cuda_driver none = { 0 };
	ck_assert(scratch_make(folder));
	snprintf(file, sizeof(file), "%s/arm", folder);
	int fd = open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	close(fd);
	setenv("FAKE_CUDA_ARM", file, 1);
	setenv("FAKE_CUDA_FAIL", "cuMemAlloc:1:2", 1);
	int first = rig_child(allocate, NULL);
	ck_assert_int_ne(access(file, F_OK), 0);
	int second = rig_child(allocate, NULL);
	ck_assert_int_eq(WEXITSTATUS(first), 1);
	ck_assert_int_eq(WEXITSTATUS(second), 2);
	ck_assert_mem_eq(&cu, &none, sizeof(cu)); /* each of them loaded it anew */
}
END_TEST

int main(void)
{
	Suite *s = suite_create("fake_cuda_faults");
	TCase *t = tcase_create("faults");
	tcase_add_test(t, the_nth_call_fails_once);
	tcase_add_test(t, the_nth_call_and_all_later_ones_fail);
	tcase_add_test(t, functions_with_a_name_in_front_do_not_fail);
	tcase_add_test(t, an_error_of_the_nth_launch_stays);
	tcase_add_test(t, the_nth_launch_hangs);
	tcase_add_test(t, the_nth_copy_hangs);
	tcase_add_test(t, a_process_dies_after_n_stores);
	tcase_add_loop_test(t, a_process_dies_in_a_copy, 0, 4);
	tcase_add_test(t, an_armed_failure_happens_in_one_process);
	suite_add_tcase(s, t);
	return suite_run(s);
}
