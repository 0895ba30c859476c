/* SPDX-License-Identifier: Apache-2.0 */
/* Every row of the table of cells, and what is refused for its shape. */
#include "box_rig.h"

#include "support/box.h"
#include "support/suite.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct box_rig r;
static struct box_request got;
static struct gacc_box_answer answer;

static void setup(void)
{
	box_rig_make(&r, RIG_TENSORS);
}

static void teardown(void)
{
	box_rig_free(&r);
}

static enum box_look look(uint32_t cell)
{
	return box_rig_look(&r, cell, &got);
}

static void put(uint32_t cell, struct gacc_box_request q)
{
	box_rig_put(&r, cell, q);
}

static void check_refused(uint32_t cell, uint64_t seq, enum status st)
{
	ck_assert_int_eq(look(cell), BOX_REFUSED);
	ck_assert(box_rig_answered(&r, cell, seq, &answer));
	ck_assert_msg(answer.status == (uint32_t)st, "%s instead of %s", status_info((enum status)answer.status)->name,
		      status_info(st)->name);
	ck_assert_uint_eq(answer.result, 0);
	ck_assert(r.cells.bell_due);
	ck_assert_int_eq(look(cell), BOX_NOTHING); /* once */
}

static void reply(uint32_t cell, uint64_t seq, uint32_t result)
{
	box_answer(&r.cells, cell, seq, &(struct gacc_box_answer){ .result = result, .window = 3, .counted = 1 });
}

/* ---- the table ---- */

START_TEST(a_free_cell_says_nothing)
{
	for (uint32_t c = 0; c < GACC_BOX_CELLS; c++)
		ck_assert_int_eq(look(c), BOX_NOTHING);
	ck_assert(!r.cells.bell_due);
}
END_TEST

START_TEST(an_offer_is_taken_once_and_as_it_was)
{
	struct gacc_box_request q = box_rig_push(9);
	q.micro = 5, q.slot = 1, q.data_key = 77, q.loss_scale = 64, q.lr = 0.25, q.flags = GACC_BOX_ZERO_AFTER;
	put(7, q);
	ck_assert_int_eq(look(7), BOX_TAKEN);
	ck_assert_mem_eq(&got.q, &r.mem->request[7], sizeof(got.q));
	ck_assert_uint_eq(got.cell, 7);
	ck_assert_ptr_null(got.present);
	ck_assert_int_eq(look(7), BOX_NOTHING);
	ck_assert_uint_eq(r.mem->answer[7].seq, 0); /* it is parked */
	ck_assert(!r.cells.bell_due);
}
END_TEST

START_TEST(what_was_taken_is_answered)
{
	put(2, box_rig_push(1));
	ck_assert_int_eq(look(2), BOX_TAKEN);
	struct gacc_box_answer a = {
		.result = 1, .window = 3, .counted = 4, .micro_size = 8, .parked_ns = -5, .half = 1
	};
	memset(a.reserved, 0xee, sizeof(a.reserved));
	box_answer(&r.cells, 2, 1, &a);
	ck_assert(box_rig_answered(&r, 2, 1, &answer));
	ck_assert(answer.status == 0 && answer.result == 1 && answer.window == 3 && answer.counted == 4);
	ck_assert(answer.micro_size == 8 && answer.parked_ns == -5 && answer.half == 1);
	ck_assert_mem_eq(answer.reserved, (uint8_t[12]){ 0 }, sizeof(answer.reserved));
	ck_assert(r.cells.bell_due);
	ck_assert_uint_eq(r.mem->request[2].seq, r.mem->answer[2].seq); /* free again */
	ck_assert_int_eq(look(2), BOX_NOTHING);
	put(2, box_rig_push(2));
	ck_assert_int_eq(look(2), BOX_TAKEN);
}
END_TEST

START_TEST(eight_at_a_time)
{
	for (uint32_t c = 0; c < GACC_BOX_CELLS; c++)
		put(c, box_rig_push(100 - c));
	for (uint32_t c = 0; c < GACC_BOX_CELLS; c++)
		ck_assert_int_eq(look(c), BOX_TAKEN);
	for (uint32_t c = GACC_BOX_CELLS; c-- > 0;)
		reply(c, 100 - c, 1);
	for (uint32_t c = 0; c < GACC_BOX_CELLS; c++)
		ck_assert(box_rig_answered(&r, c, 100 - c, &answer));
}
END_TEST

