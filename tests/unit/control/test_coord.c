/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of a window, by reports and votes, and what operators change: a coordinator with one fake node, message
 * by message. */
#include "coord_rig.h"

#include "engine/control_page.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

/* nonfinite: skip_step. In _i 1 nobody has sent any: the sum has overflowed, or gaccd has restarted since. */
START_TEST(a_skipped_step_names_who_sent_what_is_not_finite)
{
	if (!_i) {
		rank[0].nonfinite = 1;
		rank[0].first_nonfinite = 1;
		rank[1].nonfinite = 2;
	}
	fill();
	node.nonfinite = 7;
	finish();
	ck_assert_int_eq(stored.outcome, OUTCOME_SKIPPED);
	ck_assert_str_eq(last_event, "StepSkipped");
	ck_assert_str_eq(last_text,
			 _i ? "window 0 is skipped: its gradient or the norm of it is not finite (norm 1)"
			    : "window 0 is skipped: gradients that are not finite came from rank 0 (micro-batch 1), "
			      "rank 1 (micro-batch 0 and 1 more)");
}
END_TEST

START_TEST(a_held_window_fills_but_does_not_close)
{
	ck_assert_int_eq(coord_pause(coord, "paused by ana", now), ST_OK);
	const char *reason;
	ck_assert_int_eq(coord_state(coord, &reason, NULL), JOB_PAUSED);
	ck_assert_str_eq(reason, "paused by ana");
	ck_assert(order.paused);
	fill();
	finish();
	ck_assert_int_eq(coord_phase(coord), COORD_COLLECT);
	uint64_t w;
	ck_assert_int_eq(coord_flush(coord, &w, now), ST_PAUSED);
	ck_assert_uint_eq(n_stored, 0);
	ck_assert_int_eq(coord_resume(coord, "resumed by ana", now), ST_OK);
	ck_assert_int_eq(coord_phase(coord), COORD_GO);
	finish();
	ck_assert_uint_eq(n_stored, 1);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_RUNNING);
	ck_assert_int_eq(coord_resume(coord, "resumed by ana", now), ST_OK);
}
END_TEST

START_TEST(a_window_that_is_closing_commits_first)
{
	fill();
	ck_assert_int_eq(coord_phase(coord), COORD_GO);
	ck_assert_int_eq(coord_pause(coord, "paused by ana", now), ST_OK);
	finish();
	ck_assert_uint_eq(n_stored, 1);
	ck_assert_uint_eq(coord_window(coord), 1);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_PAUSED);
	fill();
	ck_assert_int_eq(coord_phase(coord), COORD_COLLECT);
}
END_TEST

/* Two ranks, each a part of its own. */
static const struct part_ranks two_parts[2] = { { 1, (const uint32_t[]){ 0 } }, { 1, (const uint32_t[]){ 1 } } };

/* Where there are two, neither begins to reduce before both are frozen (1), unless nothing can be added to either (0).
 */
START_TEST(two_nodes_are_closed_before_they_vote)
{
	struct rank_progress full[2] = { { .rank = 0, .attached = 1, .counted = 2 },
					 { .rank = 1, .attached = 1, .counted = 2 - (uint32_t)_i } };
	uint64_t bits[2] = { 3, 3 >> _i }, window;
	struct report two[2];
	coord_free(coord);
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 1, 2, two_parts, &ports), ST_OK);
	for (uint32_t i = 0; i < 2; i++) {
		two[i] = (struct report){ .job_id = 1,
					  .epoch = 1,
					  .incarnation = 1,
					  .part = i,
					  .start = START_PARAMS,
					  .rank = &full[i],
					  .n_ranks = 1,
					  .complete = full[i].counted == 2 };
		coord_on_report(coord, &two[i], now);
	}
	if (_i)
		ck_assert_int_eq(coord_flush(coord, &window, now), ST_OK);
	ck_assert_int_eq(coord_phase(coord), _i ? COORD_CLOSE : COORD_GO);
	for (uint32_t i = 0; i < 2; i++) {
		ck_assert_int_eq(order.want, _i ? WANT_CLOSE : WANT_GO);
		two[i].phase = WINDOW_CLOSED;
		two[i].count = full[i].counted;
		two[i].sum_weight = 2;
		two[i].counted = &bits[i];
		two[i].n_words = 1;
		if (_i)
			coord_on_report(coord, &two[i], now);
	}
	ck_assert_int_eq(order.want, WANT_GO);
	for (uint32_t i = 0; i < 2; i++) {
		ck_assert_int_eq(coord_phase(coord), COORD_GO);
		two[i].phase = WINDOW_PREPARED;
		two[i].vote_term = order.term;
		two[i].vote_attempt = order.attempt;
		coord_on_report(coord, &two[i], now);
	}
	ck_assert_int_eq(coord_phase(coord), COORD_PERSIST);
	ck_assert_uint_eq(stored.micro_count, 4 - (uint64_t)_i);
}
END_TEST

