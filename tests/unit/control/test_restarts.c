/* SPDX-License-Identifier: Apache-2.0 */
#include "control/restarts.h"

#include "support/suite.h"

#include <check.h>
#include <string.h>

#define MS INT64_C(1000000)
#define PATIENCE (INT64_C(600000) * MS)

static struct restarts r;
static struct now now;
static struct control_record record;

static void come_up(void)
{
	restarts_on_hello(&r, &record, now);
}

static void answer(enum engine_op op, enum push_result result, enum status st)
{
	struct engine_answer a = { .op = op, .result = result, .status = st };
	restarts_on_answer(&r, &a);
}

static void count_one(void)
{
	answer(ENGINE_ADD, PUSH_COUNTED, ST_OK);
}

static void setup(void)
{
	r = (struct restarts){ .patient = false };
	now = (struct now){ 1000 * MS, 5000 };
	record = (struct control_record){ .window = 7, .count = 3, .params_ready = 1 };
	come_up(); /* what the record holds by now is nothing new */
	r.up = r.patient = false;
}

static enum restarts_verdict break_down(const char *cause)
{
	return restarts_on_failure(&r, cause, false, PATIENCE, now);
}

static enum restarts_verdict kill_it(void)
{
	return restarts_on_failure(&r, "killed", true, PATIENCE, now);
}

/* Waits until a start is due; how long that was, in ms. */
static int64_t wait_due(void)
{
	int64_t from = now.mono_ns;
	ck_assert_int_ne(r.due_ns, 0);
	now.mono_ns = r.due_ns - 1;
	ck_assert(!restarts_due(&r, now));
	now.mono_ns++;
	ck_assert(restarts_due(&r, now));
	ck_assert(!restarts_due(&r, now));
	return (now.mono_ns - from) / MS;
}

START_TEST(nothing_is_due_before_the_first_death)
{
	ck_assert(!restarts_due(&r, now));
	come_up();
	now.mono_ns += 1000 * PATIENCE;
	ck_assert(!restarts_due(&r, now) && !restarts_in_trouble(&r) && !restarts_recovered(&r, now));
}
END_TEST

START_TEST(a_job_with_nothing_to_lose_ends_after_a_row)
{
	static const int64_t pauses[] = { 20, 40, 80, 160 };
	for (int i = 0; i < RESTARTS_ROW - 1; i++) {
		ck_assert_int_eq(break_down("no room"), i ? RESTARTS_AS_BEFORE : RESTARTS_NEWS);
		ck_assert_int_eq(wait_due(), pauses[i]);
		ck_assert(!restarts_in_trouble(&r));
	}
	ck_assert_int_eq(break_down("no room"), RESTARTS_GIVE_UP);
	ck_assert_str_eq(r.cause, "no room");
	now.mono_ns += PATIENCE;
	ck_assert(!restarts_due(&r, now));
}
END_TEST

START_TEST(a_job_with_something_to_lose_waits)
{
	int64_t from = now.mono_ns;
	uint32_t tries = 1;
	r.patient = true;
	ck_assert_int_eq(break_down("no room"), RESTARTS_NEWS);
	for (enum restarts_verdict v = RESTARTS_AS_BEFORE; v == RESTARTS_AS_BEFORE; tries++) {
		ck_assert_int_le(wait_due(), RESTARTS_MAX_NS / MS);
		ck_assert_int_eq(restarts_in_trouble(&r), tries >= RESTARTS_ROW);
		v = break_down("no room");
		if (v != RESTARTS_AS_BEFORE)
			ck_assert_int_eq(v, RESTARTS_GIVE_UP);
	}
	ck_assert_int_ge(now.mono_ns - from, PATIENCE);
	ck_assert_int_lt(now.mono_ns - from, PATIENCE + RESTARTS_MAX_NS);
	ck_assert_uint_lt(tries, 80);
}
END_TEST

START_TEST(a_hello_makes_patient)
{
	come_up();
	for (int i = 0; i < 3 * RESTARTS_ROW; i++) {
		ck_assert_int_ne(break_down("crash"), RESTARTS_GIVE_UP);
		wait_due();
	}
}
END_TEST

