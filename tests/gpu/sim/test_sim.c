/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator finds what it is there to find: each wrong kernel of sample.cu fails for some seed, each right one for
 * none. Each test case runs in its own process. */
#include "sample.h"
#include "sim.h"

#include "support/suite.h"

#include <check.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SEEDS 24

static void *object;
static struct sample a;

static void *symbol(const char *name)
{
	void *found = dlsym(object, name);
	ck_assert_msg(found, "%s", dlerror());
	return found;
}

/* Memory that outlives a killed child, zeroed. */
static void set_up(void)
{
	object = dlopen(SAMPLE_KERNELS, RTLD_NOW | RTLD_LOCAL);
	ck_assert_msg(object, "%s", dlerror());
	a.out = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ck_assert(a.out != MAP_FAILED);
	a.counter = (unsigned long long *)(a.out + 4096);
}

static void launch(const char *name, unsigned grid, unsigned block)
{
	char host[64] = "host_";
	sim_kernel *kernel;
	void *params[] = { &a }, *found = symbol(strncat(host, name, 40));
	memcpy(&kernel, &found, sizeof(kernel));
	kernel(params, grid, block);
}

static void with_seed(uint64_t seed, int weak)
{
	*(uint64_t *)symbol("sim_seed") = seed;
	*(int *)symbol("sim_weak") = weak;
	memset(a.out, 0, 1 << 16);
}

START_TEST(every_thread_runs_once)
{
	with_seed((uint64_t)_i, _i % 2);
	launch("number_all", 11, 100);
	for (uint64_t i = 0; i < 1100; i++)
		ck_assert_uint_eq(a.out[i], i);
	ck_assert_uint_eq(a.out[1100], 0);
	ck_assert_uint_eq(*(uint64_t *)symbol("sim_effects"), 1100);
}
END_TEST

static int sums_wrong(const char *name)
{
	int wrong = 0;
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		with_seed(seed, seed % 2);
		launch(name, 10, SAMPLE_THREADS);
		for (int b = 0; b < 10; b++)
			wrong += a.out[b] != SAMPLE_THREADS * (SAMPLE_THREADS - 1) / 2;
	}
	return wrong;
}

START_TEST(a_missing_barrier_is_found)
{
	ck_assert_int_eq(sums_wrong("sum_block"), 0);
	ck_assert_int_gt(sums_wrong("sum_block_no_barrier"), SEEDS);
}
END_TEST

START_TEST(lanes_of_a_warp_exchange_values)
{
	with_seed((uint64_t)_i, 0);
	launch("warp_sum", 1, 64);
	for (unsigned t = 0; t < 64; t++) {
		uint64_t sum = t < 32 ? 496 : 1520, half = t == 16 ? 376 : 888;
		ck_assert_uint_eq(a.out[t], t % 32 == 0 ? sum << 32 | 0xaaaaaaaau : t % 16 == 0 ? half : sum);
	}
}
END_TEST

/* How often a block's ticket does not follow another one of its own. */
static unsigned changes(unsigned blocks)
{
	unsigned n = 0;
	for (unsigned i = 1; i < blocks * SAMPLE_TICKETS; i++)
		n += a.out[i] != a.out[i - 1];
	return n;
}

START_TEST(blocks_interleave_at_atomic_operations)
{
	unsigned most = 0;
	with_seed(0, 0);
	launch("tickets", 12, 32);
	ck_assert_uint_eq(changes(12), 11);
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		unsigned taken[12] = { 0 };
		with_seed(seed, 1);
		launch("tickets", 12, 32);
		for (unsigned i = 0; i < 12 * SAMPLE_TICKETS; i++)
			taken[a.out[i]]++;
		for (unsigned b = 0; b < 12; b++)
			ck_assert_uint_eq(taken[b], SAMPLE_TICKETS);
		most = changes(12) > most ? changes(12) : most;
	}
	ck_assert_uint_gt(most, 30);
}
END_TEST

