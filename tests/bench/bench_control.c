/* What control costs on gaccd's loop: goal C13. A window of many ranks on struct job and struct coord, with an engine that answers at once and
 * no process, socket or disk.
 *
 *   bench_control [-r rounds, 5..101] [-R ranks]
 *
 * A round is one window of the many ranks and as many pushes in windows of 8 ranks (the limit), in turn; micro_size 4, canonical order, every
 * call and every answer a turn of the loop. What is left of the ratio is the cache: the state of so many ranks does not fit.
 */
#include "bench.h"
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
	snprintf(row.what, sizeof row.what, "a window of %u ranks%s", many, what);
	snprintf(row.limit_name, sizeof row.limit_name, "%u windows of %d ranks", many / FEW, FEW);
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
	return 0;
}
