/* SPDX-License-Identifier: Apache-2.0 */
/* Loads the kernels' shared object. It stays loaded: a kernel may still run when its module is unloaded. */
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

static void *object;

static void set_variables(void)
{
	uint64_t *seed = dlsym(object, "sim_seed");
	int *weak = dlsym(object, "sim_weak");
	int64_t *kill_after = dlsym(object, "sim_kill_after");
	void (**on_kill)(void) = dlsym(object, "sim_on_kill");
	if (seed)
		*seed = options()->seed;
	if (weak)
		*weak = options()->weak;
	if (kill_after)
		*kill_after = faults_kill_after();
	if (on_kill)
		*on_kill = ghost_die;
}

cu_result kernels_load(void)
{
	if (object)
		return CUDA_SUCCESS;
	if (!options()->kernels) {
		fprintf(stderr, "fake libcuda: FAKE_CUDA_KERNELS names no kernels\n");
		return CUDA_ERROR_INVALID_IMAGE;
	}
	object = dlopen(options()->kernels, RTLD_NOW | RTLD_LOCAL);
	if (!object) {
		fprintf(stderr, "fake libcuda: %s\n", dlerror());
		return CUDA_ERROR_INVALID_IMAGE;
	}
	set_variables();
	return CUDA_SUCCESS;
}

void kernels_kill_now(void)
{
	int64_t *kill_after = object ? dlsym(object, "sim_kill_after") : NULL;
	if (kill_after)
		__atomic_store_n(kill_after, 0, __ATOMIC_RELAXED);
}

host_kernel *kernels_find(const char *name)
{
	char symbol[256];
	host_kernel *kernel;
	snprintf(symbol, sizeof(symbol), "host_%s", name);
	void *found = dlsym(object, symbol);
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