START_TEST(half_written_is_not_there)
{
	put(0, box_rig_push(1));
	r.mem->request[0].micro ^= 1;
	for (int i = 0; i < 3; i++)
		ck_assert_int_eq(look(0), BOX_NOTHING);
	ck_assert(!r.cells.bell_due && r.mem->answer[0].seq == 0);
	r.mem->request[0].micro ^= 1;
	ck_assert_int_eq(look(0), BOX_TAKEN);
}
END_TEST

START_TEST(a_number_of_zero_is_none)
{
	put(0, box_rig_push(0));
	ck_assert_int_eq(look(0), BOX_NOTHING);
}
END_TEST

START_TEST(the_largest_numbers)
{
	put(0, box_rig_push(UINT64_MAX));
	ck_assert_int_eq(look(0), BOX_TAKEN);
	reply(0, UINT64_MAX, 1);
	put(0, box_rig_push(1)); /* nothing compares numbers by size */
	ck_assert_int_eq(look(0), BOX_TAKEN);
}
END_TEST

/* A trainer that breaks the rule gets SLOT_BUSY; what it had offered before counts, and answers nothing any more. */
START_TEST(a_rewritten_cell_is_busy)
{
	put(4, box_rig_push(1));
	ck_assert_int_eq(look(4), BOX_TAKEN);
	struct gacc_box_request q = box_rig_push(2);
	q.micro = 1;
	put(4, q);
	check_refused(4, 2, ST_SLOT_BUSY);
	put(4, box_rig_push(3));
	check_refused(4, 3, ST_SLOT_BUSY);
	reply(4, 1, 1);
	ck_assert(box_rig_answered(&r, 4, 3, &answer));
	ck_assert_uint_eq(answer.status, ST_SLOT_BUSY);
	ck_assert_int_eq(look(4), BOX_NOTHING);
	put(4, box_rig_push(4));
	ck_assert_int_eq(look(4), BOX_TAKEN);
}
END_TEST

START_TEST(fields_that_change_behind_the_copy_change_nothing)
{
	put(4, box_rig_push(1));
	ck_assert_int_eq(look(4), BOX_TAKEN);
	memset((unsigned char *)&r.mem->request[4] + 8, 0xff, sizeof(r.mem->request[4]) - 8);
	ck_assert_int_eq(look(4), BOX_NOTHING);
	ck_assert_uint_eq(got.q.seq, 1);
	reply(4, 1, 1);
	ck_assert(box_rig_answered(&r, 4, 1, &answer));
}
END_TEST

/* ---- an engine's death ---- */

START_TEST(what_was_not_answered_is_offered_again)
{
	put(0, box_rig_push(1));
	put(1, box_rig_push(2));
	put(2, box_rig_push(3));
	ck_assert_int_eq(look(0), BOX_TAKEN);
	ck_assert_int_eq(look(1), BOX_TAKEN);
	reply(1, 2, 1);
	r.cells.bell_due = false;
	box_rig_restart(&r);
	ck_assert(r.cells.bell_due); /* the predecessor may not have rung */
	ck_assert_int_eq(look(0), BOX_TAKEN);
	ck_assert_int_eq(look(1), BOX_NOTHING);
	ck_assert_int_eq(look(2), BOX_TAKEN);
	reply(0, 1, 2);
	ck_assert(box_rig_answered(&r, 0, 1, &answer));
	ck_assert_uint_eq(answer.result, 2);
}
END_TEST

/* It died after the answer's fields, before its number. */
START_TEST(an_answer_without_its_number_is_none)
{
	put(0, box_rig_push(1));
	r.mem->answer[0].result = 1;
	r.mem->answer[0].check = 12345;
	box_rig_restart(&r);
	ck_assert_int_eq(look(0), BOX_TAKEN);
}
END_TEST

START_TEST(answers_are_read_at_the_start_alone)
{
	put(0, box_rig_push(1));
	r.mem->answer[0].seq = 1; /* a lie: who says that it is answered is not asked again */
	ck_assert_int_eq(look(0), BOX_TAKEN);
	put(1, box_rig_push(2));
	ck_assert_int_eq(look(1), BOX_TAKEN);
	reply(1, 2, 1);
	r.mem->answer[1].seq = 0;
	ck_assert_int_eq(look(1), BOX_NOTHING);
}
END_TEST

/* ---- WAIT ---- */

