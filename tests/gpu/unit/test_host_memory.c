/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory, registered and not: when copies are synchronous, which pages they mean, who may write. */
#include "rig.h"

#include "support/suite.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define N ((size_t)1 << 20)

START_TEST(pageable_copies_are_synchronous)
{
	unsigned char *host = malloc(N), *back = calloc(1, N);
	setenv("FAKE_CUDA_DELAY", "100000", 1);
	rig_begin();
	cu_memory device = rig_alloc(N);
	cu_stream stream = rig_stream();
	memset(host, 5, N);
	SUCCEEDS(cu.cuMemcpyHtoDAsync(device, host, N, stream));
	memset(host, 6, N);
	SUCCEEDS(cu.cuMemcpyDtoHAsync(back, device, N, stream));
	ck_assert_int_eq(back[0], 5);
	ck_assert_int_eq(back[N - 1], 5);
	free(host);
	free(back);
}
END_TEST

START_TEST(registered_copies_are_not)
{
	unsigned char *host = rig_shared(N, NULL);
	setenv("FAKE_CUDA_DELAY", "100000", 1);
	rig_begin();
	cu_memory device = rig_alloc(N);
	cu_stream stream = rig_stream();
	SUCCEEDS(cu.cuMemHostRegister(host, N, 0));
	SUCCEEDS(cu.cuMemsetD8Async(device, 5, N, stream));
	SUCCEEDS(cu.cuMemcpyDtoHAsync(host, device, N, stream));
	ck_assert_int_eq(host[0], 0);
	SUCCEEDS(cu.cuStreamSynchronize(stream));
	ck_assert_int_eq(host[N - 1], 5);
}
END_TEST

/* What a client that moves its memory has to know: the registration keeps the old pages. */
START_TEST(a_registration_keeps_its_pages)
{
	int fd;
	unsigned char *host = rig_shared(N, &fd), *other = rig_shared(N, NULL);
	rig_begin();
	cu_memory device = rig_alloc(N);
	cu_stream stream = rig_stream();
	SUCCEEDS(cu.cuMemHostRegister(host, N, 0));
	SUCCEEDS(cu.cuMemsetD8Async(device, 5, N, stream));
	ck_assert_ptr_eq(mremap(other, N, N, MREMAP_MAYMOVE | MREMAP_FIXED, host), host);
	SUCCEEDS(cu.cuMemcpyDtoHAsync(host, device, N, stream));
	SUCCEEDS(cu.cuStreamSynchronize(stream));
	ck_assert_int_eq(host[0], 0);
	unsigned char old = 0;
	ck_assert_int_eq(pread(fd, &old, 1, (off_t)N - 1), 1);
	ck_assert_int_eq(old, 5);
	SUCCEEDS(cu.cuMemHostUnregister(host));
	SUCCEEDS(cu.cuMemHostRegister(host, N, 0));
	SUCCEEDS(cu.cuMemcpyDtoHAsync(host, device, N, stream));
	SUCCEEDS(cu.cuStreamSynchronize(stream));
	ck_assert_int_eq(host[0], 5);
}
END_TEST

