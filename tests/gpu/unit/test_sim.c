/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the simulator (tests/gpu/sim) in the fake driver's streams: they run, and they die and go on in a ghost,
 * with their stores held back and in the order of a seed. */
#include "rig.h"

#include "sim/sample.h"
#include "support/suite.h"

#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { BLOCKS = 4, N = BLOCKS * SAMPLE_THREADS };

static void number_all(void *arg)
{
	cu_module module;
	cu_function function;
	struct sample params = { .out = arg };
	void *list[] = { &params };
	rig_begin();
	SUCCEEDS(cu.cuMemHostRegister(arg, N * sizeof(uint64_t), 0));
	SUCCEEDS(cu.cuModuleLoadData(&module, "image"));
	SUCCEEDS(cu.cuModuleGetFunction(&function, module, "number_all"));
	SUCCEEDS(cu.cuLaunchKernel(function, BLOCKS, 1, 1, SAMPLE_THREADS, 1, 1, 0, NULL, list, NULL));
	SUCCEEDS(cu.cuCtxSynchronize());
}

static void prepare(const char *seed)
{
	setenv("FAKE_CUDA_KERNELS", SIM_KERNELS, 1);
	setenv("FAKE_CUDA_WEAK", "1", 1);
	setenv("FAKE_CUDA_SEED", seed, 1);
}

START_TEST(a_kernel_of_the_simulator_runs)
{
	uint64_t *out = rig_shared(N * sizeof(*out), NULL);
	prepare("7");
	number_all(out);
	for (uint64_t i = 0; i < N; i++)
		ck_assert_uint_eq(out[i], i);
}
END_TEST

static unsigned count(const uint64_t *out)
{
	unsigned n = 0;
	for (uint64_t i = 0; i < N; i++)
		n += out[i] && out[i] == i;
	return n;
}

/* Element 0 is stored like the others, but its value does not show it. */
START_TEST(a_kernel_of_the_simulator_dies_and_goes_on)
{
	int status;
	uint64_t *out = rig_shared(N * sizeof(*out), NULL);
	ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
	prepare(_i ? "99" : "0");
	setenv("FAKE_CUDA_KILL", "200", 1);
	setenv("FAKE_CUDA_LATE", "50000", 1);
	rig_load();
	status = rig_child(number_all, out);
	ck_assert(WIFSIGNALED(status));
	ck_assert(count(out) == 199 || count(out) == 200);
	ck_assert_int_gt(waitpid(-1, &status, 0), 0);
	ck_assert(WIFEXITED(status) && !WEXITSTATUS(status));
	ck_assert_uint_eq(count(out), N - 1);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("fake_cuda_sim");
	TCase *t = tcase_create("sim");
	tcase_add_test(t, a_kernel_of_the_simulator_runs);
	tcase_add_loop_test(t, a_kernel_of_the_simulator_dies_and_goes_on, 0, 2);
	suite_add_tcase(s, t);
	return suite_run(s);
}