START_TEST(each_new_cause_is_news)
{
	r.patient = true;
	ck_assert_int_eq(break_down("a"), RESTARTS_NEWS);
	ck_assert_int_eq(break_down("b"), RESTARTS_NEWS);
	ck_assert_int_eq(break_down("b"), RESTARTS_AS_BEFORE);
	ck_assert_int_eq(break_down("a"), RESTARTS_NEWS);
	char longer[400];
	memset(longer, 'x', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = '\0';
	ck_assert_int_eq(break_down(longer), RESTARTS_NEWS);
	ck_assert_int_eq(break_down(longer), RESTARTS_AS_BEFORE);
}
END_TEST

START_TEST(a_move_ends_the_row)
{
	for (int i = 0; i < 100; i++) {
		for (int k = 0; k < RESTARTS_ROW - 1; k++)
			ck_assert_int_eq(break_down("crash"), k ? RESTARTS_AS_BEFORE : RESTARTS_NEWS);
		ck_assert_int_gt(wait_due(), 100);
		come_up();
		count_one();
	}
	ck_assert_int_eq(break_down("crash"), RESTARTS_NEWS);
	ck_assert_int_eq(wait_due(), 20);
}
END_TEST

START_TEST(a_steady_life_ends_the_row)
{
	break_down("crash");
	come_up();
	now.mono_ns += RESTARTS_STEADY_NS - 1;
	ck_assert_int_eq(break_down("crash"), RESTARTS_NEWS); /* it was up, if for no use */
	ck_assert_uint_eq(r.failures, 2);
	ck_assert_int_eq(break_down("crash"), RESTARTS_AS_BEFORE);
	come_up();
	now.mono_ns += RESTARTS_STEADY_NS;
	ck_assert_int_eq(break_down("crash"), RESTARTS_NEWS);
	ck_assert_uint_eq(r.failures, 1);
}
END_TEST

/* The life before counts, not an answer of one long ago. */
START_TEST(a_hello_alone_is_no_use)
{
	come_up();
	count_one();
	for (int i = 0; i < RESTARTS_ROW; i++) {
		break_down("crash");
		come_up();
		ck_assert(!restarts_recovered(&r, now));
	}
	ck_assert(restarts_in_trouble(&r));
	count_one();
	ck_assert(restarts_recovered(&r, now));
	ck_assert(!restarts_recovered(&r, now));
	ck_assert(!restarts_in_trouble(&r));
}
END_TEST

/* Answers that any number of lives can give. */
static void answer_in_vain(void)
{
	static const enum engine_op ops[] = { ENGINE_START, ENGINE_ATTACH,     ENGINE_FLUSH,	 ENGINE_CLOSE,
					      ENGINE_GO,    ENGINE_PUT_PARAMS, ENGINE_CHECKPOINT };
	for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++)
		answer(ops[i], 0, ST_OK);
	answer(ENGINE_ADD, PUSH_DUPLICATE, ST_OK);
	answer(ENGINE_ADD, PUSH_ALREADY_COMMITTED, ST_OK);
	answer(ENGINE_ADD, 0, ST_WINDOW_CLOSED);
	answer(ENGINE_COMMIT, 0, ST_NOT_READY);
}

/* A crash in every GO, with whatever each engine has answered before. */
START_TEST(a_crash_loop_comes_to_an_end)
{
	int64_t from = now.mono_ns;
	uint32_t lives = 0;
	for (enum restarts_verdict v = RESTARTS_NEWS; v != RESTARTS_GIVE_UP; lives++) {
		come_up();
		answer_in_vain();
		now.mono_ns += 100 * MS;
		v = break_down("killed by signal 11");
		ck_assert_int_ne(v, RESTARTS_AS_BEFORE);
		if (v == RESTARTS_NEWS)
			ck_assert_int_eq(wait_due(), lives < 9 ? 20 << lives : RESTARTS_MAX_NS / MS);
	}
	ck_assert_int_lt(now.mono_ns - from, PATIENCE + RESTARTS_MAX_NS + 200 * MS);
	ck_assert_uint_eq(r.failures, lives);
	ck_assert_uint_lt(lives, 80);
	ck_assert(r.had_come_up);
}
END_TEST

START_TEST(what_moves_goes_on)
{
	static const struct {
		enum engine_op op;
		enum push_result result;
	} moves[] = { { ENGINE_ADD, PUSH_COUNTED }, { ENGINE_ADD, PUSH_VOID }, { ENGINE_COMMIT, 0 } };
	for (int i = 0; i < 300; i++) {
		come_up();
		answer(moves[i % 3].op, moves[i % 3].result, ST_OK);
		now.mono_ns += PATIENCE;
		ck_assert_int_eq(break_down("crash"), RESTARTS_NEWS);
		ck_assert_int_eq(wait_due(), 20);
	}
}
END_TEST

