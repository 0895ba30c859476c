/* SPDX-License-Identifier: Apache-2.0 */
/* What a job of many parts costs its coordinator: goal C8. The real coordinator with fake reports, no message on a
 * wire: CPU of a window, and of a tick while a rank is awaited.
 *
 *   bench_parts [-r rounds, 5..101]
 */
#include "bench.h"
#include "support/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define GOAL_WINDOW_MS 100
#define GOAL_TICK_MS 5
#define TICKS 100

static size_t rounds = 15;

static double cpu_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void measure(uint32_t ranks, uint32_t n_parts)
{
	double window[BENCH_MAX_ROUNDS], tick[BENCH_MAX_ROUNDS];
	char what[80];
	struct parts *p = parts_new(ranks, n_parts);
	parts_window(p);
	for (size_t i = 0; i < rounds; i++) {
		double start = cpu_ms();
		parts_window(p);
		window[i] = cpu_ms() - start;
	}
	parts_await_last(p, 1);
	for (size_t i = 0; i < rounds; i++) {
		double start = cpu_ms();
		parts_await_last(p, 0);
		double reports = cpu_ms() - start;
		start = cpu_ms();
		parts_await_last(p, TICKS);
		tick[i] = (cpu_ms() - start - reports) / TICKS;
	}
	snprintf(what, sizeof(what), "%u ranks in %u parts: a window, CPU ms", ranks, n_parts);
	bench_value_print("C8", what, bench_median(window, rounds), "ms", GOAL_WINDOW_MS);
	snprintf(what, sizeof(what), "%u ranks in %u parts: a tick, CPU ms", ranks, n_parts);
	bench_value_print("C8", what, bench_median(tick, rounds), "ms", GOAL_TICK_MS);
	parts_free(p);
}

int main(int argc, char **argv)
{
	for (int opt; (opt = getopt(argc, argv, "r:")) != -1;)
		if (opt == 'r')
			rounds = (size_t)atol(optarg);
		else
			return 2;
	if (rounds < 5 || rounds > BENCH_MAX_ROUNDS)
		bench_die("rounds are 5..%d", BENCH_MAX_ROUNDS);
	bench_table_head();
	measure(1000, 125);
	measure(10000, 1250);
	measure(10000, 10000);
	return 0;
}
