/* SPDX-License-Identifier: Apache-2.0 */
/* What a push costs the loop does not grow with the number of ranks, and the counts that make it so are those of the
 * bitmaps. */
#include "support/crowd.h"
#include "support/suite.h"

#include <check.h>
#include <time.h>

#define MICRO_SIZE 4

static double cpu_seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Ranks that the job looks at for each push, on average over a window; what opens and closes the window is part of it.
 */
static double visits_per_push(uint32_t ranks, enum crowd_order order)
{
	struct crowd *c = crowd_new(ranks, MICRO_SIZE);
	crowd_window(c, order);
	uint64_t before = job_ranks_visited(crowd_job(c));
	crowd_window(c, order);
	double visits = (double)(job_ranks_visited(crowd_job(c)) - before) / (ranks * MICRO_SIZE);
	crowd_free(c);
	return visits;
}

START_TEST(ranks_visited_per_push)
{
	double few = visits_per_push(8, _i), many = visits_per_push(1024, _i);
	ck_assert_msg(many <= 8, "%.1f ranks for each push", many);
	ck_assert_msg(many <= few * 1.05, "%.2f ranks for each push of 1,024, %.2f of 8", many, few);
}
END_TEST

/* All ranks may attach in one moment. */
START_TEST(ranks_visited_per_attach)
{
	struct crowd *c = crowd_new(1024, MICRO_SIZE);
	double visits = (double)job_ranks_visited(crowd_job(c)) / 1024;
	ck_assert_msg(visits <= 16, "%.1f ranks for each attach", visits);
	ck_assert_uint_le(crowd_reports(c), 16);
	crowd_free(c);
}
END_TEST

/* All ranks may be cut off in one moment, while each waits for the window; and all may come back. */
START_TEST(ranks_visited_per_link)
{
	struct crowd *c = crowd_new(1024, MICRO_SIZE);
	for (int up = 0; up < 2; up++) {
		uint64_t before = job_ranks_visited(crowd_job(c)), reports = crowd_reports(c);
		for (uint32_t r = 0; r < 1024; r++)
			crowd_link(c, r, up);
		ck_assert_uint_le(job_ranks_visited(crowd_job(c)) - before, 1024);
		ck_assert_uint_le(crowd_reports(c) - reports, 16);
	}
	crowd_free(c);
}
END_TEST
START_TEST(ranks_visited_per_call_that_is_gone)
{
	struct crowd *c = crowd_new(1024, MICRO_SIZE);
	uint64_t before = job_ranks_visited(crowd_job(c));
	for (uint32_t r = 1; r < 1024; r++) { /* rank 0 holds them up */
		crowd_push(c, r, 0);
		crowd_gone(c, r);
	}
	ck_assert_uint_le(job_ranks_visited(crowd_job(c)) - before, 8 * 1024);
	crowd_free(c);
}
END_TEST

/* The same by the clock, for loops that count no visits. A walk over 1,024 ranks would be 30 to 1,000 times a push. */
static double seconds_per_push(uint32_t ranks, uint32_t windows, enum crowd_order order)
{
	struct crowd *c = crowd_new(ranks, MICRO_SIZE);
	double best = 1e9;
	for (int i = 0; i < 5; i++) {
		double start = cpu_seconds();
		for (uint32_t w = 0; w < windows; w++)
			crowd_window(c, order);
		double took = (cpu_seconds() - start) / (windows * ranks * MICRO_SIZE);
		best = took < best ? took : best;
	}
	crowd_free(c);
	return best;
}

START_TEST(time_per_push)
{
	double few = seconds_per_push(8, 128, _i), many = seconds_per_push(1024, 1, _i);
	ck_assert_msg(many <= few * 6, "%.2f us for each push of 1,024 ranks, %.2f us of 8", many * 1e6, few * 1e6);
}
END_TEST

/* The coordinator hears what it acts on at once; what people look at, with the tick. */
START_TEST(reports_of_a_window)
{
	struct crowd *c = crowd_new(64, MICRO_SIZE);
	crowd_window(c, CROWD_IN_TURN);
	uint64_t before = crowd_reports(c);
	crowd_window(c, CROWD_IN_TURN);
	ck_assert_uint_le(crowd_reports(c) - before, 8);
	crowd_free(c);
}
END_TEST

/* Any rank may be ahead by a slot: who is first to block it is found without a walk, and is the one that a walk finds.
 */
START_TEST(counts_are_those_of_the_bitmaps)
{
	struct crowd *c = crowd_new(24, MICRO_SIZE);
	char why[200] = "";
	uint32_t given[24] = { 0 }, seed = 7 + (uint32_t)_i;
	for (uint32_t n = 0; n < 24 * MICRO_SIZE;) {
		seed = seed * 1664525 + 1013904223;
		uint32_t r = (seed >> 16) % 24;
		if (crowd_waits(c, r)) {
			crowd_answer(c);
		} else if (given[r] < MICRO_SIZE) {
			crowd_push(c, r, given[r]++);
			n++;
		}
		ck_assert_msg(!job_counts_wrong(crowd_job(c), why, sizeof(why)), "after push %u: %s", n, why);
	}
	crowd_free(c);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("job_cost");
	TCase *t = tcase_create("job_cost");
	suite_add_tcase(s, t);
	tcase_add_loop_test(t, ranks_visited_per_push, CROWD_IN_TURN, CROWD_BACKWARDS + 1);
	tcase_add_test(t, ranks_visited_per_attach);
	tcase_add_test(t, ranks_visited_per_link);
	tcase_add_test(t, ranks_visited_per_call_that_is_gone);
	tcase_add_loop_test(t, time_per_push, CROWD_IN_TURN, CROWD_BACKWARDS + 1);
	tcase_add_test(t, reports_of_a_window);
	tcase_add_loop_test(t, counts_are_those_of_the_bitmaps, 0, 20);
	return suite_run(s);
}
