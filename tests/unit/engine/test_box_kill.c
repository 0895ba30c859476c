/* SPDX-License-Identifier: Apache-2.0 */
/* Deaths of the process that serves a mailbox: at any moment, and at each failpoint. Every push counts once, every
 * trainer gets its answers, every window has its sum. What a dying trainer leaves behind: test_box_hostile.c. */
#include "support/box.h"

#include "engine/channel.h"
#include "engine/control_page.h"
#include "proto/failpoint.h"
#include "support/scratch.h"
#include "support/suite.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KILLS 600
#define RANKS 3
#define MICRO 6
#define TENSORS 70
#define PATIENCE_MS 20000

static const unsigned char present[(TENSORS + 7) / 8] = { 0xff, 1, 2, 3 };

static double weight_of(uint32_t rank, uint32_t micro)
{
	return 1 + micro + MICRO * rank;
}

static double weight_of_window(uint32_t ranks)
{
	double sum = 0;
	for (uint32_t rank = 0; rank < ranks; rank++)
		for (uint32_t m = 0; m < MICRO; m++)
			sum += weight_of(rank, m);
	return sum;
}

static struct gacc_box_request push_of(uint32_t rank, uint64_t window, uint32_t micro)
{
	return (struct gacc_box_request){ .kind = GACC_BOX_PUSH,
					  .window = window,
					  .micro = micro,
					  .slot = micro % 2,
					  .weight = weight_of(rank, micro),
					  .n_present = micro % 3 ? 0 : (TENSORS + 7) / 8 };
}

/* ---- the server dies ---- */

/* A trainer's life: windows without end, two pushes under way at a time. It ends with 1 when something is wrong, or
 * with 0 after the window in which *stop is set. */
static _Noreturn void train(const struct box_world *w, uint32_t rank, volatile uint64_t *done, volatile int *stop)
{
	struct box_trainer t;
	struct gacc_box_answer a;
	struct gacc_box_step step;
	box_trainer_open(&t, &w->fds[rank], TENSORS);
	for (uint64_t window = 0;; window++) {
		uint64_t seq[2] = { 0, 0 };
		bool last = *stop != 0;
		for (uint32_t m = 0; m < MICRO + 2; m++) {
			uint32_t cell = (m % 2) + 2 * (uint32_t)(window % 3);
			if (seq[m % 2] && (!box_await(&t, cell, seq[m % 2], &a, PATIENCE_MS) || a.status != 0 ||
					   a.result < PUSH_COUNTED || a.result > PUSH_ALREADY_COMMITTED))
				_exit(1);
			if (m < MICRO) {
				seq[m % 2] = box_publish(&t, cell, push_of(rank, window, m), present);
				box_bell(&t);
			}
		}
		uint64_t wait =
			box_publish(&t, 7, (struct gacc_box_request){ .kind = GACC_BOX_WAIT, .window = window }, NULL);
		box_bell(&t);
		if (!box_await(&t, 7, wait, &a, PATIENCE_MS) || a.status != 0 || !box_read_step(&t, window, &step))
			_exit(2);
		if (step.total_weight != weight_of_window(RANKS))
			_exit(3);
		done[rank] = window + 1;
		if (last && rank == 0)
			_exit(0);
	}
}

static void pause_us(unsigned us)
{
	struct timespec t = { 0, us * 1000L };
	nanosleep(&t, NULL);
}

START_TEST(the_server_dies_at_any_moment)
{
	struct box_world w;
	unsigned random = 1;
	pid_t trainer[RANKS];
	int ws;
	box_world_make(&w, RANKS, MICRO, TENSORS);
	struct box_world shared; /* a page for what the trainers say */
	box_world_make(&shared, 1, MICRO, TENSORS);
	volatile uint64_t *done = shared.page;
	volatile int *stop = (volatile int *)(done + RANKS);
	pid_t server = box_spawn(&w);
	for (uint32_t i = 0; i < RANKS; i++)
		if ((trainer[i] = fork()) == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			train(&w, i, done, stop);
		}
	for (int kills = 0; kills < KILLS; kills++) {
		pause_us((unsigned)rand_r(&random) % 1500);
		box_kill(server);
		ck_assert_int_eq(waitpid(-1, &ws, WNOHANG), 0); /* no trainer has given up */
		server = box_spawn(&w);
	}
	*stop = 1;
	ck_assert_int_eq(waitpid(trainer[0], &ws, 0), trainer[0]);
	ck_assert_msg(WIFEXITED(ws) && WEXITSTATUS(ws) == 0, "trainer 0: %d", WEXITSTATUS(ws));
	ck_assert_uint_gt(done[0], KILLS / 20);
	for (uint32_t i = 1; i < RANKS; i++) {
		ck_assert_int_eq(waitpid(trainer[i], &ws, WNOHANG), 0);
		box_kill(trainer[i]);
	}
	box_kill(server);
	box_world_free(&shared);
	box_world_free(&w);
}
END_TEST

/* ---- it dies at a failpoint ---- */

static char dir[SCRATCH_PATH], path[96], said[32768];

