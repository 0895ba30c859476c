/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include "math/cuda/kernels_cuda.h"

#include <check.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

static void *object;

void gpu_open(void)
{
	if (!object)
		object = dlopen(GPU_KERNELS, RTLD_NOW | RTLD_LOCAL);
	ck_assert_msg(object, "%s", dlerror());
#ifdef __x86_64__
	_mm_setcsr(_mm_getcsr() | 0x8040);
#endif
}

void *gpu_symbol(const char *name)
{
	void *found = dlsym(object, name);
	ck_assert_msg(found, "%s", dlerror());
	return found;
}

void gpu_order(uint64_t seed, bool weak)
{
	*(uint64_t *)gpu_symbol("sim_seed") = seed;
	*(int *)gpu_symbol("sim_weak") = weak;
}

void gpu_kill_after(int64_t effects)
{
	*(int64_t *)gpu_symbol("sim_kill_after") = effects;
}

void gpu_launch(const char *kernel, const void *argument, unsigned grid)
{
	char name[64];
	sim_kernel *run;
	void *params[] = { (void *)argument }, *found;
	snprintf(name, sizeof(name), "host_%s", kernel);
	found = gpu_symbol(name);
	memcpy(&run, &found, sizeof(run));
	run(params, grid, CUDA_THREADS);
}

void *gpu_shared(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert(p != MAP_FAILED);
	return p;
}
