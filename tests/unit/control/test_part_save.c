/* SPDX-License-Identifier: Apache-2.0 */
/* A part's side of checkpoints: by its table, and together with the coordinator's (control/saver.h) over a link that
 * loses, doubles and delays messages, beside an engine that dies. */
#include "control/part_save.h"
#include "control/saver.h"

#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

static struct part_save part;
static bool engine_takes;
static uint32_t n_begun, n_told;
static uint64_t begun; /* the command of the last one */
static struct part_saved told;

static bool on_begin(void *ctx, const struct save *w, uint64_t command)
{
	if (engine_takes) {
		n_begun++;
		begun = command;
	}
	return engine_takes;
}

static void on_tell(void *ctx, const struct part_saved *is)
{
	n_told++;
	told = *is;
}

static void setup(void)
{
	const struct part_save_ports ports = { NULL, on_begin, on_tell };
	engine_takes = true;
	n_begun = n_told = 0;
	part_save_init(&part, &ports);
}

static struct save wish(uint64_t term, uint64_t number, uint64_t window)
{
	return (struct save){
		.job_id = 7, .epoch = 2, .part = 3, .term = term, .number = number, .window = window, .path = "/a"
	};
}

static void want(uint64_t term, uint64_t number, uint64_t window)
{
	const struct save w = wish(term, number, window);
	part_save_on_save(&part, &w);
}

static void look(uint64_t window, bool can_save)
{
	const struct part_save_view is = { window, can_save, false };
	part_save_look(&part, &is);
}

static void answer(uint64_t command, enum status st)
{
	const struct part_saved is = { .status = st, .window = 5, .text = "as the engine says" };
	part_save_on_answer(&part, command, &is);
}

static void expect(uint64_t number, enum status st, bool passed)
{
	ck_assert_uint_eq(told.job_id, 7);
	ck_assert_uint_eq(told.epoch, 2);
	ck_assert_uint_eq(told.part, 3);
	ck_assert_uint_eq(told.number, number);
	ck_assert_int_eq(told.status, st);
	ck_assert_int_eq(told.passed, passed);
}

START_TEST(one_from_wish_to_answer)
{
	look(5, true);
	ck_assert_uint_eq(n_begun, 0);
	want(1, 1, 5);
	look(5, false); /* a COMMIT is on its way, or the engine is not up */
	look(4, true);	/* the part has not taken that COMMIT yet */
	ck_assert_uint_eq(n_begun, 0);
	look(5, true);
	look(5, true);
	want(1, 1, 5); /* repeated */
	look(5, true);
	ck_assert_uint_eq(n_begun, 1);
	ck_assert_uint_eq(n_told, 0);
	answer(begun + 1, ST_OK); /* nobody's */
	ck_assert_uint_eq(n_told, 0);
	answer(begun, ST_OK);
	ck_assert_uint_eq(n_told, 1);
	expect(1, ST_OK, false);
	ck_assert_uint_eq(told.window, 5);
	answer(begun, ST_IO_ERROR);
	look(5, true);
	ck_assert_uint_eq(n_told, 1);
	want(1, 1, 5); /* the answer was lost */
	ck_assert_uint_eq(n_told, 2);
	expect(1, ST_OK, false);
	ck_assert_uint_eq(n_begun, 1);
}
END_TEST

START_TEST(a_window_that_has_passed_is_not_saved)
{
	want(1, 1, 5);
	look(6, true);
	ck_assert_uint_eq(n_begun, 0);
	expect(1, ST_OK, true);
	want(1, 2, 6);
	look(6, true);
	ck_assert_uint_eq(n_begun, 1);
	look(7, true); /* begun is begun */
	answer(begun, ST_OK);
	expect(2, ST_OK, false);
}
END_TEST

START_TEST(an_engine_that_refuses_is_asked_again)
{
	engine_takes = false;
	want(1, 1, 5);
	look(5, true);
	ck_assert_int_eq(part.state, PART_SAVE_WAITING);
	engine_takes = true;
	look(5, true);
	ck_assert_int_eq(part.state, PART_SAVE_WRITING);
	answer(begun, ST_RESOURCE_EXHAUSTED);
	expect(1, ST_RESOURCE_EXHAUSTED, false);
	ck_assert_str_eq(told.text, "as the engine says");
}
END_TEST

START_TEST(a_death_is_told_when_it_wrote)
{
	part_save_on_engine_lost(&part);
	want(1, 1, 5);
	part_save_on_engine_lost(&part); /* the next one may do it */
	ck_assert_uint_eq(n_told, 0);
	look(5, true);
	part_save_on_engine_lost(&part);
	ck_assert_uint_eq(n_told, 1);
	expect(1, ST_ENGINE_DOWN, false);
	answer(begun, ST_OK);
	ck_assert_uint_eq(n_told, 1);
}
END_TEST

