/* SPDX-License-Identifier: Apache-2.0 */
#include "twin.h"

#include "cuda/image.h"
#include "engine/arith_host.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char no_image[] = "kernels"; /* the fake driver does not look at it */

void twin_path(const char *from_program, char *out, size_t n)
{
	char program[400];
	const ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
	ck_assert_int_gt(length, 0);
	program[length] = 0;
	*strrchr(program, '/') = 0;
	snprintf(out, n, "%s/%s", program, from_program);
}

const void *twin_image(void)
{
	return cuda_image() ? cuda_image() : no_image;
}

void twin_environment(uint64_t seed)
{
	char text[32], kernels[500];
	snprintf(text, sizeof(text), "arith%d", (int)getpid());
	setenv("FAKE_CUDA_MACHINE", text, 1);
	setenv("FAKE_CUDA_DEVICES", "1", 0); /* of several the next process may choose another one */
	twin_path("../lib/gacc_cuda_host.so", kernels, sizeof(kernels));
	setenv("FAKE_CUDA_KERNELS", kernels, 0);
	snprintf(text, sizeof(text), "%llu", (unsigned long long)seed);
	setenv("FAKE_CUDA_SEED", text, 1);
	setenv("FAKE_CUDA_WEAK", seed ? "1" : "0", 1);
}

void twin_plan(struct rig *r)
{
	r->plan->device = PLAN_CUDA;
}

void twin_device(struct cuda_device *out)
{
	char why[200] = "";
	ck_assert_msg(cuda_device_open(out, "", twin_image(), why, sizeof(why)) == ST_OK, "%s", why);
}

static void open_host(struct twin *t)
{
	char why[200];
	t->mem = MEMORY_NONE;
	OK(memory_take(&t->mem, dup(t->rig.plan_fd), RIG_GENERATION, why, sizeof(why)));
	for (int i = 0; i < t->rig.n_segments; i++)
		OK(memory_take(&t->mem, dup(t->rig.segment[i].fd), RIG_GENERATION, why, sizeof(why)));
	OK(workers_new(&t->workers, 1));
	OK(arith_host_open(&t->host, &t->mem, "", t->workers));
}

void twin_open(struct twin *t, const struct rig_config *c)
{
	char why[200] = "";
	memset(t, 0, sizeof(*t));
	rig_open(&t->rig, c);
	open_host(t);
	twin_plan(&t->rig);
	twin_device(&t->device);
	ck_assert_msg(cuda_memory_make(&t->memory, &t->device, t->rig.plan, RIG_GENERATION, why, sizeof(why)) == ST_OK,
		      "%s", why);
	ck_assert_msg(arith_cuda_open(&t->cuda, &t->memory, &t->mem.page, false, TWIN_QUIET_NS, why, sizeof(why)) ==
			      ST_OK,
		      "%s", why);
}

void twin_close(struct twin *t)
{
	t->cuda->ops->close(t->cuda);
	cuda_memory_fini(&t->memory);
	cuda_device_close(&t->device);
	t->host->ops->close(t->host);
	workers_free(t->workers);
	memory_fini(&t->mem);
	rig_close(&t->rig);
}

static const struct cuda_arena *find(const struct twin *t, uint32_t role, uint32_t index)
{
	for (int i = 0; i < t->memory.n; i++)
		if (t->memory.arena[i].what.role == role && t->memory.arena[i].what.index == index)
			return &t->memory.arena[i];
	ck_abort_msg("no segment of role %u index %u on the device", role, index);
	return NULL;
}

/* Imports the descriptor, writes through an address of its own. */
void twin_give_slot(struct twin *t, uint32_t slot)
{
	const struct cuda_arena *a = find(t, SEG_SLOT, slot);
	const struct cuda_driver *cu = &t->device.cu;
	const struct cu_access access = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	cu_handle handle;
	cu_memory at;
	OK(cu->cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)a->fd,
					      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	OK(cu->cuMemAddressReserve(&at, a->n_whole, 0, 0, 0));
	OK(cu->cuMemMap(at, a->n_whole, 0, handle, 0));
	OK(cu->cuMemSetAccess(at, a->n_whole, &access, 1));
	OK(cu->cuMemcpyHtoDAsync(at + SEGMENT_DATA_OFFSET, t->mem.slot[slot], a->what.bytes, t->device.stream));
	OK(cu->cuStreamSynchronize(t->device.stream));
	OK(cu->cuMemUnmap(at, a->n_whole));
	OK(cu->cuMemAddressFree(at, a->n_whole));
	OK(cu->cuMemRelease(handle));
}

void twin_give(struct twin *t, enum segment_role role)
{
	OK(t->cuda->ops->write(t->cuda, role, 0, plan_role_bytes(t->rig.plan, role), rig_data(&t->rig, role, 0)));
}

void *twin_read(struct twin *t, enum segment_role role)
{
	const uint64_t n = plan_role_bytes(t->rig.plan, role);
	void *data = malloc(n);
	ck_assert_ptr_nonnull(data);
	OK(t->cuda->ops->read(t->cuda, role, 0, n, data));
	return data;
}

void twin_same(struct twin *t, enum segment_role role, bool nans)
{
	const uint64_t n = plan_role_bytes(t->rig.plan, role);
	const float *host = rig_data(&t->rig, role, 0);
	float *device = twin_read(t, role);
	for (uint64_t i = 0; i < n / sizeof(float); i++)
		if (memcmp(&host[i], &device[i], sizeof(float)) && !(nans && isnan(host[i]) && isnan(device[i])))
			ck_abort_msg("role %d, word %llu: %a on the host, %a on the device", role,
				     (unsigned long long)i, (double)host[i], (double)device[i]);
	free(device);
}

void twin_same_slot(struct twin *t, uint32_t slot)
{
	const struct cuda_arena *a = find(t, SEG_SLOT, slot);
	void *data = malloc(a->what.bytes);
	OK(cuda_download(&t->device, data, a->at, a->what.bytes));
	ck_assert_mem_eq(data, t->mem.slot[slot], a->what.bytes);
	free(data);
}

static void check_norm(struct twin *t, const struct arith_norm *host, const struct arith_norm *device)
{
	ck_assert_uint_eq(device->nonfinite, host->nonfinite);
	if (!host->nonfinite) { /* NaNs may differ, and with them the digest */
		ck_assert_mem_eq(&device->sumsq, &host->sumsq, sizeof(double));
		ck_assert_uint_eq(device->digest, host->digest);
	}
	t->norm = *device;
}

void twin_add(struct twin *t, uint32_t dst, uint32_t src, bool first, const struct arith_source *s, uint32_t n,
	      bool norm)
{
	struct arith_norm a = { 0 }, b = { 1, 1, 1 };
	uint64_t host[KERNEL_MAX_SLOTS] = { 0 }, device[KERNEL_MAX_SLOTS] = { 0 };
	for (uint32_t i = 0; i < n; i++)
		device[i] = 99;
	OK(t->host->ops->add(t->host, dst, src, first, s, n, host, norm ? &a : NULL));
	OK(t->cuda->ops->add(t->cuda, dst, src, first, s, n, device, norm ? &b : NULL));
	ck_assert_mem_eq(host, device, sizeof(host));
	if (norm)
		check_norm(t, &a, &b);
}

void twin_inspect(struct twin *t, uint32_t half)
{
	struct arith_norm a, b;
	OK(t->host->ops->inspect(t->host, half, &a));
	OK(t->cuda->ops->inspect(t->cuda, half, &b));
	check_norm(t, &a, &b);
}
