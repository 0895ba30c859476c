/* SPDX-License-Identifier: Apache-2.0 */
/* The micro-batches of windows in the history of a job whose part is elsewhere. */
#include "pair_rig.h"

#include "cluster/ledger_message.h"
#include "edge/hosted_ledger.h"
#include "edge/part_ledgers.h"
#include "edge/placing.h"
#include "runtime/recorder.h"
#include "support/suite.h"

#include <stdlib.h>

Suite *ledgers_suite(void);

/* ---- from pushes to the history ---- */

static uint32_t n_windows;
static struct history_window kept; /* the last that was read */
static struct history_micro micros[8];

static enum status keep(void *arg, const struct history_window *w)
{
	kept = *w;
	ck_assert_uint_le(w->n_micros, 8);
	if (w->n_micros)
		memcpy(micros, w->micro, w->n_micros * sizeof(*micros));
	n_windows++;
	return ST_OK;
}

static void read_history(void)
{
	n_windows = 0;
	recorder_flush(d.recorder);
	rig_run();
	ck_assert_int_eq(history_each_window(d.history, JOB, 0, 10, true, keep, NULL), ST_OK);
}

static void push_window(const struct session_key key[RANKS])
{
	for (uint32_t micro = 0; micro < 2; micro++)
		for (uint32_t rank = 0; rank < RANKS; rank++)
			pair_push(&key[rank], micro, 1);
}

START_TEST(the_history_has_what_was_counted_elsewhere)
{
	struct session_key key[RANKS];
	placing_send(job, node_now());
	UNTIL(there() && coord_phase(job->coord) == COORD_COLLECT);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		key[rank] = pair_attach(rank);
	for (uint64_t window = 0; window < 2; window++) {
		push_window(key);
		UNTIL(job_window(there()->job) == window + 1 && !job->deciding);
		ck_assert_uint_eq(seen.n[LINK_LEDGER], window + 1);
		read_history();
		ck_assert_uint_eq(n_windows, window + 1);
	}
	n_windows = 0;
	ck_assert_int_eq(history_each_window(d.history, JOB, 1, 10, true, keep, NULL), ST_OK); /* the first */
	ck_assert_uint_eq(kept.window, 0);
	ck_assert_uint_eq(kept.n_micros, 4);
	for (int i = 0; i < 4; i++) {
		ck_assert_uint_eq(micros[i].rank, i / 2);
		ck_assert_uint_eq(micros[i].micro, i % 2);
		ck_assert_uint_eq(micros[i].voided, 0);
		ck_assert_double_eq(micros[i].weight, 1);
		ck_assert_int_gt(micros[i].unix_ns, 0);
	}
	ck_assert_int_eq(micros[0].lag_ns, 0); /* rank 0 was first with each */
	ck_assert_int_eq(micros[2].lag_ns, micros[2].unix_ns - micros[0].unix_ns);
	ck_assert_int_eq(micros[3].lag_ns, micros[3].unix_ns - micros[1].unix_ns);
	ck_assert_int_gt(micros[3].lag_ns, 0);
}
END_TEST

/* With the vote, once: later the cells are the next window's. */
START_TEST(a_ledger_is_sent_once)
{
	placing_send(job, node_now());
	UNTIL(there() && coord_phase(job->coord) == COORD_COLLECT);
	struct report r = { .job_id = JOB, .incarnation = 1, .window = 2, .phase = WINDOW_CLOSED };
	part_ledger_send(there(), &r);
	r.phase = WINDOW_APPLYING;
	part_ledger_send(there(), &r);
	r.phase = WINDOW_PREPARED;
	r.vote_status = ST_ATTEMPT_FAILED;
	part_ledger_send(there(), &r);
	pair_turn(time(NULL) + 1, "");
	pair_turn(time(NULL) + 1, "");
	ck_assert_uint_eq(seen.n[LINK_LEDGER], 0);
	r.vote_status = ST_OK;
	part_ledger_send(there(), &r);
	part_ledger_send(there(), &r);
	UNTIL(seen.n[LINK_LEDGER]);
	pair_turn(time(NULL) + 1, "");
	ck_assert_uint_eq(seen.n[LINK_LEDGER], 1);
	ck_assert_uint_eq(job->part[0].ledger.window, 2);
	ck_assert_ptr_nonnull(job->part[0].ledger.micro); /* and it is empty */
	ck_assert_uint_eq(job->part[0].ledger.total, 0);
}
END_TEST

/* ---- portions ---- */

enum { TOTAL = 5 };
static uint32_t ranks[TOTAL] = { 0, 0, 1, 1, 1 }, micro[TOTAL] = { 0, 1, 0, 1, 2 };
static double weight[TOTAL] = { 1, 2, 3, 4, 5 }, loss[TOTAL] = { 6, 7, 8, 9, 10 };
static uint64_t data_key[TOTAL] = { 11, 12, 13, 14, 15 };
static int64_t unix_nanos[TOTAL] = { 16, 17, 18, 19, 20 };

static struct part_ledger portion(uint64_t first, uint32_t n)
{
	return (struct part_ledger){ .job_id = JOB,
				     .epoch = 1,
				     .incarnation = 5,
				     .window = 3,
				     .total = TOTAL,
				     .counted = 4,
				     .first = first,
				     .n = n,
				     .rank = ranks + first,
				     .micro = micro + first,
				     .weight = weight + first,
				     .loss = loss + first,
				     .data_key = data_key + first,
				     .unix_nanos = unix_nanos + first };
}

