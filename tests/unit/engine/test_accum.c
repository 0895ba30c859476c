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

static void setup_queue(void)
{
	ck_assert_int_eq(control_state_init(&state, RANKS, MAX_MICRO), ST_OK);
	state.r.micro_size = 4;
	for (uint32_t i = 0; i < RANKS; i++)
		state.rank[i].sgen = 2;
	ck_assert_int_eq(accum_init(&queue, 8, MAX_MICRO, true), ST_OK);
}

static void teardown_queue(void)
{
	accum_fini(&queue);
	accum_fini(NULL);
	control_state_fini(&state);
}

static void offer(uint32_t rank, uint32_t micro)
{
	accum_queue(&queue,
		    &(struct accum_entry){
			    .n_askers = 1, .rank = rank, .micro = micro, .slot = rank * 10 + micro, .sgen = 2 });
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
	offer(2, 0);
	offer(0, 1);
	offer(1, 0);
	ck_assert_str_eq(next(8), "");
	offer(0, 0);
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
	offer(0, 1);
	offer(1, 1);
	offer(0, 2);
	ck_assert_str_eq(next(8), "01 11 02");
	state.rank[1].flushed = 2;
	accum_remove(&queue, accum_find(&queue, 1, 1));
	ck_assert_str_eq(next(8), "01 02");
}
END_TEST

START_TEST(arrival_order_takes_what_is_there)
{
	queue.canonical = false;
	offer(2, 3);
	offer(0, 1);
	offer(1, 0);
	ck_assert_str_eq(next(8), "23 01 10");
	ck_assert_str_eq(next(2), "23 01");
}
END_TEST

START_TEST(who_repeats_a_queued_push_is_answered_with_it)
{
	offer(1, 0);
	struct accum_entry *e = accum_find(&queue, 1, 0);
	for (uint64_t i = 1; i < ACCUM_MAX_ASKERS; i++)
		accum_join(e, 10 + i);
	ck_assert_uint_eq(e->n_askers, ACCUM_MAX_ASKERS);
	ck_assert(e->asker[0] == 0 && e->asker[1] == 11 && e->asker[3] == 13);
	offer(0, 1);
	offer(1, 1);
	ck_assert_uint_eq(accum_oldest(&queue, 1)->micro, 0);
	ck_assert_ptr_null(accum_oldest(&queue, 2));
	accum_remove(&queue, e);
	ck_assert_uint_eq(accum_oldest(&queue, 1)->micro, 1);
}
END_TEST

/* What accum_blocked_by says, by a look at all pairs. */
static uint32_t blocked_by_walk(const struct control_state *s, uint32_t rank, uint32_t micro)
{
	for (uint32_t i = 0; i < s->r.ranks; i++)
		for (uint32_t m = 0; m <= micro && i != rank && !s->rank[i].flushed; m++)
			if ((m < micro || i < rank) && !control_bit(s->counted, s->r.max_micro_size, i, m) &&
			    !control_bit(s->voided, s->r.max_micro_size, i, m))
				return i;
	return rank;
}

/* Whatever ranks give first, and when they flush. */
START_TEST(a_push_is_blocked_by_the_lowest_rank_before_it)
{
	uint32_t seed = 3 + (uint32_t)_i;
	state.r.micro_size = 4;
	for (state.r.window = 0; state.r.window < 3; state.r.window++) {
		memset(state.counted, 0, state.n_words * sizeof(*state.counted));
		memset(state.voided, 0, state.n_words * sizeof(*state.voided));
		for (uint32_t i = 0; i < RANKS; i++)
			state.rank[i].counted = state.rank[i].flushed = 0;
		for (int n = 0; n < 40; n++) {
			seed = seed * 1664525 + 1013904223;
			uint32_t r = (seed >> 20) % RANKS, at = state.rank[r].counted;
			if (seed >> 28 == 7)
				state.rank[r].flushed = RANK_FLUSHED;
			else if (at < 4 && !state.rank[r].flushed) {
				control_set_bit(seed >> 27 & 1 ? state.counted : state.voided, MAX_MICRO, r, at);
				state.rank[r].counted++; /* here: of both */
			}
			for (uint32_t i = 0; i < RANKS; i++)
				for (uint32_t m = 0; m < 4; m++)
					ck_assert_uint_eq(accum_blocked_by(&queue, &state, i, m),
							  blocked_by_walk(&state, i, m));
		}
	}
	queue.canonical = false;
	state.r.window++;
	memset(state.counted, 0, state.n_words * sizeof(*state.counted));
	ck_assert_uint_eq(accum_blocked_by(&queue, &state, 2, 1), 2);
}
END_TEST

