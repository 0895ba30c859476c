/* SPDX-License-Identifier: Apache-2.0 */
#include "rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct cuda_driver cu;

void rig_load(void)
{
	char why[256], machine[32];
	snprintf(machine, sizeof(machine), "unit%d", (int)getpid());
	setenv("FAKE_CUDA_MACHINE", machine, 0);
	setenv("FAKE_CUDA_KERNELS", HOST_KERNELS, 0);
	ck_assert_msg(cuda_driver_load(&cu, why, sizeof(why)), "%s", why);
}

void rig_begin(void)
{
	cu_context context;
	if (!cu.cuInit)
		rig_load();
	SUCCEEDS(cu.cuInit(0));
	SUCCEEDS(cu.cuDevicePrimaryCtxRetain(&context, 0));
	SUCCEEDS(cu.cuCtxSetCurrent(context));
}

const char *rig_name(cu_result code)
{
	return cuda_result_name(&cu, code);
}

void *rig_shared(size_t n, int *out_fd)
{
	int fd = memfd_create("test", MFD_CLOEXEC);
	ck_assert(fd >= 0 && !ftruncate(fd, (off_t)n));
	void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(p, MAP_FAILED);
	if (out_fd)
		*out_fd = fd;
	else
		close(fd);
	return p;
}

cu_memory rig_alloc(size_t n)
{
	cu_memory memory;
	SUCCEEDS(cu.cuMemAlloc(&memory, n));
	return memory;
}

cu_stream rig_stream(void)
{
	cu_stream stream;
	SUCCEEDS(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	return stream;
}

struct cu_allocation rig_exportable(cu_device device)
{
	return (struct cu_allocation){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requested_handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, device },
	};
}

void rig_read(void *to, cu_memory from, size_t n)
{
	cu_stream stream = rig_stream();
	SUCCEEDS(cu.cuMemcpyDtoHAsync(to, from, n, stream));
	SUCCEEDS(cu.cuStreamSynchronize(stream));
	SUCCEEDS(cu.cuStreamDestroy(stream));
}

int rig_child(void (*act)(void *), void *arg)
{
	int status;
	pid_t pid = fork();
	ck_assert_int_ge(pid, 0);
	if (!pid) {
		act(arg);
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	return status;
}
