/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of a job answer to a Save: by its table, and with parts whose gaccds and trainers die beside a link
 * that delays and loses: no checkpoint has states of another window, and none is without some that its window had
 * unless that is told. */
#include "control/save_answers.h"

#include "support/suite.h"

#include <check.h>
#include <string.h>

enum { PARTS = 4, WINDOW = 5 };

static struct save_answer part[PARTS];
static struct save_answers a;
static char why[240];

static void setup(void)
{
	memset(part, 0, sizeof(part));
	a = (struct save_answers){ .part = part };
}

static struct now at(int64_t s)
{
	return (struct now){ .mono_ns = s * 1000000000 };
}

static struct part_saved good(uint32_t i, uint32_t n_states)
{
	struct part_saved is = { .part = i, .window = WINDOW, .n_states = n_states };
	is.states.bytes = 100 * (uint64_t)n_states;
	if (i < a.n_files) {
		is.applied_step = 4;
		is.params_digest = 77;
	}
	return is;
}

static void say(struct part_saved is, int64_t s)
{
	ck_assert(save_answers_awaits(&a, is.part));
	save_answers_take(&a, &is, at(s));
	ck_assert(!save_answers_awaits(&a, is.part));
}

static struct save_verdict verdict(void)
{
	struct save_verdict v;
	save_answers_judge(&a, &v);
	return v;
}

START_TEST(all_are_waited_for)
{
	save_answers_begin(&a, 3, 1, 1, WINDOW);
	ck_assert(!save_answers_awaits(&a, 3));
	say(good(1, 2), 1);
	say(good(0, 1), 2);
	ck_assert(!save_answers_are_in(&a, at(3)));
	say(good(2, 0), 4);
	ck_assert(save_answers_are_in(&a, at(4)));
	struct save_verdict v = verdict();
	ck_assert(v.status == ST_OK && !v.passed && v.wrote);
	ck_assert_uint_eq(save_answers_state_bytes(&a), 300);
	for (uint32_t i = 0; i < 3; i++)
		ck_assert(!save_answers_lacks(&a, i, why, sizeof(why)));
}
END_TEST

/* 30 s after the files, if these are good: those of the next try would have the same names. */
START_TEST(late_states_hold_nothing_up)
{
	save_answers_begin(&a, 4, 2, 2, WINDOW);
	ck_assert(!save_answers_are_in(&a, at(1000)));
	say(good(0, 1), 1000);
	ck_assert(!save_answers_are_in(&a, at(2000))); /* files take their time */
	say(good(1, 1), 2000);
	say(good(3, 1), 2010);
	ck_assert(!save_answers_are_in(&a, at(2029)));
	ck_assert(save_answers_are_in(&a, at(2030)));
	ck_assert_int_eq(verdict().status, ST_OK);
	ck_assert_uint_eq(save_answers_state_bytes(&a), 300);
	ck_assert(save_answers_lacks(&a, 2, why, sizeof(why)));
	ck_assert_msg(strstr(why, "of part 2, if it has any: its node has not answered for 30 s") != NULL, "%s", why);
	ck_assert(!save_answers_lacks(&a, 1, why, sizeof(why)));
	part[1].is.status = ST_ENGINE_DOWN;
	ck_assert(!save_answers_are_in(&a, at(9999)));
	part[1].is.status = ST_OK;
	part[0].is.passed = true;
	ck_assert(!save_answers_are_in(&a, at(9999)));
}
END_TEST

START_TEST(an_answer_of_the_last_save_is_none)
{
	part[2].is = good(2, 3);
	part[2].answered = true;
	save_answers_begin(&a, 3, 1, 1, WINDOW);
	say(good(0, 1), 0);
	say(good(1, 1), 0);
	ck_assert(save_answers_awaits(&a, 2) && save_answers_are_in(&a, at(30)));
	ck_assert_uint_eq(save_answers_state_bytes(&a), 200);
	ck_assert_int_eq(verdict().status, ST_OK);
}
END_TEST

