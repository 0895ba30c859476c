/* SPDX-License-Identifier: Apache-2.0 */
/* The fake libnvidia-ml.so.1: devices, their modes, and who has a context on them. */
#include "rig.h"

#include "proto/nvml.h"
#include "support/suite.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct nvml nvml;

static void load(void)
{
	char why[256];
	if (!cu.cuInit)
		rig_load();
	ck_assert_msg(nvml_load(&nvml, why, sizeof(why)) == NVML_LOADED, "%s", why);
}

static nvml_device begin(unsigned number)
{
	nvml_device device;
	if (!nvml.nvmlInit)
		load();
	ck_assert_uint_eq(nvml.nvmlInit(), NVML_SUCCESS);
	ck_assert_uint_eq(nvml.nvmlDeviceGetHandleByIndex(number, &device), NVML_SUCCESS);
	return device;
}

START_TEST(nothing_works_before_init)
{
	unsigned n;
	load();
	ck_assert_uint_eq(nvml.nvmlDeviceGetCount(&n), NVML_ERROR_UNINITIALIZED);
	ck_assert_uint_eq(nvml.nvmlShutdown(), NVML_ERROR_UNINITIALIZED);
	ck_assert_uint_eq(nvml.nvmlInit(), NVML_SUCCESS);
	ck_assert_uint_eq(nvml.nvmlDeviceGetCount(&n), NVML_SUCCESS);
	ck_assert_uint_eq(n, 2);
	ck_assert_uint_eq(nvml.nvmlShutdown(), NVML_SUCCESS);
	ck_assert_uint_eq(nvml.nvmlDeviceGetCount(&n), NVML_ERROR_UNINITIALIZED);
}
END_TEST

/* All devices of the machine, with the UUIDs that CUDA says. */
START_TEST(devices_are_those_of_cuda)
{
	char text[64], version[32];
	struct cu_uuid uuid;
	unsigned n;
	setenv("CUDA_VISIBLE_DEVICES", "1", 1);
	nvml_device device = begin(1);
	ck_assert_uint_eq(nvml.nvmlDeviceGetCount(&n), NVML_SUCCESS);
	ck_assert_uint_eq(n, 2);
	rig_begin();
	SUCCEEDS(cu.cuDeviceGetUuid(&uuid, 0));
	ck_assert_uint_eq(nvml.nvmlDeviceGetUUID(device, text, sizeof(text)), NVML_SUCCESS);
	ck_assert_str_eq(text, "GPU-facecda0-6acc-4000-8000-000000000002");
	ck_assert_int_eq(uuid.bytes[15], 2);
	ck_assert_uint_eq(nvml.nvmlDeviceGetUUID(device, text, 5), NVML_ERROR_INSUFFICIENT_SIZE);
	ck_assert_uint_eq(nvml.nvmlSystemGetDriverVersion(version, sizeof(version)), NVML_SUCCESS);
	ck_assert_uint_eq(nvml.nvmlDeviceGetHandleByIndex(2, &device), NVML_ERROR_INVALID_ARGUMENT);
}
END_TEST

START_TEST(modes_are_as_the_environment_says)
{
	nvml_compute_mode mode;
	nvml_enabled persistence;
	setenv("FAKE_CUDA_ATTRIBUTES", "20=3", 1);
	setenv("FAKE_CUDA_PERSISTENCE", "1", 1);
	nvml_device device = begin(0);
	ck_assert_uint_eq(nvml.nvmlDeviceGetComputeMode(device, &mode), NVML_SUCCESS);
	ck_assert_uint_eq(mode, CU_COMPUTEMODE_EXCLUSIVE_PROCESS);
	ck_assert_uint_eq(nvml.nvmlDeviceGetPersistenceMode(device, &persistence), NVML_SUCCESS);
	ck_assert_uint_eq(persistence, 1);
}
END_TEST

START_TEST(failures_are_as_the_environment_says)
{
	nvml_device device;
	unsigned n = 0;
	setenv("FAKE_CUDA_NVML_LOST", "1", 1);
	setenv("FAKE_CUDA_MPS", "3", 1);
	begin(0);
	ck_assert_uint_eq(nvml.nvmlDeviceGetHandleByIndex(1, &device), NVML_ERROR_GPU_IS_LOST);
	ck_assert_uint_eq(nvml.nvmlDeviceGetHandleByIndex(0, &device), NVML_SUCCESS);
	ck_assert_uint_eq(nvml.nvmlDeviceGetMPSComputeRunningProcesses(device, &n, NULL), NVML_ERROR_INSUFFICIENT_SIZE);
	ck_assert_uint_eq(n, 3);
}
END_TEST