START_TEST(a_copy_behind_unregister_is_an_error)
{
	unsigned char *host = rig_shared(N, NULL);
	setenv("FAKE_CUDA_DELAY", "100000", 1);
	rig_begin();
	cu_memory device = rig_alloc(N);
	cu_stream stream = rig_stream();
	SUCCEEDS(cu.cuMemHostRegister(host, N, 0));
	SUCCEEDS(cu.cuMemcpyDtoHAsync(host, device, N, stream));
	SUCCEEDS(cu.cuMemHostUnregister(host));
	FAILS(cu.cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	FAILS(cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

START_TEST(registrations_do_not_overlap)
{
	char *host = rig_shared(4 * N, NULL);
	rig_begin();
	SUCCEEDS(cu.cuMemHostRegister(host + N, N, 0));
	FAILS(cu.cuMemHostRegister(host + N, N, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	FAILS(cu.cuMemHostRegister(host, N + 1, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	SUCCEEDS(cu.cuMemHostRegister(host, N, 0));
	FAILS(cu.cuMemHostUnregister(host + 2 * N), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	FAILS(cu.cuMemHostUnregister(host + 1), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	SUCCEEDS(cu.cuMemHostUnregister(host + N));
	FAILS(cu.cuMemHostUnregister(host + N), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}
END_TEST

/* A range of several registrations is fine, one that is registered in part is not. */
START_TEST(copies_over_several_registrations)
{
	unsigned char *host = rig_shared(2 * N, NULL);
	rig_begin();
	cu_memory device = rig_alloc(2 * N);
	cu_stream stream = rig_stream();
	SUCCEEDS(cu.cuMemsetD8Async(device, 5, 2 * N, stream));
	SUCCEEDS(cu.cuMemHostRegister(host, N, 0));
	FAILS(cu.cuMemcpyDtoHAsync(host + N / 2, device, N, stream), CUDA_ERROR_INVALID_VALUE);
	SUCCEEDS(cu.cuMemHostRegister(host + N, N, 0));
	SUCCEEDS(cu.cuMemcpyDtoHAsync(host + N / 2, device, N, stream));
	SUCCEEDS(cu.cuStreamSynchronize(stream));
	ck_assert_int_eq(host[N / 2], 5);
	ck_assert_int_eq(host[N + N / 2 - 1], 5);
	ck_assert_int_eq(host[N + N / 2], 0);
}
END_TEST

START_TEST(memory_that_is_not_there_cannot_be_registered)
{
	char *host = rig_shared(3 * 4096, NULL);
	rig_begin();
	ck_assert_int_eq(munmap(host + 4096, 4096), 0);
	FAILS(cu.cuMemHostRegister(host, 3 * 4096, 0), CUDA_ERROR_INVALID_VALUE);
	FAILS(cu.cuMemHostRegister(NULL, 4096, 0), CUDA_ERROR_INVALID_VALUE);
	FAILS(cu.cuMemHostRegister(host, 0, 0), CUDA_ERROR_INVALID_VALUE);
	FAILS(cu.cuMemHostRegister(host, 4096, 64), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

/* As parameters are mapped: the flag is needed, the attribute, and no device may write. */
START_TEST(read_only_memory)
{
	int fd;
	unsigned char first = 0;
	memset(rig_shared(N, &fd), 5, N);
	unsigned char *host = mmap(NULL, N, PROT_READ, MAP_SHARED, fd, 0);
	rig_begin();
	cu_memory device = rig_alloc(N);
	cu_stream stream = rig_stream();
	FAILS(cu.cuMemHostRegister(host, N, CU_MEMHOSTREGISTER_PORTABLE), CUDA_ERROR_INVALID_VALUE);
	SUCCEEDS(cu.cuMemHostRegister(host, N, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_READ_ONLY));
	ck_assert_int_eq(pwrite(fd, "\6", 1, 0), 1);
	SUCCEEDS(cu.cuMemcpyHtoDAsync(device, host, N, stream));
	SUCCEEDS(cu.cuStreamSynchronize(stream));
	rig_read(&first, device, 1);
	ck_assert_int_eq(first, 6);
	SUCCEEDS(cu.cuMemcpyDtoHAsync(host, device, N, stream));
	FAILS(cu.cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

START_TEST(read_only_memory_needs_the_attribute)
{
	char *host = rig_shared(N, NULL);
	setenv("FAKE_CUDA_ATTRIBUTES", "113=0", 1);
	rig_begin();
	FAILS(cu.cuMemHostRegister(host, N, CU_MEMHOSTREGISTER_READ_ONLY), CUDA_ERROR_NOT_SUPPORTED);
	SUCCEEDS(cu.cuMemHostRegister(host, N, 0));
}
END_TEST

/* Without attribute 91 the host's address is not the device's, and the host cannot use the device's. */
START_TEST(device_pointers)
{
	cu_memory at;
	int own = _i;
	unsigned char *host = rig_shared(N, NULL);
	setenv("FAKE_CUDA_ATTRIBUTES", own ? "91=0" : "91=1", 1);
	rig_begin();
	cu_stream stream = rig_stream();
	FAILS(cu.cuMemHostGetDevicePointer(&at, host, 0), CUDA_ERROR_INVALID_VALUE);
	SUCCEEDS(cu.cuMemHostRegister(host, N, 0));
	SUCCEEDS(cu.cuMemHostGetDevicePointer(&at, host + 8, 0));
	ck_assert_int_eq(at != (cu_memory)(uintptr_t)(host + 8), own);
	SUCCEEDS(cu.cuMemsetD8Async(at, 5, N - 8, stream));
	SUCCEEDS(cu.cuStreamSynchronize(stream));
	ck_assert_int_eq(host[7], 0);
	ck_assert_int_eq(host[8], 5);
	ck_assert_int_eq(host[N - 1], 5);
	FAILS(cu.cuMemsetD8Async(at, 5, N, stream), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(pinned_memory_of_the_driver)
{
	void *host;
	rig_begin();
	cu_memory device = rig_alloc(N);
	SUCCEEDS(cu.cuMemHostAlloc(&host, N, 0));
	memset(host, 4, N);
	rig_read(host, device, N);
	ck_assert_int_eq(((char *)host)[N - 1], 0);
	FAILS(cu.cuMemHostUnregister(host), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	SUCCEEDS(cu.cuMemFreeHost(host));
	FAILS(cu.cuMemFreeHost(host), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("fake_cuda_host_memory");
	TCase *t = tcase_create("host_memory");
	tcase_add_test(t, pageable_copies_are_synchronous);
	tcase_add_test(t, registered_copies_are_not);
	tcase_add_test(t, a_registration_keeps_its_pages);
	tcase_add_test(t, a_copy_behind_unregister_is_an_error);
	tcase_add_test(t, registrations_do_not_overlap);
	tcase_add_test(t, copies_over_several_registrations);
	tcase_add_test(t, memory_that_is_not_there_cannot_be_registered);
	tcase_add_test(t, read_only_memory);
	tcase_add_test(t, read_only_memory_needs_the_attribute);
	tcase_add_loop_test(t, device_pointers, 0, 2);
	tcase_add_test(t, pinned_memory_of_the_driver);
	suite_add_tcase(s, t);
	return suite_run(s);
}