/* A node refuses a second learning rate, but knows its own ranks alone. Who has counted nothing has given none. */
START_TEST(two_nodes_give_a_window_one_learning_rate)
{
	struct rank_progress full[2] = { { .rank = 0, .attached = 1, .counted = 2 },
					 { .rank = 1, .attached = 1, .flushed = 1 } };
	uint64_t bits[2] = { 3, _i ? 0 : 3 };
	coord_free(coord);
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 1, 2, two_parts, &ports), ST_OK);
	for (uint32_t phase = 0; phase < 4; phase++)
		for (uint32_t i = 0; i < 2 && phase != 1; i++) {
			struct report r = { .job_id = 1,
					    .epoch = 1,
					    .incarnation = 1,
					    .part = i,
					    .start = START_PARAMS,
					    .rank = &full[i],
					    .n_ranks = 1,
					    .complete = true,
					    .counted = &bits[i],
					    .n_words = 1,
					    .count = i && _i ? 0 : 2,
					    .sum_weight = 2,
					    .lr = i ? 0.25 : 0.5,
					    .lr_rank = i };
			r.phase = phase == 0 ? WINDOW_OPEN : phase == 2 ? WINDOW_CLOSED : WINDOW_PREPARED;
			r.vote_term = phase == 3 ? order.term : 0;
			r.vote_attempt = phase == 3 ? order.attempt : 0;
			r.sumsq = 1;
			coord_on_report(coord, &r, now);
		}
	if (_i) {
		ck_assert_int_eq(coord_phase(coord), COORD_PERSIST);
		ck_assert(stored.lr == 0.5 && stored.outcome == OUTCOME_APPLIED);
		return;
	}
	ck_assert_int_eq(coord_phase(coord), COORD_ENDING);
	ck_assert_str_eq(end_reason, "LR_MISMATCH: ranks 0 and 1 give window 0 different learning rates: 0.5 and 0.25");
}
END_TEST

/* A coordinator that has just started, and has a commit or none, is a window behind the first report: that window is
 * judged by all that the report says. */
static void begin_behind(bool has_commit)
{
	fill();
	finish();
	struct commit last = stored;
	coord_free(coord);
	n_stored = 0;
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 2, 1, NULL, &ports), ST_OK);
	node = (struct report){ .job_id = 1, .epoch = 1, .incarnation = 2, .start = START_PARAMS };
	if (!has_commit)
		return;
	coord_restore(coord, &last);
	node.window = 1;
}

START_TEST(ranks_that_have_left_leave_what_they_gave)
{
	begin_behind(_i);
	for (int i = 0; i < 2; i++)
		rank[i] = (struct rank_progress){ .rank = (uint32_t)i, .counted = 1, .flushed = RANK_LEFT, .known = 1 };
	node.complete = node.all_left = true;
	tell();
	ck_assert_str_eq(end_reason, "");
	ck_assert_int_eq(coord_phase(coord), COORD_GO);
	ck_assert_uint_eq(coord_ranks(coord, &(uint32_t){ 0 })[1].counted, 1);
	uint64_t bits[2] = { 1, 1 };
	node.phase = WINDOW_PREPARED;
	node.count = node.sum_weight = 2;
	node.counted = bits;
	node.n_words = 2;
	node.vote_term = order.term;
	node.vote_attempt = order.attempt;
	tell();
	ck_assert_uint_eq(stored.micro_count, 2);
	ck_assert(stored.final);
}
END_TEST