START_TEST(the_worst_is_told)
{
	save_answers_begin(&a, 3, 1, 1, WINDOW);
	struct part_saved bad = { .part = 1, .status = ST_ENGINE_DOWN, .text = "gone" };
	say(bad, 0);
	say(good(0, 1), 0);
	bad = (struct part_saved){ .part = 2, .status = ST_IO_ERROR, .text = "no room" };
	say(bad, 0);
	struct save_verdict v = verdict();
	ck_assert(v.status == ST_IO_ERROR && v.part == 2 && v.wrote);
	ck_assert_str_eq(v.why, "no room");
}
END_TEST

START_TEST(a_part_whose_window_was_over_makes_all_begin_anew)
{
	save_answers_begin(&a, 2, 1, 1, WINDOW);
	const struct part_saved passed = { .part = 1, .passed = true };
	say(passed, 0);
	say(good(0, 0), 0);
	struct save_verdict v = verdict();
	ck_assert(v.status == ST_OK && v.passed && v.wrote);
	save_answers_begin(&a, 2, 1, 1, WINDOW);
	say(good(1, 0), 0);
	const struct part_saved first = { .passed = true };
	say(first, 0);
	ck_assert(verdict().passed && !verdict().wrote);
}
END_TEST

START_TEST(what_does_not_fit_together_is_refused)
{
	static const struct {
		uint32_t part, n_files, shards;
		const char *says; /* NULL: it is right */
		struct part_saved is;
	} rows[] = {
		{ 1, 1, 1, "part 1 has saved window 4, and window 5", { .window = 4 } },
		{ 1, 1, 1, "saved what another part saves", { .window = WINDOW, .file[2].bytes = 1 } },
		{ 1, 2, 2, "other parameters", { .window = WINDOW, .params_digest = 77, .applied_step = 3 } },
		{ 1, 2, 2, "other parameters", { .window = WINDOW, .params_digest = 78, .applied_step = 4 } },
		{ 1,
		  2,
		  2,
		  "another part saves",
		  { .window = WINDOW, .params_digest = 77, .applied_step = 4, .file[0].bytes = 1 } },
		{ 1,
		  2,
		  1,
		  "another part saves",
		  { .window = WINDOW, .params_digest = 77, .applied_step = 4, .file[1].bytes = 1 } },
		{ 1, 2, 2, NULL, { .window = WINDOW, .params_digest = 77, .applied_step = 4, .file[1].bytes = 1 } },
		{ 1, 1, 1, NULL, { .window = WINDOW } },
	};
	struct part_saved is = rows[_i].is;
	is.part = rows[_i].part;
	save_answers_begin(&a, 2, rows[_i].n_files, rows[_i].shards, WINDOW);
	say(good(0, 0), 0);
	say(is, 0);
	struct save_verdict v = verdict();
	ck_assert_int_eq(v.status, rows[_i].says ? ST_INTERNAL : ST_OK);
	ck_assert_int_eq(v.part, -1);
	ck_assert_msg(!rows[_i].says || strstr(v.why, rows[_i].says), "%s", v.why);
}
END_TEST

static void whole(uint32_t first, uint32_t second)
{
	save_answers_begin(&a, 2, 1, 1, WINDOW);
	say(good(0, first), 0);
	say(good(1, second), 0);
}

START_TEST(what_was_lost_is_told)
{
	whole(0, 0);
	save_answers_on_lost(&a, 1);
	ck_assert(!save_answers_lacks(&a, 1, why, sizeof(why))); /* the job uses none */
	whole(2, 0);
	ck_assert(save_answers_lacks(&a, 1, why, sizeof(why)));
	ck_assert_msg(strstr(why, "its gaccd has been restarted") != NULL, "%s", why);
	save_answers_on_complete(&a);
	whole(2, 0);
	ck_assert(!save_answers_lacks(&a, 1, why, sizeof(why))); /* rank 0 alone has one */
	whole(2, 2);
	save_answers_on_complete(&a);
	whole(2, 0);
	ck_assert(save_answers_lacks(&a, 1, why, sizeof(why)));
	ck_assert_msg(strstr(why, "and the one before had 2") != NULL, "%s", why);
	whole(0, 0); /* a window for which none were put */
	ck_assert(!save_answers_lacks(&a, 0, why, sizeof(why)) && !save_answers_lacks(&a, 1, why, sizeof(why)));
	save_answers_on_lost(&a, 1);
	ck_assert(save_answers_lacks(&a, 1, why, sizeof(why)));
}
END_TEST

