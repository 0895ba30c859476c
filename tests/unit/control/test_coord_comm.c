/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators at the coordinator: three fake nodes whose engines are born, say their addresses, join and die, row by
 * row of the table in control/coord_impl.h. */
#include "coord_comm_rig.h"

#include "engine/control_page.h"

#include <check.h>
#include <string.h>

/* ---- the start ---- */

START_TEST(one_is_formed_when_all_engines_are_there)
{
	open_coord();
	for (uint32_t i = 0; i < D; i++) {
		ck_assert_uint_eq(order[0].comm, 0);
		node[i].life = 0; /* it has memory, but no engine */
		node[i].start = START_ALLOCATED;
		tell(i);
		ck_assert_uint_eq(order[0].comm, 0);
		node[i].life = 100 + i;
		tell(i);
	}
	for (uint32_t i = 0; i < D; i++) {
		ck_assert(order[i].comm == 1 && order[i].want == WANT_NOTHING && !order[i].run);
		ck_assert(order[i].join_ms == STALL / 1000000 && !order[i].fill_part);
	}
	ck_assert_uint_eq(n_boards[0], 0);
}
END_TEST

START_TEST(the_board_goes_to_all_when_it_is_complete)
{
	form();
	for (uint32_t i = D; i-- > 0;) {
		for (uint32_t k = 0; k < D; k++)
			ck_assert_uint_eq(n_boards[k], 0);
		ck_assert_int_eq(say(i), ST_OK);
		if (i)
			ck_assert_int_eq(say(i), ST_OK); /* repeated */
	}
	for (uint32_t i = 0; i < D; i++) {
		ck_assert_uint_eq(n_boards[i], 1);
		ck_assert(board.job_id == 1 && board.epoch == 1 && board.term == 5 && board.comm == 1);
		ck_assert(board.n_parts == D && lives[i] == 100 + i && !strcmp(bytes[i], blob_of(i)));
	}
	ck_assert_int_eq(say(1), ST_OK); /* it has not come there */
	ck_assert(n_boards[0] == 1 && n_boards[1] == 2 && n_boards[2] == 1);
}
END_TEST

#define expect_refused(field, as, st)                                                                                  \
	do {                                                                                                           \
		struct part_blob b = blob(0);                                                                          \
		b.field = as;                                                                                          \
		ck_assert_int_eq(coord_on_blob(coord, &b, now), st);                                                   \
	} while (0)

START_TEST(addresses_of_something_else_are_refused)
{
	form();
	expect_refused(job_id, 2, ST_STALE_ATTEMPT);
	expect_refused(epoch, 2, ST_STALE_ATTEMPT);
	expect_refused(term, 4, ST_STALE_ATTEMPT);
	expect_refused(comm, 2, ST_STALE_ATTEMPT);
	expect_refused(comm, 0, ST_STALE_ATTEMPT);
	expect_refused(part, D, ST_INVALID_ARGUMENT);
	expect_refused(n, 0, ST_INVALID_ARGUMENT);
	expect_refused(life, 7, ST_NOT_READY);
	node[0].life = 7; /* the report was behind */
	tell(0);
	expect_refused(life, 100, ST_NOT_READY); /* this engine is gone */
	ck_assert_int_eq(say(0), ST_OK);
	expect_refused(n, 7, ST_MALFORMED);
	ck_assert_int_eq(say(1), ST_OK);
	ck_assert_uint_eq(n_boards[0], 0);
	ck_assert_int_eq(say(2), ST_OK);
	ck_assert(n_boards[0] == 1 && lives[0] == 7);
	ck_assert_str_eq(last_event, "");
}
END_TEST

START_TEST(it_runs_when_all_have_joined_with_equal_parameters)
{
	form();
	for (uint32_t i = 0; i < D; i++) {
		node[i].start = START_PARAMS;
		node[i].params_digest = 9;
		tell(i);
	}
	say_all();
	for (uint32_t i = 0; i < D; i++) {
		ck_assert(!order[0].run);
		node[i].comm = 1;
		tell(i); /* as of an earlier coordinator's communicator 1 */
		ck_assert(!order[0].run);
		node[i].term = 5;
		tell(i);
	}
	ck_assert_int_eq(coord_phase(coord), COORD_COLLECT);
	ck_assert(order[0].run && order[0].comm == 1 && !order[0].fill_part);
}
END_TEST

