/* SPDX-License-Identifier: Apache-2.0 */
/* The armed GO at the coordinator: a part that votes by itself, when it may, and what becomes of its vote. */
#include "coord_rig.h"

#include "engine/control_page.h"
#include "support/suite.h"

#include <check.h>

Suite *armed_suite(void);

static uint32_t micros = 2; /* of each rank; the others are not given any more */

/* The node has closed its window by itself and voted for this attempt. */
static void vote(uint64_t attempt)
{
	static uint64_t bits[2];
	bits[0] = bits[1] = (1u << micros) - 1;
	rank[0].counted = rank[1].counted = micros;
	node.complete = true;
	node.phase = WINDOW_PREPARED;
	node.count = 2 * micros;
	node.sum_weight = 4;
	node.counted = bits;
	node.n_words = 2;
	node.vote_term = 1;
	node.vote_attempt = attempt;
	node.sumsq = 16;
	tell();
}

static void tick_after(int64_t ns)
{
	now.mono_ns += ns;
	now.unix_ns += ns;
	coord_tick(coord, now);
}

START_TEST(a_window_closes_without_an_order)
{
	char why[160];
	ck_assert_int_eq(order.want, WANT_NOTHING);
	ck_assert_uint_eq(order.armed, 1);
	vote(1);
	ck_assert_int_eq(order.want, WANT_NOTHING);
	ck_assert_uint_eq(n_stored, 1);
	ck_assert_uint_eq(stored.attempt, 1);
	coord_on_persisted(coord, 0, ST_OK, now);
	ck_assert_msg(!coord_counts_wrong(coord, why, sizeof(why)), "%s", why);
	ck_assert_int_eq(order.want, WANT_COMMIT); /* it arms the window after */
	ck_assert_uint_eq(order.commit.attempt, 1);
	ck_assert_uint_eq(order.armed, 2);
	uint64_t number = order.number;
	finish();
	ck_assert_uint_eq(coord_window(coord), 1);
	ck_assert_uint_eq(order.number, number); /* the window opens without one, too */
	micros = 1;
	vote(2);
	ck_assert_uint_eq(n_stored, 2);
	ck_assert_uint_eq(stored.micro_count, 2);
	ck_assert_str_eq(end_reason, "");
}
END_TEST

/* The report that the part had applied the commit was lost: its next one opens the window, and has the vote in it. */
START_TEST(a_vote_may_come_before_its_window_is_open_here)
{
	vote(1);
	coord_on_persisted(coord, 0, ST_OK, now);
	node.window = 1;
	vote(2);
	ck_assert_uint_eq(coord_window(coord), 1);
	ck_assert_uint_eq(n_stored, 2);
}
END_TEST

/* The vote is on the way; should it not come, the order does. */
START_TEST(a_part_that_is_armed_and_complete_is_waited_for)
{
	node.term = 1;
	node.order = order.number;
	node.armed = 1;
	fill();
	ck_assert_int_eq(coord_phase(coord), COORD_GO);
	ck_assert_int_eq(order.want, WANT_NOTHING);
	tick_after(SECOND / 4);
	ck_assert(order.want == WANT_GO && order.attempt == 1);
	finish();
	ck_assert_uint_eq(n_stored, 1);
}
END_TEST

/* As the engine leaves it to gaccd what a window without anything is. */
START_TEST(one_in_which_nothing_counts_is_closed_by_order)
{
	node.term = 1;
	node.armed = 1;
	rank[0].voided = rank[1].voided = 2;
	node.complete = true;
	tell();
	ck_assert(order.want == WANT_GO && order.attempt == 2);
}
END_TEST

START_TEST(a_part_that_is_not_armed_is_ordered_to)
{
	node.term = 1;
	node.armed = _i; /* of another attempt */
	fill();
	ck_assert(order.want == WANT_GO && order.attempt == 2 && !order.armed);
}
END_TEST

START_TEST(an_operators_flush_replaces_it)
{
	uint64_t window;
	ck_assert_int_eq(coord_flush(coord, &window, now), ST_OK);
	ck_assert(order.want == WANT_GO && order.attempt == 2 && !order.armed);
	vote(1); /* it was on its way: of another attempt now */
	ck_assert_uint_eq(n_stored, 0);
	vote(2);
	ck_assert_uint_eq(n_stored, 1);
}
END_TEST

START_TEST(a_vote_of_a_paused_job_waits)
{
	ck_assert_int_eq(coord_pause(coord, "paused by ana", now), ST_OK);
	ck_assert(order.paused && !order.armed);
	vote(1); /* it crossed the order */
	tick_after(SECOND);
	ck_assert_uint_eq(n_stored, 0);
	ck_assert_int_eq(coord_phase(coord), COORD_COLLECT);
	ck_assert_int_eq(coord_resume(coord, "resumed by ana", now), ST_OK);
	ck_assert_uint_eq(n_stored, 1);
	ck_assert_uint_eq(stored.attempt, 1);
}
END_TEST