/* A checkpoint was read: the same window, with fewer micro-batches in it. */
START_TEST(a_restart_forgets_who_had_given)
{
	control_set_bit(state.counted, MAX_MICRO, 0, 0);
	ck_assert_uint_eq(accum_blocked_by(&queue, &state, 1, 0), 1);
	memset(state.counted, 0, state.n_words * sizeof(*state.counted));
	accum_restart(&queue);
	ck_assert_uint_eq(accum_blocked_by(&queue, &state, 1, 0), 0);
}
END_TEST

START_TEST(stale_entries_are_found_and_bitmaps_freed)
{
	struct accum_entry e = { .n_askers = 1, .rank = 1, .slot = 1, .sgen = 2, .present = malloc(16) };
	accum_queue(&queue, &e);
	offer(0, 0);
	ck_assert_ptr_null(accum_find_stale(&queue, 1, 2));
	ck_assert_ptr_null(accum_find_stale(&queue, 2, 9));
	ck_assert_uint_eq(accum_find_stale(&queue, 1, 3)->rank, 1);
	accum_remove(&queue, accum_find_stale(&queue, 1, 3));
	ck_assert_uint_eq(accum_find_stale(&queue, UINT32_MAX, UINT64_MAX)->rank, 0);
	accum_remove(&queue, accum_find_stale(&queue, UINT32_MAX, UINT64_MAX));
	ck_assert_ptr_null(accum_find_stale(&queue, UINT32_MAX, UINT64_MAX));
}
END_TEST

static void offer_lr(uint32_t rank, uint32_t micro, double lr)
{
	accum_queue(&queue, &(struct accum_entry){
				    .n_askers = 1, .rank = rank, .micro = micro, .slot = 100 + rank, .window_lr = lr });
}

/* The first that is counted gives the window its learning rate; which one that is, the order says, not the arrival. */
START_TEST(a_window_has_one_learning_rate)
{
	struct accum_entry *e[8];
	state.r.micro_size = 2;
	queue.canonical = _i;
	offer_lr(_i ? 1 : 0, 0, _i ? 0.2 : 0.1);
	offer_lr(_i ? 0 : 1, 0, _i ? 0.1 : 0.2);
	offer_lr(2, 0, 0.1);
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
	offer_lr(1, 0, 0.1);
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
	offer(0, 1);
	offer(1, 1);
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
	uint32_t seed = 7 + (uint32_t)_i;
	ck_assert_int_eq(control_state_init(&s, R, K), ST_OK);
	ck_assert_int_eq(accum_init(&a, 8, K, true), ST_OK);
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
			struct accum_entry push = { .n_askers = 1, .rank = rank, .micro = micro, .slot = 1 };
			accum_queue(&a, &push);
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
	tcase_add_test(t, who_repeats_a_queued_push_is_answered_with_it);
	tcase_add_loop_test(t, a_push_is_blocked_by_the_lowest_rank_before_it, 0, 20);
	tcase_add_test(t, a_restart_forgets_who_had_given);
	tcase_add_test(t, stale_entries_are_found_and_bitmaps_freed);
	tcase_add_loop_test(t, a_window_has_one_learning_rate, 0, 2);
	tcase_add_test(t, a_window_is_complete_when_nothing_is_missing);
	tcase_add_loop_test(t, where_the_next_push_is_found_needs_no_look_at_all_pairs, 0, 10);
	suite_add_tcase(s, t);
	return s;
}
