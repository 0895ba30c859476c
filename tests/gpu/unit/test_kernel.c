/* SPDX-License-Identifier: Apache-2.0 */
/* Modules and launches, and what a kernel does to its context. */
#include "rig.h"

#include "host_kernels.h"
#include "support/suite.h"

#include <stdlib.h>
#include <string.h>

static cu_function find(const char *name)
{
	cu_module module;
	cu_function function;
	SUCCEEDS(cu.cuModuleLoadData(&module, "image"));
	SUCCEEDS(cu.cuModuleGetFunction(&function, module, name));
	return function;
}

static cu_result launch(cu_function function, const struct fill *params, cu_stream stream)
{
	void *list[] = { (void *)(uintptr_t)params };
	return cu.cuLaunchKernel(function, 4, 1, 1, 32, 1, 1, 0, stream, list, NULL);
}

START_TEST(a_kernel_has_the_parameters_of_its_launch)
{
	uint64_t back[128];
	rig_begin();
	cu_memory memory = rig_alloc(sizeof(back));
	cu_stream stream = rig_stream();
	struct fill *params = malloc(sizeof(*params));
	*params = (struct fill){ (void *)(uintptr_t)memory, 100, 7 };
	SUCCEEDS(launch(find("fill"), params, stream));
	free(params); /* they are taken with the launch */
	SUCCEEDS(cu.cuStreamSynchronize(stream));
	rig_read(back, memory, sizeof(back));
	ck_assert_uint_eq(back[0], 7);
	ck_assert_uint_eq(back[99], 106);
	ck_assert_uint_eq(back[100], 0);
}
END_TEST

START_TEST(the_simulator_hears_of_the_environment)
{
	uint64_t back[2];
	setenv("FAKE_CUDA_SEED", "0x5eed", 1);
	setenv("FAKE_CUDA_WEAK", "1", 1);
	rig_begin();
	cu_memory memory = rig_alloc(sizeof(back));
	SUCCEEDS(launch(find("show"), &(struct fill){ (void *)(uintptr_t)memory, 2, 0 }, NULL));
	SUCCEEDS(cu.cuStreamSynchronize(NULL));
	rig_read(back, memory, sizeof(back));
	ck_assert_uint_eq(back[0], 0x5eed);
	ck_assert_uint_eq(back[1], 1);
}
END_TEST

