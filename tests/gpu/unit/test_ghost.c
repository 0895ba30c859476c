/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU that runs on when its process is dead: what is finished, in which order, and when. */
#include "rig.h"

#include "host_kernels.h"
#include "support/suite.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define N ((size_t)1 << 20)

/* What parent, child and ghost have in common. */
struct common {
	unsigned char copied[N];
	_Atomic uint64_t stored[512];
	_Atomic uint64_t word, called;
	_Atomic int is_queued; /* all that is to be there when the process dies */
};

static cu_memory pin(struct common *common)
{
	cu_memory at;
	SUCCEEDS(cu.cuMemHostRegister(common, sizeof(*common), CU_MEMHOSTREGISTER_DEVICEMAP));
	SUCCEEDS(cu.cuMemHostGetDevicePointer(&at, common, 0));
	return at;
}

static void launch(cu_memory to, uint64_t n, cu_stream stream)
{
	cu_module module;
	cu_function function;
	struct fill params = { (void *)(uintptr_t)to, n, 1 };
	void *list[] = { &params };
	SUCCEEDS(cu.cuModuleLoadData(&module, "image"));
	SUCCEEDS(cu.cuModuleGetFunction(&function, module, "fill"));
	SUCCEEDS(cu.cuLaunchKernel(function, 4, 1, 1, 64, 1, 1, 0, stream, list, NULL));
}

static void wait_until_queued(void *arg)
{
	struct common *common = arg;
	while (!common->is_queued)
		usleep(100);
}

static void call(void *arg)
{
	struct common *common = arg;
	common->called = 1;
}

/* Dies in the first copy; a kernel, a word and a copy are queued behind it, and on another stream what waits for it. */
static void queue_and_die(void *arg)
{
	struct common *common = arg;
	cu_event event;
	rig_begin();
	cu_memory at = pin(common), memory = rig_alloc(N);
	cu_stream stream = rig_stream(), other = rig_stream();
	SUCCEEDS(cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	SUCCEEDS(cu.cuMemsetD8Async(memory, 6, N, stream));
	SUCCEEDS(cu.cuStreamSynchronize(stream));
	SUCCEEDS(cu.cuLaunchHostFunc(stream, wait_until_queued, common));
	SUCCEEDS(cu.cuMemcpyDtoHAsync(common->copied, memory, N, stream));
	launch(at + offsetof(struct common, stored), 200, stream);
	SUCCEEDS(cu.cuEventRecord(event, stream));
	SUCCEEDS(cu.cuStreamWaitEvent(other, event, 0));
	SUCCEEDS(cu.cuStreamWriteValue64(other, at + offsetof(struct common, word), 77, 0));
	SUCCEEDS(cu.cuLaunchHostFunc(other, call, common));
	SUCCEEDS(cu.cuStreamWriteValue64(other, at + offsetof(struct common, word), 78, 0));
	common->is_queued = 1;
	pause();
}

static pid_t start(void (*act)(void *), struct common *common)
{
	pid_t pid = fork();
	ck_assert_int_ge(pid, 0);
	if (!pid) {
		act(common);
		_exit(0);
	}
	return pid;
}

static int end_of(pid_t pid)
{
	int status;
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	return status;
}

START_TEST(what_was_queued_is_done_when_the_process_is_gone)
{
	int status;
	struct common *common = rig_shared(sizeof(*common), NULL);
	ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0); /* the ghost is ours when its process is dead */
	setenv("FAKE_CUDA_KILL_COPY", "2:1000", 1);
	setenv("FAKE_CUDA_LATE", "100000", 1);
	rig_load();
	pid_t pid = start(queue_and_die, common);
	status = end_of(pid);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	ck_assert_int_eq(common->copied[999], 6); /* it is dead, and that is all there is .. */
	ck_assert_int_eq(common->copied[1000], 0);
	ck_assert_uint_eq(common->stored[0], 0);
	ck_assert_uint_eq(common->word, 0);
	ck_assert_int_gt(waitpid(-1, &status, 0), 0); /* .. but the GPU is not quiet */
	ck_assert(WIFEXITED(status) && !WEXITSTATUS(status));
	ck_assert_int_eq(common->copied[N - 1], 6);
	ck_assert_uint_eq(common->stored[199], 200);
	ck_assert_uint_eq(common->stored[200], 0);
	ck_assert_uint_eq(common->word, 77); /* nothing behind a host function, which died */
	ck_assert_uint_eq(common->called, 0);
}
END_TEST

static void die_in_kernel(void *arg)
{
	struct common *common = arg;
	rig_begin();
	cu_memory at = pin(common) + offsetof(struct common, stored);
	SUCCEEDS(cu.cuLaunchHostFunc(NULL, wait_until_queued, common));
	launch(at, 200, NULL);
	launch(at + 256 * 8, 200, NULL);
	common->is_queued = 1;
	cu.cuCtxSynchronize();
}