START_TEST(a_wait_is_answered_behind_its_step)
{
	put(3, (struct gacc_box_request){ .seq = 5, .kind = GACC_BOX_WAIT, .window = 8 });
	ck_assert_int_eq(look(3), BOX_TAKEN);
	ck_assert(got.q.kind == GACC_BOX_WAIT && got.q.window == 8);
	struct gacc_box_step step = { .window = 8, .applied_step = 9, .total_weight = 2.5, .next_micro_size = 4 }, seen;
	memset(step.reserved, 0xee, sizeof(step.reserved));
	box_write_step(&r.cells, &step);
	ck_assert(!r.cells.bell_due);
	reply(3, 5, 1);
	struct box_trainer t = { .mem = r.mem, .n_tensors = RIG_TENSORS };
	ck_assert(box_read_step(&t, 8, &seen));
	ck_assert(!box_read_step(&t, 7, &seen));
	ck_assert(seen.applied_step == 9 && seen.total_weight == 2.5 && seen.next_micro_size == 4);
	for (size_t i = 0; i < sizeof(seen.reserved); i++)
		ck_assert_uint_eq(seen.reserved[i], 0);
	for (size_t i = 0; i < sizeof(seen); i++) { /* whichever byte is not there yet */
		((unsigned char *)&r.mem->step)[i] ^= 1;
		ck_assert(!box_read_step(&t, 8, &seen));
		((unsigned char *)&r.mem->step)[i] ^= 1;
	}
}
END_TEST

START_TEST(a_wait_says_nothing_but_its_window)
{
	for (size_t at = 12; at < GACC_BOX_REQUEST_CHECKED; at++) {
		if (at >= 16 && at < 24)
			continue;
		struct gacc_box_request q = { .seq = at, .kind = GACC_BOX_WAIT, .window = 8 };
		((unsigned char *)&q)[at] = 1;
		put(0, q);
		check_refused(0, at, ST_INVALID_ARGUMENT);
	}
}
END_TEST

/* ---- shapes ---- */

#define REFUSED(st, ...)                                                                                               \
	do {                                                                                                           \
		struct gacc_box_request q = box_rig_push(++seq);                                                       \
		__VA_ARGS__;                                                                                           \
		put(0, q);                                                                                             \
		check_refused(0, seq, st);                                                                             \
	} while (0)
#define TAKEN(...)                                                                                                     \
	do {                                                                                                           \
		struct gacc_box_request q = box_rig_push(++seq);                                                       \
		__VA_ARGS__;                                                                                           \
		put(0, q);                                                                                             \
		ck_assert_int_eq(look(0), BOX_TAKEN);                                                                  \
		reply(0, seq, 1);                                                                                      \
	} while (0)

START_TEST(shapes_of_a_push)
{
	uint64_t seq = 0;
	REFUSED(ST_NOT_SUPPORTED, q.kind = 0);
	REFUSED(ST_NOT_SUPPORTED, q.kind = 3);
	for (unsigned bit = 2; bit < 32; bit++)
		REFUSED(ST_NOT_SUPPORTED, q.flags = 1u << bit);
	REFUSED(ST_NOT_SUPPORTED, q.reserved0 = 1);
	for (size_t i = 0; i < sizeof(((struct gacc_box_request *)0)->reserved); i++)
		REFUSED(ST_NOT_SUPPORTED, q.reserved[i] = 1);
	const double weights[] = { 0, -1, NAN, INFINITY, -INFINITY, DBL_MIN / 2 };
	for (size_t i = 0; i < sizeof(weights) / sizeof(weights[0]); i++)
		REFUSED(ST_BAD_WEIGHT, q.weight = weights[i]);
	TAKEN(q.weight = DBL_MIN);
	TAKEN(q.weight = DBL_MAX);
	REFUSED(ST_BAD_SLOT, q.slot = RIG_SLOTS);
	REFUSED(ST_BAD_SLOT, q.slot = UINT32_MAX);
	TAKEN(q.slot = RIG_SLOTS - 1);
	REFUSED(ST_INVALID_ARGUMENT, q.lr = -1);
	REFUSED(ST_INVALID_ARGUMENT, q.lr = NAN);
	TAKEN(q.lr = 0.5);
	TAKEN(q.loss = NAN);						       /* as by RPC */
	TAKEN(q.micro = UINT32_MAX, q.window = UINT64_MAX, q.loss_scale = -1); /* for the caller to judge */
	for (uint32_t bad = RIG_TENSORS / 8; bad < 8; bad += 1 + (bad == 1))
		REFUSED(ST_INVALID_ARGUMENT, q.n_present = bad);
	REFUSED(ST_INVALID_ARGUMENT, q.n_present = UINT32_MAX);
	REFUSED(ST_INVALID_ARGUMENT, q.present_check = 1);
	REFUSED(ST_INVALID_ARGUMENT, q.ready_at = GACC_BOX_WORDS + 1);
	REFUSED(ST_INVALID_ARGUMENT, q.ready_at = UINT32_MAX);
	REFUSED(ST_INVALID_ARGUMENT, q.flags = GACC_BOX_RINGS);
	REFUSED(ST_INVALID_ARGUMENT, q.ready_value = 1);
}
END_TEST

