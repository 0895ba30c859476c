/* SPDX-License-Identifier: Apache-2.0 */
/* gacc_cuda.h on the fake driver: what is pinned, where copies go when memory is exchanged, and when a slot is full.
 * Each case sets the fake's environment before it loads it. */
#include "gacc/gacc_cuda.h"
#include "map_rig.h"
#include "support/suite.h"

#include "lib/clock.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BYTES ((size_t)2 * PAGE) /* of a slot, of the parameters */
#define WORD(n) __atomic_load_n(&map_job.memory.words.at[(n)-1].value, __ATOMIC_ACQUIRE)

static struct gacc_client client;
static struct cuda_driver cu;

static void setup(void)
{
	char machine[32];

	map_setup();
	snprintf(machine, sizeof(machine), "client%d", (int)getpid());
	setenv("FAKE_CUDA_MACHINE", machine, 1);
	client.pid = getpid();
	map_job.client = &client;
	map_job.registered = map_job.running = true;
	map_job.held_slot = -1;
}

/* Maps the memory of a new daemon, whose parameters begin with `value`. */
static enum status map_new(unsigned char value)
{
	struct map_daemon d;
	enum status st;

	map_daemon_init(&d);
	ck_assert_int_eq(pwrite(d.fds[2], &value, 1, PAGE), 1);
	st = map_with(&d);
	map_daemon_fini(&d);
	return st;
}

static void load(void)
{
	char why[256];

	ck_assert_msg(cuda_driver_load(&cu, why, sizeof(why)), "%s", why);
}

/* The job's memory, and device 0's primary context, which is current. */
static void begin(void)
{
	cu_context context;

	ck_assert_int_eq(map_new(1), ST_OK);
	map_job.memory.device = true; /* gaccd knows: tests/system/test_late_device.py asks what it makes of it */
	load();
	ck_assert(!cu.cuInit(0) && !cu.cuDevicePrimaryCtxRetain(&context, 0) && !cu.cuCtxSetCurrent(context));
}

static void registers(const gacc_cuda_opts *o)
{
	ck_assert_msg(!gacc_cuda_register(&map_job, o), "%s", gacc_last_error(&map_job));
}

static cu_memory alloc(unsigned char value)
{
	cu_memory m;

	ck_assert(!cu.cuMemAlloc(&m, BYTES) && !cu.cuMemsetD8Async(m, value, BYTES, NULL) && !cu.cuCtxSynchronize());
	return m;
}

static unsigned char *slot(int i)
{
	return mapping_data(&map_job.memory.slot[i]);
}

static bool is_pinned(const void *at)
{
	cu_memory unused;

	return !cu.cuMemHostGetDevicePointer(&unused, (void *)(uintptr_t)at, 0);
}

START_TEST(slots_and_parameters_are_pinned)
{
	cu_memory at;
	size_t n;

	if (_i)
		setenv("FAKE_CUDA_ATTRIBUTES", "91=0", 1);
	begin();
	registers(NULL);
	for (int i = 0; i < 3; i++) {
		const unsigned char *host = i < 2 ? slot(i) : mapping_data(&map_job.memory.params);

		ck_assert(is_pinned(host) && is_pinned(host + BYTES - 1));
		ck_assert_int_eq(gacc_cuda_address(&map_job, host + 5, &at, &n), GACC_OK);
		ck_assert_uint_eq(n, BYTES - 5);
		ck_assert_int_eq(at == (uintptr_t)host + 5, !_i);
	}
	ck_assert_int_eq(gacc_cuda_address(&map_job, &at, &at, &n), GACC_EINVAL);
	memory_unmap(&map_job.memory);
	ck_assert(!is_pinned(slot(0)));
}
END_TEST

