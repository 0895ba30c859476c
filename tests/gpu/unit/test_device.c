/* SPDX-License-Identifier: Apache-2.0 */
/* The driver, its devices and contexts. */
#include "rig.h"

#include "support/suite.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

START_TEST(nothing_works_before_init)
{
	int n;
	rig_load();
	FAILS(cu.cuDeviceGetCount(&n), CUDA_ERROR_NOT_INITIALIZED);
	SUCCEEDS(cu.cuInit(0));
	SUCCEEDS(cu.cuDeviceGetCount(&n));
	ck_assert_int_eq(n, 2);
}
END_TEST

static void use_after_fork(void *arg)
{
	int n;
	FAILS(cu.cuDeviceGetCount(&n), CUDA_ERROR_NOT_INITIALIZED);
	FAILS(cu.cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
	FAILS(cu.cuCtxSynchronize(), CUDA_ERROR_NOT_INITIALIZED);
}

START_TEST(nothing_works_in_a_child)
{
	rig_begin();
	ck_assert_int_eq(rig_child(use_after_fork, NULL), 0);
	SUCCEEDS(cu.cuCtxSynchronize());
}
END_TEST

START_TEST(only_symbols_of_the_real_driver_are_there)
{
	rig_load();
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	ck_assert_ptr_nonnull(library);
	ck_assert_ptr_nonnull(dlsym(library, "cuMemHostRegister_v2"));
	ck_assert_ptr_nonnull(dlsym(library, "cuCtxCreate_v4"));
	ck_assert_ptr_null(dlsym(library, "cuDeviceGetUuid"));
	ck_assert_ptr_null(dlsym(library, "cuMemHostRegister"));
	ck_assert_ptr_null(dlsym(library, "cuStreamWriteValue64"));
	ck_assert_ptr_null(dlsym(library, "driver_lock"));
}
END_TEST

START_TEST(functions_are_found_by_name)
{
	cu_result (*find)(const char *, void **, int, uint64_t, unsigned *);
	void *found;
	unsigned status = 9;
	rig_load();
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	void *symbol = dlsym(library, "cuGetProcAddress_v2");
	memcpy(&find, &symbol, sizeof(find));
	SUCCEEDS(find("cuMemAlloc", &found, 13000, 0, &status));
	ck_assert_uint_eq(status, 0);
	ck_assert_ptr_eq(found, dlsym(library, "cuMemAlloc_v2"));
	FAILS(find("cuMemLost", &found, 13000, 0, &status), CUDA_ERROR_NOT_FOUND);
	ck_assert_uint_eq(status, 1);
	ck_assert_ptr_null(found);
}
END_TEST

START_TEST(errors_have_names)
{
	const char *name = "";
	rig_load();
	SUCCEEDS(cu.cuGetErrorName(700, &name));
	ck_assert_str_eq(name, "CUDA_ERROR_ILLEGAL_ADDRESS");
	ck_assert_str_eq(cuda_result_name(&cu, 77777), "CUDA error");
}
END_TEST

START_TEST(devices_have_uuids_of_their_own)
{
	struct cu_uuid a, b, again;
	rig_begin();
	SUCCEEDS(cu.cuDeviceGetUuid(&a, 0));
	SUCCEEDS(cu.cuDeviceGetUuid(&b, 1));
	SUCCEEDS(cu.cuDeviceGetUuid(&again, 0));
	ck_assert_mem_eq(&a, &again, sizeof(a));
	ck_assert_mem_ne(&a, &b, sizeof(a));
	FAILS(cu.cuDeviceGetUuid(&a, 2), CUDA_ERROR_INVALID_DEVICE);
}
END_TEST

/* Visible devices by number and by UUID, whole or its beginning; the list ends at the first word that names none. */
START_TEST(visible_devices_are_chosen)
{
	static const struct {
		const char *visible;
		int n, last_byte; /* of device 0's UUID */
	} cases[] = {
		{ "1", 1, 2 },
		{ "1,0", 2, 2 },
		{ "GPU-facecda0-6acc-4000-8000-000000000002", 1, 2 },
		{ "GPU-facecda0-6acc-4000-8000-000000000001,7,1", 1, 1 },
		{ "GPU-face", 1, 1 },
	};
	int n;
	struct cu_uuid uuid;
	setenv("CUDA_VISIBLE_DEVICES", cases[_i].visible, 1);
	rig_begin();
	SUCCEEDS(cu.cuDeviceGetCount(&n));
	ck_assert_int_eq(n, cases[_i].n);
	SUCCEEDS(cu.cuDeviceGetUuid(&uuid, 0));
	ck_assert_int_eq(uuid.bytes[15], cases[_i].last_byte);
}
END_TEST

START_TEST(without_a_visible_device_there_is_none)
{
	setenv("CUDA_VISIBLE_DEVICES", "", 1);
	rig_load();
	FAILS(cu.cuInit(0), CUDA_ERROR_NO_DEVICE);
}
END_TEST

START_TEST(attributes_are_as_the_environment_says)
{
	int value = -1;
	setenv("FAKE_CUDA_ATTRIBUTES", "122=0,16=132", 1);
	rig_begin();
	SUCCEEDS(cu.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 0));
	ck_assert_int_eq(value, 0);
	SUCCEEDS(cu.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
	ck_assert_int_eq(value, 132);
	SUCCEEDS(cu.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
	ck_assert_int_eq(value, 1);
	FAILS(cu.cuDeviceGetAttribute(&value, 9999, 0), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

static void *in_thread(void *arg)
{
	cu_context context = arg, current = arg;
	cu_memory memory;
	SUCCEEDS(cu.cuCtxGetCurrent(&current));
	ck_assert_ptr_null(current);
	FAILS(cu.cuMemAlloc(&memory, 1), CUDA_ERROR_INVALID_CONTEXT);
	FAILS(cu.cuStreamQuery(NULL), CUDA_ERROR_INVALID_CONTEXT);
	SUCCEEDS(cu.cuCtxSetCurrent(context));
	SUCCEEDS(cu.cuMemAlloc(&memory, 1));
	return NULL;
}

START_TEST(a_context_is_current_in_one_thread)
{
	pthread_t thread;
	cu_context context;
	rig_begin();
	SUCCEEDS(cu.cuCtxGetCurrent(&context));
	ck_assert_int_eq(pthread_create(&thread, NULL, in_thread, context), 0);
	ck_assert_int_eq(pthread_join(thread, NULL), 0);
}
END_TEST

START_TEST(a_context_that_is_released_is_gone)
{
	cu_context context, other;
	cu_memory memory;
	cu_device device = 9;
	rig_begin();
	SUCCEEDS(cu.cuDevicePrimaryCtxRetain(&context, 0));
	SUCCEEDS(cu.cuDevicePrimaryCtxRetain(&other, 1));
	ck_assert_ptr_ne(context, other);
	SUCCEEDS(cu.cuDevicePrimaryCtxRelease(0));
	SUCCEEDS(cu.cuMemAlloc(&memory, 1)); /* retained twice */
	SUCCEEDS(cu.cuDevicePrimaryCtxRelease(0));
	FAILS(cu.cuMemAlloc(&memory, 1), CUDA_ERROR_INVALID_CONTEXT);
	FAILS(cu.cuDevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
	FAILS(cu.cuCtxSetCurrent(context), CUDA_ERROR_INVALID_CONTEXT);
	SUCCEEDS(cu.cuCtxSetCurrent(other));
	SUCCEEDS(cu.cuCtxGetDevice(&device));
	ck_assert_int_eq(device, 1);
}
END_TEST

START_TEST(a_device_that_is_prohibited_has_no_context)
{
	cu_context context;
	setenv("FAKE_CUDA_ATTRIBUTES", "20=2", 1);
	rig_load();
	SUCCEEDS(cu.cuInit(0));
	FAILS(cu.cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_DEVICE_UNAVAILABLE);
}
END_TEST

static void load(void *arg)
{
	rig_load();
}

/* A variable that cannot be read ends the process: a test would run without what it asked for. */
START_TEST(variables_that_are_wrong_are_refused)
{
	static const char *const cases[][2] = {
		{ "FAKE_CUDA_DEVICES", "many" },    { "FAKE_CUDA_ATTRIBUTES", "122" },
		{ "FAKE_CUDA_FAIL", "cuInit:1" },   { "FAKE_CUDA_ATTRIBUTES", "999=1" },
		{ "FAKE_CUDA_STICKY", "3" },	    { "FAKE_CUDA_LATE", "-1" },
		{ "FAKE_CUDA_KILL_COPY", "1:2:3" }, { "FAKE_CUDA_DEVICES", "99" },
	};
	setenv(cases[_i][0], cases[_i][1], 1);
	int status = rig_child(load, NULL);
	ck_assert(WIFEXITED(status));
	ck_assert_int_eq(WEXITSTATUS(status), 2);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("fake_cuda_device");
	TCase *t = tcase_create("device");
	tcase_add_test(t, nothing_works_before_init);
	tcase_add_test(t, nothing_works_in_a_child);
	tcase_add_test(t, only_symbols_of_the_real_driver_are_there);
	tcase_add_test(t, functions_are_found_by_name);
	tcase_add_test(t, errors_have_names);
	tcase_add_test(t, devices_have_uuids_of_their_own);
	tcase_add_loop_test(t, visible_devices_are_chosen, 0, 5);
	tcase_add_test(t, without_a_visible_device_there_is_none);
	tcase_add_test(t, attributes_are_as_the_environment_says);
	tcase_add_test(t, a_context_is_current_in_one_thread);
	tcase_add_test(t, a_context_that_is_released_is_gone);
	tcase_add_test(t, a_device_that_is_prohibited_has_no_context);
	tcase_add_loop_test(t, variables_that_are_wrong_are_refused, 0, 8);
	suite_add_tcase(s, t);
	return suite_run(s);
}
