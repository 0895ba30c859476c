/* SPDX-License-Identifier: Apache-2.0 */
/* What control costs on gaccd's loop: goal C13. A window of many ranks on struct job and struct coord, with an engine
 * that answers at once and no process, socket or disk. Then what it costs the engine, besides the passes: its choice of
 * the next push, and the record.
 *
 *   bench_control [-r rounds, 5..101] [-R ranks]
 *
 * A round is one window of the many ranks and as many pushes in windows of 8 ranks (the limit), in turn; micro_size 4,
 * canonical order, every call and every answer a turn of the loop. What is left of the ratio is the cache: the state of
 * so many ranks does not fit.
 */
#include "bench.h"
#include "engine/accum.h"
#include "support/crowd.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define FEW 8
#define MICRO_SIZE 4
#define GOAL_MS 5
#define GOAL_RATIO 3

static size_t rounds = 15;
static uint32_t many = 1024;

static double cpu_seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* CPU seconds of so many windows. */
static double windows(struct crowd *c, uint32_t n, enum crowd_order order)
{
	double start = cpu_seconds();
	for (uint32_t i = 0; i < n; i++)
		crowd_window(c, order);
	return cpu_seconds() - start;
}

static double measure(enum crowd_order order, const char *what)
{
	struct crowd *big = crowd_new(many, MICRO_SIZE), *small = crowd_new(FEW, MICRO_SIZE);
	struct bench_row row = { .id = "C13", .unit = "ms", .factor = 1e3, .goal = GOAL_RATIO, .rounds = rounds };
	struct bench_group self = { .pid = { getpid() }, .n = 1 };
	snprintf(row.what, sizeof(row.what), "a window of %u ranks%s", many, what);
	snprintf(row.limit_name, sizeof(row.limit_name), "%u windows of %d ranks", many / FEW, FEW);
	windows(big, 1, order);
	windows(small, many / FEW, order);
	for (size_t i = 0; i < rounds; i++) {
		struct bench_watch watch = bench_watch_start(&self);
		row.ours[i] = row.ours_cpu[i] = windows(big, 1, order);
		row.limit[i] = row.limit_cpu[i] = windows(small, many / FEW, order);
		row.foreign[i] = bench_watch_foreign(&watch, &self);
	}
	bench_row_print(&row);
	crowd_free(big);
	crowd_free(small);
	return bench_median(row.ours, rounds) * 1e3;
}

/* ---- the engine ---- */

struct side { /* of an engine: a window of many ranks */
	struct control_state state;
	struct control_page page;
	struct accum accum;
	void *data;
};

static void side_new(struct side *e, uint32_t ranks)
{
	e->data = calloc(1, control_page_bytes(ranks, MICRO_SIZE, 1, 1));
	if (!e->data || control_state_init(&e->state, ranks, MICRO_SIZE) || accum_init(&e->accum, 16, MICRO_SIZE, true))
		bench_die("no memory");
	control_page_view(&e->page, e->data, ranks, MICRO_SIZE, 1, 1);
	e->state.r.phase = WINDOW_OPEN;
	e->state.r.micro_size = MICRO_SIZE;
	e->state.r.loss_scale = 1;
}

static void side_free(struct side *e)
{
	accum_fini(&e->accum);
	control_state_fini(&e->state);
	free(e->data);
}

/* As engine/push.c has it, for pushes that come one by one. */
static void count(struct side *e, uint32_t rank, uint32_t micro)
{
	const struct plan plan = { .ranks = e->page.ranks, .slots = e->page.ranks, .slots_per_rank = 1 };
	const struct window_state w = { &plan, &e->state, control_page_ledger(&e->page, 0, 0), &e->accum };
	const struct push push = { .rank = rank, .micro = micro, .weight = 1 };
	struct accum_entry entry = { .n_askers = 1, .rank = rank, .micro = micro }, *next[4];
	if (accum_judge(&w, &push).ruling != PUSH_QUEUES)
		bench_die("a push was not taken");
	entry.blocked_by = accum_blocked_by(&e->accum, &e->state, rank, micro);
	accum_queue(&e->accum, &entry);
	if (accum_next(&e->accum, &e->state, next, 1) != 1)
		bench_die("it is not a push's turn");
	uint32_t n = accum_next(&e->accum, &e->state, next, 4);
	accum_completes(&e->accum, &e->state, next, n);
	control_set_bit(e->state.counted, MICRO_SIZE, rank, micro);
	e->state.r.count++;
	accum_remove(&e->accum, next[0]);
}

/* us of a push: the choice, or the record. */
static double push_us(uint32_t ranks, bool record)
{
	double best = 1e9;
	for (size_t i = 0; i < rounds; i++) {
		struct side e;
		side_new(&e, ranks);
		double start = cpu_seconds();
		for (uint32_t micro = 0; micro < MICRO_SIZE; micro++)
			for (uint32_t rank = 0; rank < ranks; rank++)
				if (record)
					control_page_publish(&e.page, &e.state);
				else
					count(&e, rank, micro);
		double took = (cpu_seconds() - start) / (ranks * MICRO_SIZE) * 1e6;
		best = took < best ? took : best;
		side_free(&e);
	}
	return best;
}

static void measure_engine(uint32_t ranks)
{
	char what[80];
	snprintf(what, sizeof(what), "engine, %u ranks: a push, its choice, us", ranks);
	bench_value_print("-", what, push_us(ranks, false), "us", 20);
	snprintf(what, sizeof(what), "engine, %u ranks: a push, its record, us", ranks);
	bench_value_print("-", what, push_us(ranks, true), "us", 20);
}

int main(int argc, char **argv)
{
	for (int opt; (opt = getopt(argc, argv, "r:R:")) != -1;)
		if (opt == 'r')
			rounds = (size_t)atol(optarg);
		else if (opt == 'R')
			many = (uint32_t)atol(optarg);
		else
			return 2;
	if (rounds < 5 || rounds > BENCH_MAX_ROUNDS || many < FEW || many > 65536)
		bench_die("rounds are 5..%d, ranks %d..65536", BENCH_MAX_ROUNDS, FEW);
	bench_table_head();
	double ms = measure(CROWD_IN_TURN, "");
	double worst = measure(CROWD_BACKWARDS, ", last rank first");
	bench_value_print("C13", "control, CPU ms of the loop a window", ms > worst ? ms : worst, "ms", GOAL_MS);
	measure_engine(many);
	if (rounds > 5)
		measure_engine(10000);
	return 0;
}
