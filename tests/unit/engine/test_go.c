/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of engine/go.h, row by row. */
#include "engine/go.h"

#include <check.h>

Suite *go_suite(void);

/* Window 5 is open; term 3 is the highest that was seen. */
static struct control_record record;
static struct go_armed armed;
static struct engine_command go;

static void setup(void)
{
	record = (struct control_record){ .window = 5, .term = 3, .count = 4, .phase = WINDOW_OPEN };
	armed = (struct go_armed){ 0 };
	go = (struct engine_command){ .op = ENGINE_GO, .window = 5, .term = 3, .attempt = 7, .armed = 1 };
}

static void expect(uint32_t owing, enum go_ruling ruling, enum status st)
{
	const struct go_verdict v = go_judge(&record, &armed, owing, &go);
	ck_assert_int_eq(v.ruling, ruling);
	ck_assert_int_eq(v.status, st);
}

static void arm(uint64_t term, uint64_t attempt)
{
	armed = (struct go_armed){ true, { .window = 5, .term = term, .attempt = attempt, .armed = 1 } };
}

START_TEST(an_armed_go_waits_until_nobody_owes)
{
	expect(1, GO_WAITS, ST_OK);
	expect(0, GO_VOTES, ST_OK);
	record.count = 0; /* gaccd decides */
	expect(0, GO_WAITS, ST_OK);
	go.close = 1;
	expect(1, GO_VOTES, ST_OK);
	go.close = go.armed = 0;
	expect(0, GO_REFUSED, ST_NOT_READY);
}
END_TEST

START_TEST(in_a_frozen_window_it_votes)
{
	record.phase = WINDOW_CLOSED;
	expect(1, GO_VOTES, ST_OK);
	go.armed = 0;
	expect(1, GO_VOTES, ST_OK);
	record.phase = WINDOW_PREPARED;
	record.prepared_term = 3;
	record.prepared_attempt = 7;
	expect(1, GO_VOTES, ST_OK);
	record.prepared_attempt = 8;
	expect(1, GO_REFUSED, ST_STALE_ATTEMPT);
	go.term = 4; /* whose attempts are numbered anew */
	expect(1, GO_VOTES, ST_OK);
}
END_TEST

START_TEST(what_is_old_is_refused)
{
	go.window = 4;
	expect(1, GO_REFUSED, ST_WINDOW_CLOSED);
	go.window = 6;
	expect(1, GO_REFUSED, ST_NOT_CURRENT_WINDOW);
	go.window = 5;
	go.term = 2;
	expect(1, GO_REFUSED, ST_STALE_TERM);
	go.close = 1;
	expect(1, GO_REFUSED, ST_STALE_TERM);
}
END_TEST

/* The armed one is as good as a vote. */
START_TEST(what_is_older_than_the_armed_one_is_refused)
{
	arm(4, 7);
	expect(1, GO_REFUSED, ST_STALE_TERM);
	go.term = 4;
	expect(1, GO_WAITS, ST_OK); /* the same again */
	go.attempt = 6;
	expect(1, GO_REFUSED, ST_STALE_ATTEMPT);
	go.close = 1;
	expect(1, GO_REFUSED, ST_STALE_ATTEMPT);
	go.close = go.armed = 0;
	go.attempt = 8;
	expect(1, GO_REFUSED, ST_NOT_READY);
	go.term = 5;
	go.attempt = 1;
	go.armed = 1;
	expect(1, GO_WAITS, ST_OK);
	armed.waits = false; /* it is gone, and was never in the record */
	go.term = 3;
	expect(1, GO_WAITS, ST_OK);
}
END_TEST

START_TEST(it_is_due_when_its_window_is_complete)
{
	ck_assert(!go_is_due(&record, &armed, 0));
	arm(3, 7);
	ck_assert(go_is_due(&record, &armed, 0));
	ck_assert(!go_is_due(&record, &armed, 1));
	record.count = 0;
	ck_assert(!go_is_due(&record, &armed, 0));
	record.count = 4;
	record.phase = WINDOW_CLOSED;
	ck_assert(!go_is_due(&record, &armed, 0));
	record.phase = WINDOW_OPEN;
	record.window = 6;
	ck_assert(!go_is_due(&record, &armed, 0));
}
END_TEST

/* ---- of several parts ---- */

static struct go_sum sum;

static void setup_sum(void)
{
	setup();
	sum = (struct go_sum){ .stage = GO_NONE };
	go.armed = 0;
	go.close = 1;
}

static void expect_sum(enum go_comm comm, enum go_ruling ruling, enum status st)
{
	const struct go_verdict v = go_judge_sum(&record, &sum, comm, &go);
	ck_assert_int_eq(v.ruling, ruling);
	ck_assert_int_eq(v.status, st);
}

static void at_hand(enum go_stage stage, uint64_t term, uint64_t attempt)
{
	sum = (struct go_sum){ stage, { .window = 5, .term = term, .attempt = attempt, .close = 1 } };
}

static void prepared(uint64_t term, uint64_t attempt)
{
	record.phase = WINDOW_PREPARED;
	record.term = record.prepared_term = term;
	record.prepared_attempt = attempt;
}

