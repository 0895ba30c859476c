/* SPDX-License-Identifier: Apache-2.0 */
#include "control/saver.h"

#include "support/suite.h"

#include <check.h>
#include <string.h>

/* What the machine asked for, as letters: w sweep, b begin, s seal, r record, p prune, d discard, + and - ended, E end.
 */
static char asked[64];
static bool can_begin;
static uint64_t ended_id;
static struct saver s;

static void note(char c)
{
	size_t n = strlen(asked);
	ck_assert_uint_lt(n, sizeof(asked) - 1);
	asked[n] = c;
}
static void sweep(void *ctx)
{
	note('w');
}
static bool begin(void *ctx, const struct save_want *w)
{
	if (can_begin)
		note('b');
	return can_begin;
}
static void seal(void *ctx, const struct save_want *w)
{
	note('s');
}
static void record(void *ctx, const struct save_want *w)
{
	note('r');
}
static void prune(void *ctx)
{
	note('p');
}
static void discard(void *ctx)
{
	note('d');
}
static void ended(void *ctx, const struct save_want *w, enum status st)
{
	note(st ? '-' : '+');
	ended_id = w->id;
}
static void end_ready(void *ctx)
{
	note('E');
}

static void open_saver(uint64_t every, bool at_end)
{
	const struct saver_ports ports = { NULL, sweep, begin, seal, record, prune, discard, ended, end_ready };
	can_begin = true;
	memset(asked, 0, sizeof(asked));
	saver_init(&s, every, at_end, &ports);
	saver_start(&s, 4, 0);
	saver_on_swept(&s, 6);
}

static void finish(void)
{
	saver_on_written(&s, ST_OK);
	saver_on_sealed(&s, ST_OK);
	saver_on_recorded(&s, ST_OK);
	saver_on_pruned(&s);
}

#define ASKED(text)                                                                                                    \
	do {                                                                                                           \
		ck_assert_str_eq(asked, text);                                                                         \
		memset(asked, 0, sizeof(asked));                                                                       \
	} while (0)

static const uint8_t request[16] = { 1 }, another[16] = { 2 };

START_TEST(one_checkpoint_from_want_to_record)
{
	open_saver(0, false);
	ASKED("w");
	ck_assert_int_eq(saver_request(&s, request, true), ST_OK);
	ck_assert_uint_eq(saver_find(&s, request)->id, 7); /* above the journal's and the directory's */
	ck_assert_ptr_null(saver_find(&s, another));
	ASKED("b");
	saver_on_written(&s, ST_OK);
	ASKED("s");
	saver_on_sealed(&s, ST_OK);
	ASKED("r");
	saver_on_recorded(&s, ST_OK);
	ASKED("+p");
	ck_assert_int_eq(s.state, SAVER_PRUNING);
	saver_on_pruned(&s);
	ck_assert_int_eq(s.state, SAVER_IDLE);
	saver_on_written(&s, ST_OK); /* late words change nothing */
	saver_on_sealed(&s, ST_OK);
	saver_on_recorded(&s, ST_OK);
	ASKED("");
}
END_TEST

/* A gaccd before this one may have made a directory that no record names: its number is known when the sweep has seen
 * it. */
START_TEST(an_id_is_above_what_the_sweep_has_seen)
{
	const struct saver_ports ports = { NULL, sweep, begin, seal, record, prune, discard, ended, end_ready };
	can_begin = true;
	memset(asked, 0, sizeof(asked));
	saver_init(&s, 3, true, &ports);
	ck_assert_int_eq(saver_request(&s, request, false), ST_OK);
	saver_start(&s, 4, 0);
	ck_assert_int_eq(saver_request(&s, another, false), ST_OK);
	saver_on_boundary(&s, 3, true);
	ck_assert(saver_end(&s, true));
	ck_assert_uint_eq(s.n_wants, 4);
	saver_on_swept(&s, 6);
	for (uint64_t id = 7; id <= 9; id++) {
		finish();
		ck_assert_uint_eq(ended_id, id);
	}
	ASKED("wbsr+pbsr+pbsr+pE"); /* the end's would be the same step once more */
}
END_TEST

START_TEST(one_that_fails_before_it_begins_has_an_id)
{
	open_saver(0, false);
	can_begin = false;
	saver_request(&s, request, false);
	saver_request(&s, another, false);
	ck_assert(!saver_end(&s, false));
	ck_assert_uint_eq(ended_id, 8);
}
END_TEST

