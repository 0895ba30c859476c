/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: the driver itself and its devices. */
#include "api.h"

#include "device.h"
#include "driver.h"
#include "holders.h"
#include "kill_signal.h"
#include "node.h"
#include "options.h"
#include "trap.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* X(code, name) */
struct result_name {
	cu_result code;
	const char *name;
};

static const struct result_name result_names[] = {
#define NAME(name, value) { name, #name },
	CUDA_RESULTS(NAME)
#undef NAME
};

/* A symbol by its name without the suffix, as cuGetProcAddress wants it. */
struct symbol {
	const char *name;
	void (*function)(void);
};

static const struct symbol symbols[] = {
#define SYMBOL(name, suffix, params) { #name, (void (*)(void))name##suffix },
	CUDA_FUNCTIONS(SYMBOL) CUDA_MORE_FUNCTIONS(SYMBOL)
#undef SYMBOL
};

static void begin(void)
{
	trap_install();
	kill_signal_install();
}

cu_result cuInit(unsigned flags)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	cu_result result = driver_enter(__func__, NEEDS_NOTHING);
	if (result)
		return result;
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (driver_was_forked())
		return CUDA_ERROR_NOT_INITIALIZED;
	device_read_visible();
	if (!device_count())
		return CUDA_ERROR_NO_DEVICE;
	node_open_all();
	pthread_once(&once, begin);
	driver_init();
	return CUDA_SUCCESS;
}

cu_result cuDriverGetVersion(int *out)
{
	ENTER(NEEDS_NOTHING);
	*out = 13000;
	return CUDA_SUCCESS;
}

cu_result cuGetErrorName(cu_result code, const char **out)
{
	*out = NULL;
	for (size_t i = 0; i < sizeof(result_names) / sizeof(*result_names); i++)
		if (result_names[i].code == code)
			*out = result_names[i].name;
	return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

cu_result cuGetErrorString(cu_result code, const char **out)
{
	return cuGetErrorName(code, out);
}

cu_result cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, cu_proc_status *out_status)
{
	ENTER(NEEDS_NOTHING);
	*out = NULL;
	for (size_t i = 0; i < sizeof(symbols) / sizeof(*symbols); i++)
		if (!strcmp(symbols[i].name, name))
			memcpy(out, &symbols[i].function, sizeof(*out));
	if (out_status)
		*out_status = *out ? 0 : 1; /* CU_GET_PROC_ADDRESS_SUCCESS, .._SYMBOL_NOT_FOUND */
	return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

cu_result cuDeviceGetCount(int *out)
{
	ENTER(NEEDS_INIT);
	*out = device_count();
	return CUDA_SUCCESS;
}

cu_result cuDeviceGet(cu_device *out, int number)
{
	ENTER(NEEDS_INIT);
	if (!device_is(number))
		return CUDA_ERROR_INVALID_DEVICE;
	*out = number;
	return CUDA_SUCCESS;
}

cu_result cuDeviceGetName(char *out, int n, cu_device device)
{
	ENTER(NEEDS_INIT);
	if (!device_is(device))
		return CUDA_ERROR_INVALID_DEVICE;
	snprintf(out, (size_t)n, "Fake GPU %u", device_on_machine(device));
	return CUDA_SUCCESS;
}

/* As CUDA prints it, in upper case. */
cu_result cuDeviceGetPCIBusId(char *out, int n, cu_device device)
{
	ENTER(NEEDS_INIT);
	if (!device_is(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (n < (int)sizeof("0000:00:00.0"))
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(out, (size_t)n, "0000:%02X:00.0", 0xa0 + device_on_machine(device));
	return CUDA_SUCCESS;
}

cu_result cuDeviceTotalMem_v2(size_t *out, cu_device device)
{
	ENTER(NEEDS_INIT);
	if (!device_is(device))
		return CUDA_ERROR_INVALID_DEVICE;
	*out = options()->memory;
	return CUDA_SUCCESS;
}

cu_result cuDeviceGetAttribute(int *out, cu_attribute attribute, cu_device device)
{
	ENTER(NEEDS_INIT);
	if (!device_is(device))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!device_attribute_is(attribute))
		return CUDA_ERROR_INVALID_VALUE;
	*out = device_attribute(attribute);
	return CUDA_SUCCESS;
}

cu_result cuDeviceGetUuid_v2(struct cu_uuid *out, cu_device device)
{
	ENTER(NEEDS_INIT);
	if (!device_is(device))
		return CUDA_ERROR_INVALID_DEVICE;
	*out = device_uuid(device_on_machine(device));
	return CUDA_SUCCESS;
}
