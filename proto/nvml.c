/* SPDX-License-Identifier: Apache-2.0 */
/* Finds NVIDIA's management library while the program runs: for gaccctl, gaccd and tests, on any thread. It has no
 * state. */
#include "proto/nvml.h"

#include "proto/gpu_library.h"

#include <stdio.h>
#include <string.h>

static const struct gpu_symbol symbols[] = {
#define SYMBOL(name, suffix, params) { #name #suffix, offsetof(struct nvml, name) },
	NVML_FUNCTIONS(SYMBOL)
#undef SYMBOL
};

enum nvml_found nvml_load(struct nvml *out, char *why, size_t size)
{
	const char *missing;
	memset(out, 0, sizeof(*out));
	if (gpu_library_load("libnvidia-ml.so.1", symbols, sizeof(symbols) / sizeof(*symbols), out, &missing))
		return NVML_LOADED;
	if (missing)
		snprintf(why, size, "NVIDIA's management library here has no %s: install R525 or a later driver",
			 missing);
	else
		snprintf(why, size, "NVIDIA's management library is not here: libnvidia-ml.so.1 is not found");
	return missing ? NVML_TOO_OLD : NVML_ABSENT;
}
