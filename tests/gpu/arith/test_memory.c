/* SPDX-License-Identifier: Apache-2.0 */
/* A job's memory on a device: what is made, what is refused, and what another life finds. */
#include "twin.h"

#include "support/suite.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char why[256];

static enum status open_device(struct cuda_device *d)
{
	why[0] = 0;
	return cuda_device_open(d, "", twin_image(), why, sizeof(why));
}

static void refused(const char *attributes, const char *text)
{
	struct cuda_device d;
	setenv("FAKE_CUDA_ATTRIBUTES", attributes, 1);
	ck_assert_int_eq(open_device(&d), ST_INVALID_CONFIG);
	ck_assert_msg(strstr(why, text), "%s", why);
}

static const struct {
	const char *attributes, *text;
} lacks[] = {
	{ "102=0", "virtual memory management" },
	{ "103=0", "as descriptors" },
	{ "20=3", "compute mode" },
	{ "20=2", "compute mode" },
};

START_TEST(a_device_that_lacks_something_is_refused_with_the_reason)
{
	twin_environment(0);
	refused(lacks[_i].attributes, lacks[_i].text);
}
END_TEST

START_TEST(no_device_is_a_refusal)
{
	struct cuda_device d;
	twin_environment(0);
	setenv("CUDA_VISIBLE_DEVICES", "", 1);
	ck_assert_int_eq(open_device(&d), ST_INVALID_CONFIG);
	ck_assert_msg(*why, "a sentence");
}
END_TEST

/* All of it is zero but for the headers, and nothing of CONTROL or STATUS is there. */
START_TEST(memory_is_made_zeroed_with_headers)
{
	struct rig_config c = rig_small();
	struct twin t;
	twin_environment(0);
	c.optim = (struct optim_config){ .type = OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.9, .eps = 1e-8 };
	twin_open(&t, &c);
	ck_assert_int_eq(t.memory.n, t.rig.n_segments - 2 + 1);
	ck_assert_uint_eq(t.memory.arena[0].what.role, SEG_DEVICE);
	for (int i = 0; i < t.memory.n; i++) {
		const struct cuda_arena *a = &t.memory.arena[i];
		unsigned char *bytes = malloc(a->n_whole);
		ck_assert_int_ge(a->fd, 0);
		ck_assert(fcntl(a->fd, F_GETFD) & FD_CLOEXEC);
		ck_assert_uint_eq(a->at % SEGMENT_DATA_OFFSET, 0);
		OK(cuda_download(&t.device, bytes, a->whole, a->n_whole));
		OK(segment_header_check((const struct segment_header *)bytes, SEGMENT_DATA_OFFSET + a->what.bytes, why,
					sizeof(why)));
		uint64_t k = SEGMENT_DATA_OFFSET;
		while (k < a->n_whole && !bytes[k])
			k++;
		ck_assert(k == a->n_whole || a->what.role == SEG_DEVICE);
		free(bytes);
	}
	twin_close(&t);
}
END_TEST

START_TEST(memory_that_is_not_there_is_refused_with_the_numbers)
{
	struct rig_config c = rig_large();
	struct rig rig;
	struct cuda_device d;
	struct cuda_memory m;
	twin_environment(0);
	setenv("FAKE_CUDA_MEMORY", "8388608", 1);
	rig_open(&rig, &c);
	twin_plan(&rig);
	twin_device(&d);
	ck_assert_int_eq(cuda_memory_make(&m, &d, rig.plan, RIG_GENERATION, why, sizeof(why)), ST_NO_MEMORY);
	ck_assert_msg(strstr(why, "needs 18.0 MiB") && strstr(why, "whose 8.0 MiB 8.0 are free"), "%s", why);
	size_t left, total;
	OK(d.cu.cuMemGetInfo(&left, &total)); /* and all that was taken is given back */
	ck_assert_uint_eq(left, 8388608);
	cuda_device_close(&d);
	rig_close(&rig);
}
END_TEST