START_TEST(a_bitmap_is_copied)
{
	unsigned char bits[2] = { 0xa5, 0x05 };
	struct gacc_box_request q = box_rig_push(1);
	box_rig_present(&r, 7, &q, bits);
	put(7, q);
	ck_assert_int_eq(box_look(&r.cells, 7, &got), BOX_TAKEN);
	memset((unsigned char *)r.mem + gacc_box_present_at(RIG_TENSORS, 7), 0, 2);
	ck_assert_mem_eq(got.present, bits, 2);
	free(got.present);
}
END_TEST

START_TEST(a_bitmap_that_is_not_there_yet)
{
	unsigned char bits[2] = { 0xa5, 0x05 }, *there = (unsigned char *)r.mem + gacc_box_present_at(RIG_TENSORS, 0);
	struct gacc_box_request q = box_rig_push(1);
	box_rig_present(&r, 0, &q, bits);
	put(0, q);
	there[1] = 0;
	ck_assert_int_eq(look(0), BOX_NOTHING);
	ck_assert_uint_eq(r.mem->answer[0].seq, 0);
	there[1] = bits[1];
	ck_assert_int_eq(look(0), BOX_TAKEN);
}
END_TEST

START_TEST(bits_behind_the_last_tensor)
{
	unsigned char bits[2] = { 0xff, 0x07 };
	for (unsigned bit = RIG_TENSORS % 8; bit < 8; bit++) {
		unsigned char more[2] = { bits[0], (unsigned char)(bits[1] | 1u << bit) };
		struct gacc_box_request q = box_rig_push(bit);
		box_rig_present(&r, 0, &q, more);
		put(0, q);
		check_refused(0, bit, ST_INVALID_ARGUMENT);
	}
	struct gacc_box_request q = box_rig_push(100);
	box_rig_present(&r, 0, &q, bits);
	put(0, q);
	ck_assert_int_eq(look(0), BOX_TAKEN);
}
END_TEST

/* ---- ready words ---- */

START_TEST(a_push_whose_word_is_not_there_is_looked_at_again)
{
	struct gacc_box_request q = box_rig_push(1);
	q.ready_at = 8, q.ready_value = 5, q.flags = GACC_BOX_RINGS;
	put(0, q);
	for (uint64_t word = 0; word < 5; word++) {
		r.mem->ready[7].value = word;
		ck_assert_int_eq(look(0), BOX_UNREADY);
		ck_assert_uint_eq(got.q.flags, GACC_BOX_RINGS);
	}
	ck_assert(!r.cells.bell_due);
	r.mem->ready[7].value = 5;
	ck_assert_int_eq(look(0), BOX_TAKEN);
}
END_TEST

START_TEST(words_that_wrap)
{
	const struct {
		uint64_t word, value;
		bool ready;
	} row[] = { { 6, 5, true },
		    { 4, 5, false },
		    { 1, UINT64_MAX, true },
		    { UINT64_MAX, 1, false },
		    { UINT64_MAX, UINT64_MAX, true },
		    { 0, 0, true },
		    { INT64_MAX, 0, true },
		    { UINT64_C(1) << 63, 0, false } };
	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		struct gacc_box_request q = box_rig_push(i + 1);
		q.ready_at = 1, q.ready_value = row[i].value;
		r.mem->ready[0].value = row[i].word;
		box_rig_restart(&r);
		put(0, q);
		ck_assert_msg(look(0) == (row[i].ready ? BOX_TAKEN : BOX_UNREADY), "row %zu", i);
	}
}
END_TEST

/* ---- a turn ---- */

START_TEST(a_turn_follows_the_numbers)
{
	const uint64_t number[GACC_BOX_CELLS] = { 70, 3, 0, 9, 2, UINT64_MAX, 8, 1 };
	const uint32_t order[] = { 7, 4, 1, 6, 3, 0, 5 };
	struct box_request all[GACC_BOX_CELLS];
	uint32_t unready;
	for (uint32_t c = 0; c < GACC_BOX_CELLS; c++)
		put(c, box_rig_push(number[c]));
	ck_assert_uint_eq(box_look_all(&r.cells, all, &unready), 7);
	for (uint32_t i = 0; i < 7; i++)
		ck_assert(all[i].cell == order[i] && all[i].q.seq == number[order[i]]);
	ck_assert_uint_eq(unready, 0);
	ck_assert_uint_eq(box_look_all(&r.cells, all, &unready), 0);
}
END_TEST

