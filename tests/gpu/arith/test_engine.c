/* SPDX-License-Identifier: Apache-2.0 */
/* A whole engine with its job in a device's memory, beside one with the same job in shared memory: the same commands,
 * the same answers, the same bits, also when the one on the device is killed and its successor adopts the memory. */
#include "twin.h"

#include "engine/device_plugin.h"
#include "support/scratch.h"
#include "support/suite.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLOTS 4
#define SLOTS_OF(rig) ((int)(rig).plan->slots)

static struct rig host, gpu;
static struct cuda_device trainer; /* the trainers' side of the device */
static bool on_host;		   /* the slots, and what trainers see of the parameters */

static struct rig_config config(int optimizer)
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

static void open_rigs(struct rig_config c)
{
	twin_environment(0);
	rig_open(&host, &c);
	c.device = true;
	c.slots_on_host = on_host;
	rig_open(&gpu, &c);
	gpu.program = ENGINE_PROGRAM;
	gpu.argument = PLUGIN;
}

static void begin(struct rig_config c)
{
	open_rigs(c);
	rig_start(&host);
	rig_attach_all(&host);
	const struct engine_answer a = rig_allocate(&gpu);
	ck_assert_msg(a.op == ENGINE_START && !a.status, "op %u, status %u: %s", a.op, a.status, a.text);
	/* on both: CONTROL, STATUS, and on the device one of its own */
	ck_assert_int_eq(gpu.n_segments, on_host ? 2 + 1 + SLOTS_OF(gpu) : 2);
	ck_assert_int_eq(gpu.n_device, host.n_segments - 2 + 1 - (on_host ? SLOTS_OF(gpu) : 0));
	rig_attach_all(&gpu);
	twin_device(&trainer);
}

static void end(void)
{
	cuda_device_close(&trainer);
	rig_close(&gpu);
	rig_close(&host);
}