/* What failed, when, and what is formed then. */
static void expect_next(uint64_t k, int64_t pause, const char *why)
{
	ck_assert_str_eq(last_event, "AttemptFailed");
	ck_assert_msg(strstr(last_text, why), "%s", last_text);
	ck_assert_uint_eq(order[0].comm, 0);
	tick(pause - 1);
	ck_assert_uint_eq(order[0].comm, 0);
	tick(1);
	ck_assert(order[0].comm == k && order[D - 1].comm == k && !order[0].fill_part);
}

START_TEST(an_engine_that_dies_before_its_address_costs_nothing)
{
	form();
	say(0);
	node[1].life = 0;
	tell(1);
	node[1].life = 201;
	tell(1);
	say(1);
	say(2);
	ck_assert(n_boards[1] == 1 && lives[1] == 201 && order[0].comm == 1);
	ck_assert_str_eq(last_event, "");
}
END_TEST

/* One whose address is on the board; 0: the board is not complete, 1: it is. */
START_TEST(another_life_needs_another_communicator)
{
	form();
	say(0);
	say(1);
	if (_i)
		say(2);
	node[1].life = 0; /* it is down: nobody knows for how long */
	tell(1);
	ck_assert_uint_eq(order[0].comm, 1);
	node[1].life = 201;
	tell(1);
	expect_next(2, SECOND / 10, "attempt 1 to start together failed: the engine of part 1 was restarted");
	ck_assert_int_eq(say(0), ST_OK);
	node[0].life = 200;
	tell(0);
	expect_next(3, SECOND / 10, "attempt 2 to start together failed: the engine of part 0 was restarted");
	ck_assert_int_eq(say(0), ST_OK);
	node[0].life = 300;
	tell(0);
	expect_next(4, SECOND / 5, "attempt 3");
	memset(n_boards, 0, sizeof(n_boards));
	say_all();
	ck_assert(n_boards[0] == 1 && lives[0] == 300 && lives[1] == 201);
}
END_TEST

#define OTHER_BUILD "node b has gloo/1 between engines, and node a, which has part 0, gloo/2: upgrade the older"

/* While a node waits for its upgrade, for as long as that takes; also with all addresses on the board. */
START_TEST(engines_of_other_builds_do_not_meet)
{
	const char *reason = "";
	form();
	coord_part_unlike(coord, 1, OTHER_BUILD, now);
	say_all();
	for (int i = 0; i < 5; i++)
		tick(spec.stall_abort_ns);
	coord_state(coord, &reason, NULL);
	ck_assert_str_eq(reason, "part 1: " OTHER_BUILD);
	ck_assert_str_eq(last_event, "NodeAwaited");
	ck_assert(n_boards[0] == 0 && n_boards[2] == 0 && !*end_reason);
	coord_part_unlike(coord, 1, "", now);
	ck_assert_uint_eq(n_boards[0], 0);
	tick(0);
	ck_assert(n_boards[0] == 1 && n_boards[1] == 1 && n_boards[2] == 1 && order[0].comm == 1);
	tick(0);
	ck_assert_uint_eq(n_boards[0], 1);
}
END_TEST

