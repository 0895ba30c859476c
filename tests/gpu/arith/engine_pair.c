/* SPDX-License-Identifier: Apache-2.0 */
/* The two engines of the tests of a whole engine on a device, and the commands that both get. One thread. */
#include "engine_pair.h"

#include "twin.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS_OF(rig) ((int)(rig).plan->slots)

struct rig host, gpu;
static char program[500], plugin[500];
static struct cuda_device trainer; /* the trainers' side of the device */
bool on_host;			   /* the slots, and what trainers see of the parameters */

struct rig_config pair_config(int optimizer)
{
	static const struct optim_config of[] = {
		{ .type = OPTIM_SGD, .lr = 0.1, .momentum = 0.9 },
		{ .type = OPTIM_ADAMW, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.01 },
		{ .type = OPTIM_LAMB, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-6, .weight_decay = 0.01 },
	};
	struct rig_config c = rig_small();
	c.optim = of[optimizer];
	c.init = (struct init_rule){ .type = INIT_NORMAL, .a = 0, .b = 0.02 };
	return c;
}

void pair_open(struct rig_config c)
{
	twin_environment(0);
	rig_open(&host, &c);
	c.device = true;
	c.slots_on_host = on_host;
	rig_open(&gpu, &c);
	twin_path("engine_program", program, sizeof(program));
	twin_path("../lib/gacc/gacc_cuda.so", plugin, sizeof(plugin));
	gpu.program = program;
	gpu.argument = plugin;
}

void pair_begin(struct rig_config c)
{
	pair_open(c);
	rig_start(&host);
	rig_attach_all(&host);
	const struct engine_answer a = rig_allocate(&gpu);
	ck_assert_msg(a.op == ENGINE_START && !a.status, "op %u, status %u: %s", a.op, a.status, a.text);
	/* on both: CONTROL, STATUS, and on the device two of its own */
	ck_assert_int_eq(gpu.n_segments, on_host ? 2 + 1 + SLOTS_OF(gpu) : 2);
	ck_assert_int_eq(gpu.n_device, host.n_segments - 2 + 2 - (on_host ? SLOTS_OF(gpu) : 0));
	rig_attach_all(&gpu);
	twin_device(&trainer);
}

void pair_end(void)
{
	cuda_device_close(&trainer);
	rig_close(&gpu);
	rig_close(&host);
}

