/* SPDX-License-Identifier: Apache-2.0 */
/* Finds NVIDIA's driver library while the program runs: for libgacc, the engine's plug-in and tests, on any thread. It
 * has no state. */
#include "proto/cuda_driver.h"

#include "proto/gpu_library.h"

#include <stdio.h>
#include <string.h>

static const struct gpu_symbol symbols[] = {
#define SYMBOL(name, suffix, params) { #name #suffix, offsetof(struct cuda_driver, name) },
	CUDA_FUNCTIONS(SYMBOL)
#undef SYMBOL
};

bool cuda_driver_load(struct cuda_driver *out, char *why, size_t size)
{
	const char *missing;
	memset(out, 0, sizeof(*out));
	if (gpu_library_load("libcuda.so.1", symbols, sizeof(symbols) / sizeof(*symbols), out, &missing))
		return true;
	if (missing)
		snprintf(why, size, "the NVIDIA driver here has no %s: install R525 (CUDA 12.0) or a later one",
			 missing);
	else
		snprintf(why, size, "there is no NVIDIA driver here: libcuda.so.1 is not found");
	return false;
}

const char *cuda_result_name(const struct cuda_driver *cuda, cu_result code)
{
	const char *name = NULL;
	if (cuda->cuGetErrorName(code, &name) || !name)
		return "CUDA error";
	return name;
}

void cuda_uuid_text(const struct cu_uuid *uuid, char out[CUDA_UUID_TEXT])
{
	size_t n = (size_t)snprintf(out, CUDA_UUID_TEXT, "GPU-");
	for (size_t i = 0; i < sizeof(uuid->bytes); i++) {
		const bool dash = i == 4 || i == 6 || i == 8 || i == 10;
		n += (size_t)snprintf(out + n, CUDA_UUID_TEXT - n, "%s%02x", dash ? "-" : "",
				      (unsigned char)uuid->bytes[i]);
	}
}