START_TEST(the_policy_counts_applied_steps)
{
	open_saver(3, false);
	ASKED("w");
	for (uint64_t step = 1; step <= 3; step++)
		saver_on_boundary(&s, step, true);
	ASKED("b");
	saver_on_boundary(&s, 3, false); /* a window without a step */
	saver_on_boundary(&s, 6, true);	 /* due while the first is being written: waits */
	saver_on_boundary(&s, 9, true);	 /* the same one saves this, too */
	ck_assert_uint_eq(s.n_wants, 2);
	finish();
	ASKED("sr+pb");
	finish();
	ASKED("sr+p");
	ck_assert_uint_eq(ended_id, 8);
	saver_on_boundary(&s, 9, false); /* nor when nothing is under way */
	ASKED("");
}
END_TEST

START_TEST(a_want_waits_for_the_engine)
{
	open_saver(0, false);
	can_begin = false;
	saver_request(&s, request, false);
	saver_kick(&s);
	ASKED("w");
	can_begin = true;
	saver_kick(&s);
	ASKED("b");
}
END_TEST

START_TEST(failures_end_one_checkpoint_only)
{
	open_saver(0, false);
	saver_request(&s, request, false);
	saver_request(&s, another, false);
	saver_on_written(&s, ST_IO_ERROR);
	ASKED("wb-w");
	ck_assert_uint_eq(ended_id, 7);
	saver_on_swept(&s, 0);
	ASKED("b");
	saver_on_written(&s, ST_OK);
	saver_on_sealed(&s, ST_IO_ERROR);
	ASKED("s-w");
	saver_on_swept(&s, 0);
	saver_request(&s, request, false);
	ck_assert_uint_eq(saver_find(&s, request)->id, 9);
	saver_on_written(&s, ST_OK);
	saver_on_sealed(&s, ST_OK);
	saver_on_recorded(&s, ST_JOB_ENDED);
	ASKED("bsrd-p");
}
END_TEST

START_TEST(a_dead_engine_is_tried_once_more)
{
	open_saver(0, false);
	saver_request(&s, request, false);
	saver_on_engine_lost(&s);
	ASKED("wbw");
	saver_on_written(&s, ST_OK); /* nobody's */
	saver_on_swept(&s, 0);
	ASKED("b");
	saver_on_engine_lost(&s);
	ASKED("-w");
	saver_on_engine_lost(&s);
	ck_assert_uint_eq(s.n_wants, 0);
}
END_TEST

/* The window that it meant has been committed before the engine heard of it. */
START_TEST(one_that_comes_too_late_is_asked_for_again)
{
	open_saver(0, false);
	saver_on_passed(&s, false);
	saver_request(&s, request, false);
	ASKED("wb");
	for (int i = 0; i < 3; i++) { /* that is no death of an engine */
		saver_on_passed(&s, false);
		ASKED("");
		saver_on_boundary(&s, 1, true);
		ASKED("b");
	}
	finish();
	ASKED("sr+p");
	saver_on_passed(&s, false);
	ck_assert_int_eq(s.state, SAVER_IDLE);
}
END_TEST

/* At one part: what the others have written under the same names goes before the next try, which is the same one. */
START_TEST(one_that_comes_too_late_for_some_parts_is_swept_first)
{
	open_saver(0, false);
	saver_request(&s, request, true);
	ASKED("wb");
	uint64_t id = s.want[0].id;
	for (int i = 0; i < 3; i++) {
		saver_on_passed(&s, true);
		ASKED("w");
		saver_on_swept(&s, 0);
		ASKED("b");
		ck_assert_uint_eq(s.want[0].id, id);
	}
	saver_on_engine_lost(&s); /* it has not been tried again for a death */
	ASKED("w");
}
END_TEST

/* What an earlier gaccd has saved, and no more. */
START_TEST(a_step_that_is_saved_is_not_due)
{
	const struct saver_ports ports = { NULL, sweep, begin, seal, record, prune, discard, ended, end_ready };
	can_begin = true;
	memset(asked, 0, sizeof(asked));
	saver_init(&s, 3, true, &ports);
	saver_start(&s, 4, 6);
	saver_on_swept(&s, 4);
	saver_on_boundary(&s, 6, true);
	ASKED("w");
	saver_on_boundary(&s, 9, true);
	ASKED("b");
	finish();
	ASKED("sr+p");
}
END_TEST

START_TEST(the_end_waits_for_its_checkpoint)
{
	open_saver(0, true);
	ck_assert(saver_end(&s, true));
	ASKED("wb");
	ck_assert_int_eq(saver_request(&s, request, false), ST_JOB_ENDED);
	saver_on_boundary(&s, 1, true);
	finish();
	ASKED("sr+pE");
	ck_assert(!saver_end(&s, true));
	ck_assert_int_eq(s.state, SAVER_OVER);
}
END_TEST