START_TEST(kernels_that_are_not_there)
{
	cu_module module;
	cu_function function;
	rig_begin();
	SUCCEEDS(cu.cuModuleLoadData(&module, "image"));
	FAILS(cu.cuModuleGetFunction(&function, module, "absent"), CUDA_ERROR_NOT_FOUND);
	FAILS(cu.cuModuleGetFunction(&function, NULL, "fill"), CUDA_ERROR_INVALID_HANDLE);
	FAILS(cu.cuModuleLoadData(&module, NULL), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(without_kernels_no_module)
{
	cu_module module;
	setenv("FAKE_CUDA_KERNELS", "/nowhere.so", 1);
	rig_begin();
	FAILS(cu.cuModuleLoadData(&module, "image"), CUDA_ERROR_INVALID_IMAGE);
}
END_TEST

START_TEST(launches_that_cannot_be)
{
	struct fill params = { 0 };
	void *list[] = { &params };
	cu_context other;
	rig_begin();
	cu_function fill = find("fill");
	cu_stream stream = rig_stream();
	FAILS(cu.cuLaunchKernel(fill, 0, 1, 1, 32, 1, 1, 0, stream, list, NULL), CUDA_ERROR_INVALID_VALUE);
	FAILS(cu.cuLaunchKernel(fill, 1, 1, 1, 1025, 1, 1, 0, stream, list, NULL), CUDA_ERROR_INVALID_VALUE);
	FAILS(cu.cuLaunchKernel(NULL, 1, 1, 1, 32, 1, 1, 0, stream, list, NULL), CUDA_ERROR_INVALID_HANDLE);
	SUCCEEDS(cu.cuDevicePrimaryCtxRetain(&other, 1));
	SUCCEEDS(cu.cuCtxSetCurrent(other));
	FAILS(launch(fill, &params, stream), CUDA_ERROR_INVALID_HANDLE); /* the stream is of another context */
}
END_TEST

/* The whole context is lost with it, as after an Xid 31. */
static void expect_lost(const char *what)
{
	cu_stream stream;
	cu_memory memory;
	int n;
	FAILS(cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
	ck_assert_msg(cu.cuStreamCreate(&stream, 0) == CUDA_ERROR_ILLEGAL_ADDRESS, "%s", what);
	FAILS(cu.cuMemAlloc(&memory, 1), CUDA_ERROR_ILLEGAL_ADDRESS);
	SUCCEEDS(cu.cuDeviceGetCount(&n));
}

START_TEST(a_kernel_without_memory_loses_the_context)
{
	setenv("FAKE_CUDA_DELAY", "100000", 1);
	rig_begin();
	cu_stream stream = rig_stream();
	cu_memory memory = rig_alloc(4096);
	SUCCEEDS(launch(find("fill"), &(struct fill){ (void *)8, 1, 0 }, stream));
	SUCCEEDS(cu.cuMemsetD8Async(memory, 1, 1, stream)); /* is not done any more */
	FAILS(cu.cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	expect_lost("no memory");
}
END_TEST

START_TEST(a_kernel_reaches_the_memory_of_its_device_alone)
{
	cu_context other;
	rig_begin();
	cu_function fill = find("fill");
	cu_memory own = rig_alloc(4096);
	SUCCEEDS(cu.cuDevicePrimaryCtxRetain(&other, 1));
	SUCCEEDS(cu.cuCtxSetCurrent(other));
	cu_memory far = rig_alloc(4096);
	SUCCEEDS(launch(fill, &(struct fill){ (void *)(uintptr_t)far, 1, 0 }, NULL));
	SUCCEEDS(cu.cuMemcpyDtoDAsync(own, far, 4096, NULL)); /* copies may cross */
	SUCCEEDS(cu.cuCtxSynchronize());
	SUCCEEDS(launch(fill, &(struct fill){ (void *)(uintptr_t)own, 1, 0 }, NULL));
	expect_lost("memory of another device");
}
END_TEST

START_TEST(a_kernel_does_not_write_what_it_may_only_read)
{
	enum { N = 2 << 20 };
	cu_memory at;
	cu_handle handle;
	struct cu_allocation what = rig_exportable(0);
	struct cu_access access = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 }, CU_MEM_ACCESS_FLAGS_PROT_READ };
	rig_begin();
	SUCCEEDS(cu.cuMemCreate(&handle, N, &what, 0));
	SUCCEEDS(cu.cuMemAddressReserve(&at, N, 0, 0, 0));
	SUCCEEDS(cu.cuMemMap(at, N, 0, handle, 0));
	SUCCEEDS(cu.cuMemSetAccess(at, N, &access, 1));
	SUCCEEDS(launch(find("fill"), &(struct fill){ (void *)(uintptr_t)at, 1, 0 }, NULL));
	expect_lost("read-only memory");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("fake_cuda_kernel");
	TCase *t = tcase_create("kernel");
	tcase_add_test(t, a_kernel_has_the_parameters_of_its_launch);
	tcase_add_test(t, the_simulator_hears_of_the_environment);
	tcase_add_test(t, kernels_that_are_not_there);
	tcase_add_test(t, without_kernels_no_module);
	tcase_add_test(t, launches_that_cannot_be);
	tcase_add_test(t, a_kernel_without_memory_loses_the_context);
	tcase_add_test(t, a_kernel_reaches_the_memory_of_its_device_alone);
	tcase_add_test(t, a_kernel_does_not_write_what_it_may_only_read);
	suite_add_tcase(s, t);
	return suite_run(s);
}