START_TEST(without_an_engine_for_good_nothing_is_waited_for)
{
	const struct part_save_view over = { .window = 4, .is_over = true };
	want(1, 1, 5);
	part_save_look(&part, &over);
	expect(1, ST_ENGINE_DOWN, false);
}
END_TEST

static void want_states(uint64_t number, uint64_t window)
{
	struct save w = wish(1, number, window);
	w.states = w.states_alone = true;
	part_save_on_save(&part, &w);
}

/* No engine is needed for it, and none takes it along; but it begins when an engine's before it is over. */
START_TEST(states_alone_need_no_engine)
{
	want_states(1, 5);
	look(4, true);
	ck_assert_uint_eq(n_begun, 0);
	look(5, false);
	ck_assert_uint_eq(n_begun, 1);
	part_save_on_engine_lost(&part);
	ck_assert_uint_eq(n_told, 0);
	answer(begun, ST_OK);
	expect(1, ST_OK, false);
	want(1, 2, 5);
	look(5, true);
	want_states(3, 5);
	look(5, true);
	ck_assert_uint_eq(n_begun, 2);
	part_save_on_engine_lost(&part); /* that of the wish before */
	look(5, false);
	ck_assert_uint_eq(n_begun, 3);
	ck_assert_uint_eq(n_told, 1);
	want_states(4, 6);
	look(7, true);
	ck_assert_uint_eq(n_told, 2);
	expect(4, ST_OK, true);
}
END_TEST

/* Newer ones take its place, older ones are late messages; a new coordinator counts anew. */
START_TEST(the_newest_wish_counts)
{
	want(2, 5, 5);
	want(2, 4, 5);
	want(1, 9, 5);
	ck_assert_uint_eq(part.wanted.number, 5);
	look(5, true);
	ck_assert_uint_eq(n_begun, 1);
	want(3, 1, 5);
	look(5, true);
	ck_assert_uint_eq(n_begun, 1); /* the engine writes one at a time */
	answer(begun, ST_OK);
	ck_assert_uint_eq(n_told, 0); /* nobody waits for that one */
	look(5, true);
	ck_assert_uint_eq(n_begun, 2);
	answer(begun, ST_OK);
	expect(1, ST_OK, false);
	ck_assert_uint_eq(told.term, 3);
	want(2, 5, 5);
	ck_assert_uint_eq(n_told, 1);
}
END_TEST

/* ---- both sides ---- */

enum { WAYS = 2, ON_THE_WAY = 16, WANTED = 6 };

/* What is on its way to the part (0) and to the coordinator (1). */
static struct {
	struct save save[ON_THE_WAY];
	struct part_saved saved[ON_THE_WAY];
	uint32_t n[WAYS];
} way;
static uint32_t seed;

static uint32_t draw(uint32_t n)
{
	seed = seed * 1664525 + 1013904223;
	return (seed >> 8) % n;
}

/* The coordinator: asks as edge/checkpoints.c does. */
static struct saver saver;
static struct save asked; /* number 0: nothing */
static uint64_t n_asked, coord_window, part_window;
static bool committing; /* COMMIT is on its way to the part */
static uint64_t sealed_window[64];
static uint32_t n_sealed, n_failed, n_passed;

static void send_save(void)
{
	for (uint32_t copies = draw(4) ? 1 + !draw(4) : 0; copies && way.n[0] < ON_THE_WAY; copies--)
		way.save[way.n[0]++] = asked;
}

static void send_saved(void *ctx, const struct part_saved *is)
{
	for (uint32_t copies = draw(4) ? 1 + !draw(4) : 0; copies && way.n[1] < ON_THE_WAY; copies--)
		way.saved[way.n[1]++] = *is;
}

static void saver_sweeps(void *ctx)
{
}
static bool saver_begins(void *ctx, const struct save_want *w)
{
	if (committing)
		return false;
	asked = wish(1, ++n_asked, coord_window);
	send_save();
	return true;
}
static void saver_seals(void *ctx, const struct save_want *w)
{
	saver_on_sealed(&saver, ST_OK);
}
static void saver_records(void *ctx, const struct save_want *w)
{
	saver_on_recorded(&saver, ST_OK);
}
static void saver_prunes(void *ctx)
{
	saver_on_pruned(&saver);
}
static void saver_discards(void *ctx)
{
}
static void saver_ended(void *ctx, const struct save_want *w, enum status st)
{
	n_failed += st != ST_OK;
}
static void saver_end_ready(void *ctx)
{
}

/* The engine: keeps the window that it was told to save. */
static uint64_t writing, writing_window;

