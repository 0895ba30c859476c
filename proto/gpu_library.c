/* SPDX-License-Identifier: Apache-2.0 */
/* Loads NVIDIA's libraries: for libgacc, the engine's plug-in, gaccctl and tests, on any thread. The dynamic linker
 * counts who has loaded a library, so there is nothing to keep here. */
#include "proto/gpu_library.h"

#include <dlfcn.h>
#include <string.h>

bool gpu_library_load(const char *library, const struct gpu_symbol *symbols, size_t n, void *table,
		      const char **out_missing)
{
	void *loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	*out_missing = NULL;
	if (!loaded)
		return false;
	for (size_t i = 0; i < n && !*out_missing; i++)
		if (!dlsym(loaded, symbols[i].name))
			*out_missing = symbols[i].name;
	if (*out_missing) {
		dlclose(loaded);
		return false;
	}
	for (size_t i = 0; i < n; i++) {
		void *function = dlsym(loaded, symbols[i].name);
		memcpy((char *)table + symbols[i].offset, &function, sizeof(function));
	}
	return true;
}
