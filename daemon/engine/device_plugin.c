/* SPDX-License-Identifier: Apache-2.0 */
/* Loads the shared object that has a device's arithmetic, and checks that both are of one version. For the engine, on
 * its main thread; no state. */
#include "engine/device_plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FROM_PROGRAM "/../lib/gacc/gacc_cuda.so"

void device_plugin_path(char *out, size_t n)
{
	char self[4096];
	const ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
	self[length > 0 ? length : 0] = '\0';
	char *end = strrchr(self, '/'); /* before "gaccd (deleted)" after an upgrade, too */
	*out = '\0';
	if (!end)
		return;
	*end = '\0';
	if (snprintf(out, n, "%s" FROM_PROGRAM, self) >= (int)n)
		*out = '\0';
}

enum status device_plugin_load(const struct device_plugin **out, const char *path, char *why, size_t n_why)
{
	void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!object) {
		snprintf(why, n_why, "the arithmetic of devices cannot be loaded: %s", dlerror());
		return ST_INVALID_CONFIG;
	}
	const struct device_plugin *p = dlsym(object, DEVICE_PLUGIN_SYMBOL);
	if (p && p->version == DEVICE_PLUGIN_VERSION) {
		*out = p;
		return ST_OK;
	}
	snprintf(why, n_why, "%s is of version %u, this gaccd needs %u: install both from one release", path,
		 p ? p->version : 0, DEVICE_PLUGIN_VERSION);
	dlclose(object);
	return ST_INVALID_CONFIG;
}
