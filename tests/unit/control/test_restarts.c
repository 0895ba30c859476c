#include "control/restarts.h"

#include "support/suite.h"

#include <check.h>
#include <string.h>

#define MS INT64_C(1000000)
#define PATIENCE (INT64_C(600000) * MS)

static struct restarts r;
static struct now now;

static void setup(void)
{
	r = (struct restarts){ .patient = false };
	now = (struct now){ 1000 * MS, 5000 };
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
	restarts_on_hello(&r, now);
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
	restarts_on_hello(&r, now);
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
	memset(longer, 'x', sizeof longer - 1);
	longer[sizeof longer - 1] = '\0';
	ck_assert_int_eq(break_down(longer), RESTARTS_NEWS);
	ck_assert_int_eq(break_down(longer), RESTARTS_AS_BEFORE);
}
END_TEST

START_TEST(an_answer_ends_the_row)
{
	for (int i = 0; i < 100; i++) {
		for (int k = 0; k < RESTARTS_ROW - 1; k++)
			ck_assert_int_eq(break_down("crash"), k ? RESTARTS_AS_BEFORE : RESTARTS_NEWS);
		ck_assert_int_gt(wait_due(), 100);
		restarts_on_hello(&r, now);
		restarts_on_answer(&r);
	}
	ck_assert_int_eq(break_down("crash"), RESTARTS_NEWS);
	ck_assert_int_eq(wait_due(), 20);
}
END_TEST

START_TEST(a_steady_life_ends_the_row)
{
	break_down("crash");
	restarts_on_hello(&r, now);
	now.mono_ns += RESTARTS_STEADY_NS - 1;
	ck_assert_int_eq(break_down("crash"), RESTARTS_NEWS); /* it was up, if for no use */
	ck_assert_uint_eq(r.failures, 2);
	ck_assert_int_eq(break_down("crash"), RESTARTS_AS_BEFORE);
	restarts_on_hello(&r, now);
	now.mono_ns += RESTARTS_STEADY_NS;
	ck_assert_int_eq(break_down("crash"), RESTARTS_NEWS);
	ck_assert_uint_eq(r.failures, 1);
}
END_TEST

/* The life before counts, not an answer of one long ago. */
START_TEST(a_hello_alone_is_no_use)
{
	restarts_on_hello(&r, now);
	restarts_on_answer(&r);
	for (int i = 0; i < RESTARTS_ROW; i++) {
		break_down("crash");
		restarts_on_hello(&r, now);
		ck_assert(!restarts_recovered(&r, now));
	}
	ck_assert(restarts_in_trouble(&r));
	restarts_on_answer(&r);
	ck_assert(restarts_recovered(&r, now));
	ck_assert(!restarts_recovered(&r, now));
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
	tcase_add_test(c, an_answer_ends_the_row);
	tcase_add_test(c, a_steady_life_ends_the_row);
	tcase_add_test(c, a_hello_alone_is_no_use);
	tcase_add_test(c, who_is_killed_is_not_to_blame);
	tcase_add_test(c, the_time_of_a_pause_does_not_count);
	return suite_run(s);
}