/* ---- with parts ---- */

static uint32_t seed;

static uint32_t draw(uint32_t n)
{
	seed = seed * 1664525 + 1013904223;
	return (seed >> 8) % n;
}

/* A part as it is, and what it has answered to the Save under way. */
static struct {
	bool put;  /* the state of this window is there */
	bool away; /* nothing arrives for a while */
	bool did;  /* it has answered, perhaps in vain */
	struct part_saved answer;
} is_at[PARTS];

static void restart(uint32_t i)
{
	is_at[i].put = is_at[i].did = false;
	save_answers_on_lost(&a, i);
	if (save_answers_awaits(&a, i)) {
		const struct part_saved down = { .part = i, .status = ST_ENGINE_DOWN };
		say(down, 0);
	}
}

/* One try; false: it is to be repeated. */
static bool try_once(uint64_t window, uint32_t *n_lacking)
{
	int64_t s = 0;
	save_answers_begin(&a, PARTS, 1, 1, window);
	for (uint32_t i = 0; i < PARTS; i++)
		is_at[i].did = false;
	while (!save_answers_are_in(&a, at(s))) {
		uint32_t i = draw(PARTS);
		s++;
		if (!draw(30))
			restart(i);
		else if (!draw(30))
			is_at[i].away = i && !is_at[i].away;
		if (is_at[i].away && s < 5000)
			continue;
		if (!is_at[i].did) {
			is_at[i].did = true;
			is_at[i].answer = (struct part_saved){ .part = i, .window = window, .n_states = is_at[i].put };
		}
		if (save_answers_awaits(&a, i) && draw(3)) /* else the answer is lost, and told again */
			save_answers_take(&a, &is_at[i].answer, at(s));
	}
	struct save_verdict v = verdict();
	if (v.status)
		return false;
	*n_lacking = 0;
	for (uint32_t i = 0; i < PARTS; i++)
		*n_lacking += save_answers_lacks(&a, i, why, sizeof(why));
	return true;
}

START_TEST(no_state_is_missing_without_a_word)
{
	uint32_t n_whole = 0, n_less = 0;
	for (uint32_t first = 1; first <= 2000; first++) {
		seed = first;
		setup();
		memset(is_at, 0, sizeof(is_at));
		uint32_t had = 0;
		for (uint64_t window = 1; window <= 6; window++) {
			uint32_t has = 0, lacking = 0;
			for (uint32_t i = 0; i < PARTS; i++)
				is_at[i].put = true;
			if (!draw(3))
				restart(draw(PARTS));
			while (!try_once(window, &lacking))
				;
			for (uint32_t i = 0; i < PARTS; i++)
				has += part[i].answered && part[i].is.n_states;
			/* twice without any looks like a job that uses none */
			ck_assert_msg(has == PARTS - lacking || (!has && !had),
				      "seed %u, window %d: %u states, %u lacking, %u before", first, (int)window, has,
				      lacking, had);
			had = has;
			n_whole += has == PARTS;
			n_less += has < PARTS;
			save_answers_on_complete(&a);
		}
	}
	ck_assert(n_whole > 1000 && n_less > 1000);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("save_answers");
	TCase *c = tcase_create("save_answers");
	suite_add_tcase(suite, c);
	tcase_add_checked_fixture(c, setup, NULL);
	tcase_add_test(c, all_are_waited_for);
	tcase_add_test(c, late_states_hold_nothing_up);
	tcase_add_test(c, an_answer_of_the_last_save_is_none);
	tcase_add_test(c, the_worst_is_told);
	tcase_add_test(c, a_part_whose_window_was_over_makes_all_begin_anew);
	tcase_add_loop_test(c, what_does_not_fit_together_is_refused, 0, 8);
	tcase_add_test(c, what_was_lost_is_told);
	tcase_add_test(c, no_state_is_missing_without_a_word);
	return suite_run(suite);
}