START_TEST(one_block_wins_a_compare_and_swap)
{
	uint64_t winners = 0;
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		with_seed(seed, 1);
		launch("one_owner", 9, 1);
		ck_assert_uint_ge(a.out[0], 1);
		ck_assert_uint_eq(a.out[0], a.counter[0]);
		ck_assert_uint_eq(a.counter[1], 8);
		winners |= UINT64_C(1) << a.out[0];
	}
	ck_assert_int_gt(__builtin_popcountll(winners), 3);
}
END_TEST

/* Whether the child was killed. */
static int killed_after(const char *name, int64_t effects)
{
	int status;
	pid_t child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0) {
		*(int64_t *)symbol("sim_kill_after") = effects;
		launch(name, 1, 16);
		_exit(0);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
	return WIFSIGNALED(status);
}

/* Deaths after which some second store is there and its first one is not. */
static int out_of_order(const char *name, int weak)
{
	int wrong = 0;
	for (int64_t effects = 0; effects < 32; effects++) {
		int torn = 0, there = 0;
		with_seed((uint64_t)effects + 1, weak);
		ck_assert(killed_after(name, effects));
		for (int t = 0; t < 16; t++) {
			torn |= a.out[16 + t] && !a.out[t];
			there += (a.out[t] != 0) + (a.out[16 + t] != 0);
		}
		ck_assert_int_eq(there, effects);
		wrong += torn;
	}
	with_seed(1, weak);
	ck_assert(!killed_after(name, 32));
	return wrong;
}

START_TEST(a_missing_fence_is_found)
{
	ck_assert_int_eq(out_of_order("in_order", 1), 0);
	ck_assert_int_gt(out_of_order("in_order_no_fence", 1), 5);
	ck_assert_int_eq(out_of_order("in_order_no_fence", 0), 0);
}
END_TEST

static void go_on_elsewhere(void)
{
	if (fork() > 0)
		kill(getpid(), SIGKILL);
	usleep(20000);
}

START_TEST(a_ghost_finishes_the_launch)
{
	void (*hook)(void) = go_on_elsewhere;
	with_seed(5, 1);
	memcpy(symbol("sim_on_kill"), &hook, sizeof(hook));
	ck_assert(killed_after("in_order", 7));
	for (int wait = 0; wait < 5000; wait++) {
		int there = 0;
		for (int i = 0; i < 32; i++)
			there += ((volatile uint64_t *)a.out)[i] != 0;
		if (there == 32)
			return;
		usleep(1000);
	}
	ck_abort_msg("the ghost has not finished");
}
END_TEST

START_TEST(a_thread_sees_its_own_stores)
{
	with_seed((uint64_t)_i, 1);
	launch("own_stores", 1, 64);
	for (uint64_t t = 0; t < 64; t++)
		ck_assert_uint_eq(a.out[t], t + 1);
}
END_TEST

START_TEST(threads_that_wait_for_each_other_are_an_error)
{
	with_seed(3, 0);
	launch("different_barriers", 1, 32);
}
END_TEST

START_TEST(more_shared_memory_than_a_block_has_is_an_error)
{
	with_seed(3, 0);
	launch("too_much_shared", 1, 32);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("sim");
	TCase *t = tcase_create("sim");
	tcase_add_checked_fixture(t, set_up, NULL);
	tcase_add_loop_test(t, every_thread_runs_once, 0, 4);
	tcase_add_test(t, a_missing_barrier_is_found);
	tcase_add_loop_test(t, lanes_of_a_warp_exchange_values, 0, 4);
	tcase_add_test(t, blocks_interleave_at_atomic_operations);
	tcase_add_test(t, one_block_wins_a_compare_and_swap);
	tcase_add_test(t, a_missing_fence_is_found);
	tcase_add_test(t, a_ghost_finishes_the_launch);
	tcase_add_loop_test(t, a_thread_sees_its_own_stores, 0, 4);
	tcase_add_test_raise_signal(t, threads_that_wait_for_each_other_are_an_error, SIGABRT);
	tcase_add_test_raise_signal(t, more_shared_memory_than_a_block_has_is_an_error, SIGABRT);
	suite_add_tcase(s, t);
	return suite_run(s);
}