/* The host's slot as it is now, by the descriptor that gaccd would have handed to the trainer. */
static void give_slot(uint32_t slot)
{
	const struct cuda_driver *cu = &trainer.cu;
	const struct cu_access access = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	const struct cu_allocation what = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
					    .requested_handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
					    .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } };
	const uint64_t bytes = host.plan->slot_bytes;
	size_t unit = 0;
	if (on_host) {
		memcpy(rig_data(&gpu, SEG_SLOT, slot), rig_data(&host, SEG_SLOT, slot), bytes);
		return;
	}
	OK(cu->cuMemGetAllocationGranularity(&unit, &what, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
	const uint64_t whole = (SEGMENT_DATA_OFFSET + bytes + unit - 1) / unit * unit;
	const int fd = gpu.device_fd[gpu.n_device - (int)host.plan->slots + (int)slot];
	cu_handle handle;
	cu_memory at;
	OK(cu->cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
	OK(cu->cuMemAddressReserve(&at, whole, 0, 0, 0));
	OK(cu->cuMemMap(at, whole, 0, handle, 0));
	OK(cu->cuMemSetAccess(at, whole, &access, 1));
	OK(cu->cuMemcpyHtoDAsync(at + SEGMENT_DATA_OFFSET, rig_data(&host, SEG_SLOT, slot), bytes, trainer.stream));
	OK(cu->cuStreamSynchronize(trainer.stream));
	OK(cu->cuMemUnmap(at, whole));
	OK(cu->cuMemAddressFree(at, whole));
	OK(cu->cuMemRelease(handle));
}

/* ---- the same commands ---- */

static void fill(uint64_t window)
{
	for (uint32_t i = 0; i < SLOTS; i++) {
		rig_fill_slot(&host, i, window * 100 + i);
		give_slot(i);
	}
}

/* The i-th push in canonical order: (rank 0, micro 0), (1, 0), (0, 1), (1, 1). */
static uint32_t nth(uint32_t i)
{
	return i % 2 * 2 + i / 2;
}

static void add(uint32_t i)
{
	const uint32_t slot = nth(i);
	const struct engine_answer a = rig_add(&host, slot / 2, slot % 2, 1 + slot),
				   b = rig_add(&gpu, slot / 2, slot % 2, 1 + slot);
	ck_assert_uint_eq(a.status, ST_OK);
	ck_assert_msg(b.status == a.status && b.result == a.result, "%u: %s", b.status, b.text);
	ck_assert_uint_eq(b.count, a.count);
}

/* What trainers see. */
static void same_params(void)
{
	const void *seen = on_host ? rig_data(&gpu, SEG_PARAMS, 0) : NULL;
	if (seen)
		ck_assert_mem_eq(seen, rig_data(&host, SEG_PARAMS, 0), host.plan->param_bytes);
}

static void init(void)
{
	const struct engine_command c = { .op = ENGINE_INIT_PARAMS };
	const struct engine_answer a = rig_call(&host, c), b = rig_call(&gpu, c);
	ck_assert_msg(!a.status && !b.status, "%s %s", a.text, b.text);
	ck_assert_uint_eq(b.digest, a.digest);
	same_params();
}

static void same_sum(const struct engine_answer *a, const struct engine_answer *b)
{
	ck_assert_msg(!a->status && !b->status, "%s %s", a->text, b->text);
	ck_assert_mem_eq(&b->sumsq, &a->sumsq, sizeof(double));
	ck_assert_uint_eq(b->digest, a->digest);
	ck_assert_uint_eq(b->count, a->count);
	ck_assert_uint_eq(b->nonfinite, a->nonfinite);
}

static void step(void)
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
	same_params();
}

static void window(void)
{
	fill(host.window);
	for (uint32_t i = 0; i < SLOTS; i++)
		add(i);
	step();
}

START_TEST(steps_have_the_bits_of_the_host)
{
	on_host = _i >= 3;
	begin(config(_i % 3));
	init();
	for (int i = 0; i < 3; i++)
		window();
	end();
}
END_TEST

/* ---- lives ---- */

static void succeed(bool waited)
{
	rig_kill(&gpu);
	gpu.others_are_over = waited;
	const struct engine_answer a = rig_start(&gpu);
	ck_assert_uint_eq(a.window, host.window);
}

START_TEST(a_successor_adopts_the_memory)
{
	on_host = _i >= 2;
	begin(config(1));
	init();
	window();
	succeed(_i % 2);
	window();
	fill(host.window);
	add(0), add(1);
	succeed(_i % 2); /* in the middle of a window */
	add(2), add(3);
	step();
	succeed(_i % 2);
	window();
	end();
}
END_TEST

/* More than a packet carries, both ways. */
START_TEST(many_descriptors)
{
	struct rig_config c = config(0);
	c.micro_size = 30;
	begin(c);
	ck_assert_int_gt(gpu.n_device, ENGINE_MAX_FDS);
	init();
	succeed(true);
	const struct engine_command ping = { .op = ENGINE_PING };
	ck_assert_uint_eq(rig_call(&gpu, ping).status, ST_OK);
	end();
}
END_TEST

/* It dies at some store of a kernel, in a pass or in the update, and once in that of its successor, too. */
START_TEST(deaths_at_stores)
{
	char store[32];
	unsigned deaths = 0;
	on_host = _i;
	begin(config(1));
	init();
	for (uint64_t at = 20; at < 200000; at = at * 7 / 2 + 13) {
		fill(host.window);
		rig_kill(&gpu);
		snprintf(store, sizeof(store), "%llu", (unsigned long long)at);
		setenv("FAKE_CUDA_KILL", store, 1);
		gpu.others_are_over = true;
		struct engine_answer a = { .op = 0 };
		rig_spawn(&gpu);
		unsetenv("FAKE_CUDA_KILL");
		bool lives = rig_receive(&gpu, &a);
		ck_assert(!lives || !a.status);
		for (uint32_t i = 0; i < SLOTS; i++) {
			ck_assert_uint_eq(rig_add(&host, i % 2, i / 2, 1 + nth(i)).status, ST_OK);
			rig_send(&gpu, rig_add_command(&gpu, i % 2, i / 2, 1 + nth(i)));
			lives = lives && rig_receive(&gpu, &a);
		}
		const struct engine_command close = { .op = ENGINE_CLOSE, .window = gpu.window },
					    go = { .op = ENGINE_GO, .window = gpu.window, .term = 1, .attempt = 1 };
		const struct engine_command commit = rig_commit_command(&gpu, APPLIED, 0.25, 0.1);
		if (lives) {
			const struct engine_command rest[] = { close, go, commit };
			for (int i = 0; i < 3 && lives; i++) {
				rig_send(&gpu, rest[i]);
				lives = rig_receive(&gpu, &a);
			}
		}
		deaths += !lives;
		rig_kill(&gpu);
		rig_start(&gpu); /* which finishes what the record says */
		rig_read(&gpu);
		if (gpu.state.r.window == host.window) { /* what was counted comes as a duplicate */
			for (uint32_t i = 0; i < SLOTS; i++)
				ck_assert_uint_eq(rig_add(&gpu, i % 2, i / 2, 1 + nth(i)).status, ST_OK);
			step();
		} else {
			rig_close_window(&host);
			rig_go(&host, 1);
			const struct engine_answer b = rig_call(&host, rig_commit_command(&host, APPLIED, 0.25, 0.1));
			ck_assert_uint_eq(gpu.state.r.params_digest, b.digest);
			host.window = gpu.window = b.window;
			host.applied_step++, gpu.applied_step++;
			same_params();
		}
	}
	ck_assert_uint_ge(deaths, 4);
	printf("%u deaths\n", deaths);
	window();
	end();
}
END_TEST

/* As gaccd does it when a trainer's device may still write to the old ones: those of rank 0. */
static void exchange_slots(struct segment *fresh)
{
	const uint32_t n = gpu.plan->slots_per_rank;
	struct engine_command c = { .op = ENGINE_SLOTS, .rank = 0, .sgen = 1, .slot = 0, .id = ++gpu.next_id };
	struct engine_answer a;
	char why[160];
	int fds[SLOTS];
	for (uint32_t i = 0; i < n; i++) {
		OK(segment_create(&fresh[i], RIG_JOB, RIG_GENERATION, gpu.plan->fingerprint, SEG_SLOT, i,
				  gpu.plan->slot_bytes, true, why, sizeof(why)));
		fds[i] = fresh[i].fd;
	}
	OK(packet_send(gpu.fd, &c, sizeof(c), NULL, 0, fds, (int)n));
	ck_assert(rig_receive(&gpu, &a));
	ck_assert_msg(a.op == ENGINE_SLOTS && !a.status, "%u %s", a.status, a.text);
}

START_TEST(pushes_come_from_exchanged_slots)
{
	struct segment fresh[SLOTS];
	on_host = true;
	begin(config(0));
	init();
	exchange_slots(fresh);
	fill(host.window);
	for (uint32_t i = 0; i < gpu.plan->slots_per_rank; i++) {
		memcpy(fresh[i].data, rig_data(&host, SEG_SLOT, i), fresh[i].data_bytes);
		memset(rig_data(&gpu, SEG_SLOT, i), 0x3e, fresh[i].data_bytes);
	}
	for (uint32_t i = 0; i < SLOTS; i++)
		add(i);
	step();
	for (uint32_t i = 0; i < gpu.plan->slots_per_rank; i++)
		segment_close(&fresh[i]);
	end();
}
END_TEST

/* ---- checkpoints ---- */

static struct engine_answer save(struct rig *r, const char *dir)
{
	return (rig_send_with(r,
			      (struct engine_command){
				      .op = ENGINE_CHECKPOINT, .inside_window = 1, .n_present = (uint32_t)strlen(dir) },
			      dir),
		(struct engine_answer){ .op = 0 });
}

static void same_files(const struct engine_answer *a, const struct engine_answer *b)
{
	unsigned n = 0;
	ck_assert_msg(!a->status && !b->status, "%s %s", a->text, b->text);
	for (int i = 0; i < ENGINE_FILES; i++) {
		ck_assert_uint_eq(b->file[i].bytes, a->file[i].bytes);
		ck_assert_mem_eq(b->file[i].sha256, a->file[i].sha256, 32);
		n += a->file[i].bytes != 0;
	}
	ck_assert_uint_ge(n, 3);
}

START_TEST(checkpoints_have_the_bytes_of_the_host)
{
	char dir[SCRATCH_PATH], of_host[SCRATCH_PATH + 8], of_gpu[SCRATCH_PATH + 8];
	struct engine_answer a, b;
	on_host = _i;
	begin(config(1));
	init();
	window();
	fill(host.window);
	add(0), add(1), add(2);
	ck_assert(scratch_make(dir));
	snprintf(of_host, sizeof(of_host), "%s/host", dir);
	snprintf(of_gpu, sizeof(of_gpu), "%s/gpu", dir);
	save(&host, of_host);
	save(&gpu, of_gpu);
	ck_assert(rig_receive(&host, &a) && rig_receive(&gpu, &b));
	same_files(&a, &b);
	add(3);
	step();
	window();
	end();
}
END_TEST

/* ---- what is refused ---- */

static void ends_with(int code)
{
	ck_assert_int_eq(rig_wait(&gpu), code);
}

START_TEST(a_job_that_does_not_fit)
{
	struct rig_config c = config(1);
	setenv("FAKE_CUDA_MEMORY", "8388608", 1);
	open_rigs(c);
	const struct engine_answer a = rig_allocate(&gpu);
	ck_assert_uint_eq(a.op, ENGINE_ALLOCATE);
	ck_assert_msg(
		a.status == ST_NO_MEMORY &&
			strstr(a.text, "the job needs 22.0 MiB of the GPU's memory, of whose 8.0 MiB 8.0 are free now"),
		"%u: %s", a.status, a.text);
	ck_assert_int_eq(gpu.n_device, 0);
	ends_with(ENGINE_EXIT_REFUSED);
	rig_close(&gpu);
	rig_close(&host);
}
END_TEST

static void refused(const char *program_argument, enum status st, const char *text)
{
	gpu.argument = program_argument;
	const struct engine_answer a = rig_allocate(&gpu);
	ck_assert_uint_eq(a.op, ENGINE_ALLOCATE);
	ck_assert_msg(a.status == st && strstr(a.text, text), "%u: %s", a.status, a.text);
	ends_with(ENGINE_EXIT_REFUSED);
}

START_TEST(what_cannot_be_on_a_device)
{
	struct rig_config c = config(1);
	open_rigs(c);
	refused(NULL, ST_INVALID_CONFIG, "has no arithmetic of devices");
	refused("/nowhere/gacc_cuda.so", ST_INVALID_CONFIG, "cannot be loaded");
	setenv("FAKE_CUDA_ATTRIBUTES", "20=3", 1);
	refused(PLUGIN, ST_INVALID_CONFIG, "compute mode");
	unsetenv("FAKE_CUDA_ATTRIBUTES");
	setenv("CUDA_VISIBLE_DEVICES", "", 1);
	refused(PLUGIN, ST_INVALID_CONFIG, "");
	unsetenv("CUDA_VISIBLE_DEVICES");
	rig_close(&gpu);
	c.device = true;
	c.acc_dtype = DTYPE_F64;
	rig_open(&gpu, &c);
	gpu.program = ENGINE_PROGRAM;
	refused(PLUGIN, ST_INVALID_ARGUMENT, "f64");
	rig_close(&gpu);
	rig_close(&host);
}
END_TEST

/* START of a job on a device: with the wrong descriptors, or none. */
static void start_refused(uint32_t n_device, const int *fds, int n, enum status st)
{
	int all[2 + 64] = { gpu.segment[0].fd, gpu.segment[1].fd };
	const int kept = gpu.n_device;
	memcpy(all + 2, fds, (size_t)n * sizeof(*fds));
	gpu.n_device = (int)n_device;
	const struct engine_answer a = rig_start_with(&gpu, all, 2 + n);
	gpu.n_device = kept;
	ck_assert_uint_eq(a.op, ENGINE_START);
	ck_assert_msg(a.status == st && *a.text, "%u: %s", a.status, a.text);
	ends_with(ENGINE_EXIT_REFUSED);
}

START_TEST(other_descriptors)
{
	int turned[64];
	begin(config(1));
	init();
	window();
	rig_kill(&gpu);
	const int n = gpu.n_device;
	start_refused(0, turned, 0, ST_SEGMENT_CORRUPT);
	start_refused((uint32_t)n - 1, gpu.device_fd, n - 1, ST_SEGMENT_CORRUPT);
	for (int i = 0; i < n; i++)
		turned[i] = gpu.device_fd[n - 1 - i];
	start_refused((uint32_t)n, turned, n, ST_SEGMENT_CORRUPT);
	memcpy(turned, gpu.device_fd, (size_t)n * sizeof(*turned));
	turned[n] = gpu.plan_fd;
	start_refused((uint32_t)n + 1, turned, n + 1, ST_INVALID_ARGUMENT);
	gpu.others_are_over = true;
	rig_start(&gpu); /* it is whole */
	window();
	end();
}
END_TEST

START_TEST(allocate_is_for_the_first_engine_of_a_job_on_a_device)
{
	struct rig_config c = config(1);
	begin(c);
	const struct engine_answer a = rig_call(&gpu, (struct engine_command){ .op = ENGINE_ALLOCATE });
	ck_assert_uint_ne(a.status, ST_OK);
	init();
	window();
	end();
	open_rigs(c); /* and of the host's none */
	host.program = ENGINE_PROGRAM;
	host.argument = PLUGIN;
	const struct engine_answer b = rig_allocate(&host);
	ck_assert_msg(b.op == ENGINE_ALLOCATE && b.status == ST_INVALID_ARGUMENT, "%u %s", b.status, b.text);
	ck_assert_int_eq(rig_wait(&host), ENGINE_EXIT_REFUSED);
	rig_close(&gpu);
	rig_close(&host);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("cuda_engine");
	TCase *t = tcase_create("engine");
	tcase_set_timeout(t, 60);
	if (HAS_KERNELS) {
		tcase_add_loop_test(t, steps_have_the_bits_of_the_host, 0, 6);
		tcase_add_loop_test(t, a_successor_adopts_the_memory, 0, 4);
		tcase_add_test(t, many_descriptors);
		tcase_add_test(t, pushes_come_from_exchanged_slots);
		tcase_add_loop_test(t, deaths_at_stores, 0, 2);
		tcase_add_loop_test(t, checkpoints_have_the_bytes_of_the_host, 0, 2);
		tcase_add_test(t, a_job_that_does_not_fit);
		tcase_add_test(t, what_cannot_be_on_a_device);
		tcase_add_test(t, other_descriptors);
		tcase_add_test(t, allocate_is_for_the_first_engine_of_a_job_on_a_device);
	}
	suite_add_tcase(s, t);
	return suite_run(s);
}