/* A copy may touch several, and the device may see each elsewhere. */
START_TEST(chunks)
{
	gacc_cuda_opts o = { .struct_size = sizeof(o), .device = 0, .chunk_bytes = PAGE };
	cu_memory grads, at;
	size_t n;

	setenv("FAKE_CUDA_ATTRIBUTES", "91=0", 1);
	begin();
	ck_assert(!cu.cuCtxSetCurrent(NULL)); /* the device is named */
	registers(&o);
	ck_assert_int_eq(gacc_cuda_address(&map_job, slot(1) + PAGE - 1, &at, &n), GACC_OK);
	ck_assert_uint_eq(n, 1);
	ck_assert_int_eq(gacc_cuda_address(&map_job, slot(1) + PAGE, &at, &n), GACC_OK);
	ck_assert_uint_eq(n, PAGE);
	ck_assert(!cu.cuCtxSetCurrent(map_job.memory.cuda->context));
	grads = alloc(7);
	ck_assert(!cu.cuCtxSetCurrent(NULL));
	map_job.held_slot = 1;
	ck_assert_int_eq(gacc_cuda_copy_gradient(&map_job, NULL, 100, grads, BYTES - 100), GACC_OK);
	cu_context is = (cu_context)1;
	ck_assert(!cu.cuCtxGetCurrent(&is) && !is); /* as it was */
	ck_assert(!cu.cuCtxSetCurrent(map_job.memory.cuda->context) && !cu.cuCtxSynchronize());
	ck_assert(slot(1)[99] == 0 && slot(1)[100] == 7 && slot(1)[BYTES - 1] == 7);
	ck_assert_int_eq(gacc_cuda_copy_gradient(&map_job, NULL, 100, grads, BYTES - 99), GACC_EINVAL);
	ck_assert_int_eq(gacc_cuda_copy_params(&map_job, NULL, grads, BYTES, 1), GACC_EINVAL);
}
END_TEST

static void check_params(unsigned char first)
{
	unsigned char *back = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cu_memory to = alloc(9);

	ck_assert_msg(!gacc_cuda_copy_params(&map_job, NULL, to, 0, BYTES), "%s", gacc_last_error(&map_job));
	ck_assert(!cu.cuMemcpyDtoHAsync(back, to, BYTES, NULL) && !cu.cuCtxSynchronize());
	ck_assert(back[0] == first && back[1] == 0 && back[BYTES - 1] == 0);
}

/* With read-only registration, without it, and when it is not wanted. */
START_TEST(parameters_go_to_the_device)
{
	gacc_cuda_opts o = { .struct_size = sizeof(o), .device = -1, .no_params = _i == 2 };

	if (_i == 1)
		setenv("FAKE_CUDA_ATTRIBUTES", "113=0", 1);
	begin();
	registers(&o);
	ck_assert_int_eq(is_pinned(mapping_data(&map_job.memory.params)), _i == 0);
	for (int i = 0; i < 3; i++)
		check_params(1);
}
END_TEST

/* The same addresses, other pages: copies and kernels must find those. */
START_TEST(exchanged_memory_is_pinned_again)
{
	cu_memory grads;

	begin();
	registers(NULL);
	grads = alloc(7);
	map_job.held_slot = 0;
	memset(slot(1), 3, 10);
	ck_assert_int_eq(map_new(2), ST_OK);
	ck_assert(slot(1)[0] == 3 && is_pinned(slot(0)));
	ck_assert_int_eq(gacc_cuda_copy_gradient(&map_job, NULL, 0, grads, BYTES), GACC_OK);
	ck_assert(!cu.cuCtxSynchronize());
	ck_assert(slot(0)[0] == 7 && slot(0)[BYTES - 1] == 7);
	check_params(2);
}
END_TEST

/* What the device had still to do with the old memory is done before. */
START_TEST(exchange_waits_for_the_device)
{
	cu_memory grads;

	setenv("FAKE_CUDA_DELAY", "100000", 1);
	begin();
	registers(NULL);
	grads = alloc(7);
	map_job.held_slot = 0;
	ck_assert_int_eq(gacc_cuda_copy_gradient(&map_job, NULL, 0, grads, BYTES), GACC_OK);
	ck_assert_int_eq(slot(0)[0], 0);
	ck_assert_int_eq(map_new(2), ST_OK);
	ck_assert(slot(0)[0] == 7 && slot(0)[BYTES - 1] == 7);
	ck_assert(!cu.cuCtxSynchronize());
}
END_TEST