/* Every call that can fail, in turn: nothing is left behind, and there is a reason. */
static const char *const calls[] = { "cuMemCreate",	    "cuMemGetAllocationGranularity",
				     "cuMemAddressReserve", "cuMemMap",
				     "cuMemSetAccess",	    "cuMemExportToShareableHandle",
				     "cuMemsetD8Async",	    "cuMemcpyHtoDAsync" };

START_TEST(a_call_that_fails_leaves_nothing_behind)
{
	struct rig_config c = rig_small();
	struct rig rig;
	struct cuda_device d;
	struct cuda_memory m;
	char fail[64];
	size_t before, after, total;
	twin_environment(0);
	snprintf(fail, sizeof(fail), "%s:3:999", calls[_i]);
	setenv("FAKE_CUDA_FAIL", fail, 1);
	rig_open(&rig, &c);
	twin_plan(&rig);
	twin_device(&d);
	OK(d.cu.cuMemGetInfo(&before, &total));
	ck_assert_int_eq(cuda_memory_make(&m, &d, rig.plan, RIG_GENERATION, why, sizeof(why)), ST_IO_ERROR);
	ck_assert_msg(*why, "a sentence");
	OK(d.cu.cuMemGetInfo(&after, &total));
	ck_assert_uint_eq(after, before);
	cuda_device_close(&d);
	rig_close(&rig);
}
END_TEST

/* Adopted by the same process, which is no different for the driver. */
static int duplicates(const struct twin *t, int *fds)
{
	for (int i = 0; i < t->memory.n; i++)
		fds[i] = fcntl(t->memory.arena[i].fd, F_DUPFD_CLOEXEC, 0);
	return t->memory.n;
}

static enum status adopt(struct twin *t, struct cuda_memory *m, uint64_t generation, int *fds, int n)
{
	return cuda_memory_adopt(m, &t->device, t->rig.plan, generation, fds, n, why, sizeof(why));
}

START_TEST(another_life_finds_what_the_first_has_left)
{
	struct rig_config c = rig_small();
	struct twin t;
	struct cuda_memory m;
	struct arith *second;
	int fds[64];
	twin_environment(0);
	twin_open(&t, &c);
	memset(rig_data(&t.rig, SEG_PARAMS, 0), 0x3d, t.rig.plan->param_bytes);
	twin_give(&t, SEG_PARAMS);
	const int n = duplicates(&t, fds);
	OK(adopt(&t, &m, RIG_GENERATION, fds, n));
	ck_assert_uint_eq(m.shares, t.memory.shares);
	OK(arith_cuda_open(&second, &m, &t.mem.page, false, TWIN_QUIET_NS, why, sizeof(why)));
	struct arith *first = t.cuda;
	t.cuda = second;
	twin_same(&t, SEG_PARAMS, false);
	/* the first one's generation is over: what it queues does nothing, and it hears so */
	ck_assert_int_eq(first->ops->write(first, SEG_PARAMS, 0, 4, "abcd"), ST_IO_ERROR);
	twin_same(&t, SEG_PARAMS, false);
	second->ops->close(second);
	cuda_memory_fini(&m);
	t.cuda = first;
	twin_close(&t);
}
END_TEST

START_TEST(foreign_memory_is_not_adopted)
{
	struct rig_config c = rig_small();
	struct twin t;
	struct cuda_memory m;
	int fds[64], n;
	twin_environment(0);
	twin_open(&t, &c);
	n = duplicates(&t, fds);
	ck_assert_int_eq(adopt(&t, &m, RIG_GENERATION + 1, fds, n), ST_SEGMENT_CORRUPT);
	ck_assert_msg(strstr(why, "generation"), "%s", why);
	n = duplicates(&t, fds);
	const int first = fds[1];
	fds[1] = fds[2];
	fds[2] = first;
	ck_assert_int_eq(adopt(&t, &m, RIG_GENERATION, fds, n), ST_SEGMENT_CORRUPT);
	ck_assert_msg(strstr(why, "role"), "%s", why);
	n = duplicates(&t, fds);
	close(fds[3]);
	fds[3] = open("/dev/null", O_RDONLY | O_CLOEXEC);
	ck_assert_int_eq(adopt(&t, &m, RIG_GENERATION, fds, n), ST_SEGMENT_CORRUPT);
	ck_assert_msg(strstr(why, "segment 3"), "%s", why);
	n = duplicates(&t, fds);
	close(fds[--n]);
	ck_assert_int_eq(adopt(&t, &m, RIG_GENERATION, fds, n), ST_SEGMENT_CORRUPT);
	ck_assert_msg(strstr(why, "expected"), "%s", why);
	twin_close(&t);
}
END_TEST