/* As a trainer writes to a segment whose descriptor it has been given. */
static void write_to(int fd, const void *data, uint64_t bytes)
{
	const struct cuda_driver *cu = &trainer.cu;
	const struct cu_access access = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	const struct cu_allocation what = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					    .requested_handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					    .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } };
	size_t unit = 0;
	OK(cu->cuMemGetAllocationGranularity(&unit, &what, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
	const uint64_t whole = (SEGMENT_DATA_OFFSET + bytes + unit - 1) / unit * unit;
	cu_handle handle;
	cu_memory at;
	OK(cu->cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	OK(cu->cuMemAddressReserve(&at, whole, 0, 0, 0));
	OK(cu->cuMemMap(at, whole, 0, handle, 0));
	OK(cu->cuMemSetAccess(at, whole, &access, 1));
	OK(cu->cuMemcpyHtoDAsync(at + SEGMENT_DATA_OFFSET, data, bytes, trainer.stream));
	OK(cu->cuStreamSynchronize(trainer.stream));
	OK(cu->cuMemUnmap(at, whole));
	OK(cu->cuMemAddressFree(at, whole));
	OK(cu->cuMemRelease(handle));
}

void pair_give(uint32_t from, uint32_t slot)
{
	const uint64_t bytes = host.plan->slot_bytes;
	const void *data = rig_data(&host, SEG_SLOT, from);
	if (on_host)
		memcpy(rig_data(&gpu, SEG_SLOT, slot), data, bytes);
	else
		write_to(gpu.device_fd[gpu.n_device - 1 - (int)host.plan->slots + (int)slot], data, bytes);
}

void pair_alter(uint64_t at)
{
	struct plan_segment s[PLAN_BESIDE_SLOTS + PLAN_ON_DEVICE + SLOTS];
	const int n = plan_segments(gpu.plan, s, sizeof(s) / sizeof(s[0]));
	unsigned char *params = rig_data(&host, SEG_PARAMS, 0);
	params[at] ^= 4;
	for (int i = plan_host_segments(gpu.plan); i < n; i++)
		if (s[i].role == SEG_PARAMS)
			write_to(gpu.device_fd[i - plan_host_segments(gpu.plan)], params, gpu.plan->param_bytes);
}

/* ---- the same commands ---- */

void pair_fill(uint64_t window)
{
	for (uint32_t i = 0; i < SLOTS; i++) {
		rig_fill_slot(&host, i, window * 100 + i);
		pair_give(i, i);
	}
}

/* The i-th push in canonical order: (rank 0, micro 0), (1, 0), (0, 1), (1, 1). */
uint32_t pair_nth(uint32_t i)
{
	return i % 2 * 2 + i / 2;
}

void pair_add(uint32_t i)
{
	const uint32_t slot = pair_nth(i);
	const struct engine_answer a = rig_add(&host, slot / 2, slot % 2, 1 + slot),
				   b = rig_add(&gpu, slot / 2, slot % 2, 1 + slot);
	ck_assert_uint_eq(a.status, ST_OK);
	ck_assert_msg(b.status == a.status && b.result == a.result, "%u: %s", b.status, b.text);
	ck_assert_uint_eq(b.count, a.count);
}

static struct engine_answer add_present(struct rig *r, uint32_t slot, unsigned char present)
{
	struct engine_command c = rig_add_command(r, slot / 2, slot % 2, 1 + slot);
	struct engine_answer a;
	c.n_present = 1;
	const uint64_t id = rig_send_with(r, c, &present);
	ck_assert(rig_receive(r, &a));
	ck_assert_uint_eq(a.id, id);
	return a;
}

void pair_add_present(uint32_t i, unsigned char present)
{
	const uint32_t slot = pair_nth(i);
	const struct engine_answer a = add_present(&host, slot, present), b = add_present(&gpu, slot, present);
	ck_assert_uint_eq(a.status, ST_OK);
	ck_assert_msg(b.status == a.status && b.result == a.result, "%u: %s", b.status, b.text);
}

/* What trainers see. */
void pair_same_params(void)
{
	const void *seen = on_host ? rig_data(&gpu, SEG_PARAMS, 0) : NULL;
	if (seen)
		ck_assert_mem_eq(seen, rig_data(&host, SEG_PARAMS, 0), host.plan->param_bytes);
}

void pair_init(void)
{
	const struct engine_command c = { .op = ENGINE_INIT_PARAMS };
	const struct engine_answer a = rig_call(&host, c), b = rig_call(&gpu, c);
	ck_assert_msg(!a.status && !b.status, "%s %s", a.text, b.text);
	ck_assert_uint_eq(b.digest, a.digest);
	pair_same_params();
}

static void same_sum(const struct engine_answer *a, const struct engine_answer *b)
{
	ck_assert_msg(!a->status && !b->status, "%s %s", a->text, b->text);
	ck_assert_mem_eq(&b->sumsq, &a->sumsq, sizeof(double));
	ck_assert_uint_eq(b->digest, a->digest);
	ck_assert_uint_eq(b->count, a->count);
	ck_assert_uint_eq(b->nonfinite, a->nonfinite);
}

void pair_step(void)
{
	struct engine_answer a = rig_close_window(&host), b = rig_close_window(&gpu);
	same_sum(&a, &b);
	a = rig_go(&host, 1);
	b = rig_go(&gpu, 1);
	same_sum(&a, &b);
	a = rig_call(&host, rig_commit_command(&host, APPLIED, 0.25, 0.1));
	b = rig_call(&gpu, rig_commit_command(&gpu, APPLIED, 0.25, 0.1));
	ck_assert_msg(!a.status && !b.status, "%s %s", a.text, b.text);
	ck_assert_uint_eq(b.digest, a.digest);
	host.window = gpu.window = a.window;
	host.applied_step++, gpu.applied_step++;
	pair_same_params();
}

void pair_window(void)
{
	pair_fill(host.window);
	for (uint32_t i = 0; i < SLOTS; i++)
		pair_add(i);
	pair_step();
}
