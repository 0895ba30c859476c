/* SPDX-License-Identifier: Apache-2.0 */
/* A whole engine on a device beside one on the host: checkpoints, and memory and jobs that are refused. */
#include "engine_pair.h"
#include "support/scratch.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
	pair_begin(pair_config(1));
	pair_init();
	pair_window();
	pair_fill(host.window);
	pair_add(0), pair_add(1), pair_add(2);
	ck_assert(scratch_make(dir));
	snprintf(of_host, sizeof(of_host), "%s/host", dir);
	snprintf(of_gpu, sizeof(of_gpu), "%s/gpu", dir);
	save(&host, of_host);
	save(&gpu, of_gpu);
	ck_assert(rig_receive(&host, &a) && rig_receive(&gpu, &b));
	same_files(&a, &b);
	pair_add(3);
	pair_step();
	pair_window();
	pair_end();
}
END_TEST

/* ---- what is refused ---- */

static void ends_with(int code)
{
	ck_assert_int_eq(rig_wait(&gpu), code);
}

START_TEST(a_job_that_does_not_fit)
{
	struct rig_config c = pair_config(1);
	setenv("FAKE_CUDA_MEMORY", "8388608", 1);
	pair_open(c);
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
	struct rig_config c = pair_config(1);
	pair_open(c);
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
	pair_begin(pair_config(1));
	pair_init();
	pair_window();
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
	pair_window();
	pair_end();
}
END_TEST

START_TEST(allocate_is_for_the_first_engine_of_a_job_on_a_device)
{
	struct rig_config c = pair_config(1);
	pair_begin(c);
	const struct engine_answer a = rig_call(&gpu, (struct engine_command){ .op = ENGINE_ALLOCATE });
	ck_assert_uint_ne(a.status, ST_OK);
	pair_init();
	pair_window();
	pair_end();
	pair_open(c); /* and of the host's none */
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
	Suite *s = suite_create("cuda_engine_memory");
	TCase *t = tcase_create("engine");
	tcase_set_timeout(t, 60);
	if (HAS_KERNELS) {
		tcase_add_loop_test(t, checkpoints_have_the_bytes_of_the_host, 0, 2);
		tcase_add_test(t, a_job_that_does_not_fit);
		tcase_add_test(t, what_cannot_be_on_a_device);
		tcase_add_test(t, other_descriptors);
		tcase_add_test(t, allocate_is_for_the_first_engine_of_a_job_on_a_device);
	}
	suite_add_tcase(s, t);
	return suite_run(s);
}