/* ---- a driver that fails in an adoption ---- */

static cu_result fails_with;

static cu_result no_import(cu_handle *out, void *fd, cu_handle_type type)
{
	return fails_with;
}

static cu_result no_address(cu_memory *out, size_t n, size_t align, cu_memory at, unsigned long long flags)
{
	return fails_with;
}

static cu_result no_map(cu_memory at, size_t n, size_t offset, cu_handle handle, unsigned long long flags)
{
	return fails_with;
}

static cu_result no_access(cu_memory at, size_t n, const struct cu_access *access, size_t n_access)
{
	return fails_with;
}

/* The GPU is full at the moment, above all, as trainers have the rest of it. */
START_TEST(memory_that_cannot_be_taken_now_is_not_called_wrong)
{
	static const struct {
		cu_result code;
		enum status st;
	} of[] = { { CUDA_ERROR_OUT_OF_MEMORY, ST_NO_MEMORY },
		   { CUDA_ERROR_UNKNOWN, ST_IO_ERROR },
		   { CUDA_ERROR_DEVICE_UNAVAILABLE, ST_IO_ERROR },
		   { CUDA_ERROR_INVALID_VALUE, ST_SEGMENT_CORRUPT },
		   { CUDA_ERROR_INVALID_HANDLE, ST_SEGMENT_CORRUPT } };
	struct rig_config c = rig_small();
	struct twin t;
	struct cuda_memory m;
	int fds[64];
	twin_environment(0);
	twin_open(&t, &c);
	const struct cuda_driver whole = t.device.cu;
	for (size_t i = 0; i < sizeof(of) / sizeof(*of); i++) {
		fails_with = of[i].code;
		t.device.cu = whole;
		if (_i == 0)
			t.device.cu.cuMemImportFromShareableHandle = no_import;
		else if (_i == 1)
			t.device.cu.cuMemAddressReserve = no_address;
		else if (_i == 2)
			t.device.cu.cuMemMap = no_map;
		else
			t.device.cu.cuMemSetAccess = no_access;
		const int n = duplicates(&t, fds);
		*why = 0;
		ck_assert_int_eq(adopt(&t, &m, RIG_GENERATION, fds, n), of[i].st);
		ck_assert_msg(*why, "a sentence");
	}
	t.device.cu = whole;
	const int n = duplicates(&t, fds);
	OK(adopt(&t, &m, RIG_GENERATION, fds, n));
	cuda_memory_fini(&m);
	twin_close(&t);
}
END_TEST

START_TEST(memory_of_other_kernels_is_refused_and_stays)
{
	struct rig_config c = rig_small();
	struct twin t;
	struct cuda_memory m;
	int fds[64];
	const uint32_t other = CUDA_KERNELS_ABI + 1;
	twin_environment(0);
	twin_open(&t, &c);
	OK(cuda_upload(&t.device, t.memory.arena[0].at, &other, sizeof(other)));
	const int n = duplicates(&t, fds);
	ck_assert_int_eq(adopt(&t, &m, RIG_GENERATION, fds, n), ST_INVALID_CONFIG);
	ck_assert_msg(strstr(why, "version 2, these are of version 1"), "%s", why);
	twin_close(&t);
}
END_TEST

/* As if an earlier life's block had begun and not ended. */
START_TEST(a_gpu_that_is_not_quiet_is_waited_for_and_then_given_up)
{
	struct rig_config c = rig_small();
	struct twin t;
	struct arith *a;
	const cuda_word one = 1;
	twin_environment(0);
	twin_open(&t, &c);
	OK(cuda_upload(&t.device, t.memory.gate + offsetof(struct cuda_gate, begun) + 40 * sizeof(one), &one,
		       sizeof(one)));
	ck_assert_int_eq(arith_cuda_open(&a, &t.memory, &t.mem.page, false, 20000000, why, sizeof(why)), ST_IO_ERROR);
	ck_assert_msg(strstr(why, "not quiet"), "%s", why);
	OK(arith_cuda_open(&a, &t.memory, &t.mem.page, true, 0, why, sizeof(why)));
	a->ops->close(a);
	twin_close(&t);
}
END_TEST

