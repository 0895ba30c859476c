/* SPDX-License-Identifier: Apache-2.0 */
/* Loads the kernels' shared objects. They stay loaded: a kernel may still run when its module is unloaded. */
#include "kernels.h"

#include "faults.h"
#include "ghost.h"
#include "options.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define OBJECTS_MOST 4

static void *object[OBJECTS_MOST];
static int n_objects;

static void set_variables(void *of)
{
	uint64_t *seed = dlsym(of, "sim_seed");
	int *weak = dlsym(of, "sim_weak");
	int64_t *kill_after = dlsym(of, "sim_kill_after");
	void (**on_kill)(void) = dlsym(of, "sim_on_kill");
	if (seed)
		*seed = options()->seed;
	if (weak)
		*weak = options()->weak;
	if (kill_after)
		*kill_after = faults_kill_after();
	if (on_kill)
		*on_kill = ghost_die;
}

static cu_result load(const char *path)
{
	void *found = n_objects < OBJECTS_MOST ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
	if (!found) {
		fprintf(stderr, "fake libcuda: %s\n", n_objects < OBJECTS_MOST ? dlerror() : "too many kernels");
		return CUDA_ERROR_INVALID_IMAGE;
	}
	set_variables(found);
	object[n_objects++] = found;
	return CUDA_SUCCESS;
}

cu_result kernels_load(void)
{
	char paths[1024], *rest = paths, *path;
	cu_result r = CUDA_SUCCESS;
	if (n_objects)
		return CUDA_SUCCESS;
	if (!options()->kernels) {
		fprintf(stderr, "fake libcuda: FAKE_CUDA_KERNELS names no kernels\n");
		return CUDA_ERROR_INVALID_IMAGE;
	}
	snprintf(paths, sizeof(paths), "%s", options()->kernels);
	while (!r && (path = strsep(&rest, ":")))
		r = load(path);
	return r;
}

void kernels_kill_now(void)
{
	for (int i = 0; i < n_objects; i++) {
		int64_t *kill_after = dlsym(object[i], "sim_kill_after");
		if (kill_after)
			__atomic_store_n(kill_after, 0, __ATOMIC_RELAXED);
	}
}

host_kernel *kernels_find(const char *name)
{
	char symbol[256];
	host_kernel *kernel;
	void *found = NULL;
	snprintf(symbol, sizeof(symbol), "host_%s", name);
	for (int i = 0; i < n_objects && !found; i++)
		found = dlsym(object[i], symbol);
	memcpy(&kernel, &found, sizeof(kernel));
	return kernel;
}

/* By the kernel, which stops at the end of what is mapped. */
size_t kernels_copy_params(void *to, const void *from, size_t max)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE), first = page - (uintptr_t)from % page;
	struct iovec local = { to, max };
	struct iovec remote[2] = { { (void *)(uintptr_t)from, first < max ? first : max },
				   { (char *)(uintptr_t)from + first, first < max ? max - first : 0 } };
	ssize_t n = process_vm_readv(getpid(), &local, 1, remote, 2, 0);
	return n < 0 ? 0 : (size_t)n;
}