START_TEST(a_void_micro_batch_of_a_window_not_open_yet_ends_the_job)
{
	spec.nonfinite = NONFINITE_ERROR;
	begin_behind(_i);
	rank[0].voided = 1;
	rank[0].counted = 0;
	tell();
	ck_assert_str_eq(
		end_reason,
		_i ? "NONFINITE: rank 0 (pid 0): micro-batch 0 of window 1 has a non-finite gradient (nonfinite: error)"
		   : "NONFINITE: rank 0 (pid 0): micro-batch 0 of window 0 has a non-finite gradient (nonfinite: "
		     "error)");
}
END_TEST

/* A vote that counts `count` micro-batches for each of two ranks. */
static void vote(uint32_t count)
{
	static uint64_t bits[2];
	bits[0] = bits[1] = (1u << count) - 1;
	node.phase = WINDOW_PREPARED;
	node.count = 2 * count;
	node.sum_weight = 2 * count;
	node.counted = bits;
	node.n_words = 2;
	node.vote_term = order.term;
	node.vote_attempt = order.attempt;
	tell();
}

/* What was refused is not missing. */
START_TEST(void_micro_batches_are_not_missing)
{
	static const enum uneven policy[] = { UNEVEN_DROP, UNEVEN_ERROR };
	spec.uneven = policy[_i % 2];
	bool missing = _i >= 2;
	for (int i = 0; i < 2; i++) {
		rank[i].counted = 1;
		rank[i].voided = !missing;
	}
	node.complete = true;
	tell();
	vote(1);
	bool ends = missing && spec.uneven == UNEVEN_ERROR;
	ck_assert_int_eq(coord_phase(coord), ends ? COORD_ENDING : COORD_PERSIST);
	if (ends)
		ck_assert_str_eq(end_reason,
				 "WINDOW_CLOSED: window 0 closed with 2 micro-batches missing (uneven: error): "
				 "rank 0 (pid 0) at 1/2, rank 1 (pid 0) at 1/2");
	else
		ck_assert_uint_eq(stored.outcome, missing ? OUTCOME_DROPPED : OUTCOME_APPLIED);
}
END_TEST

/* A node that is a window ahead: of two, the other one has not applied the commit yet. */
START_TEST(a_node_that_is_ahead_is_heard_when_its_window_opens)
{
	struct commit last = { .window = 4,
			       .term = 1,
			       .attempt = 1,
			       .applied_step = 5,
			       .outcome = OUTCOME_APPLIED,
			       .next = *coord_carry(coord) };
	struct rank_progress p = { .rank = 0, .counted = 1, .flushed = RANK_LEFT, .known = 1 };
	struct report r = { .job_id = 1,
			    .epoch = 1,
			    .incarnation = 1,
			    .start = START_PARAMS,
			    .window = 5,
			    .rank = &p,
			    .n_ranks = 1,
			    .complete = true,
			    .all_left = true };
	coord_free(coord);
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 2, 2, two_parts, &ports), ST_OK);
	coord_restore(coord, &last);
	coord_on_report(coord, &r, now);
	ck_assert_int_eq(coord_phase(coord), COORD_COMMIT);
	p = (struct rank_progress){ .rank = 1, .flushed = RANK_LEFT, .known = 1 };
	r.part = 1;
	coord_on_report(coord, &r, now);
	ck_assert_int_eq(coord_phase(coord), COORD_GO);
	ck_assert_uint_eq(coord_ranks(coord, &(uint32_t){ 0 })[0].counted, 1);
}
END_TEST

static enum status update(struct update *u)
{
	const char *field;
	char why[256] = "";
	enum status st = coord_prepare_update(coord, u, &field, why, sizeof(why));
	if (!st)
		coord_take_update(coord, u);
	else
		snprintf(last_text, sizeof(last_text), "%s", why);
	return st;
}

