/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_wait on a stream that the test moves: who wakes it, and what it says when the device is silent or has failed. */
#include "cuda/device.h"
#include "support/suite.h"

#include <check.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define SECOND UINT64_C(1000000000)

/* The stream is done when it has called so often. It calls at once, as a driver does whose other work is done. */
static int calls, calls_until_done, questions;
static cu_result then;

static cu_result query(cu_stream stream)
{
	questions++;
	return calls < calls_until_done ? CUDA_ERROR_NOT_READY : then;
}

static cu_result call_at_once(cu_stream stream, cu_host_function f, void *arg)
{
	calls++;
	f(arg);
	return CUDA_SUCCESS;
}

static cu_result call_never(cu_stream stream, cu_host_function f, void *arg)
{
	return CUDA_SUCCESS;
}

static cu_result name_of(cu_result result, const char **out)
{
	*out = "an error";
	return CUDA_SUCCESS;
}

static struct cuda_device d;
static int shown;

static void show(void *arg)
{
	shown++;
}

static void setup(void)
{
	calls = questions = shown = 0;
	then = CUDA_SUCCESS;
	d = (struct cuda_device){
		.cu = { .cuStreamQuery = query, .cuLaunchHostFunc = call_at_once, .cuGetErrorName = name_of },
		.wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC),
		.patience_ns = 60 * SECOND,
		.at_work = show
	};
}

static void teardown(void)
{
	close(d.wake);
}

START_TEST(a_call_whose_end_is_late_is_followed_by_another)
{
	calls_until_done = 20; /* naps would take 20 times 100 ms */
	ck_assert_int_eq(cuda_wait(&d, 0), ST_OK);
	ck_assert_int_eq(calls, 20);
	ck_assert_int_eq(shown, 1);
}
END_TEST

START_TEST(what_is_done_soon_is_not_called_for)
{
	calls_until_done = 0;
	ck_assert_int_eq(cuda_wait(&d, 0), ST_OK);
	ck_assert_int_eq(calls, 0);
	ck_assert_int_eq(questions, 1);
}
END_TEST

START_TEST(an_error_is_told)
{
	calls_until_done = 1;
	then = CUDA_ERROR_INVALID_VALUE;
	ck_assert_int_eq(cuda_wait(&d, 0), ST_IO_ERROR);
	ck_assert_int_eq(shown, 1);
}
END_TEST

/* And no processor is busy meanwhile. */
START_TEST(a_silent_device_is_given_up_in_time)
{
	d.cu.cuLaunchHostFunc = call_never;
	d.patience_ns = SECOND / 2;
	calls_until_done = 1;
	struct timespec cpu;
	ck_assert_int_eq(cuda_wait(&d, 0), ST_IO_ERROR);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
	ck_assert_int_eq(shown, 0);
	ck_assert(!cpu.tv_sec && cpu.tv_nsec < 250000000);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("cuda_wait");
	TCase *t = tcase_create("wait");
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, a_call_whose_end_is_late_is_followed_by_another);
	tcase_add_test(t, what_is_done_soon_is_not_called_for);
	tcase_add_test(t, an_error_is_told);
	tcase_add_test(t, a_silent_device_is_given_up_in_time);
	suite_add_tcase(s, t);
	return suite_run(s);
}