/* A launch that does not end: the wait does. */
START_TEST(a_device_that_does_not_answer_is_given_up)
{
	struct rig_config c = rig_small();
	struct twin t;
	twin_environment(0);
	setenv("FAKE_CUDA_HANG", "2", 1); /* open_gate was the first */
	twin_open(&t, &c);
	t.device.patience_ns = 150000000;
	ck_assert_int_eq(t.cuda->ops->zero_slot(t.cuda, 0), ST_IO_ERROR);
	_exit(0); /* as an engine does: nothing else ends the launch */
}
END_TEST

START_TEST(an_error_of_the_device_stays)
{
	struct rig_config c = rig_small();
	struct twin t;
	char byte;
	twin_environment(0);
	setenv("FAKE_CUDA_STICKY", "2:700", 1);
	twin_open(&t, &c);
	ck_assert_int_eq(t.cuda->ops->zero_slot(t.cuda, 0), ST_IO_ERROR);
	ck_assert_int_eq(t.cuda->ops->zero_slot(t.cuda, 0), ST_IO_ERROR);
	ck_assert_int_eq(t.cuda->ops->read(t.cuda, SEG_PARAMS, 0, 1, &byte), ST_IO_ERROR);
	_exit(0);
}
END_TEST

#ifndef NDEBUG
START_TEST(a_process_with_a_device_does_not_fork)
{
	struct cuda_device d;
	twin_environment(0);
	twin_device(&d);
	fork();
}
END_TEST
#endif

START_TEST(jobs_that_no_device_takes_are_refused)
{
	struct plan p = { .acc_dtype = DTYPE_F64, .n_parts = 2, .n_shards = 1 };
	ck_assert(!arith_cuda_takes(&p, why, sizeof(why)) && strstr(why, "f64"));
	p.acc_dtype = DTYPE_F32;
	ck_assert(arith_cuda_takes(&p, why, sizeof(why)));
	p.n_shards = 2;
	ck_assert(!arith_cuda_takes(&p, why, sizeof(why)) && strstr(why, "divided over parts"));
	p.n_shards = 1;
	p.in_slot = 1;
	ck_assert(!arith_cuda_takes(&p, why, sizeof(why)) && strstr(why, "accumulate: none"));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("cuda_memory");
	TCase *t = tcase_create("memory");
	tcase_set_timeout(t, 60);
	tcase_add_loop_test(t, a_device_that_lacks_something_is_refused_with_the_reason, 0,
			    (int)(sizeof(lacks) / sizeof(*lacks)));
	tcase_add_test(t, no_device_is_a_refusal);
	tcase_add_test(t, memory_is_made_zeroed_with_headers);
	tcase_add_test(t, memory_that_is_not_there_is_refused_with_the_numbers);
	tcase_add_loop_test(t, a_call_that_fails_leaves_nothing_behind, 0, (int)(sizeof(calls) / sizeof(*calls)));
	tcase_add_test(t, another_life_finds_what_the_first_has_left);
	tcase_add_test(t, foreign_memory_is_not_adopted);
	tcase_add_loop_test(t, memory_that_cannot_be_taken_now_is_not_called_wrong, 0, 4);
	tcase_add_test(t, memory_of_other_kernels_is_refused_and_stays);
	tcase_add_test(t, a_gpu_that_is_not_quiet_is_waited_for_and_then_given_up);
	tcase_add_test(t, a_device_that_does_not_answer_is_given_up);
	tcase_add_test(t, an_error_of_the_device_stays);
#ifndef NDEBUG
	tcase_add_test_raise_signal(t, a_process_with_a_device_does_not_fork, SIGABRT);
#endif
	tcase_add_test(t, jobs_that_no_device_takes_are_refused);
	suite_add_tcase(s, t);
	return suite_run(s);
}