/* The first three registrations are good, and one after the exchange; that is taken back. */
START_TEST(a_job_that_cannot_be_pinned_again_is_over)
{
	setenv("FAKE_CUDA_FAIL", "cuMemHostRegister:5+:2", 1);
	begin();
	registers(NULL);
	ck_assert_int_eq(map_new(2), ST_INTERNAL);
	ck_assert(map_failure.is_final && strstr(map_failure.message, "CUDA_ERROR_OUT_OF_MEMORY"));
	ck_assert(!is_pinned(slot(0)));
	map_job.held_slot = 0;
	ck_assert_int_eq(gacc_cuda_copy_gradient(&map_job, NULL, 0, 4096, 1), GACC_EINTERNAL);
	ck_assert_ptr_nonnull(strstr(gacc_last_error(&map_job), "detach, and attach anew"));
	ck_assert_int_eq(job_enter(&map_job), GACC_EINTERNAL);
}
END_TEST

START_TEST(a_failed_registration_leaves_nothing)
{
	setenv("FAKE_CUDA_FAIL", "cuMemHostRegister:3:2", 1);
	begin();
	ck_assert_int_eq(gacc_cuda_register(&map_job, NULL), GACC_ENOMEM);
	ck_assert_ptr_nonnull(strstr(gacc_last_error(&map_job), "CUDA_ERROR_OUT_OF_MEMORY"));
	ck_assert(!map_job.memory.cuda && !is_pinned(slot(0)) && !is_pinned(slot(1)));
	registers(NULL);
	ck_assert(is_pinned(slot(0)));
}
END_TEST

