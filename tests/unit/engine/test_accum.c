/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of pushes that wait to be added: what is taken in, and in which order it comes out. */
#include "engine/accum.h"

#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Suite *accum_suite(void);

#define RANKS 3
#define MAX_MICRO 30

static struct accum queue;
static struct control_state state;
static struct control_page page; /* for its ledger */
static void *memory;

static void setup_queue(void)
{
	size_t bytes = control_page_bytes(RANKS, MAX_MICRO, 1, 1);
	memory = aligned_alloc(64, bytes);
	memset(memory, 0, bytes);
	control_page_view(&page, memory, RANKS, MAX_MICRO, 1, 1);
	ck_assert_int_eq(control_state_init(&state, RANKS, MAX_MICRO), ST_OK);
	state.r.micro_size = 4;
	for (uint32_t i = 0; i < RANKS; i++)
		state.rank[i].sgen = 2;
	ck_assert_int_eq(accum_init(&queue, 8, true), ST_OK);
}

static void teardown_queue(void)
{
	accum_fini(&queue);
	accum_fini(NULL);
	control_state_fini(&state);
	free(memory);
}

static enum status offer_as(uint32_t rank, uint32_t micro, uint32_t slot, uint64_t sgen, uint64_t key, bool *voided)
{
	struct accum_entry e = { .rank = rank, .micro = micro, .slot = slot, .sgen = sgen, .data_key = key };
	return accum_offer(&queue, &state, control_page_ledger(&page, rank, micro), &e, voided);
}

static enum status offer(uint32_t rank, uint32_t micro)
{
	bool voided;
	return offer_as(rank, micro, rank * 10 + micro, 2, 0, &voided);
}

/* "rm rm .." of what may be added now. */
static const char *next(uint32_t max)
{
	static char text[64];
	struct accum_entry *e[8];
	uint32_t n = accum_next(&queue, &state, e, max);
	text[0] = 0;
	for (uint32_t i = 0; i < n; i++)
		sprintf(text + strlen(text), "%s%u%u", i ? " " : "", e[i]->rank, e[i]->micro);
	return text;
}

START_TEST(canonical_order_is_micro_major_and_waits)
{
	ck_assert_int_eq(offer(2, 0), ST_OK);
	ck_assert_int_eq(offer(0, 1), ST_OK);
	ck_assert_int_eq(offer(1, 0), ST_OK);
	ck_assert_str_eq(next(8), "");
	ck_assert_int_eq(offer(0, 0), ST_OK);
	ck_assert_str_eq(next(8), "00 10 20 01");
	ck_assert_str_eq(next(3), "00 10 20");
	accum_remove(&queue, accum_find(&queue, 1, 0));
	ck_assert_str_eq(next(8), "00");
	ck_assert_ptr_null(accum_find(&queue, 1, 0));
}
END_TEST

START_TEST(what_is_counted_void_or_flushed_is_passed_over)
{
	control_set_bit(state.counted, MAX_MICRO, 0, 0);
	control_set_bit(state.voided, MAX_MICRO, 1, 0);
	state.rank[2].flushed = 1;
	ck_assert_int_eq(offer(0, 1), ST_OK);
	ck_assert_int_eq(offer(1, 1), ST_OK);
	ck_assert_int_eq(offer(0, 2), ST_OK);
	ck_assert_str_eq(next(8), "01 11 02");
	state.rank[1].flushed = 2;
	accum_remove(&queue, accum_find(&queue, 1, 1));
	ck_assert_str_eq(next(8), "01 02");
}
END_TEST

START_TEST(arrival_order_takes_what_is_there)
{
	queue.canonical = false;
	ck_assert_int_eq(offer(2, 3), ST_OK);
	ck_assert_int_eq(offer(0, 1), ST_OK);
	ck_assert_int_eq(offer(1, 0), ST_OK);
	ck_assert_str_eq(next(8), "23 01 10");
	ck_assert_str_eq(next(2), "23 01");
}
END_TEST