/* What the policy has saved, or is just saving, the end does not save again; what failed, it does. */
START_TEST(the_end_does_not_repeat_the_last_step)
{
	static const struct {
		bool end_first, fails, moved;
		const char *asked;
	} cases[] = {
		{ false, false, false, "wbsr+p" },
		{ false, false, true, "wbsr+pbsr+pE" },
		{ true, false, false, "wbsr+pE" },
		{ true, true, false, "wbsrd-pbsr+pE" },
	};
	open_saver(3, true);
	saver_on_boundary(&s, 3, true);
	if (cases[_i].end_first)
		ck_assert(saver_end(&s, true));
	saver_on_written(&s, ST_OK);
	saver_on_sealed(&s, ST_OK);
	saver_on_recorded(&s, cases[_i].fails ? ST_JOB_ENDED : ST_OK);
	saver_on_pruned(&s);
	if (cases[_i].moved)
		saver_on_boundary(&s, 4, true);
	if (!cases[_i].end_first)
		ck_assert_int_eq(saver_end(&s, true), cases[_i].moved);
	if (s.state == SAVER_WRITING)
		finish();
	ck_assert_int_eq(s.state, SAVER_OVER);
	ck_assert_uint_eq(s.n_wants, 0);
	ck_assert_str_eq(asked, cases[_i].asked);
}
END_TEST

START_TEST(the_end_waits_for_what_is_under_way)
{
	open_saver(0, false);
	saver_request(&s, request, false);
	ck_assert(saver_end(&s, true));
	saver_on_written(&s, ST_IO_ERROR);
	saver_on_swept(&s, 0);
	ASKED("wb-wE");
	open_saver(0, false);
	ck_assert(!saver_end(&s, true)); /* nothing to wait for */
}
END_TEST

START_TEST(a_place_that_is_no_good_ends_the_wait)
{
	open_saver(0, true);
	can_begin = false;
	ck_assert(saver_end(&s, true));
	saver_switch_off(&s, ST_IO_ERROR);
	ASKED("w-E");
}
END_TEST

START_TEST(where_nothing_can_be_saved_nothing_is_asked_again)
{
	open_saver(1, true);
	can_begin = false;
	saver_switch_off(&s, ST_IO_ERROR);
	saver_on_boundary(&s, 1, true);
	ck_assert_uint_eq(s.n_wants, 0);
	ck_assert(!saver_end(&s, true));
	ASKED("w");
}
END_TEST

START_TEST(a_cancelled_job_waits_for_nothing)
{
	open_saver(0, true);
	saver_request(&s, request, false);
	ck_assert(!saver_end(&s, false));
	ASKED("wb-");
	saver_on_written(&s, ST_OK);
	ASKED("");
	open_saver(0, true);
	saver_request(&s, request, false);
	saver_on_written(&s, ST_OK);
	ck_assert(!saver_end(&s, false));
	saver_on_sealed(&s, ST_OK); /* it has its name already: it goes again */
	ASKED("wbs-d");
}
END_TEST

START_TEST(wants_have_a_limit)
{
	open_saver(1, false);
	can_begin = false;
	for (int i = 0; i < SAVER_MAX_WANTS; i++)
		ck_assert_int_eq(saver_request(&s, request, false), ST_OK);
	ck_assert_int_eq(saver_request(&s, request, false), ST_RESOURCE_EXHAUSTED);
	saver_on_boundary(&s, 1, true);
	ck_assert_uint_eq(s.n_wants, SAVER_MAX_WANTS);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("saver");
	TCase *c = tcase_create("saver");
	suite_add_tcase(suite, c);
	tcase_add_test(c, one_checkpoint_from_want_to_record);
	tcase_add_test(c, an_id_is_above_what_the_sweep_has_seen);
	tcase_add_test(c, one_that_fails_before_it_begins_has_an_id);
	tcase_add_test(c, the_policy_counts_applied_steps);
	tcase_add_test(c, a_want_waits_for_the_engine);
	tcase_add_test(c, failures_end_one_checkpoint_only);
	tcase_add_test(c, a_dead_engine_is_tried_once_more);
	tcase_add_test(c, one_that_comes_too_late_is_asked_for_again);
	tcase_add_test(c, one_that_comes_too_late_for_some_parts_is_swept_first);
	tcase_add_test(c, a_step_that_is_saved_is_not_due);
	tcase_add_test(c, the_end_waits_for_its_checkpoint);
	tcase_add_loop_test(c, the_end_does_not_repeat_the_last_step, 0, 4);
	tcase_add_test(c, the_end_waits_for_what_is_under_way);
	tcase_add_test(c, a_place_that_is_no_good_ends_the_wait);
	tcase_add_test(c, where_nothing_can_be_saved_nothing_is_asked_again);
	tcase_add_test(c, a_cancelled_job_waits_for_nothing);
	tcase_add_test(c, wants_have_a_limit);
	return suite_run(suite);
}