START_TEST(a_resumed_job_is_armed_again)
{
	coord_pause(coord, "paused by ana", now);
	coord_on_persisted(coord, 0, ST_OK, now); /* of nothing */
	coord_resume(coord, "resumed by ana", now);
	ck_assert(order.want == WANT_NOTHING && order.armed == 1 && !order.paused);
	vote(1);
	coord_pause(coord, "paused by ana", now); /* while it is written: that window is committed first */
	coord_on_persisted(coord, 0, ST_OK, now);
	ck_assert(order.want == WANT_COMMIT && !order.armed);
	finish();
	coord_resume(coord, "resumed by ana", now);
	ck_assert(order.want == WANT_NOTHING && order.window == 1 && order.armed == 2);
}
END_TEST

/* An earlier coordinator's part has voted, and nobody knows whether that was ordered. */
START_TEST(a_restart_leaves_a_paused_window_as_it_is)
{
	teardown();
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 2, 1, NULL, &ports), ST_OK);
	coord_restore_hold(coord, "paused by ana");
	vote(1);
	ck_assert_int_eq(coord_phase(coord), COORD_COLLECT);
	ck_assert_uint_eq(n_stored, 0);
	coord_resume(coord, "resumed by ana", now);
	ck_assert(order.want == WANT_GO && order.term == 2);
}
END_TEST

/* Only an ordered GO asks for them. */
START_TEST(norms_take_it_back)
{
	node.term = 1;
	node.order = order.number;
	tell();
	ck_assert_int_eq(coord_want_norms(coord), ST_OK);
	tick_after(SECOND);
	ck_assert(order.want == WANT_NOTHING && !order.armed);
	norms_window = 99;
	vote(1); /* it crossed the order, and is repeated with norms */
	ck_assert(n_stored == 0 && order.want == WANT_GO && order.attempt == 2 && order.norms);
	vote(2);
	ck_assert_uint_eq(n_stored, 1);
	ck_assert_uint_eq(norms_window, 0);
	coord_on_persisted(coord, 0, ST_OK, now);
	ck_assert_uint_eq(order.armed, 3);
}
END_TEST

/* They may be what the attempts fail by: the third one goes without them. */
START_TEST(norms_do_not_keep_a_window_from_closing)
{
	const uint64_t none = 99, given_up = UINT64_MAX - 1;
	norms_window = none;
	ck_assert_int_eq(coord_want_norms(coord), ST_OK);
	fill();
	for (int i = 0; i < _i; i++) {
		ck_assert(order.want == WANT_GO && order.norms && norms_window == none);
		node.vote_term = 1;
		node.vote_attempt = order.attempt;
		node.vote_status = ST_IO_ERROR;
		tell();
		tick_after(SECOND);
		ck_assert_uint_eq(order.attempt, node.vote_attempt + 1);
	}
	ck_assert(order.norms == (_i < 2));
	ck_assert_uint_eq(norms_window, _i < 2 ? none : given_up);
	node.vote_status = ST_OK;
	finish();
	ck_assert_uint_eq(n_stored, 1);
	ck_assert_uint_eq(norms_window, _i < 2 ? 0 : given_up);
}
END_TEST

/* All parts freeze together. */
START_TEST(several_parts_are_not_armed)
{
	const struct part_ranks parts[2] = { { 1, (const uint32_t[]){ 0 } }, { 1, (const uint32_t[]){ 1 } } };
	struct coord *two;
	ck_assert_int_eq(coord_new(&two, 1, &spec, 1, 2, parts, &ports), ST_OK);
	for (uint32_t i = 0; i < 2; i++) {
		struct report r = node;
		r.part = i;
		r.n_ranks = 0;
		coord_on_report(two, &r, now);
	}
	ck_assert_int_eq(coord_phase(two), COORD_COLLECT);
	ck_assert(order.run && !order.armed);
	coord_free(two);
}
END_TEST

Suite *armed_suite(void)
{
	Suite *s = suite_create("armed");
	TCase *t = tcase_create("armed");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, a_window_closes_without_an_order);
	tcase_add_test(t, a_vote_may_come_before_its_window_is_open_here);
	tcase_add_test(t, a_part_that_is_armed_and_complete_is_waited_for);
	tcase_add_test(t, one_in_which_nothing_counts_is_closed_by_order);
	tcase_add_loop_test(t, a_part_that_is_not_armed_is_ordered_to, 0, 1);
	tcase_add_test(t, an_operators_flush_replaces_it);
	tcase_add_test(t, a_vote_of_a_paused_job_waits);
	tcase_add_test(t, a_resumed_job_is_armed_again);
	tcase_add_test(t, a_restart_leaves_a_paused_window_as_it_is);
	tcase_add_test(t, norms_take_it_back);
	tcase_add_loop_test(t, norms_do_not_keep_a_window_from_closing, 0, 3);
	tcase_add_test(t, several_parts_are_not_armed);
	return s;
}