START_TEST(pushes_are_judged_before_they_queue)
{
	bool voided = true;
	struct ledger_cell *cell = control_page_ledger(&page, 1, 0);
	ck_assert_int_eq(offer_as(1, 0, 5, 1, 0, &voided), ST_SESSION_FENCED);
	ck_assert_int_eq(offer_as(1, 0, 5, 3, 0, &voided), ST_SESSION_UNKNOWN);
	control_set_bit(state.counted, MAX_MICRO, 1, 0);
	cell->data_key = 77;
	ck_assert_int_eq(offer_as(1, 0, 5, 1, 77, &voided), ST_SESSION_FENCED);
	ck_assert_int_eq(offer_as(1, 0, 5, 2, 76, &voided), ST_DATA_KEY_MISMATCH);
	ck_assert_int_eq(offer_as(1, 0, 5, 2, 77, &voided), ST_ALREADY_EXISTS);
	ck_assert(!voided);
	ck_assert_int_eq(offer_as(1, 0, 5, 2, 0, &voided), ST_ALREADY_EXISTS);
	control_set_bit(state.voided, MAX_MICRO, 1, 1);
	ck_assert_int_eq(offer_as(1, 1, 5, 2, 0, &voided), ST_ALREADY_EXISTS);
	ck_assert(voided);
	state.r.phase = WINDOW_CLOSED;
	ck_assert_int_eq(offer(1, 2), ST_WINDOW_CLOSED);
	ck_assert_int_eq(offer_as(1, 0, 5, 2, 77, &voided), ST_ALREADY_EXISTS);
	state.r.phase = WINDOW_OPEN;
	state.rank[1].flushed = 1;
	ck_assert_int_eq(offer(1, 2), ST_FLUSHED);
	ck_assert_int_eq(offer_as(1, 0, 5, 2, 77, &voided), ST_ALREADY_EXISTS);
	ck_assert_uint_eq(queue.n, 0);
}
END_TEST

START_TEST(a_slot_and_a_micro_batch_queue_once)
{
	bool voided;
	ck_assert_int_eq(offer_as(0, 1, 5, 2, 0, &voided), ST_OK);
	ck_assert_int_eq(offer_as(0, 1, 6, 2, 0, &voided), ST_SLOT_BUSY);
	ck_assert_int_eq(offer_as(0, 2, 5, 2, 0, &voided), ST_SLOT_BUSY);
	ck_assert_uint_eq(queue.n, 1);
	for (uint32_t i = 0; i < 7; i++)
		ck_assert_int_eq(offer_as(2, i, 10 + i, 2, 0, &voided), ST_OK);
	ck_assert_int_eq(offer_as(1, 0, 20, 2, 0, &voided), ST_RESOURCE_EXHAUSTED);
}
END_TEST

START_TEST(stale_entries_are_found_and_bitmaps_freed)
{
	bool voided;
	struct accum_entry e = { .rank = 1, .micro = 0, .slot = 1, .sgen = 2, .present = malloc(16) };
	ck_assert_int_eq(accum_offer(&queue, &state, control_page_ledger(&page, 1, 0), &e, &voided), ST_OK);
	ck_assert_int_eq(offer(0, 0), ST_OK);
	ck_assert_ptr_null(accum_find_stale(&queue, 1, 2));
	ck_assert_ptr_null(accum_find_stale(&queue, 2, 9));
	ck_assert_uint_eq(accum_find_stale(&queue, 1, 3)->rank, 1);
	accum_remove(&queue, accum_find_stale(&queue, 1, 3));
	ck_assert_uint_eq(accum_find_stale(&queue, UINT32_MAX, UINT64_MAX)->rank, 0);
	accum_remove(&queue, accum_find_stale(&queue, UINT32_MAX, UINT64_MAX));
	ck_assert_ptr_null(accum_find_stale(&queue, UINT32_MAX, UINT64_MAX));
}
END_TEST

static enum status offer_lr(uint32_t rank, uint32_t micro, double lr)
{
	bool voided;
	struct accum_entry e = {
		.rank = rank, .micro = micro, .slot = 100 + rank, .sgen = state.rank[rank].sgen, .window_lr = lr
	};
	return accum_offer(&queue, &state, control_page_ledger(&page, rank, micro), &e, &voided);
}

/* The first that is counted gives the window its learning rate; which one that is, the order says, not the arrival. */
START_TEST(a_window_has_one_learning_rate)
{
	struct accum_entry *e[8];
	state.r.micro_size = 2;
	queue.canonical = _i;
	ck_assert_int_eq(offer_lr(_i ? 1 : 0, 0, _i ? 0.2 : 0.1), ST_OK);
	ck_assert_int_eq(offer_lr(_i ? 0 : 1, 0, _i ? 0.1 : 0.2), ST_OK);
	ck_assert_int_eq(offer_lr(2, 0, 0.1), ST_OK);
	ck_assert_ptr_null(accum_find_other_lr(&queue, &state)); /* nothing is counted yet */
	ck_assert_uint_eq(accum_next(&queue, &state, e, 8), 1);
	ck_assert_uint_eq(e[0]->rank, 0);
	state.r.count = 1;
	state.r.window_lr = 0.1;
	control_set_bit(state.counted, MAX_MICRO, 0, 0);
	accum_remove(&queue, e[0]);
	ck_assert_uint_eq(accum_find_other_lr(&queue, &state)->rank, 1);
	accum_remove(&queue, accum_find_other_lr(&queue, &state));
	ck_assert_ptr_null(accum_find_other_lr(&queue, &state));
	ck_assert_int_eq(offer_lr(1, 0, 0.2), ST_LR_MISMATCH);
	ck_assert_int_eq(offer_lr(1, 0, 0), ST_LR_MISMATCH);
	ck_assert_int_eq(offer_lr(0, 0, 0.2), ST_ALREADY_EXISTS);
	ck_assert_int_eq(offer_lr(1, 0, 0.1), ST_OK);
	ck_assert_uint_eq(accum_next(&queue, &state, e, 8), 2);
}
END_TEST

