/* SPDX-License-Identifier: Apache-2.0 */
/* The engines of two builds against each other, by CPU time: what a change inside of the engine costs.
 *
 *   bench_engine [-r rounds, 5..101] [-p parameters] [-t threads, default 1] OTHER_GACCD
 *
 * OTHER_GACCD is gaccd of the other build, say of the commit before the change; ours lies beside this program. Both
 * must have the same build type, and the same version of the engine's channel and of the plan.
 *
 * In a round each build's engine is started on the same memory, which the one before has left, warms up, and does the
 * same windows: 4 pushes, a vote, a second attempt of the vote, which reads the sum again, and an update by AdamW. The
 * builds take turns in who is first. A ratio is taken within a round; shown are the medians of both builds and the
 * median and the middle half of the ratios. Before that both builds do the same windows on new memory, and the digests
 * of the parameters must be equal. Without -p: a size at which a call's own cost shows, one that stays in the cache,
 * one that does not.
 */
#include "bench.h"
#include "engine_alone.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum phase { PUSHES, LOOK, UPDATE, STEP, N_PHASES };
static const char *const phase_names[N_PHASES] = { "4 pushes", "vote again", "update", "whole step" };

struct build {
	const char *gaccd;
	double cpu[N_PHASES][BENCH_MAX_ROUNDS]; /* seconds of a window */
};

static size_t rounds = 31;
static uint32_t threads = 1;

static void add_time(const struct alone *e, double *sum, double *last)
{
	const double now = alone_cpu(e);
	*sum += now - *last;
	*last = now;
}

/* n windows; the CPU seconds of each phase are added to sum. */
static uint64_t windows(struct alone *e, int n, double sum[N_PHASES])
{
	uint64_t digest = 0;
	double start = alone_cpu(e), last = start, rest = 0;
	for (int i = 0; i < n; i++) {
		for (uint32_t slot = 0; slot < ALONE_SLOTS; slot++)
			alone_add(e, slot);
		add_time(e, &sum[PUSHES], &last);
		alone_go(e, 1);
		add_time(e, &rest, &last);
		alone_go(e, 2);
		add_time(e, &sum[LOOK], &last);
		digest = alone_commit(e, 2);
		add_time(e, &sum[UPDATE], &last);
	}
	sum[STEP] += alone_cpu(e) - start;
	return digest;
}

/* A measurement takes some tens of milliseconds, warming up a part of that. */
static int windows_of(size_t n_elements)
{
	size_t n = 8000000 / (n_elements + 20000);
	return n < 4 ? 4 : (int)n;
}

static uint64_t first_digest(size_t n_elements, const char *gaccd)
{
	struct alone e;
	double unused[N_PHASES] = { 0 };
	alone_open(&e, n_elements, threads);
	alone_start(&e, gaccd);
	const uint64_t digest = windows(&e, 3, unused);
	alone_close(&e);
	return digest;
}

static void check_digests(size_t n_elements, const struct build *b)
{
	const uint64_t ours = first_digest(n_elements, b[0].gaccd), other = first_digest(n_elements, b[1].gaccd);
	if (ours != other)
		bench_die("%zu parameters: digest %016" PRIx64 ", the other build's is %016" PRIx64, n_elements, ours,
			  other);
}

static void run_round(struct alone *e, struct build *b, size_t round, int n)
{
	double sum[N_PHASES] = { 0 }, unused[N_PHASES] = { 0 };
	alone_start(e, b->gaccd);
	windows(e, 1 + n / 4, unused);
	windows(e, n, sum);
	alone_stop(e);
	for (int p = 0; p < N_PHASES; p++)
		b->cpu[p][round] = sum[p] / n;
}

static void print(size_t n_elements, const struct build *b, enum phase p)
{
	double ratio[BENCH_MAX_ROUNDS];
	for (size_t i = 0; i < rounds; i++)
		ratio[i] = b[0].cpu[p][i] / b[1].cpu[p][i];
	printf("%10zu  %-10s %12.2f %12.2f   %6.3f   %6.3f..%.3f\n", n_elements, phase_names[p],
	       bench_median(b[0].cpu[p], rounds) * 1e6, bench_median(b[1].cpu[p], rounds) * 1e6,
	       bench_median(ratio, rounds), bench_quantile(ratio, rounds, 0.25), bench_quantile(ratio, rounds, 0.75));
	fflush(stdout);
}

static void measure(size_t n_elements, struct build b[2])
{
	struct alone e;
	check_digests(n_elements, b);
	alone_open(&e, n_elements, threads);
	for (size_t i = 0; i < rounds; i++)
		for (size_t k = 0; k < 2; k++)
			run_round(&e, &b[(i + k) % 2], i, windows_of(n_elements));
	alone_close(&e);
	for (int p = 0; p < N_PHASES; p++)
		print(n_elements, b, (enum phase)p);
}

int main(int argc, char **argv)
{
	static struct build b[2];
	static char ours[PATH_MAX];
	size_t sizes[] = { 1000, 200000, 10000000 }, n_sizes = sizeof(sizes) / sizeof(sizes[0]);
	for (int o; (o = getopt(argc, argv, "r:p:t:")) != -1;) {
		switch (o) {
		case 'r':
			rounds = strtoul(optarg, NULL, 10);
			break;
		case 'p':
			sizes[0] = strtoul(optarg, NULL, 10);
			n_sizes = 1;
			break;
		case 't':
			threads = (uint32_t)strtoul(optarg, NULL, 10);
			break;
		default:
			return 2;
		}
	}
	if (optind != argc - 1 || rounds < 5 || rounds > BENCH_MAX_ROUNDS || sizes[0] < 1000 || threads < 1)
		bench_die("rounds 5..%d, at least 1000 parameters and a thread, and gaccd of the other build",
			  BENCH_MAX_ROUNDS);
	bench_program("gaccd", ours, sizeof(ours));
	b[0].gaccd = ours;
	b[1].gaccd = argv[optind];
	printf("parameters  CPU time of     ours [us]   other [us]    ratio   middle half\n");
	for (size_t i = 0; i < n_sizes; i++)
		measure(sizes[i], b);
	return 0;
}
