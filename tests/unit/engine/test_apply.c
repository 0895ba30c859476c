/* SPDX-License-Identifier: Apache-2.0 */
/* The table of engine/apply.h, row by row. */
#include "engine/apply.h"

#include <check.h>

Suite *apply_suite(void);

/* COMMIT of attempt 7 of window 5, in communicator 9 of a later coordinator; the record is APPLYING it. */
static struct control_record record;
static struct apply_at_hand at_hand;
static struct apply_gathered gathered;
static struct engine_command commit;

static void setup(void)
{
	record = (struct control_record){
		.window = 5, .phase = WINDOW_APPLYING, .commit_window = 5, .commit_term = 3, .commit_attempt = 7
	};
	at_hand = (struct apply_at_hand){ 0 };
	gathered = (struct apply_gathered){ 0 };
	commit = (struct engine_command){
		.op = ENGINE_COMMIT, .window = 5, .term = 3, .attempt = 7, .comm_term = 4, .comm = 9
	};
}

static void expect(enum go_comm comm, enum apply_ruling ruling, enum status st)
{
	const struct apply_verdict v = apply_judge(&record, &at_hand, &gathered, comm, &commit);
	ck_assert_int_eq(v.ruling, ruling);
	ck_assert_int_eq(v.status, st);
}

static void expect_by_comm(enum apply_ruling usable)
{
	expect(GO_COMM_FREE, usable, ST_OK);
	expect(GO_COMM_FORMS, usable, ST_OK);
	expect(GO_COMM_FILLS, APPLY_REFUSED, ST_NOT_READY);
	expect(GO_COMM_UNTOLD, APPLY_REFUSED, ST_NOT_READY);
	expect(GO_COMM_OVER, APPLY_REFUSED, ST_UNAVAILABLE);
	at_hand = (struct apply_at_hand){ APPLY_GATHERS, commit };
	expect(GO_COMM_FILLS, APPLY_JOINS, ST_OK);
	at_hand.command.comm = 8; /* what is at hand is of another one */
	expect(GO_COMM_FREE, usable, ST_OK);
	at_hand.command = commit;
	at_hand.command.comm_term = 3;
	expect(GO_COMM_FREE, usable, ST_OK);
	at_hand.command = commit;
	at_hand.command.window = 4;
	expect(GO_COMM_FILLS, APPLY_REFUSED, ST_NOT_READY);
	at_hand.stage = APPLY_NONE;
}

START_TEST(what_is_recorded_goes_on)
{
	expect_by_comm(APPLY_GOES_ON);
	commit.comm = 0;
	expect(GO_COMM_OVER, APPLY_REFUSED, ST_NOT_READY);
}
END_TEST

START_TEST(another_commit_does_not_disturb_it)
{
	commit.attempt = 8;
	expect(GO_COMM_FREE, APPLY_REFUSED, ST_STALE_ATTEMPT);
	commit.attempt = 7;
	commit.term = 4;
	expect(GO_COMM_FREE, APPLY_REFUSED, ST_STALE_ATTEMPT);
	commit.term = 3;
	commit.window = 4;
	expect(GO_COMM_FREE, APPLY_REFUSED, ST_WINDOW_CLOSED);
	commit.window = 6;
	expect(GO_COMM_FREE, APPLY_REFUSED, ST_NOT_CURRENT_WINDOW);
}
END_TEST

/* The next window is open. */
START_TEST(what_was_applied_last_is_served_once_in_each_communicator)
{
	record.phase = WINDOW_OPEN;
	record.window = 6;
	expect_by_comm(APPLY_SERVES);
	gathered = (struct apply_gathered){ 4, 9, 5 };
	expect(GO_COMM_FREE, APPLY_DONE, ST_OK);
	gathered.window = 4; /* the same communicator, a window before */
	expect(GO_COMM_FREE, APPLY_SERVES, ST_OK);
	gathered = (struct apply_gathered){ 4, 8, 5 };
	expect(GO_COMM_FREE, APPLY_SERVES, ST_OK);
	gathered = (struct apply_gathered){ 3, 9, 5 };
	expect(GO_COMM_FREE, APPLY_SERVES, ST_OK);
	commit.comm = 0;
	expect(GO_COMM_OVER, APPLY_DONE, ST_OK);
}
END_TEST

START_TEST(everything_else_is_new)
{
	record.phase = WINDOW_OPEN;
	record.window = 6;
	commit.attempt = 8;
	expect(GO_COMM_FREE, APPLY_IS_NEW, ST_OK);
	commit.attempt = 7;
	commit.window = 6;
	expect(GO_COMM_FREE, APPLY_IS_NEW, ST_OK);
	record.phase = WINDOW_PREPARED;
	expect(GO_COMM_OVER, APPLY_IS_NEW, ST_OK);
	record.window = 7; /* what the record remembers is older than what was applied last */
	commit.window = 5;
	expect(GO_COMM_FREE, APPLY_IS_NEW, ST_OK);
}
END_TEST

Suite *apply_suite(void)
{
	Suite *s = suite_create("apply");
	TCase *t = tcase_create("apply");
	tcase_add_checked_fixture(t, setup, NULL);
	tcase_add_test(t, what_is_recorded_goes_on);
	tcase_add_test(t, another_commit_does_not_disturb_it);
	tcase_add_test(t, what_was_applied_last_is_served_once_in_each_communicator);
	tcase_add_test(t, everything_else_is_new);
	suite_add_tcase(s, t);
	return s;
}