/* The word comes when all before it in the stream has run; the caller's stream and thread do not wait. */
START_TEST(a_ring_comes_behind_the_gradient)
{
	cu_memory grads;
	cu_stream stream;

	setenv("FAKE_CUDA_DELAY", "50000", 1);
	if (_i) /* the third way: the stream is waited for, and this thread stores the word */
		setenv("FAKE_CUDA_FAIL", "cuLaunchHostFunc:1+:801", 1);
	begin();
	registers(NULL);
	grads = alloc(7);
	ck_assert(!cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (uint64_t n = 1; n < 4; n++) {
		map_job.held_slot = 1;
		memset(slot(1), 0, BYTES);
		for (int i = 0; i < 2;
		     i++) /* so that the host function, which is delayed as well, could be too early */
			ck_assert(!cu.cuMemsetD8Async(grads, 7, BYTES, stream));
		ck_assert_int_eq(gacc_cuda_copy_gradient(&map_job, stream, 0, grads, BYTES), GACC_OK);
		ck_assert_int_eq(gacc_cuda_ring(&map_job, stream), GACC_OK);
		ck_assert_uint_eq(WORD(2), n - !_i);
		while (WORD(2) != n)
			sleep_ms(1);
		ck_assert(slot(1)[0] == 7 && slot(1)[BYTES - 1] == 7);
		ck_assert_uint_eq(WORD(1), 0);
	}
	ck_assert_uint_eq(map_job.memory.cuda->ring[1].due, 3);
	ck_assert_int_eq(gacc_cuda_launched(&map_job), GACC_OK);
	ck_assert_uint_eq(map_job.memory.cuda->ring[1].due, 4);
}
END_TEST

/* A ring in a graph counts for itself: each launch says that the slot is full once more, as gacc_cuda_launched counts,
 * and together with rings outside of it. */
START_TEST(a_graph_rings_with_each_launch)
{
	cu_result (*begin_capture)(cu_stream, cu_capture_mode), (*end_capture)(cu_stream, void **);
	cu_result (*instantiate)(void **, void *, unsigned long long), (*launch)(void *, cu_stream);
	cu_memory grads;
	cu_stream stream;
	void *graph, *executable, *library;

	setenv("FAKE_CUDA_DELAY", "20000", 1);
	begin();
	registers(NULL);
	library = dlopen("libcuda.so.1", RTLD_NOW);
	*(void **)&begin_capture = dlsym(library, "cuStreamBeginCapture_v2");
	*(void **)&end_capture = dlsym(library, "cuStreamEndCapture");
	*(void **)&instantiate = dlsym(library, "cuGraphInstantiateWithFlags");
	*(void **)&launch = dlsym(library, "cuGraphLaunch");
	grads = alloc(7);
	ck_assert(!cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	map_job.held_slot = 1;
	ck_assert(!begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	ck_assert_int_eq(gacc_cuda_copy_gradient(&map_job, stream, 0, grads, BYTES), GACC_OK);
	ck_assert_int_eq(gacc_cuda_push(&map_job, stream, NULL, NULL), GACC_EINVAL); /* and the capture goes on */
	ck_assert_int_eq(gacc_cuda_ring(&map_job, stream), GACC_OK);
	ck_assert(!end_capture(stream, &graph) && !instantiate(&executable, graph, 0));
	ck_assert_uint_eq(map_job.memory.cuda->ring[1].due, 0); /* it has run nowhere */
	for (uint64_t n = 1; n < 6; n++) {
		memset(slot(1), 0, BYTES);
		if (n == 3) {
			ck_assert_int_eq(gacc_cuda_copy_gradient(&map_job, stream, 0, grads, BYTES), GACC_OK);
			ck_assert_int_eq(gacc_cuda_ring(&map_job, stream), GACC_OK);
		} else {
			ck_assert(!launch(executable, stream));
			ck_assert_int_eq(gacc_cuda_launched(&map_job), GACC_OK);
		}
		ck_assert_uint_eq(map_job.memory.cuda->ring[1].due, n);
		ck_assert_uint_eq(WORD(2), n - 1);
		while (WORD(2) != n)
			sleep_ms(1);
		ck_assert(slot(1)[0] == 7 && slot(1)[BYTES - 1] == 7);
		ck_assert_uint_eq(WORD(1), 0);
	}
}
END_TEST

/* A host function that comes when the job is gone touches nothing of it. */
START_TEST(a_late_ring_finds_no_job)
{
	cu_memory grads;

	setenv("FAKE_CUDA_DELAY", "50000", 1);
	begin();
	registers(NULL);
	grads = alloc(7);
	map_job.held_slot = 0;
	ck_assert_int_eq(gacc_cuda_copy_gradient(&map_job, NULL, 0, grads, BYTES), GACC_OK);
	ck_assert_int_eq(gacc_cuda_ring(&map_job, NULL), GACC_OK);
	memory_unmap(&map_job.memory);
	ck_assert_ptr_null(map_job.memory.cuda);
	ck_assert(!cu.cuCtxSynchronize());
}
END_TEST

#define REFUSED(call, code, words)                                                                                     \
	do {                                                                                                           \
		ck_assert_int_eq(call, code);                                                                          \
		ck_assert_msg(strstr(gacc_last_error(&map_job), words), "%s", gacc_last_error(&map_job));              \
	} while (0)

/* Without accumulators the slot of a push that has no answer may be the sum. In another one it is computed anew. */
START_TEST(a_slot_that_may_be_the_sum_is_not_copied_to)
{
	struct push push = { .window = 5, .slot = 1 };
	cu_memory grads;

	begin();
	registers(NULL);
	grads = alloc(7);
	map_job.layout.keeps_slot = true;
	ck_assert_int_eq(window_begin(&map_job.window, push.window, 0, 1, 1), ST_OK);
	async_keep(&map_job, &push);
	map_job.held_slot = 1;
	REFUSED(gacc_cuda_copy_gradient(&map_job, NULL, 0, grads, BYTES), GACC_EINVAL, "call gacc_push again");
	ck_assert_ptr_nonnull(strstr(gacc_last_error(&map_job), "the gradient of window 5 may be counted"));
	window_give_up(&map_job.window);
	REFUSED(gacc_cuda_copy_gradient(&map_job, NULL, 0, grads, BYTES), GACC_EINVAL, "call gacc_wait");
	ck_assert(!cu.cuCtxSynchronize());
	ck_assert_int_eq(slot(1)[0], 0);
	map_job.held_slot = 0;
	ck_assert_int_eq(gacc_cuda_copy_gradient(&map_job, NULL, 0, grads, BYTES), GACC_OK);
	map_job.held_slot = 1;
	ck_assert_int_eq(window_begin(&map_job.window, push.window + 1, 0, 1, 1), ST_OK);
	ck_assert_int_eq(gacc_cuda_copy_gradient(&map_job, NULL, 0, grads, BYTES), GACC_OK);
	ck_assert(!cu.cuCtxSynchronize());
	ck_assert(slot(0)[0] == 7 && slot(1)[BYTES - 1] == 7);
	window_fini(&map_job.window);
}
END_TEST

START_TEST(mistakes_are_named)
{
	gacc_cuda_opts o = { .struct_size = sizeof(o), .device = -1, .chunk_bytes = 100 };

	begin();
	REFUSED(gacc_cuda_register(&map_job, &o), GACC_EINVAL, "multiple of 4096");
	o.chunk_bytes = 0;
	o.device = 99;
	REFUSED(gacc_cuda_register(&map_job, &o), GACC_EINTERNAL, "CUDA_ERROR_INVALID_DEVICE");
	o.struct_size = 0;
	REFUSED(gacc_cuda_register(&map_job, &o), GACC_EINVAL, "struct_size");
	map_job.layout.slots = 1;
	REFUSED(gacc_cuda_register(&map_job, NULL), GACC_EINVAL, "slots_per_rank: 2");
	map_job.layout.slots = 2;
	cu_context was;
	ck_assert(!cu.cuCtxGetCurrent(&was) && !cu.cuCtxSetCurrent(NULL));
	REFUSED(gacc_cuda_register(&map_job, NULL), GACC_EINVAL, "no CUDA context is current");
	ck_assert(!cu.cuCtxSetCurrent(was));
	registers(NULL);
	REFUSED(gacc_cuda_register(&map_job, NULL), GACC_EINVAL, "was called before");
	REFUSED(gacc_cuda_ring(&map_job, NULL), GACC_EINVAL, "call gacc_grad_buffer");
	map_job.held_slot = 0;
	REFUSED(gacc_cuda_push_rung(&map_job, NULL, NULL), GACC_EINVAL, "has no ring");
	REFUSED(gacc_cuda_push(&map_job, NULL, &(gacc_push_opts){ sizeof(gacc_push_opts), .ready_at = 3 }, NULL),
		GACC_EINVAL, "ready_at is 3");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("cuda");
	TCase *t = tcase_create("cuda");

	tcase_add_checked_fixture(t, setup, map_teardown);
	tcase_add_loop_test(t, slots_and_parameters_are_pinned, 0, 2);
	tcase_add_test(t, chunks);
	tcase_add_loop_test(t, parameters_go_to_the_device, 0, 3);
	tcase_add_test(t, exchanged_memory_is_pinned_again);
	tcase_add_test(t, exchange_waits_for_the_device);
	tcase_add_test(t, a_job_that_cannot_be_pinned_again_is_over);
	tcase_add_test(t, a_failed_registration_leaves_nothing);
	tcase_add_loop_test(t, a_ring_comes_behind_the_gradient, 0, 2);
	tcase_add_test(t, a_graph_rings_with_each_launch);
	tcase_add_test(t, a_late_ring_finds_no_job);
	tcase_add_test(t, a_slot_that_may_be_the_sum_is_not_copied_to);
	tcase_add_test(t, mistakes_are_named);
	suite_add_tcase(s, t);
	return suite_run(s);
}