/* A kernel goes on from the very store at which its process died. */
START_TEST(a_kernel_is_finished_by_the_ghost)
{
	int late = _i, status;
	struct common *common = rig_shared(sizeof(*common), NULL);
	ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	setenv("FAKE_CUDA_KILL", "150", 1);
	if (late)
		setenv("FAKE_CUDA_LATE", "50000", 1);
	rig_load();
	status = end_of(start(die_in_kernel, common));
	ck_assert(WIFSIGNALED(status));
	ck_assert_uint_eq(common->stored[149], 150);
	ck_assert_uint_eq(common->stored[150], 0);
	ck_assert_int_eq(waitpid(-1, &status, 0) > 0, late);
	ck_assert_uint_eq(common->stored[150], late ? 151 : 0);
	ck_assert_uint_eq(common->stored[199], late ? 200 : 0);
	ck_assert_uint_eq(common->stored[256 + 199], late ? 200 : 0);
}
END_TEST

/* The dead one's descriptors are closed by its death: whoever waits for that does not wait for the ghost. */
START_TEST(a_ghost_holds_no_descriptors)
{
	int fds[2], status;
	char c;
	struct common *common = rig_shared(sizeof(*common), NULL);
	ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	setenv("FAKE_CUDA_KILL", "1", 1);
	setenv("FAKE_CUDA_LATE", "200000", 1);
	rig_load();
	ck_assert_int_eq(pipe(fds), 0);
	pid_t pid = start(die_in_kernel, common);
	close(fds[1]);
	end_of(pid);
	ck_assert_int_eq(read(fds[0], &c, 1), 0);
	ck_assert_uint_eq(common->stored[1], 0);
	ck_assert_int_gt(waitpid(-1, &status, 0), 0);
	ck_assert_uint_eq(common->stored[1], 2);
}
END_TEST

/* Sets words to 0 and stores in them again, for ever: they are all 0 or all stored when nothing is half done. */
static void work_until_killed(void *arg)
{
	struct common *common = arg;
	rig_begin();
	cu_memory at = pin(common) + offsetof(struct common, stored), memory = rig_alloc(N);
	cu_stream stream = rig_stream();
	common->word = 1;
	for (;;) {
		SUCCEEDS(cu.cuMemsetD8Async(at, 0, 200 * sizeof(uint64_t), stream));
		launch(at, 200, stream);
		SUCCEEDS(cu.cuMemsetD8Async(memory, 6, N, stream));
		SUCCEEDS(cu.cuStreamSynchronize(stream));
	}
}

/* A death from outside has a ghost as well; whatever was queued is complete then. */
START_TEST(a_signal_kills_with_a_ghost)
{
	enum { SIGNAL = 40 };
	int status, late = _i % 2;
	struct common *common = rig_shared(sizeof(*common), NULL);
	ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	setenv("FAKE_CUDA_KILL_SIGNAL", "40", 1);
	if (late)
		setenv("FAKE_CUDA_LATE", "1000", 1);
	rig_load();
	pid_t pid = start(work_until_killed, common);
	while (!common->word)
		usleep(100);
	usleep(3000 * (unsigned)_i);
	ck_assert_int_eq(kill(pid, SIGNAL), 0);
	status = end_of(pid);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	ck_assert_int_eq(waitpid(-1, &status, 0) > 0, late);
	ck_assert(!late || (WIFEXITED(status) && !WEXITSTATUS(status)));
	for (int i = 0; late && i < 200; i++)
		ck_assert_uint_eq(common->stored[i], common->stored[0] ? (uint64_t)i + 1 : 0);
}
END_TEST

static void wait_idle(void *arg)
{
	struct common *common = arg;
	rig_begin();
	pin(common);
	common->word = 1;
	for (;;)
		pause();
}

START_TEST(a_signal_kills_an_idle_process)
{
	int status;
	struct common *common = rig_shared(sizeof(*common), NULL);
	setenv("FAKE_CUDA_KILL_SIGNAL", "40", 1);
	rig_load();
	pid_t pid = start(wait_idle, common);
	while (!common->word)
		usleep(100);
	kill(pid, 40);
	status = end_of(pid);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}
END_TEST

static void die_with_memory(void *arg)
{
	rig_begin();
	cu_memory memory = rig_alloc(N);
	SUCCEEDS(cu.cuMemsetD8Async(memory, 1, N, NULL));
	cu.cuCtxSynchronize();
}

/* The device is not free as long as somebody works on it. */
START_TEST(a_ghost_has_its_memory)
{
	int status;
	size_t free_bytes, total;
	ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	setenv("FAKE_CUDA_KILL_COPY", "1:0", 1);
	setenv("FAKE_CUDA_LATE", "200000", 1);
	rig_load();
	end_of(start(die_with_memory, NULL));
	rig_begin();
	SUCCEEDS(cu.cuMemGetInfo(&free_bytes, &total));
	ck_assert_uint_eq(total - free_bytes, N);
	ck_assert_int_gt(waitpid(-1, &status, 0), 0);
	SUCCEEDS(cu.cuMemGetInfo(&free_bytes, &total));
	ck_assert_uint_eq(free_bytes, total);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("fake_cuda_ghost");
	TCase *t = tcase_create("ghost");
	tcase_add_test(t, what_was_queued_is_done_when_the_process_is_gone);
	tcase_add_loop_test(t, a_kernel_is_finished_by_the_ghost, 0, 2);
	tcase_add_test(t, a_ghost_holds_no_descriptors);
	tcase_add_test(t, a_ghost_has_its_memory);
	tcase_add_loop_test(t, a_signal_kills_with_a_ghost, 0, 8);
	tcase_add_test(t, a_signal_kills_an_idle_process);
	suite_add_tcase(s, t);
	return suite_run(s);
}