/* How many micro-batches are there after this portion. */
static uint64_t after(struct part_ledger l)
{
	size_t n;
	void *bytes = ledger_pack(&l, &n);
	const struct link_message m = { LINK_LEDGER, JOB, 0, bytes, n, NULL, false, 0 };
	hosted_take_ledger(&d, &m);
	free(bytes);
	return job->part[0].ledger.n;
}

START_TEST(portions_are_put_together)
{
	ck_assert_uint_eq(after(portion(0, 2)), 2);
	ck_assert_uint_eq(after(portion(2, 1)), 3);
	ck_assert_uint_eq(after(portion(3, 2)), 5);
	ck_assert_uint_eq(job->part[0].ledger.total, 5);
	for (int i = 0; i < TOTAL; i++) {
		const struct history_micro *m = &job->part[0].ledger.micro[i];
		ck_assert(m->rank == ranks[i] && m->micro == micro[i] && m->voided == (i == 4));
		ck_assert(m->weight == 1 + i && m->loss == 6 + i && m->data_key == 11 + (uint64_t)i &&
			  m->unix_ns == 16 + i);
	}
}
END_TEST

START_TEST(a_portion_that_is_missing_ends_it)
{
	ck_assert_uint_eq(after(portion(2, 1)), 0);
	ck_assert_uint_eq(after(portion(0, 2)), 2);
	ck_assert_uint_eq(after(portion(3, 2)), 2);
	ck_assert_uint_eq(after(portion(0, 2)), 2); /* anew */
	struct part_ledger l = portion(2, 1);
	l.total = 4;
	ck_assert_uint_eq(after(l), 2);
	ck_assert_uint_eq(after(portion(2, 3)), 5);
	ck_assert_uint_eq(after(portion(2, 3)), 5); /* it is repeated */
}
END_TEST

/* It has not come, or not all of it, or that of another window has: the window is in the history without its
 * micro-batches, and the next one is whole. */
START_TEST(a_lost_ledger_leaves_the_window)
{
	struct session_key key[RANKS];
	placing_send(job, node_now());
	UNTIL(there() && coord_phase(job->coord) == COORD_COLLECT);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		key[rank] = pair_attach(rank);
	seen.lost[LINK_LEDGER] = true;
	struct part_ledger l = portion(0, _i == 1 ? 2 : TOTAL);
	l.incarnation = other.node.incarnation;
	l.window = _i == 2;
	if (_i)
		after(l);
	push_window(key);
	UNTIL(job_window(there()->job) == 1 && !job->deciding);
	seen.lost[LINK_LEDGER] = false;
	read_history();
	ck_assert_uint_eq(n_windows, 1);
	ck_assert_uint_eq(kept.n_micros, 0);
	push_window(key);
	UNTIL(job_window(there()->job) == 2 && !job->deciding);
	read_history();
	ck_assert_uint_eq(n_windows, 2);
	ck_assert_int_eq(history_each_window(d.history, JOB, 0, 1, true, keep, NULL), ST_OK);
	ck_assert_uint_eq(kept.window, 1);
	ck_assert_uint_eq(kept.n_micros, 4);
}
END_TEST

#define AFTER(portion, change) (l = (portion), (change), after(l))

START_TEST(ledgers_of_others_are_dropped)
{
	struct part_ledger l;
	ck_assert_uint_eq(AFTER(portion(0, 2), l.epoch = 2), 0);
	ck_assert_uint_eq(AFTER(portion(0, 2), l.job_id = JOB + 1), 0);
	ck_assert_uint_eq(AFTER(portion(0, 2), l.part = 1), 0);
	ck_assert_ptr_null(job->part[0].ledger.micro);
	ck_assert_uint_eq(AFTER(portion(0, 2), (void)0), 2);
	ck_assert_uint_eq(AFTER(portion(2, 3), l.incarnation = 4), 2);
	ck_assert_uint_eq(AFTER(portion(2, 3), l.incarnation = 6), 2);
	ck_assert_uint_eq(AFTER(portion(2, 3), l.window = 4), 2);
	ck_assert_uint_eq(AFTER(portion(0, 3), (l.incarnation = 4, l.window = 9)), 2);
	ck_assert_uint_eq(AFTER(portion(0, 3), l.window = 2), 2);
	ck_assert_uint_eq(AFTER(portion(0, 3), (l.incarnation = 6, l.window = 2)), 3); /* of a gaccd started anew */
	ck_assert_uint_eq(AFTER(portion(0, 1), (l.incarnation = 6, l.window = 4)), 1);
	const struct link_message m = { LINK_LEDGER, JOB, 0, "\xff", 1, NULL, false, 0 };
	hosted_take_ledger(&d, &m);
	ck_assert_uint_eq(job->part[0].ledger.n, 1);
}
END_TEST

Suite *ledgers_suite(void)
{
	Suite *s = suite_create("ledgers");
	TCase *t = tcase_create("ledgers");
	suite_add_tcase(s, t);
	tcase_add_checked_fixture(t, pair_open, pair_close);
	tcase_set_timeout(t, 90);
	tcase_add_test(t, the_history_has_what_was_counted_elsewhere);
	tcase_add_test(t, a_ledger_is_sent_once);
	tcase_add_loop_test(t, a_lost_ledger_leaves_the_window, 0, 3);
	tcase_add_test(t, portions_are_put_together);
	tcase_add_test(t, a_portion_that_is_missing_ends_it);
	tcase_add_test(t, ledgers_of_others_are_dropped);
	return s;
}