static bool engine_begins(void *ctx, const struct save *w, uint64_t command)
{
	ck_assert_uint_eq(writing, 0); /* one at a time */
	ck_assert_uint_eq(w->window, part_window);
	ck_assert(!committing || coord_window == part_window + 1 || coord_window == part_window);
	writing = command;
	writing_window = part_window;
	return true;
}

static void part_looks(void)
{
	const struct part_save_view is = { part_window, draw(3) != 0, false };
	part_save_look(&part, &is);
}

static void take_save(void)
{
	if (!way.n[0])
		return;
	uint32_t i = draw(way.n[0]); /* in any order */
	const struct save w = way.save[i];
	way.save[i] = way.save[--way.n[0]];
	part_save_on_save(&part, &w);
	part_looks();
}

static void take_saved(void)
{
	if (!way.n[1])
		return;
	uint32_t i = draw(way.n[1]);
	const struct part_saved is = way.saved[i];
	way.saved[i] = way.saved[--way.n[1]];
	if (!asked.number || is.number != asked.number)
		return;
	asked.number = 0;
	if (is.passed) {
		n_passed++;
		saver_on_passed(&saver, false);
	} else if (is.status == ST_ENGINE_DOWN) {
		saver_on_engine_lost(&saver);
	} else {
		ck_assert_uint_eq(is.window, asked.window);
		sealed_window[n_sealed++] = is.window;
		saver_on_written(&saver, is.status);
	}
}

static void engine_answers(void)
{
	const struct part_saved is = { .window = writing_window };
	uint64_t command = writing;
	writing = 0;
	if (command)
		part_save_on_answer(&part, command, &is);
	part_looks();
}

static void engine_dies(void)
{
	writing = 0;
	part_save_on_engine_lost(&part);
	part_looks();
}

static void step_moves(void)
{
	if (!committing) {
		committing = true;
	} else if (part_window == coord_window) {
		part_window++;
		part_looks();
	} else {
		committing = false;
		coord_window++;
		saver_kick(&saver);
	}
}

static void tick(void)
{
	if (saver.state == SAVER_SWEEPING)
		saver_on_swept(&saver, 0);
	saver_kick(&saver);
	if (saver.state == SAVER_WRITING && asked.number)
		send_save();
	part_looks();
}

/* Every wish ends, and what is sealed is the state of the window that the coordinator meant. */
START_TEST(over_a_bad_link_every_wish_ends)
{
	const struct part_save_ports ports = { NULL, engine_begins, send_saved };
	const struct saver_ports coordinator = { NULL,		 saver_sweeps,	saver_begins,
						 saver_seals,	 saver_records, saver_prunes,
						 saver_discards, saver_ended,	saver_end_ready };
	for (seed = 1; seed <= 1000; seed++) {
		uint32_t first = seed, wanted = 0, turns = 0;
		memset(&way, 0, sizeof(way));
		part_save_init(&part, &ports);
		saver_init(&saver, 0, false, &coordinator);
		n_asked = coord_window = part_window = writing = n_sealed = n_failed = 0;
		committing = false;
		asked.number = 0;
		saver_start(&saver, 0, 0);
		while (wanted < WANTED || saver.n_wants) {
			static void (*const events[])(void) = { take_save,  take_saved, take_saved, engine_answers,
								step_moves, tick,	tick };
			const uint8_t request[16] = { (uint8_t)(wanted + 1) };
			if (wanted < WANTED && !draw(10) && !saver_request(&saver, request, false))
				wanted++;
			else if (!draw(40))
				engine_dies();
			else
				events[draw(sizeof(events) / sizeof(*events))]();
			ck_assert_msg(turns++ < 20000, "seed %u: a wish does not end", first);
		}
		ck_assert_uint_eq(n_sealed + n_failed, WANTED);
		for (uint32_t i = 1; i < n_sealed; i++)
			ck_assert_msg(sealed_window[i] >= sealed_window[i - 1], "seed %u: out of order", first);
		seed = first;
	}
	ck_assert_uint_gt(n_passed, 100);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("part_save");
	TCase *c = tcase_create("part_save");
	suite_add_tcase(suite, c);
	tcase_add_checked_fixture(c, setup, NULL);
	tcase_add_test(c, one_from_wish_to_answer);
	tcase_add_test(c, a_window_that_has_passed_is_not_saved);
	tcase_add_test(c, an_engine_that_refuses_is_asked_again);
	tcase_add_test(c, a_death_is_told_when_it_wrote);
	tcase_add_test(c, without_an_engine_for_good_nothing_is_waited_for);
	tcase_add_test(c, states_alone_need_no_engine);
	tcase_add_test(c, the_newest_wish_counts);
	tcase_add_test(c, over_a_bad_link_every_wish_ends);
	return suite_run(suite);
}