START_TEST(an_update_holds_from_exactly_its_window)
{
	struct update lr = { 2, VALUE_LR, { .lr = 0.5 } }, size = { 0, VALUE_MICRO_SIZE, { .micro_size = 3 } };
	ck_assert_int_eq(update(&lr), ST_OK);
	ck_assert_str_eq(last_event, "Updated");
	ck_assert_str_eq(last_text, "from window 2 on: lr 0.1 -> 0.5");
	ck_assert_int_eq(update(&size), ST_OK);
	ck_assert_uint_eq(size.window, 1); /* the earliest */
	ck_assert_uint_eq(coord_updates(coord)->n, 2);
	for (uint64_t w = 0; w < 4; w++) {
		ck_assert_uint_eq(coord_values(coord)->micro_size, w < 1 ? 2 : 3);
		fill();
		finish();
		ck_assert_uint_eq(stored.window, w);
		ck_assert_uint_eq(stored.micro_size, w < 1 ? 2 : 3);
		ck_assert_uint_eq(stored.next_micro_size, 3);
		ck_assert_uint_eq(stored.micro_count, w < 1 ? 4 : 6);
		ck_assert_double_eq(stored.lr, w < 2 ? 0.1 : 0.5);
	}
	ck_assert_uint_eq(coord_updates(coord)->n, 0);
	ck_assert_str_eq(last_text, "in force with window 2: lr 0.1 -> 0.5");
}
END_TEST

START_TEST(a_window_that_has_begun_is_refused)
{
	struct update u = { 1, VALUE_LR, { .lr = 1 } };
	fill();
	finish();
	ck_assert_int_eq(update(&u), ST_WINDOW_BEGUN);
	ck_assert_str_eq(last_text, "window 1 has begun: the earliest that values can change for is window 2");
	fill();
	while (coord_phase(coord) != COORD_PERSIST) { /* the size of window 2 is in the commit that is being written */
		node.phase = WINDOW_PREPARED;
		node.count = 4;
		node.sum_weight = 4;
		uint64_t bits[2] = { 3, 3 };
		node.counted = bits;
		node.n_words = 2;
		node.vote_term = order.term;
		node.vote_attempt = order.attempt;
		tell();
	}
	u.window = 2;
	ck_assert_int_eq(update(&u), ST_WINDOW_BEGUN);
	u.window = 0;
	ck_assert_int_eq(update(&u), ST_OK);
	ck_assert_uint_eq(u.window, 3);
	for (int i = 1; i < UPDATES_MAX_PENDING; i++)
		ck_assert_int_eq(update(&u), ST_OK);
	ck_assert_int_eq(update(&u), ST_RESOURCE_EXHAUSTED);
}
END_TEST

START_TEST(a_start_from_a_checkpoint_has_its_updates)
{
	struct update made[] = { { 7, VALUE_LR, { .lr = 0.3 } },
				 { 8, VALUE_LR, { .lr = 0.4 } },
				 { 0, VALUE_LR, { .lr = 0.5 } } };
	struct commit before = {
		.window = 6, .applied_step = 5, .outcome = OUTCOME_APPLIED, .next = *coord_carry(coord)
	};
	coord_free(coord);
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 1, 1, NULL, &ports), ST_OK);
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(coord_restore_update(coord, &made[i]), ST_OK);
	coord_start_at(coord, 7, 5, &before);
	ck_assert_double_eq(coord_values(coord)->lr, 0.3); /* also before it runs */
	ck_assert_int_eq(update(&made[2]), ST_OK);
	ck_assert_uint_eq(made[2].window, 8);
	ck_assert_uint_eq(coord_updates(coord)->n, 2);
	/* the later of two for one window */
	ck_assert_double_eq(updates_at(coord_updates(coord), *coord_values(coord), 8).lr, 0.5);
}
END_TEST