/* It had died between the record and the answer. */
START_TEST(what_was_not_told_is_found)
{
	for (int i = 0; i < 3; i++) {
		setup();
		r.params_ready = i != 2;
		for (int k = 0; k < RESTARTS_ROW; k++)
			break_down("crash");
		record.window += i == 0;
		record.count += i == 1;
		come_up();
		ck_assert_uint_eq(r.failures, 0);
		break_down("crash");
		come_up();
		ck_assert_uint_eq(r.failures, 1);
	}
	/* a new window begins with nothing */
	record = (struct control_record){ .window = record.window + 1, .params_ready = 1 };
	come_up();
	ck_assert_uint_eq(r.failures, 0);
}
END_TEST

START_TEST(one_crash_an_hour_never_adds_up)
{
	for (int i = 0; i < 10000; i++) {
		come_up();
		answer_in_vain();
		now.mono_ns += INT64_C(3600000) * MS;
		ck_assert_int_eq(break_down("crash"), RESTARTS_NEWS);
		ck_assert_int_eq(wait_due(), 20);
	}
}
END_TEST

/* It is said that the engine is back, but the row goes on until it has been of use. */
START_TEST(to_be_back_is_not_to_be_of_use)
{
	r.patient = true;
	for (int i = 0; i < RESTARTS_ROW; i++)
		break_down("crash");
	for (uint32_t i = 1; i < 20; i++) {
		come_up();
		now.mono_ns += RESTARTS_BACK_NS - 1;
		ck_assert(!restarts_recovered(&r, now));
		now.mono_ns++;
		ck_assert(restarts_recovered(&r, now));
		ck_assert(!restarts_recovered(&r, now));
		break_down("crash");
		ck_assert(restarts_in_trouble(&r));
		ck_assert_uint_eq(r.failures, RESTARTS_ROW + i);
	}
	come_up();
	now.mono_ns += RESTARTS_STEADY_NS;
	ck_assert(restarts_recovered(&r, now));
	ck_assert(!restarts_in_trouble(&r));
}
END_TEST

START_TEST(who_is_killed_is_not_to_blame)
{
	for (int i = 0; i < 3 * RESTARTS_ROW; i++) {
		ck_assert_int_ne(kill_it(), RESTARTS_GIVE_UP);
		wait_due();
	}
	for (int i = 0; i < RESTARTS_ROW - 1; i++)
		ck_assert_int_ne(break_down("crash"), RESTARTS_GIVE_UP);
	ck_assert_int_eq(break_down("crash"), RESTARTS_GIVE_UP);
	setup();
	kill_it();
	now.mono_ns += PATIENCE;
	for (int i = 0; i < RESTARTS_ROW - 2; i++)
		ck_assert_int_ne(kill_it(), RESTARTS_GIVE_UP); /* too few, however old */
	ck_assert_int_eq(kill_it(), RESTARTS_GIVE_UP);
}
END_TEST

START_TEST(the_time_of_a_pause_does_not_count)
{
	r.patient = true;
	for (int i = 0; i < 10 * RESTARTS_ROW; i++) {
		now.mono_ns += PATIENCE;
		restarts_excuse(&r, now);
		ck_assert_int_ne(break_down("no room"), RESTARTS_GIVE_UP);
	}
	now.mono_ns += PATIENCE;
	ck_assert_int_eq(break_down("no room"), RESTARTS_GIVE_UP);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("restarts");
	TCase *c = tcase_create("restarts");
	tcase_add_checked_fixture(c, setup, NULL);
	suite_add_tcase(s, c);
	tcase_add_test(c, nothing_is_due_before_the_first_death);
	tcase_add_test(c, a_job_with_nothing_to_lose_ends_after_a_row);
	tcase_add_test(c, a_job_with_something_to_lose_waits);
	tcase_add_test(c, a_hello_makes_patient);
	tcase_add_test(c, each_new_cause_is_news);
	tcase_add_test(c, a_move_ends_the_row);
	tcase_add_test(c, a_steady_life_ends_the_row);
	tcase_add_test(c, a_hello_alone_is_no_use);
	tcase_add_test(c, a_crash_loop_comes_to_an_end);
	tcase_add_test(c, what_moves_goes_on);
	tcase_add_test(c, what_was_not_told_is_found);
	tcase_add_test(c, one_crash_an_hour_never_adds_up);
	tcase_add_test(c, to_be_back_is_not_to_be_of_use);
	tcase_add_test(c, who_is_killed_is_not_to_blame);
	tcase_add_test(c, the_time_of_a_pause_does_not_count);
	return suite_run(s);
}
