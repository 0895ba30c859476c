/* SPDX-License-Identifier: Apache-2.0 */
/* What a window costs the coordinator, and a tick, grows as the number of ranks and parts does, and no faster: counted
 * in ranks and parts that it looks at, not in time. */
#include "support/parts.h"
#include "support/suite.h"

#include <check.h>

static const struct {
	uint32_t ranks, parts;
} sizes[] = { { 10, 1 }, { 10, 10 }, { 1000, 125 }, { 1000, 1000 }, { 10000, 1250 }, { 10000, 10000 } };
#define N_SIZES ((int)(sizeof(sizes) / sizeof(*sizes)))

static uint64_t visits(struct parts *p)
{
	return coord_visits(parts_coord(p));
}

START_TEST(a_window_looks_at_each_rank_some_times)
{
	uint32_t all = sizes[_i].ranks + sizes[_i].parts;
	struct parts *p = parts_new(sizes[_i].ranks, sizes[_i].parts);
	parts_window(p);
	uint64_t before = visits(p);
	parts_window(p);
	double each = (double)(visits(p) - before) / all;
	ck_assert_msg(each <= 20, "%.1f for each rank and part", each);
	ck_assert_uint_le(parts_orders(p), 3 * sizes[_i].parts);
	ck_assert_uint_le(parts_reports(p), 5 * sizes[_i].parts);
	parts_free(p);
}
END_TEST

/* Somebody is awaited, which takes a look at all: once, and not once for each of them. */
START_TEST(a_tick_looks_at_each_rank_some_times)
{
	uint32_t all = sizes[_i].ranks + sizes[_i].parts;
	struct parts *p = parts_new(sizes[_i].ranks, sizes[_i].parts);
	parts_await_last(p, 2);
	uint64_t before = visits(p);
	parts_await_last(p, 100); /* 10 s */
	double each = (double)(visits(p) - before) / all;
	ck_assert_msg(each <= 100 * 4, "%.1f for each rank and part in 100 ticks", each);
	/* who is late is told to all, but no more than so often to each, or to 1,000 nodes in a second */
	uint64_t most = 10 * 1000 > 50 * sizes[_i].parts ? 50 * sizes[_i].parts : 10 * 1000;
	ck_assert_uint_le(parts_orders(p), most + 2 * sizes[_i].parts);
	parts_free(p);
}
END_TEST

/* One that tells nothing new, while all others are silent. */
START_TEST(a_report_looks_at_its_own_ranks)
{
	struct parts *p = parts_new(sizes[_i].ranks, sizes[_i].parts);
	parts_await_last(p, 0);
	uint64_t before = visits(p), reports = sizes[_i].parts - 1;
	parts_await_last(p, 0);
	ck_assert_uint_le(visits(p) - before, reports * sizes[_i].ranks / sizes[_i].parts);
	ck_assert_uint_eq(parts_reports(p), reports);
	parts_free(p);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("coord_cost");
	TCase *t = tcase_create("coord_cost");
	suite_add_tcase(s, t);
	tcase_add_loop_test(t, a_window_looks_at_each_rank_some_times, 0, N_SIZES);
	tcase_add_loop_test(t, a_tick_looks_at_each_rank_some_times, 0, N_SIZES);
	tcase_add_loop_test(t, a_report_looks_at_its_own_ranks, 0, N_SIZES);
	return suite_run(s);
}