/* A node that has come back with another build: micro-batches are counted, and the attempt waits. */
START_TEST(a_step_waits_for_the_upgrade_of_a_node)
{
	const char *reason = "";
	run();
	memset(n_boards, 0, sizeof(n_boards));
	coord_part_unlike(coord, 2, OTHER_BUILD, now);
	restart(2);
	complete();
	ck_assert_int_eq(coord_phase(coord), COORD_GO);
	say_all();
	for (int i = 0; i < 5; i++)
		tick(spec.stall_abort_ns);
	ck_assert_int_eq(coord_state(coord, &reason, NULL), JOB_STALLED);
	ck_assert_str_eq(reason, "part 2: " OTHER_BUILD);
	ck_assert(n_boards[0] == 0 && n_boards[2] == 0 && !*end_reason);
	coord_part_unlike(coord, 2, "", now);
	tick(0);
	ck_assert(n_boards[0] == 1 && n_boards[2] == 1);
	ck_assert_int_eq(coord_state(coord, &reason, NULL), JOB_RUNNING);
	join_all();
	vote_all();
	apply();
	ck_assert_int_eq(coord_phase(coord), COORD_COLLECT);
}
END_TEST

START_TEST(a_vote_against_it_fails_the_start)
{
	form();
	say_all();
	join_all();
	fail_vote(0, 1, ST_UNAVAILABLE, 2, "part 1 has died");
	expect_next(2, SECOND / 10, "part 0 cannot reach part 1: part 1 has died");
	tell(0); /* of attempt 1 */
	ck_assert_uint_eq(order[0].comm, 2);
	ck_assert_int_eq(say(0), ST_OK);
}
END_TEST

/* ---- parameters ---- */

static void filled(uint32_t i, uint64_t digest)
{
	node[i].term = order[i].term;
	node[i].order = order[i].number;
	params(i, digest);
}

START_TEST(the_first_parameters_go_to_all)
{
	form();
	params(1, 11);
	params(0, 10);
	say_all();
	ck_assert_uint_eq(order[0].fill_part, 0); /* not all have joined */
	join_all();
	for (uint32_t i = 0; i < D; i++)
		ck_assert(order[i].fill_part == 2 && order[i].comm == 1 && !order[i].run);
	params(2, 11);
	params(0, 0); /* they have begun */
	filled(0, 11);
	filled(1, 11);
	ck_assert_int_eq(coord_phase(coord), COORD_START); /* part 2 may be taking them now, and have none */
	filled(2, 11);
	ck_assert_int_eq(coord_phase(coord), COORD_COLLECT);
	ck_assert(order[0].run && order[0].fill_part == 0 && order[0].comm == 1);
	ck_assert_str_eq(last_event, "");
}
END_TEST

START_TEST(a_fill_that_fails_begins_again_from_the_same_part)
{
	form();
	params(1, 11);
	params(0, 10);
	say_all();
	join_all();
	params(0, 0);
	fail_vote(2, 1, ST_UNAVAILABLE, 0, "");
	expect_next(2, SECOND / 10, "part 2: ");
	say_all();
	if (_i) /* the source has lost its own, too */
		params(1, 0);
	params(2, 12);
	join_all();
	ck_assert_uint_eq(order[0].fill_part, _i ? 3 : 2);
	ck_assert_uint_eq(order[0].comm, 2);
}
END_TEST

START_TEST(parameters_that_differ_after_a_fill_end_the_job)
{
	form();
	params(0, 10);
	say_all();
	join_all();
	ck_assert_uint_eq(order[2].fill_part, 1);
	params(1, 11);
	params(2, 10);
	ck_assert_str_eq(end_reason, ""); /* they do not know of the fill: these are their own */
	filled(0, 10);
	filled(1, 11);
	ck_assert_str_eq(end_reason, "");
	filled(2, 10);
	ck_assert_str_eq(end_reason, "CHECKSUM: parts 0 and 1 do not begin with the same parameters: digests "
				     "000000000000000a and 000000000000000b");
}
END_TEST

/* Its trainers would compute with what is not the job's. */
START_TEST(a_job_that_ends_before_it_runs_is_not_run)
{
	form();
	params(0, 10);
	coord_end(coord, ST_CANCELLED, "cancelled", now);
	node[0].incarnation++; /* which asks for an order */
	tell(0);
	ck_assert(!order[0].run);
	coord_on_ended(coord, ST_OK, now);
	ck_assert(order[0].want == WANT_END && !order[0].run);
}
END_TEST