/* Pushes of a rank come in order: one that is complete waits for one before it that is not. A WAIT does not. */
START_TEST(a_turn_stops_at_a_push_that_is_not_ready)
{
	struct box_request all[GACC_BOX_CELLS];
	uint32_t unready;
	struct gacc_box_request q = box_rig_push(5);
	q.ready_at = 2, q.ready_value = 9;
	put(0, box_rig_push(6));
	put(1, q);
	put(2, box_rig_push(4));
	put(3, (struct gacc_box_request){ .seq = 7, .kind = GACC_BOX_WAIT, .window = 8 });
	q.seq = 8, q.ready_value = 10;
	put(4, q);
	ck_assert_uint_eq(box_look_all(&r.cells, all, &unready), 2);
	ck_assert(all[0].cell == 2 && all[1].cell == 3);
	ck_assert_uint_eq(unready, 1u << 1);
	r.mem->ready[1].value = 9;
	ck_assert_uint_eq(box_look_all(&r.cells, all, &unready), 2);
	ck_assert(all[0].cell == 1 && all[1].cell == 0);
	ck_assert_uint_eq(unready, 1u << 4);
	q.flags = GACC_BOX_RINGS;
	put(4, q);
	ck_assert_uint_eq(box_look_all(&r.cells, all, &unready), 0);
	ck_assert_uint_eq(unready, 0); /* its bell comes */
}
END_TEST

/* Nobody stores its words any more, so nothing has to be looked at again; what is complete is taken all the same. */
START_TEST(a_closed_mailbox_waits_for_no_word)
{
	struct box_request all[GACC_BOX_CELLS];
	uint32_t unready;
	struct gacc_box_request q = box_rig_push(5);
	q.ready_at = 2, q.ready_value = 9;
	put(0, box_rig_push(4));
	put(1, q);
	box_set_closed(&r.cells);
	ck_assert_uint_eq(box_look_all(&r.cells, all, &unready), 1);
	ck_assert(all[0].cell == 0 && unready == 0);
	r.mem->ready[1].value = 9;
	ck_assert_uint_eq(box_look_all(&r.cells, all, &unready), 1);
	ck_assert(all[0].cell == 1 && unready == 0);
}
END_TEST

START_TEST(closed_is_told)
{
	box_set_closed(&r.cells);
	ck_assert_uint_eq(r.mem->header.closed, 1);
	ck_assert(r.cells.bell_due);
}
END_TEST

Suite *box_cells_suite(void);
Suite *box_cells_suite(void)
{
	Suite *s = suite_create("mailbox cells");
	TCase *t = tcase_create("cells");
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, a_free_cell_says_nothing);
	tcase_add_test(t, an_offer_is_taken_once_and_as_it_was);
	tcase_add_test(t, what_was_taken_is_answered);
	tcase_add_test(t, eight_at_a_time);
	tcase_add_test(t, half_written_is_not_there);
	tcase_add_test(t, a_number_of_zero_is_none);
	tcase_add_test(t, the_largest_numbers);
	tcase_add_test(t, a_rewritten_cell_is_busy);
	tcase_add_test(t, fields_that_change_behind_the_copy_change_nothing);
	tcase_add_test(t, what_was_not_answered_is_offered_again);
	tcase_add_test(t, an_answer_without_its_number_is_none);
	tcase_add_test(t, answers_are_read_at_the_start_alone);
	tcase_add_test(t, a_wait_is_answered_behind_its_step);
	tcase_add_test(t, a_wait_says_nothing_but_its_window);
	tcase_add_test(t, shapes_of_a_push);
	tcase_add_test(t, a_bitmap_is_copied);
	tcase_add_test(t, a_bitmap_that_is_not_there_yet);
	tcase_add_test(t, bits_behind_the_last_tensor);
	tcase_add_test(t, a_push_whose_word_is_not_there_is_looked_at_again);
	tcase_add_test(t, words_that_wrap);
	tcase_add_test(t, a_turn_follows_the_numbers);
	tcase_add_test(t, a_turn_stops_at_a_push_that_is_not_ready);
	tcase_add_test(t, a_closed_mailbox_waits_for_no_word);
	tcase_add_test(t, closed_is_told);
	suite_add_tcase(s, t);
	return s;
}
