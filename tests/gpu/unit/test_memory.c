/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of devices: who can touch it, how it is exported, and how much there is. */
#include "rig.h"

#include "support/scratch.h"
#include "support/suite.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define N ((size_t)2 << 20)

/* Reserves addresses, maps the allocation there and gives device 0 access. */
static cu_memory map(cu_handle handle, unsigned access)
{
	cu_memory at;
	struct cu_access what = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 }, access };
	SUCCEEDS(cu.cuMemAddressReserve(&at, N, 0, 0, 0));
	SUCCEEDS(cu.cuMemMap(at, N, 0, handle, 0));
	SUCCEEDS(cu.cuMemSetAccess(at, N, &what, 1));
	return at;
}

static cu_handle make(cu_device device)
{
	cu_handle handle;
	struct cu_allocation what = rig_exportable(device);
	SUCCEEDS(cu.cuMemCreate(&handle, N, &what, 0));
	return handle;
}

static int export(cu_handle handle)
{
	int fd = -1;
	SUCCEEDS(cu.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	return fd;
}

static cu_result import(int fd, cu_handle *out)
{
	void *as_pointer = (void *)(intptr_t)fd;
	return cu.cuMemImportFromShareableHandle(out, as_pointer, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

static void set(cu_memory at, unsigned char value, size_t n)
{
	cu_stream stream = rig_stream();
	SUCCEEDS(cu.cuMemsetD8Async(at, value, n, stream));
	SUCCEEDS(cu.cuStreamSynchronize(stream));
}

static int byte_at(cu_memory at)
{
	unsigned char value;
	rig_read(&value, at, 1);
	return value;
}

static void touch(void *arg)
{
	signal(SIGSEGV, SIG_DFL); /* Check's */
	rig_begin();
	cu_memory memory = rig_alloc(4096);
	set(memory, 1, 4096);
	*(volatile char *)(uintptr_t)memory;
}

START_TEST(a_host_that_touches_device_memory_dies)
{
	rig_load();
	int status = rig_child(touch, NULL);
	ck_assert(WIFSIGNALED(status) || WEXITSTATUS(status) != 0); /* a sanitizer's runtime exits */
}
END_TEST

START_TEST(what_lies_behind_an_allocation_is_no_memory)
{
	rig_begin();
	cu_memory memory = rig_alloc(4096);
	FAILS(cu.cuMemsetD8Async(memory + 4095, 1, 2, NULL), CUDA_ERROR_INVALID_VALUE);
	SUCCEEDS(cu.cuMemFree(memory));
	FAILS(cu.cuMemFree(memory), CUDA_ERROR_INVALID_VALUE);
	FAILS(cu.cuMemsetD8Async(memory, 1, 1, NULL), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

static void make_in_child(void *arg)
{
	int *socket = arg;
	rig_begin();
	cu_handle handle = make(0);
	cu_memory at = map(handle, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	set(at, 42, N);
	int fd = export(handle);
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)getpid(), fd);
	ck_assert_int_eq(write(*socket, path, sizeof(path)), sizeof(path));
	pause();
}

/* As gaccd keeps a job's memory over an engine's death. */
START_TEST(exported_memory_outlives_its_maker)
{
	int pipe_fd[2], status;
	char path[64];
	cu_handle handle;
	rig_load();
	ck_assert_int_eq(pipe(pipe_fd), 0);
	pid_t pid = fork();
	if (!pid)
		make_in_child(&pipe_fd[1]);
	ck_assert_int_eq(read(pipe_fd[0], path, sizeof(path)), sizeof(path));
	int fd = open(path, O_RDWR | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	rig_begin();
	SUCCEEDS(import(fd, &handle));
	close(fd);
	cu_memory at = map(handle, CU_MEM_ACCESS_FLAGS_PROT_READ);
	SUCCEEDS(cu.cuMemRelease(handle)); /* the mapping holds it */
	ck_assert_int_eq(byte_at(at), 42);
	ck_assert_int_eq(byte_at(at + N - 1), 42);
}
END_TEST

START_TEST(other_descriptors_are_not_imported)
{
	int fd;
	cu_handle handle;
	rig_shared(N, &fd);
	rig_begin();
	FAILS(import(fd, &handle), CUDA_ERROR_INVALID_VALUE);
	FAILS(import(-1, &handle), CUDA_ERROR_INVALID_VALUE);
	FAILS(import(0, &handle), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(only_what_is_exportable_is_exported)
{
	int fd;
	cu_handle handle;
	struct cu_allocation what = rig_exportable(0);
	what.requested_handle_types = CU_MEM_HANDLE_TYPE_NONE;
	rig_begin();
	SUCCEEDS(cu.cuMemCreate(&handle, N, &what, 0));
	FAILS(cu.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
	      CUDA_ERROR_INVALID_VALUE);
	FAILS(cu.cuMemExportToShareableHandle(&fd, make(0), 2, 0), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(one_memory_at_two_addresses)
{
	rig_begin();
	cu_handle handle = make(0), again;
	int fd = export(handle);
	SUCCEEDS(import(fd, &again));
	ck_assert_uint_ne(handle, again);
	cu_memory a = map(handle, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	cu_memory b = map(again, CU_MEM_ACCESS_FLAGS_PROT_READ);
	set(a, 3, N);
	ck_assert_int_eq(byte_at(b + 77), 3);
	SUCCEEDS(cu.cuMemsetD8Async(b, 4, N, NULL));
	FAILS(cu.cuStreamSynchronize(NULL), CUDA_ERROR_ILLEGAL_ADDRESS); /* this process may only read there */
	FAILS(cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

START_TEST(addresses_without_access_are_refused)
{
	cu_memory at;
	rig_begin();
	SUCCEEDS(cu.cuMemAddressReserve(&at, N, 0, 0, 0));
	FAILS(cu.cuMemsetD8Async(at, 1, 1, NULL), CUDA_ERROR_INVALID_VALUE);
	SUCCEEDS(cu.cuMemMap(at, N, 0, make(0), 0));
	FAILS(cu.cuMemsetD8Async(at, 1, 1, NULL), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(maps_that_do_not_fit_are_refused)
{
	cu_memory at;
	struct cu_access what = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 }, CU_MEM_ACCESS_FLAGS_PROT_READ };
	rig_begin();
	cu_handle handle = make(0);
	SUCCEEDS(cu.cuMemAddressReserve(&at, 2 * N, 0, 0, 0));
	FAILS(cu.cuMemMap(at, 2 * N, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);	   /* longer than it is */
	FAILS(cu.cuMemMap(at, N, N, handle, 0), CUDA_ERROR_INVALID_VALUE);	   /* behind its end */
	FAILS(cu.cuMemMap(at, N / 2, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);	   /* no multiple of the granularity */
	FAILS(cu.cuMemMap(at + 2 * N, N, 0, handle, 0), CUDA_ERROR_INVALID_VALUE); /* not reserved */
	SUCCEEDS(cu.cuMemMap(at + N, N, 0, handle, 0));
	FAILS(cu.cuMemMap(at + N, N, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);	 /* taken */
	FAILS(cu.cuMemSetAccess(at, 2 * N, &what, 1), CUDA_ERROR_INVALID_VALUE); /* a hole */
	FAILS(cu.cuMemUnmap(at, 2 * N), CUDA_ERROR_INVALID_VALUE);
	FAILS(cu.cuMemAddressFree(at, 2 * N), CUDA_ERROR_INVALID_VALUE); /* mapped */
	SUCCEEDS(cu.cuMemUnmap(at + N, N));
	FAILS(cu.cuMemAddressFree(at, N), CUDA_ERROR_INVALID_VALUE); /* half of it */
	SUCCEEDS(cu.cuMemAddressFree(at, 2 * N));
	FAILS(cu.cuMemMap(at, N, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(allocations_need_their_attributes)
{
	static const struct {
		const char *attributes;
		bool rdma;
		cu_result result;
	} cases[] = {
		{ "102=0", false, CUDA_ERROR_NOT_SUPPORTED },
		{ "103=0", false, CUDA_ERROR_NOT_SUPPORTED },
		{ "110=0", true, CUDA_ERROR_NOT_SUPPORTED },
		{ "110=0", false, CUDA_SUCCESS },
		{ "110=1", true, CUDA_SUCCESS },
	};
	cu_handle handle;
	struct cu_allocation what = rig_exportable(0);
	setenv("FAKE_CUDA_ATTRIBUTES", cases[_i].attributes, 1);
	rig_begin();
	what.flags.gpu_direct_rdma_capable = cases[_i].rdma;
	FAILS(cu.cuMemCreate(&handle, N, &what, 0), cases[_i].result);
}
END_TEST

START_TEST(sizes_have_a_granularity)
{
	size_t granularity;
	cu_handle handle;
	struct cu_allocation what = rig_exportable(0);
	rig_begin();
	SUCCEEDS(cu.cuMemGetAllocationGranularity(&granularity, &what, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
	ck_assert_uint_eq(granularity, N);
	FAILS(cu.cuMemCreate(&handle, N + 4096, &what, 0), CUDA_ERROR_INVALID_VALUE);
	FAILS(cu.cuMemCreate(&handle, 0, &what, 0), CUDA_ERROR_INVALID_VALUE);
	what.location.id = 2;
	FAILS(cu.cuMemCreate(&handle, N, &what, 0), CUDA_ERROR_INVALID_DEVICE);
}
END_TEST

static size_t free_memory(void)
{
	size_t free_bytes, total;
	SUCCEEDS(cu.cuMemGetInfo(&free_bytes, &total));
	ck_assert_uint_eq(total, 4 * N);
	return free_bytes;
}

/* Files that stand for the devices' nodes; the first one is opened, as gaccd does, if `held`. */
static void make_nodes(bool held)
{
	char folder[SCRATCH_PATH], path[SCRATCH_PATH + 16];
	ck_assert(scratch_make(folder));
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/nvidia%d", folder, i);
		int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
		ck_assert_int_ge(fd, 0);
		if (!held || i)
			close(fd);
	}
	snprintf(path, sizeof(path), "%s/nvidia", folder);
	setenv("FAKE_CUDA_NODE", path, 1);
}

/* Without a process that has the device open, it is shut down, and exported memory is lost with it. */
START_TEST(memory_needs_somebody_who_holds_the_device)
{
	int pipe_fd[2], held = _i, status;
	char path[64];
	cu_handle handle;
	make_nodes(held);
	rig_load();
	ck_assert_int_eq(pipe(pipe_fd), 0);
	pid_t pid = fork();
	if (!pid)
		make_in_child(&pipe_fd[1]);
	ck_assert_int_eq(read(pipe_fd[0], path, sizeof(path)), sizeof(path));
	int fd = open(path, O_RDWR | O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	rig_begin();
	FAILS(import(fd, &handle), held ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
	int own = export(make(0));
	SUCCEEDS(import(own, &handle));
}
END_TEST

static void begin_and_end(void *arg)
{
	cu_handle handle;
	SUCCEEDS(cu.cuInit(0));
	SUCCEEDS(import(*(int *)arg, &handle));
}

START_TEST(a_device_that_is_used_is_not_shut_down)
{
	make_nodes(false);
	rig_load();
	int pipe_fd[2], status;
	char path[64];
	ck_assert_int_eq(pipe(pipe_fd), 0);
	pid_t pid = fork();
	if (!pid)
		make_in_child(&pipe_fd[1]);
	ck_assert_int_eq(read(pipe_fd[0], path, sizeof(path)), sizeof(path));
	int fd = open(path, O_RDWR | O_CLOEXEC);
	ck_assert_int_eq(rig_child(begin_and_end, &fd), 0);
	ck_assert_int_eq(rig_child(begin_and_end, &fd), 0);
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
}
END_TEST

static void take_two(void *arg)
{
	int *fd = arg;
	rig_begin();
	make(0);
	cu_handle handle = make(0);
	ck_assert_int_eq(dup2(export(handle), *fd), *fd);
	ck_assert_int_eq(write(*fd + 1, "", 1), 1);
	pause();
}

/* The processes of a machine share its devices; what has died gives its memory back, but for what others hold. */
START_TEST(a_device_has_one_memory_for_all_processes)
{
	enum { FD = 500 };
	int ready[2], status;
	char c, path[64];
	cu_handle handle;
	struct cu_allocation what = rig_exportable(0);
	setenv("FAKE_CUDA_MEMORY", "8388608", 1);
	rig_load();
	ck_assert_int_eq(pipe(ready), 0);
	ck_assert_int_eq(dup2(ready[1], FD + 1), FD + 1);
	pid_t pid = fork();
	if (!pid)
		take_two(&(int){ FD });
	ck_assert_int_eq(read(ready[0], &c, 1), 1);
	rig_begin();
	ck_assert_uint_eq(free_memory(), 2 * N);
	make(0);
	make(0);
	FAILS(cu.cuMemCreate(&handle, N, &what, 0), CUDA_ERROR_OUT_OF_MEMORY);
	make(1);
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, FD);
	int held = open(path, O_RDWR | O_CLOEXEC);
	ck_assert_int_ge(held, 0);
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	ck_assert_uint_eq(free_memory(), N);
	close(held);
	ck_assert_uint_eq(free_memory(), 2 * N);
}
END_TEST

START_TEST(memory_is_given_back)
{
	setenv("FAKE_CUDA_MEMORY", "8388608", 1);
	rig_begin();
	cu_memory memory = rig_alloc(4096);
	ck_assert_uint_eq(free_memory(), 4 * N - 4096);
	SUCCEEDS(cu.cuMemFree(memory));
	cu_handle handle = make(0);
	memory = map(handle, CU_MEM_ACCESS_FLAGS_PROT_READ);
	SUCCEEDS(cu.cuMemRelease(handle));
	FAILS(cu.cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
	ck_assert_uint_eq(free_memory(), 3 * N);
	SUCCEEDS(cu.cuMemUnmap(memory, N));
	ck_assert_uint_eq(free_memory(), 4 * N);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("fake_cuda_memory");
	TCase *t = tcase_create("memory");
	tcase_add_test(t, a_host_that_touches_device_memory_dies);
	tcase_add_test(t, what_lies_behind_an_allocation_is_no_memory);
	tcase_add_test(t, exported_memory_outlives_its_maker);
	tcase_add_test(t, other_descriptors_are_not_imported);
	tcase_add_test(t, only_what_is_exportable_is_exported);
	tcase_add_test(t, one_memory_at_two_addresses);
	tcase_add_test(t, addresses_without_access_are_refused);
	tcase_add_test(t, maps_that_do_not_fit_are_refused);
	tcase_add_loop_test(t, allocations_need_their_attributes, 0, 5);
	tcase_add_test(t, sizes_have_a_granularity);
	tcase_add_loop_test(t, memory_needs_somebody_who_holds_the_device, 0, 2);
	tcase_add_test(t, a_device_that_is_used_is_not_shut_down);
	tcase_add_test(t, a_device_has_one_memory_for_all_processes);
	tcase_add_test(t, memory_is_given_back);
	suite_add_tcase(s, t);
	return suite_run(s);
}