/* From a checkpoint they get more than parameters: each part reads it. */
START_TEST(what_a_checkpoint_gave_is_not_filled)
{
	spec_restores = true;
	form();
	params(0, 10);
	say_all();
	join_all();
	params(1, 10);
	ck_assert_uint_eq(order[0].fill_part, 0);
	params(2, 10 + (uint64_t)_i);
	ck_assert_int_eq(coord_phase(coord), _i ? COORD_ENDING : COORD_COLLECT);
	ck_assert_int_eq(strncmp(end_reason, "CHECKSUM: parts 0 and 2 ", 24) == 0, _i);
}
END_TEST

/* By the rules of init all parts draw the same, unless a rank has given others. */
START_TEST(what_all_parts_draw_is_filled_only_if_it_differs)
{
	spec_inits = true;
	form();
	params(1, 10);
	say_all();
	join_all();
	params(0, 10);
	ck_assert_uint_eq(order[0].fill_part, 0);
	params(2, 10 + (uint64_t)_i);
	ck_assert_uint_eq(order[0].fill_part, _i ? 2 : 0);
	ck_assert_int_eq(coord_phase(coord), _i ? COORD_START : COORD_COLLECT);
}
END_TEST

static void expect_end_of_start(const char *why)
{
	tick(spec.stall_abort_ns);
	ck_assert_msg(strstr(end_reason, why), "%s", end_reason);
}

START_TEST(a_start_that_takes_too_long_names_the_part)
{
	form();
	tick(0); /* time begins */
	if (_i == 0) {
		node[1].start = START_DECLARED;
		strcpy(node[1].start_waits, "its memory and its engine");
		open_coord();
		start_all();
		tick(0);
		params(0, 10);
		expect_end_of_start("part 1 waits for its memory and its engine");
		return;
	}
	say(0);
	if (_i == 1) {
		expect_end_of_start("the engine of part 1 has not said its address for 600 s");
		return;
	}
	say(1), say(2);
	join(0), join(1);
	if (_i == 2) {
		expect_end_of_start("the engine of part 2 has not joined those of the other parts for 600 s");
		return;
	}
	join(2);
	if (_i == 3) {
		expect_end_of_start("no rank gave the initial parameters");
		return;
	}
	params(1, 10);
	expect_end_of_start("part 0 waits for the parameters of part 1");
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("coord_comm");
	TCase *t = tcase_create("coord_comm");
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, one_is_formed_when_all_engines_are_there);
	tcase_add_test(t, the_board_goes_to_all_when_it_is_complete);
	tcase_add_test(t, addresses_of_something_else_are_refused);
	tcase_add_test(t, it_runs_when_all_have_joined_with_equal_parameters);
	tcase_add_test(t, an_engine_that_dies_before_its_address_costs_nothing);
	tcase_add_loop_test(t, another_life_needs_another_communicator, 0, 2);
	tcase_add_test(t, engines_of_other_builds_do_not_meet);
	tcase_add_test(t, a_step_waits_for_the_upgrade_of_a_node);
	tcase_add_test(t, a_vote_against_it_fails_the_start);
	tcase_add_test(t, the_first_parameters_go_to_all);
	tcase_add_loop_test(t, a_fill_that_fails_begins_again_from_the_same_part, 0, 2);
	tcase_add_test(t, parameters_that_differ_after_a_fill_end_the_job);
	tcase_add_test(t, a_job_that_ends_before_it_runs_is_not_run);
	tcase_add_loop_test(t, what_a_checkpoint_gave_is_not_filled, 0, 2);
	tcase_add_loop_test(t, what_all_parts_draw_is_filled_only_if_it_differs, 0, 2);
	tcase_add_loop_test(t, a_start_that_takes_too_long_names_the_part, 0, 5);
	suite_add_tcase(s, t);
	return s;
}

Suite *comm_go_suite(void);	/* test_coord_comm_go.c */
Suite *comm_shards_suite(void); /* test_coord_comm_shards.c */

Suite *coord_slots_suite(void); /* test_coord_slots.c */

int main(void)
{
	return suite_run(suite(), comm_go_suite(), comm_shards_suite(), coord_slots_suite());
}
