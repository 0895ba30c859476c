/* SPDX-License-Identifier: Apache-2.0 */
/* Devices: UUIDs, attributes and the list of visible ones. Fixed once the library is loaded. */
#include "device.h"

#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned visible[MAX_DEVICES];
static int n_visible;

int device_count(void)
{
	return n_visible;
}

bool device_is(cu_device device)
{
	return device >= 0 && device < n_visible;
}

unsigned device_on_machine(cu_device device)
{
	return visible[device];
}

struct cu_uuid device_uuid(unsigned on_machine)
{
	struct cu_uuid uuid;
	static const unsigned char begin[16] = { 0xfa, 0xce, 0xcd, 0xa0, 0x6a, 0xcc, 0x40, 0, 0x80 };
	memcpy(uuid.bytes, begin, sizeof(begin));
	uuid.bytes[15] = (char)(on_machine + 1);
	return uuid;
}

void device_uuid_text(unsigned on_machine, char text[DEVICE_UUID_TEXT])
{
	struct cu_uuid uuid = device_uuid(on_machine);
	int n = snprintf(text, DEVICE_UUID_TEXT, "GPU-");
	for (unsigned i = 0; i < sizeof(uuid.bytes); i++) {
		bool dash = i == 4 || i == 6 || i == 8 || i == 10;
		n += snprintf(text + n, DEVICE_UUID_TEXT - (size_t)n, "%s%02x", dash ? "-" : "",
			      (unsigned char)uuid.bytes[i]);
	}
}

/* Those that matter to gacc; what is not here is 0. */
static int usual(cu_attribute attribute)
{
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		return 1024;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
		return 48 << 10;
	case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
		return 32;
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
		return 4;
	case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
		return 50 << 20;
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
		return 2048;
	case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
		return 3;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		return 9;
	case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
	case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
	case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
	case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
	case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
	case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
	case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
	case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS:
		return 1;
	default:
		return 0;
	}
}

bool device_attribute_is(cu_attribute attribute)
{
	return attribute >= 1 && attribute <= MAX_ATTRIBUTE;
}

int device_attribute(cu_attribute attribute)
{
	return options()->has_attribute[attribute] ? options()->attribute[attribute] : usual(attribute);
}

/* The device that a word of CUDA_VISIBLE_DEVICES names: a number, or the beginning of a UUID; -1: none. */
static int find(const char *word, size_t n)
{
	for (unsigned i = 0; i < options()->n_devices; i++) {
		char uuid[DEVICE_UUID_TEXT], number[16];
		device_uuid_text(i, uuid);
		size_t digits = (size_t)snprintf(number, sizeof(number), "%u", i);
		if ((n == digits && !memcmp(word, number, n)) || (n > 4 && !strncmp(word, uuid, n)))
			return (int)i;
	}
	return -1;
}

/* As the real driver: the list ends before the first word that names nothing. */
void device_read_visible(void)
{
	const char *at = getenv("CUDA_VISIBLE_DEVICES");
	n_visible = 0;
	for (unsigned i = 0; !at && i < options()->n_devices; i++)
		visible[n_visible++] = i;
	while (at && *at && n_visible < MAX_DEVICES) {
		size_t n = strcspn(at, ",");
		int found = find(at, n);
		if (found < 0)
			return;
		visible[n_visible++] = (unsigned)found;
		at += n;
		options_skip(&at, ',');
	}
}
