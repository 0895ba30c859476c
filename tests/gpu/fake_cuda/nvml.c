/* SPDX-License-Identifier: Apache-2.0 */
/* libnvidia-ml.so.1 beside the fake libcuda: the same devices, whatever CUDA_VISIBLE_DEVICES says, and the processes
 * that hold contexts on them. A process that has inherited a context by fork keeps it listed, under the process id of
 * its maker, as the real one does. */
#include "proto/nvml.h"

#include "device.h"
#include "holders.h"
#include "node.h"
#include "options.h"

#include <stdio.h>
#include <string.h>

#define DECLARE(name, suffix, params) __attribute__((visibility("default"))) nvml_result name##suffix params;
NVML_FUNCTIONS(DECLARE)
#undef DECLARE

static unsigned n_init;
static char handles[MAX_DEVICES]; /* their addresses are the handles */

nvml_result nvmlInit_v2(void)
{
	if (options()->nvml_init)
		return options()->nvml_init;
	node_open_all();
	__atomic_fetch_add(&n_init, 1, __ATOMIC_RELAXED);
	return NVML_SUCCESS;
}

nvml_result nvmlShutdown(void)
{
	if (!__atomic_load_n(&n_init, __ATOMIC_RELAXED))
		return NVML_ERROR_UNINITIALIZED;
	__atomic_fetch_sub(&n_init, 1, __ATOMIC_RELAXED);
	return NVML_SUCCESS;
}

static nvml_result put_text(const char *text, char *out, unsigned size)
{
	if (!n_init)
		return NVML_ERROR_UNINITIALIZED;
	if (strlen(text) >= size)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	snprintf(out, size, "%s", text);
	return NVML_SUCCESS;
}

nvml_result nvmlSystemGetDriverVersion(char *out, unsigned size)
{
	return put_text("580.00.00", out, size);
}

nvml_result nvmlDeviceGetCount_v2(unsigned *out)
{
	if (!n_init)
		return NVML_ERROR_UNINITIALIZED;
	*out = options()->n_devices;
	return NVML_SUCCESS;
}

nvml_result nvmlDeviceGetHandleByIndex_v2(unsigned number, nvml_device *out)
{
	if (!n_init)
		return NVML_ERROR_UNINITIALIZED;
	if (number >= options()->n_devices)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (number == options()->lost)
		return NVML_ERROR_GPU_IS_LOST;
	*out = (nvml_device)(void *)&handles[number];
	return NVML_SUCCESS;
}

static nvml_result number_of(nvml_device device, unsigned *out)
{
	if (!n_init)
		return NVML_ERROR_UNINITIALIZED;
	for (*out = 0; *out < options()->n_devices; ++*out)
		if (device == (nvml_device)(void *)&handles[*out])
			return NVML_SUCCESS;
	return NVML_ERROR_INVALID_ARGUMENT;
}

nvml_result nvmlDeviceGetUUID(nvml_device device, char *out, unsigned size)
{
	unsigned number;
	char uuid[DEVICE_UUID_TEXT];
	nvml_result result = number_of(device, &number);
	if (result)
		return result;
	device_uuid_text(number, uuid);
	return put_text(uuid, out, size);
}

nvml_result nvmlDeviceGetComputeMode(nvml_device device, nvml_compute_mode *out)
{
	unsigned number;
	*out = (nvml_compute_mode)device_attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
	return number_of(device, &number);
}

nvml_result nvmlDeviceGetPersistenceMode(nvml_device device, nvml_enabled *out)
{
	unsigned number;
	*out = options()->persistence;
	return number_of(device, &number);
}

nvml_result nvmlDeviceGetMemoryInfo(nvml_device device, struct nvml_memory *out)
{
	unsigned number;
	nvml_result result = number_of(device, &number);
	if (result)
		return result;
	out->total = options()->memory;
	out->free = holders_free(number);
	out->used = out->total - out->free;
	return NVML_SUCCESS;
}

nvml_result nvmlDeviceGetComputeRunningProcesses_v3(nvml_device device, unsigned *n, struct nvml_process *out)
{
	pid_t pids[256];
	unsigned number, room = *n;
	nvml_result result = number_of(device, &number);
	if (result)
		return result;
	*n = holders_contexts(number, pids, 256);
	if (*n > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned i = 0; i < *n; i++)
		out[i] = (struct nvml_process){ (unsigned)pids[i], ~0ull, ~0u, ~0u };
	return NVML_SUCCESS;
}

/* Their process ids are of nobody: 1, 2, .. */
nvml_result nvmlDeviceGetMPSComputeRunningProcesses_v3(nvml_device device, unsigned *n, struct nvml_process *out)
{
	unsigned number, room = *n;
	nvml_result result = number_of(device, &number);
	if (result)
		return result;
	*n = options()->mps;
	if (*n > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned i = 0; i < *n; i++)
		out[i] = (struct nvml_process){ i + 1, ~0ull, ~0u, ~0u };
	return NVML_SUCCESS;
}
