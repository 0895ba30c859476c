/* SPDX-License-Identifier: Apache-2.0 */
/* A launch of a dead life goes on, at any store or atomic operation, after the next life has done its work: what is
 * then in memory is the next life's, if that has waited for the gate to settle. For each place where a life may die. */
#include "job.h"

#include "support/suite.h"

#include <check.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES 512

/* What processes share. */
static struct scene {
	struct cuda_gate gate;
	_Alignas(64) unsigned char to[BYTES];
	_Atomic bool dead, go_on, over; /* of the first life; for its ghost; of that */
	struct job job;
} * scene;

static void wait_for(_Atomic bool *flag)
{
	for (int i = 0; !*flag; i++)
		usleep(200);
}

/* At the death of the first life: a child goes on with its launch when it may. */
static void become_ghost(void)
{
	if (fork() > 0)
		kill(getpid(), SIGKILL);
	scene->dead = true;
	wait_for(&scene->go_on);
}

typedef void life_fn(cuda_word generation);

/* Runs a first life that dies after so many effects; its ghost waits, or there is none: false. */
static bool dies_after(int64_t effects, life_fn *life)
{
	void (*hook)(void) = become_ghost;
	int status;
	scene->dead = scene->go_on = scene->over = false;
	pid_t child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0) {
		memcpy(gpu_symbol("sim_on_kill"), &hook, sizeof(hook));
		gpu_kill_after(effects);
		life(1);
		scene->over = true; /* the ghost's, too */
		_exit(0);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	if (!WIFSIGNALED(status))
		return false;
	wait_for(&scene->dead);
	return true;
}

static void let_ghost_finish(void)
{
	scene->go_on = true;
	wait_for(&scene->over);
}

static void open_gate(cuda_word generation)
{
	const struct cuda_open a = { { &scene->gate, generation } };
	gpu_launch("open_gate", &a, 1);
}

static void set_up(void)
{
	gpu_open();
	scene = gpu_shared(sizeof(*scene));
}

/* Each life fills the memory with its own number; of two blocks one has nothing to do. */
static void fill(cuda_word generation)
{
	static unsigned char from[BYTES];
	const struct cuda_copy a = { { &scene->gate, generation }, scene->to, from, sizeof(from) };
	memset(from, (int)generation, sizeof(from));
	gpu_launch("copy_bytes", &a, 2);
}

static bool is_filled(int with)
{
	for (size_t i = 0; i < BYTES; i++)
		if (scene->to[i] != with)
			return false;
	return true;
}

/* Waits as an engine does: what is left to wait for here is the ghost. */
static unsigned settle(void)
{
	unsigned waited = 0;
	while (cuda_gate_unsettled(&scene->gate, 0) >= 0) {
		let_ghost_finish();
		ck_assert_uint_lt(++waited, 2);
	}
	return waited;
}

START_TEST(a_ghost_writes_nothing_once_the_gate_has_settled)
{
	unsigned waited = 0, at_once = 0;
	int64_t effects = 0;
	for (;; effects++) {
		memset(&scene->gate, 0, sizeof(scene->gate));
		gpu_order((uint64_t)effects + (uint64_t)_i * 1000 + 1, true);
		open_gate(1);
		if (!dies_after(effects, fill))
			break;
		open_gate(2);
		if (settle())
			waited++;
		else
			at_once++;
		fill(2);
		let_ghost_finish();
		ck_assert_msg(is_filled(2), "dead after %d effects: the ghost has written", (int)effects);
		ck_assert_int_eq(cuda_gate_unsettled(&scene->gate, 0), -1);
	}
	ck_assert_int_gt(effects, BYTES / 16);
	ck_assert_uint_ge(at_once, 1); /* before it was counted, and behind its end */
	ck_assert_uint_gt(waited, BYTES / 16);
}
END_TEST

START_TEST(a_younger_life_is_noticed)
{
	gpu_order(3, true);
	open_gate(2);
	open_gate(1);
	ck_assert_uint_eq(scene->gate.generation, 2);
	fill(1);
	ck_assert(is_filled(0));
	ck_assert_uint_eq(scene->gate.left[1], 2);
	ck_assert_int_eq(cuda_gate_unsettled(&scene->gate, 0), -1);
	scene->gate.begun[7]++;
	ck_assert_int_eq(cuda_gate_unsettled(&scene->gate, 0), 7);
	ck_assert_int_eq(cuda_gate_unsettled(&scene->gate, UINT64_C(1) << 7), -1);
	open_gate(3 + CUDA_GENERATIONS);
	fill(3 + CUDA_GENERATIONS);
	ck_assert(is_filled(3 + CUDA_GENERATIONS));
	ck_assert_uint_eq(scene->gate.ended[3], 2);
}
END_TEST

/* ---- the second wall: stamps, if a successor has not waited ---- */

static void update(cuda_word generation)
{
	const struct cuda_update a = job_launch(&scene->job, generation, 1);
	gpu_launch(job_kernel(&scene->job), &a, scene->job.shares);
}

static bool all_done(const struct job *j)
{
	for (uint64_t s = 0; s < j->shares; s++)
		if (CUDA_STAMP_HELD(j->stamp[s]) || CUDA_STAMP_UNIT(j->stamp[s]) != j->n_units * (s + 1) / j->shares)
			return false;
	return true;
}

START_TEST(a_ghost_does_not_move_stamps_back)
{
	static struct job begun;
	struct rng rng = { (uint64_t)_i + 40 };
	struct job_results want;
	unsigned deaths = 0;
	job_draw(&scene->job, OPTIM_ADAMW, SAMPLE_NORMAL, &rng);
	job_step(&scene->job, 1, &rng);
	job_on_cpu(&scene->job, kernels_get(NULL), &want);
	scene->job.gate.generation = 1;
	const struct cuda_update begin = job_launch(&scene->job, 1, 1);
	gpu_launch("update_begin", &begin, 1);
	begun = scene->job;
	const uint64_t before = *(uint64_t *)gpu_symbol("sim_effects");
	update(1);
	const uint64_t all = *(uint64_t *)gpu_symbol("sim_effects") - before;
	for (uint64_t effects = rng_next(&rng) % (all / 10); effects < all; effects += all / 10) {
		scene->job = begun;
		gpu_order(rng_next(&rng) | 1, true);
		ck_assert(dies_after((int64_t)effects, update));
		deaths++;
		scene->job.gate.generation = 2;
		update(2); /* without a look at the counters */
		let_ghost_finish();
		ck_assert_msg(all_done(&scene->job), "dead after %d effects: a stamp went back", (int)effects);
		update(2);
		job_check_same(&scene->job);
	}
	ck_assert_uint_ge(deaths, 10);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("gpu_gate");
	TCase *t = tcase_create("gate");
	tcase_set_timeout(t, 60);
	tcase_add_checked_fixture(t, set_up, NULL);
	tcase_add_loop_test(t, a_ghost_writes_nothing_once_the_gate_has_settled, 0, 1);
	tcase_add_test(t, a_younger_life_is_noticed);
	tcase_add_loop_test(t, a_ghost_does_not_move_stamps_back, 0, 3);
	suite_add_tcase(s, t);
	return suite_run(s);
}