START_TEST(a_go_of_parts_sums_in_its_communicator)
{
	expect_sum(GO_COMM_FREE, GO_SUMS, ST_OK);
	expect_sum(GO_COMM_FORMS, GO_SUMS, ST_OK);
	expect_sum(GO_COMM_UNTOLD, GO_REFUSED, ST_NOT_READY);
	expect_sum(GO_COMM_FILLS, GO_REFUSED, ST_NOT_READY);
	expect_sum(GO_COMM_OVER, GO_REFUSED, ST_UNAVAILABLE);
	record.client_pending = 1; /* which the sum would overwrite */
	expect_sum(GO_COMM_FREE, GO_REFUSED, ST_NOT_READY);
	record.client_pending = 0;
	record.phase = WINDOW_CLOSED;
	go.close = 0;
	expect_sum(GO_COMM_FREE, GO_SUMS, ST_OK);
	record.phase = WINDOW_OPEN;
	expect_sum(GO_COMM_FREE, GO_REFUSED, ST_NOT_READY);
	go.armed = 1;
	expect_sum(GO_COMM_FREE, GO_REFUSED, ST_INVALID_ARGUMENT);
}
END_TEST

/* A part of a sharded job that lacks others' shares. */
START_TEST(a_go_of_parts_waits_for_the_window_before)
{
	record.phase = WINDOW_APPLYING;
	expect_sum(GO_COMM_FREE, GO_REFUSED, ST_NOT_READY);
	go.attempt = 8;
	expect_sum(GO_COMM_OVER, GO_REFUSED, ST_NOT_READY);
}
END_TEST

START_TEST(an_old_go_of_parts_is_refused)
{
	go.window = 4;
	expect_sum(GO_COMM_FREE, GO_REFUSED, ST_WINDOW_CLOSED);
	go.window = 6;
	expect_sum(GO_COMM_FREE, GO_REFUSED, ST_NOT_CURRENT_WINDOW);
	go.window = 5;
	go.term = 2;
	expect_sum(GO_COMM_FREE, GO_REFUSED, ST_STALE_TERM);
	go.term = 3;
	at_hand(GO_ADDS, 4, 1);
	expect_sum(GO_COMM_FREE, GO_REFUSED, ST_STALE_TERM);
	at_hand(GO_CONNECTS, 3, 8);
	expect_sum(GO_COMM_FREE, GO_REFUSED, ST_STALE_ATTEMPT);
	ck_assert(!go_supersedes(&record, &sum, &go));
	at_hand(GO_NONE, 0, 0);
	prepared(3, 8);
	expect_sum(GO_COMM_FREE, GO_REFUSED, ST_STALE_ATTEMPT);
}
END_TEST

/* The vote is in the record: a life that is in no communicator gives it. */
START_TEST(the_vote_that_was_given_is_given_again)
{
	prepared(3, 7);
	expect_sum(GO_COMM_UNTOLD, GO_VOTES, ST_OK);
	expect_sum(GO_COMM_OVER, GO_VOTES, ST_OK);
	go.attempt = 8;
	expect_sum(GO_COMM_OVER, GO_REFUSED, ST_UNAVAILABLE);
	expect_sum(GO_COMM_FREE, GO_SUMS, ST_OK);
	go.term = 4;
	go.attempt = 7;
	expect_sum(GO_COMM_FREE, GO_SUMS, ST_OK);
}
END_TEST

START_TEST(a_later_attempt_replaces_the_one_at_hand)
{
	at_hand(GO_ADDS, 3, 7);
	expect_sum(GO_COMM_OVER, GO_JOINS, ST_OK);
	ck_assert(!go_supersedes(&record, &sum, &go));
	go.attempt = 8;
	ck_assert(go_supersedes(&record, &sum, &go));
	go.window = 6; /* of which it is no attempt */
	ck_assert(!go_supersedes(&record, &sum, &go));
	go.window = 5;
	go.armed = 1;
	ck_assert(!go_supersedes(&record, &sum, &go));
	go.armed = 0;
	go.term = 4;
	go.attempt = 1;
	ck_assert(go_supersedes(&record, &sum, &go));
	sum.stage = GO_NONE;
	ck_assert(!go_supersedes(&record, &sum, &go));
}
END_TEST

Suite *go_suite(void)
{
	Suite *s = suite_create("go");
	TCase *c = tcase_create("go");
	tcase_add_checked_fixture(c, setup, NULL);
	tcase_add_test(c, an_armed_go_waits_until_nobody_owes);
	tcase_add_test(c, in_a_frozen_window_it_votes);
	tcase_add_test(c, what_is_old_is_refused);
	tcase_add_test(c, what_is_older_than_the_armed_one_is_refused);
	tcase_add_test(c, it_is_due_when_its_window_is_complete);
	suite_add_tcase(s, c);
	c = tcase_create("go of parts");
	tcase_add_checked_fixture(c, setup_sum, NULL);
	tcase_add_test(c, a_go_of_parts_sums_in_its_communicator);
	tcase_add_test(c, a_go_of_parts_waits_for_the_window_before);
	tcase_add_test(c, an_old_go_of_parts_is_refused);
	tcase_add_test(c, the_vote_that_was_given_is_given_again);
	tcase_add_test(c, a_later_attempt_replaces_the_one_at_hand);
	suite_add_tcase(s, c);
	return s;
}
