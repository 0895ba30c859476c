/* SPDX-License-Identifier: Apache-2.0 */
/* Fetching norms portion by portion: what is asked for, which answers are taken, and how long a node may be silent. */
#include "control/norms_fetch.h"
#include "support/suite.h"

#include <check.h>

#define S INT64_C(1000000000)

static struct norms_fetch f;
static int64_t now;

static void begin(void)
{
	now = 1000 * S;
	f = (struct norms_fetch){ .number = 6 };
	norms_fetch_begin(&f, now);
	ck_assert(f.asking && f.number == 7 && !f.have && !f.total);
}

static enum norms_move take(uint64_t first, uint64_t n)
{
	return norms_fetch_take(&f, 7, first, n, 10, now);
}

START_TEST(portions_follow_each_other)
{
	begin();
	ck_assert_int_eq(take(0, 4), NORMS_ASK);
	ck_assert_int_eq(take(4, 4), NORMS_ASK);
	ck_assert_uint_eq(f.have, 8);
	ck_assert_int_eq(take(8, 2), NORMS_DONE);
	ck_assert_int_eq(take(8, 2), NORMS_NOTHING);
	ck_assert(!f.asking && f.have == 10 && f.total == 10);
	ck_assert_int_eq(norms_fetch_tick(&f, now + 100 * S), NORMS_NOTHING);
	norms_fetch_begin(&f, now);
	ck_assert(f.asking && f.number == 8 && !f.have && !f.total);
}
END_TEST

START_TEST(other_answers_are_not_used)
{
	begin();
	ck_assert_int_eq(take(4, 4), NORMS_NOTHING); /* not yet */
	ck_assert_int_eq(take(0, 4), NORMS_ASK);
	ck_assert_int_eq(take(0, 4), NORMS_NOTHING); /* again */
	ck_assert_int_eq(norms_fetch_take(&f, 6, 4, 4, 10, now), NORMS_NOTHING);
	ck_assert_int_eq(norms_fetch_take(&f, 8, 4, 4, 10, now), NORMS_NOTHING);
	ck_assert_int_eq(norms_fetch_take(&f, 7, 4, 4, 11, now), NORMS_NOTHING);
	ck_assert_int_eq(norms_fetch_take(&f, 6, 0, 0, 0, now), NORMS_NOTHING);
	ck_assert_uint_eq(f.have, 4);
	ck_assert_int_eq(take(4, 6), NORMS_DONE);
}
END_TEST

START_TEST(a_refusal_ends_it)
{
	begin();
	if (_i)
		take(0, 4);
	ck_assert_int_eq(norms_fetch_take(&f, 7, 0, 0, 0, now), NORMS_FAILED);
	ck_assert_int_eq(take(4, 6), NORMS_NOTHING);
}
END_TEST

/* Asked again each second; each portion begins the patience anew. */
START_TEST(a_silent_node_is_asked_again_and_then_given_up)
{
	begin();
	const int64_t asked = now;
	ck_assert_int_eq(norms_fetch_tick(&f, asked + S - 1), NORMS_NOTHING);
	ck_assert_int_eq(norms_fetch_tick(&f, asked + S), NORMS_ASK);
	ck_assert_int_eq(norms_fetch_tick(&f, asked + 2 * S - 1), NORMS_NOTHING);
	ck_assert_int_eq(norms_fetch_tick(&f, asked + 2 * S), NORMS_ASK);
	now = asked + 9 * S;
	ck_assert_int_eq(take(0, 4), NORMS_ASK);
	ck_assert_int_eq(norms_fetch_tick(&f, asked + 10 * S - 1), NORMS_NOTHING);
	ck_assert_int_eq(norms_fetch_tick(&f, asked + 10 * S), NORMS_ASK);
	ck_assert_int_eq(take(0, 4), NORMS_NOTHING); /* no news */
	ck_assert_int_eq(norms_fetch_tick(&f, asked + 19 * S - 1), NORMS_ASK);
	ck_assert_int_eq(norms_fetch_tick(&f, asked + 19 * S), NORMS_FAILED);
	ck_assert_int_eq(norms_fetch_tick(&f, asked + 30 * S), NORMS_NOTHING);
}
END_TEST

START_TEST(a_node_that_sends_a_little_now_and_then_is_given_up)
{
	begin();
	const int64_t asked = now;
	for (uint64_t have = 0; have < 23; have++) {
		now += 5 * S;
		ck_assert_int_eq(norms_fetch_take(&f, 7, have, 1, 1000, now), NORMS_ASK);
	}
	ck_assert_int_eq(norms_fetch_tick(&f, asked + 120 * S - 1), NORMS_ASK);
	ck_assert_int_eq(norms_fetch_tick(&f, asked + 120 * S), NORMS_FAILED);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("norms fetch");
	TCase *c = tcase_create("norms fetch");
	suite_add_tcase(s, c);
	tcase_add_test(c, portions_follow_each_other);
	tcase_add_test(c, other_answers_are_not_used);
	tcase_add_loop_test(c, a_refusal_ends_it, 0, 2);
	tcase_add_test(c, a_node_that_sends_a_little_now_and_then_is_given_up);
	tcase_add_test(c, a_silent_node_is_asked_again_and_then_given_up);
	return suite_run(s);
}
