/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the CUDA driver and opens its first device, for gpu_probe. */
#include "cuda_probe.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static bool find(struct cuda *c, char *why, size_t n_why)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!lib) {
		snprintf(why, n_why, "no NVIDIA driver (%s)", dlerror());
		return false;
	}
#define X(field, symbol, parameters)                                                                                   \
	*(void **)&c->field = dlsym(lib, symbol);                                                                      \
	if (!c->field) {                                                                                               \
		snprintf(why, n_why, "this driver is too old: its libcuda has no %s", symbol);                         \
		return false;                                                                                          \
	}
	CUDA_FUNCTIONS(X)
#undef X
	return true;
}

const char *cuda_failure(const struct cuda *c, const char *what, cu_result r, char *text, size_t n)
{
	const char *name = NULL;

	if (c->error_name(r, &name) || !name)
		snprintf(text, n, "%s: error %d", what, r);
	else
		snprintf(text, n, "%s: %s", what, name);
	return text;
}

bool cuda_open(struct cuda *c, cu_device *device, char *why, size_t n_why)
{
	cu_context context;
	const char *what = "cuInit";
	int n = 0;
	cu_result r;

	if (!find(c, why, n_why))
		return false;
	r = c->init(0);
	if (!r)
		what = "cuDeviceGetCount", r = c->count(&n);
	if (!r && !n) {
		snprintf(why, n_why, "no GPU");
		return false;
	}
	if (!r)
		what = "cuDeviceGet", r = c->device(device, 0);
	if (!r)
		what = "cuDevicePrimaryCtxRetain", r = c->retain(&context, *device);
	if (!r)
		what = "cuCtxSetCurrent", r = c->set_current(context);
	if (r)
		cuda_failure(c, what, r, why, n_why);
	return r == 0;
}