START_TEST(a_restart_keeps_the_updates)
{
	fill();
	finish();
	fill();
	finish();
	struct commit last = stored; /* of window 1 */
	coord_free(coord);
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 2, 1, NULL, &ports), ST_OK);
	struct update made[] = { { 3, VALUE_LR, { .lr = 0.3 } },
				 { 1, VALUE_LR | VALUE_CLIP_NORM, { .lr = 0.2, .clip_norm = 9 } } };
	for (int i = 0; i < 2; i++)
		ck_assert_int_eq(coord_restore_update(coord, &made[i]), ST_OK);
	coord_restore(coord, &last);
	node.incarnation = 2;
	tell();
	ck_assert_uint_eq(coord_window(coord), 2);
	ck_assert_double_eq(coord_values(coord)->lr, 0.2);
	ck_assert_double_eq(coord_values(coord)->clip_norm, 9);
	ck_assert_uint_eq(coord_updates(coord)->n, 1);
}
END_TEST

START_TEST(norms_are_asked_of_one_window)
{
	norms_window = UINT64_MAX;
	fill();
	finish();
	ck_assert(!order.norms && norms_window == UINT64_MAX);
	ck_assert_int_eq(coord_want_norms(coord), ST_OK);
	fill();
	finish();
	ck_assert_uint_eq(norms_window, 1);
	fill();
	finish(); /* and not again */
	ck_assert_uint_eq(stored.window, 2);
	ck_assert_uint_eq(norms_window, 1);
}
END_TEST

/* Durable with the next window: after a restart the history has it. */
START_TEST(a_commit_carries_the_digest_before_it)
{
	node.params_digest = 77;
	fill();
	finish();
	ck_assert_uint_eq(stored.window, 0);
	ck_assert_uint_eq(stored.params_before, 77);
}
END_TEST

/* The specification's learning rate is in order; one that a push gave, times a group's factor, is not. */
START_TEST(a_learning_rate_that_overflows_in_a_group_ends_the_job)
{
	char pattern[] = "*";
	struct spec_group group = { .pattern = pattern, .values = { .lr_scale = 4 } };
	spec.group = &group;
	spec.n_groups = 1;
	node.lr = _i ? 1e38 : 8e37;
	fill();
	finish();
	if (_i)
		ck_assert_str_eq(end_reason, "INVALID_SPEC: window 0 cannot be applied: lr of param_groups[0] is out "
					     "of the range of f32 in step 1 "
					     "(lr 1e+38, lr_scale 4, weight_decay 0)");
	else
		ck_assert_uint_eq(coord_window(coord), 1);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("coord");
	TCase *c = tcase_create("coord");
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, a_held_window_fills_but_does_not_close);
	tcase_add_test(c, a_window_that_is_closing_commits_first);
	tcase_add_loop_test(c, two_nodes_are_closed_before_they_vote, 0, 2);
	tcase_add_loop_test(c, two_nodes_give_a_window_one_learning_rate, 0, 2);
	tcase_add_test(c, a_commit_carries_the_digest_before_it);
	tcase_add_loop_test(c, a_learning_rate_that_overflows_in_a_group_ends_the_job, 0, 2);
	tcase_add_loop_test(c, a_skipped_step_names_who_sent_what_is_not_finite, 0, 2);
	tcase_add_loop_test(c, ranks_that_have_left_leave_what_they_gave, 0, 2);
	tcase_add_loop_test(c, a_void_micro_batch_of_a_window_not_open_yet_ends_the_job, 0, 2);
	tcase_add_loop_test(c, void_micro_batches_are_not_missing, 0, 4);
	tcase_add_test(c, a_node_that_is_ahead_is_heard_when_its_window_opens);
	tcase_add_test(c, an_update_holds_from_exactly_its_window);
	tcase_add_test(c, a_window_that_has_begun_is_refused);
	tcase_add_test(c, a_restart_keeps_the_updates);
	tcase_add_test(c, a_start_from_a_checkpoint_has_its_updates);
	tcase_add_test(c, norms_are_asked_of_one_window);
	suite_add_tcase(s, c);
	return s;
}

Suite *late_suite(void);  /* test_coord_late.c */
Suite *armed_suite(void); /* test_coord_armed.c */

int main(void)
{
	return suite_run(suite(), late_suite(), armed_suite());
}
