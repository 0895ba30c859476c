/* SPDX-License-Identifier: Apache-2.0 */
/* Updates by many lives: each is killed at some store, every other one leaves a ghost that goes on with its launch for
 * a while, and the next one resumes. The parameters have the CPU's bits in the end, as if nobody had died. */
#include "job.h"

#include "support/suite.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define JOBS 30
#define WINDOWS 3
#define MAX_LIVES 60 /* of a job: fewer than there are cells in the gate */

/* What outlives a life, as the control record and the device's memory do. */
static struct scene {
	struct job job;
	uint64_t window;
	bool applying, applied; /* update_begin is done; the update is */
	uint64_t settled;	/* cells of lives that left no ghost */
} * scene;

static struct {
	unsigned deaths, applying, several, ghosts, most;
} count;

static bool is_ghost;
static unsigned ghost_sleeps_us;

static void become_ghost(void)
{
	if (fork() > 0)
		kill(getpid(), SIGKILL);
	is_ghost = true;
	usleep(ghost_sleeps_us);
}

/* A ghost is a GPU: it finishes the launch and does nothing else. */
static void launch(const char *kernel, const void *a, unsigned grid)
{
	gpu_launch(kernel, a, grid);
	if (is_ghost)
		_exit(0);
}

static void wait_until_settled(void)
{
	for (int i = 0; cuda_gate_unsettled(&scene->job.gate, scene->settled) >= 0; i++) {
		ck_assert_int_lt(i, 100000);
		usleep(100);
	}
}

static bool second_phase_has_begun(const struct job *j)
{
	for (uint32_t s = 0; s < j->shares; s++)
		if (CUDA_STAMP_UNIT(j->stamp[s]) >= job_second_phase(j))
			return true;
	return false;
}

/* LAMB's first phase, and the beginning of the second. */
static void first_phase(struct cuda_update *a)
{
	struct job *j = &scene->job;
	if (!second_phase_has_begun(j)) {
		launch("lamb_moments", a, j->shares);
		launch("lamb_norms", a, 3); /* an earlier life may have had some of them */
		job_set_ratios(j, j->param, j->direction);
	}
	a->base = job_second_phase(j);
	launch("update_begin", a, 1);
}

static void live(cuda_word generation)
{
	struct job *j = &scene->job;
	const struct cuda_open open = { { &j->gate, generation } };
	struct cuda_update a = job_launch(j, generation, scene->window);
	launch("open_gate", &open, 1);
	wait_until_settled();
	if (!scene->applying)
		launch("update_begin", &a, 1);
	scene->applying = true;
	if (j->optim.type == OPTIM_LAMB)
		first_phase(&a);
	launch(job_kernel(j), &a, j->shares);
	scene->applied = true;
}

static void note_death(bool ghost)
{
	const unsigned held = scene->applying ? job_held(&scene->job) : 0;
	count.deaths++;
	count.applying += scene->applying;
	count.ghosts += ghost;
	count.several += held >= 2;
	count.most = held > count.most ? held : count.most;
}

/* effects: after which it dies; more than there are: it does not. */
static void run_life(cuda_word generation, int64_t effects, bool ghost)
{
	void (*hook)(void) = become_ghost;
	int status;
	pid_t child = fork();
	ck_assert_int_ge(child, 0);
	if (child == 0) {
		if (ghost)
			memcpy(gpu_symbol("sim_on_kill"), &hook, sizeof(hook));
		gpu_kill_after(effects);
		live(generation);
		_exit(0);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	if (!WIFSIGNALED(status)) {
		ck_assert_int_eq(WEXITSTATUS(status), 0);
		return;
	}
	ck_assert_int_eq(WTERMSIG(status), SIGKILL);
	if (!ghost)
		scene->settled |= UINT64_C(1) << generation % CUDA_GENERATIONS;
	note_death(ghost);
}

/* Stores and atomic operations of a whole update, about: seven or eight for four elements. */
static uint64_t effects_of(const struct job *j)
{
	uint64_t elements = 0;
	for (uint32_t i = 0; i < j->n_ranges; i++)
		elements += j->range[i].frozen ? 0 : j->range[i].count;
	return 2 * elements + 100;
}

static void run_job(int number, struct rng *rng)
{
	static const enum optim_type types[] = { OPTIM_ADAMW, OPTIM_SGD, OPTIM_ADAMW, OPTIM_LAMB, OPTIM_ADAM };
	struct job *j = &scene->job;
	struct job_results want;
	cuda_word generation = 1;
	memset(scene, 0, sizeof(*scene));
	do
		job_draw(j, types[number % 5], number % 3 ? SAMPLE_NORMAL : SAMPLE_SUBNORMAL, rng);
	while (j->shares < 3 || j->n_units < 6);
	for (scene->window = 1; scene->window <= WINDOWS; scene->window++) {
		job_step(j, scene->window, rng);
		job_on_cpu(j, kernels_get(NULL), &want);
		scene->applying = scene->applied = false;
		while (!scene->applied) {
			const bool last = generation > MAX_LIVES;
			gpu_order(rng_next(rng) | 1, true);
			ghost_sleeps_us = rng_next(rng) % 4 ? (unsigned)(rng_next(rng) % 3000) : 0;
			run_life(generation++, last ? INT64_MAX : (int64_t)(rng_next(rng) % effects_of(j)),
				 rng_next(rng) % 2);
		}
		job_check_same(j);
	}
	wait_until_settled();
	job_check_same(j);
}

START_TEST(parameters_are_those_of_one_life)
{
	struct rng rng = { 20261 };
	gpu_open();
	scene = gpu_shared(sizeof(*scene));
	for (int i = 0; i < JOBS; i++)
		run_job(i, &rng);
	printf("%u deaths, %u while applying, %u with two or more stamps held (at most %u), %u with a ghost\n",
	       count.deaths, count.applying, count.several, count.most, count.ghosts);
	ck_assert_uint_gt(count.deaths, 60);
	ck_assert_uint_gt(3 * count.several, count.deaths);
	ck_assert_uint_gt(3 * count.ghosts, count.deaths);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("gpu_lives");
	TCase *t = tcase_create("lives");
	tcase_set_timeout(t, 120);
	tcase_add_test(t, parameters_are_those_of_one_life);
	suite_add_tcase(s, t);
	return suite_run(s);
}