START_TEST(a_window_is_complete_when_nothing_is_missing)
{
	struct accum_entry *e[8];
	state.r.micro_size = 2;
	state.rank[2].flushed = 1;
	control_set_bit(state.counted, MAX_MICRO, 0, 0);
	control_set_bit(state.voided, MAX_MICRO, 1, 0);
	ck_assert(!accum_completes(&queue, &state, NULL, 0));
	ck_assert_int_eq(offer(0, 1), ST_OK);
	ck_assert_int_eq(offer(1, 1), ST_OK);
	ck_assert_uint_eq(accum_next(&queue, &state, e, 8), 2);
	ck_assert(accum_completes(&queue, &state, e, 2));
	ck_assert(!accum_completes(&queue, &state, e, 1));
	control_set_bit(state.counted, MAX_MICRO, 0, 1);
	ck_assert(!accum_completes(&queue, &state, NULL, 0));
	state.rank[1].flushed = 2;
	ck_assert(accum_completes(&queue, &state, NULL, 0));
	state.rank[1].flushed = 0; /* the next one: what is known of this one says nothing of it */
	state.r.window++;
	memset(state.counted, 0, state.n_words * sizeof(*state.counted));
	ck_assert(!accum_completes(&queue, &state, NULL, 0));
}
END_TEST

/* Whatever the order in which pairs become done: what is next and whether that is all are what a look at all pairs
 * says. */
START_TEST(where_the_next_push_is_found_needs_no_look_at_all_pairs)
{
	enum { R = 300, K = 4 };
	struct control_state s;
	struct accum a;
	struct accum_entry *e[1];
	struct ledger_cell none = { 0 };
	uint32_t seed = 7 + (uint32_t)_i;
	bool is_void;
	ck_assert_int_eq(control_state_init(&s, R, K), ST_OK);
	ck_assert_int_eq(accum_init(&a, 8, true), ST_OK);
	s.r.phase = WINDOW_OPEN;
	s.r.micro_size = K;
	for (s.r.window = 0; s.r.window < 3; s.r.window++) {
		memset(s.counted, 0, s.n_words * sizeof(*s.counted));
		memset(s.voided, 0, s.n_words * sizeof(*s.voided));
		uint64_t before = a.visited, n_left = R * K, n_pushes = 0;
		for (uint32_t i = 0; i < R * K; i++) { /* canonical order; some later ones have become void before */
			uint32_t rank = i % R, micro = i / R;
			seed = seed * 1664525 + 1013904223;
			uint32_t other = i + 1 + (seed >> 16) % (R * K - i);
			if (seed >> 30 == 0 && other < R * K && !control_bit(s.voided, K, other % R, other / R)) {
				control_set_bit(s.voided, K, other % R, other / R);
				n_left--;
			}
			if (control_bit(s.voided, K, rank, micro))
				continue;
			struct accum_entry push = { .rank = rank, .micro = micro, .slot = 1 };
			ck_assert_int_eq(accum_offer(&a, &s, &none, &push, &is_void), ST_OK);
			ck_assert_uint_eq(accum_next(&a, &s, e, 1), 1);
			ck_assert(e[0]->rank == rank && e[0]->micro == micro);
			ck_assert(accum_completes(&a, &s, e, 1) == (n_left == 1));
			control_set_bit(s.counted, K, rank, micro);
			accum_remove(&a, e[0]);
			n_left--;
			n_pushes++;
		}
		ck_assert(n_left == 0 && accum_completes(&a, &s, NULL, 0));
		ck_assert_uint_le(a.visited - before, 8 * n_pushes);
	}
	accum_fini(&a);
	control_state_fini(&s);
}
END_TEST

Suite *accum_suite(void)
{
	Suite *s = suite_create("accum");
	TCase *t = tcase_create("queue");
	tcase_add_checked_fixture(t, setup_queue, teardown_queue);
	tcase_add_test(t, canonical_order_is_micro_major_and_waits);
	tcase_add_test(t, what_is_counted_void_or_flushed_is_passed_over);
	tcase_add_test(t, arrival_order_takes_what_is_there);
	tcase_add_test(t, pushes_are_judged_before_they_queue);
	tcase_add_test(t, a_slot_and_a_micro_batch_queue_once);
	tcase_add_test(t, stale_entries_are_found_and_bitmaps_freed);
	tcase_add_loop_test(t, a_window_has_one_learning_rate, 0, 2);
	tcase_add_test(t, a_window_is_complete_when_nothing_is_missing);
	tcase_add_loop_test(t, where_the_next_push_is_found_needs_no_look_at_all_pairs, 0, 10);
	suite_add_tcase(s, t);
	return s;
}