START_TEST(the_driver_may_not_be_loaded)
{
	setenv("FAKE_CUDA_NVML_INIT", "9", 1);
	load();
	ck_assert_uint_eq(nvml.nvmlInit(), NVML_ERROR_DRIVER_NOT_LOADED);
}
END_TEST

static unsigned processes(nvml_device device, struct nvml_process *out, unsigned room)
{
	unsigned n = room;
	nvml_result result = nvml.nvmlDeviceGetComputeRunningProcesses(device, &n, out);
	ck_assert_uint_eq(result, n > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS);
	return n;
}

START_TEST(processes_with_a_context_are_listed)
{
	struct nvml_process list[4];
	nvml_device device = begin(0), other = begin(1);
	ck_assert_uint_eq(processes(device, list, 4), 0);
	rig_begin();
	ck_assert_uint_eq(processes(device, list, 4), 1);
	ck_assert_uint_eq(list[0].pid, (unsigned)getpid());
	ck_assert_uint_eq(processes(device, NULL, 0), 1);
	ck_assert_uint_eq(processes(other, list, 4), 0);
	SUCCEEDS(cu.cuDevicePrimaryCtxRelease(0));
	ck_assert_uint_eq(processes(device, list, 4), 0);
}
END_TEST

/* As a trainer whose workers were forked after it had begun to use the GPU. */
static void leave_a_child(void *arg)
{
	int *fds = arg;
	rig_begin();
	pid_t worker = fork();
	if (!worker)
		for (;;)
			pause();
	ck_assert_int_eq(write(fds[1], &worker, sizeof(worker)), sizeof(worker));
	kill(getpid(), SIGKILL);
}

START_TEST(a_context_lives_on_in_a_child)
{
	int fds[2];
	pid_t worker;
	struct nvml_process list[4];
	nvml_device device = begin(0);
	ck_assert_int_eq(pipe(fds), 0);
	ck_assert(WIFSIGNALED(rig_child(leave_a_child, fds)));
	ck_assert_int_eq(read(fds[0], &worker, sizeof(worker)), sizeof(worker));
	ck_assert_uint_eq(processes(device, list, 4), 1);
	ck_assert_int_ne((pid_t)list[0].pid, worker); /* the dead one's */
	ck_assert_int_ne(kill((pid_t)list[0].pid, 0), 0);
	kill(worker, SIGKILL);
	for (int i = 0; i < 1000 && processes(device, list, 4); i++)
		usleep(1000);
	ck_assert_uint_eq(processes(device, list, 4), 0);
}
END_TEST

static void retain(void *arg)
{
	cu_context context;
	SUCCEEDS(cu.cuInit(0));
	FAILS(cu.cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_DEVICE_UNAVAILABLE);
	SUCCEEDS(cu.cuDevicePrimaryCtxRetain(&context, 1));
}

static void hold(void *arg)
{
	rig_begin();
	ck_assert_int_eq(write(*(int *)arg, "", 1), 1);
	pause();
}

START_TEST(an_exclusive_device_has_one_process)
{
	int fds[2], status;
	char c;
	setenv("FAKE_CUDA_ATTRIBUTES", "20=3", 1);
	rig_load();
	ck_assert_int_eq(pipe(fds), 0);
	pid_t holder = fork();
	if (!holder)
		hold(&fds[1]);
	ck_assert_int_eq(read(fds[0], &c, 1), 1);
	ck_assert_int_eq(rig_child(retain, NULL), 0);
	kill(holder, SIGKILL);
	waitpid(holder, &status, 0);
	rig_begin();
}
END_TEST

START_TEST(memory_is_that_of_all_processes)
{
	struct nvml_memory memory;
	setenv("FAKE_CUDA_MEMORY", "1048576", 1);
	nvml_device device = begin(0);
	rig_begin();
	rig_alloc(65536);
	ck_assert_uint_eq(nvml.nvmlDeviceGetMemoryInfo(device, &memory), NVML_SUCCESS);
	ck_assert_uint_eq(memory.total, 1048576);
	ck_assert_uint_eq(memory.used, 65536);
	ck_assert_uint_eq(memory.free, 1048576 - 65536);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("fake_cuda_nvml");
	TCase *t = tcase_create("nvml");
	tcase_add_test(t, nothing_works_before_init);
	tcase_add_test(t, devices_are_those_of_cuda);
	tcase_add_test(t, modes_are_as_the_environment_says);
	tcase_add_test(t, failures_are_as_the_environment_says);
	tcase_add_test(t, the_driver_may_not_be_loaded);
	tcase_add_test(t, processes_with_a_context_are_listed);
	tcase_add_test(t, a_context_lives_on_in_a_child);
	tcase_add_test(t, an_exclusive_device_has_one_process);
	tcase_add_test(t, memory_is_that_of_all_processes);
	suite_add_tcase(s, t);
	return suite_run(s);
}