static uint64_t count_of(const struct box_world *w)
{
	struct control_page page;
	struct control_state s;
	bool corrupt;
	control_page_view(&page, w->page, w->ranks, w->micro_size, 1, w->n_tensors);
	ck_assert_int_eq(control_state_init(&s, w->ranks, w->micro_size), ST_OK);
	bool there = control_page_read(&page, &s, &corrupt);
	uint64_t n = there ? s.r.count : 0;
	control_state_fini(&s);
	return n;
}

/* Where the server dies while it serves the second push, after how many times of having been there. */
static const struct {
	const char *point;
	unsigned skip;
	uint64_t count; /* of pushes in the record then */
	bool rings;	/* has told the trainer of it */
} death[] = {
	{ "engine_box_copied", 1, 1, false },
	{ "engine_box_answered", 1, 2, false },
	{ "engine_box_rung", 2, 2, true }, /* the first ring was that of the start */
};

static bool hears(const struct box_trainer *t, int ms)
{
	struct epoll_event e;
	return epoll_wait(t->waits, &e, 1, ms) == 1;
}

static void arm(const char *point, unsigned skip)
{
	char line[128];
	ck_assert(scratch_make(dir));
	snprintf(path, sizeof(path), "%s/failpoints", dir);
	unsetenv("GACC_FAILPOINTS_FILE");
	ck_assert_int_eq(failpoint_make(dir), ST_OK);
	snprintf(line, sizeof(line), "arm %s crash skip %u count 1", point, skip);
	failpoint_command(line, said, sizeof(said));
	ck_assert_str_eq(said, "ok\n");
}

START_TEST(death_at_a_failpoint)
{
	struct box_world w;
	struct box_trainer t;
	struct gacc_box_answer a;
	int ws;
	arm(death[_i].point, death[_i].skip);
	box_world_make(&w, 1, MICRO, TENSORS);
	box_trainer_open(&t, &w.fds[0], TENSORS);
	pid_t server = box_spawn(&w);
	ck_assert(hears(&t, PATIENCE_MS)); /* it has taken the mailbox */
	uint64_t seq = box_publish(&t, 0, push_of(0, 0, 0), present);
	box_bell(&t);
	ck_assert(hears(&t, PATIENCE_MS) && box_await(&t, 0, seq, &a, 0));
	seq = box_publish(&t, 5, push_of(0, 0, 1), present);
	box_bell(&t);
	ck_assert_int_eq(waitpid(server, &ws, 0), server);
	ck_assert(WIFSIGNALED(ws) && WTERMSIG(ws) == SIGKILL);
	ck_assert_uint_eq(count_of(&w), death[_i].count);
	ck_assert_int_eq(hears(&t, 0), death[_i].rings);
	server = box_spawn(&w);
	ck_assert(hears(&t, PATIENCE_MS)); /* whatever its predecessor has told */
	ck_assert(box_await(&t, 5, seq, &a, PATIENCE_MS));
	ck_assert(a.status == 0 && a.result == PUSH_COUNTED);
	ck_assert_uint_eq(count_of(&w), 2);
	box_kill(server);
	box_trainer_close(&t);
	box_world_free(&w);
}
END_TEST

/* The window is over, the block says so, and the WAIT is still open. */
START_TEST(death_between_a_block_and_its_answer)
{
	struct box_world w;
	struct box_trainer t;
	struct gacc_box_answer a;
	struct gacc_box_step step;
	uint64_t seq = 0;
	int ws;
	arm("engine_box_block", 0);
	box_world_make(&w, 1, MICRO, TENSORS);
	box_trainer_open(&t, &w.fds[0], TENSORS);
	pid_t server = box_spawn(&w);
	uint64_t wait = box_publish(&t, 7, (struct gacc_box_request){ .kind = GACC_BOX_WAIT }, NULL);
	for (uint32_t m = 0; m < MICRO; m++) {
		seq = box_publish(&t, m, push_of(0, 0, m), present);
		box_bell(&t);
		ck_assert(box_await(&t, m, seq, &a, PATIENCE_MS) && a.result == PUSH_COUNTED);
	}
	ck_assert_int_eq(waitpid(server, &ws, 0), server);
	ck_assert(WIFSIGNALED(ws) && WTERMSIG(ws) == SIGKILL);
	ck_assert(box_read_step(&t, 0, &step) && !box_await(&t, 7, wait, &a, 0));
	memset(&t.mem->step, 0, sizeof(step) / 2); /* or it died before all of it was there */
	ck_assert(!box_read_step(&t, 0, &step));
	server = box_spawn(&w);
	ck_assert(box_await(&t, 7, wait, &a, PATIENCE_MS) && a.status == 0);
	ck_assert(box_read_step(&t, 0, &step) && step.total_weight == weight_of_window(1));
	box_kill(server);
	box_trainer_close(&t);
	box_world_free(&w);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("mailbox, deaths");
	TCase *t = tcase_create("deaths");
	tcase_set_timeout(t, 60);
	tcase_add_test(t, the_server_dies_at_any_moment);
	tcase_add_loop_test(t, death_at_a_failpoint, 0, sizeof(death) / sizeof(death[0]));
	tcase_add_test(t, death_between_a_block_and_its_answer);
	suite_add_tcase(s, t);
	return suite_run(s);
}
