/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator of a job of five ranks in two parts, {0, 2, 3} and {1, 4}: what it makes of their reports. */
#include "control/coordinator.h"
#include "engine/control_page.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

#define SECOND INT64_C(1000000000)
#define MICRO_SIZE 3

Suite *of_parts_suite(void);

static const uint32_t first_ranks[] = { 0, 2, 3 }, second_ranks[] = { 1, 4 };
static const struct part_ranks parts[2] = { { 3, first_ranks }, { 2, second_ranks } };
static struct job_spec spec;
static struct coord *coord;
static struct now now;
static struct report node[2];
static struct rank_progress progress[2][3];
static uint64_t bits[2], stored_bits;
static struct order order;
static uint32_t ordered; /* part */
static int n_orders[2];
static struct commit stored;
static char end_reason[300], last_event[32], last_text[256];

static void on_order(void *ctx, uint32_t part, const struct order *o)
{
	order = *o;
	ordered = part;
	n_orders[part]++;
}
static void on_persist(void *ctx, const struct commit *k, const uint64_t *counted, uint32_t n)
{
	ck_assert_uint_eq(n, 1);
	stored = *k;
	stored_bits = counted[0];
}
static void on_end(void *ctx, uint64_t job, enum status st, const char *reason)
{
	snprintf(end_reason, sizeof(end_reason), "%s: %s", status_info(st)->name, reason);
}
static void on_event(void *ctx, uint64_t job, bool warning, const char *reason, int64_t rank, const char *text)
{
	snprintf(last_event, sizeof(last_event), "%s", reason);
	snprintf(last_text, sizeof(last_text), "%s", text);
}
static void on_changed(void *ctx, uint64_t job)
{
}
static const struct coord_ports ports = {
	.order = on_order, .persist_commit = on_persist, .persist_end = on_end, .event = on_event, .changed = on_changed
};

static void tell(uint32_t i)
{
	node[i].number++;
	node[i].rank = progress[i];
	node[i].n_ranks = parts[i].n;
	node[i].counted = node[i].phase >= WINDOW_CLOSED ? &bits[i] : NULL;
	node[i].n_words = 1;
	coord_on_report(coord, &node[i], now);
	char why[200] = "";
	ck_assert_msg(!coord_counts_wrong(coord, why, sizeof(why)), "%s", why);
}

static void setup(void)
{
	const char *field;
	char why[200];
	spec = (struct job_spec){ .name = "t", .ranks = 5, .micro_size = MICRO_SIZE, .max_micro_size = MICRO_SIZE };
	spec.master_f32 = true;
	spec.optim = (struct optim_config){ .type = OPTIM_SGD, .lr = 0.1 };
	ck_assert_int_eq(job_spec_check(&spec, &field, why, sizeof(why)), ST_OK);
	now = (struct now){ 1000 * SECOND, 5000 * SECOND };
	memset(n_orders, 0, sizeof(n_orders));
	memset(progress, 0, sizeof(progress));
	end_reason[0] = last_event[0] = '\0';
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 5, 2, parts, &ports), ST_OK);
	for (uint32_t i = 0; i < 2; i++) {
		node[i] =
			(struct report){ .job_id = 1, .epoch = 1, .incarnation = 1, .part = i, .start = START_PARAMS };
		for (uint32_t k = 0; k < parts[i].n; k++)
			progress[i][k] = (struct rank_progress){ .rank = parts[i].rank[k], .attached = 1 };
		tell(i);
	}
	ck_assert_int_eq(coord_phase(coord), COORD_COLLECT);
}

static void teardown(void)
{
	coord_free(coord);
}

static void give_all(uint32_t i, int64_t age_ns)
{
	for (uint32_t k = 0; k < parts[i].n; k++) {
		progress[i][k].counted = MICRO_SIZE;
		progress[i][k].ready_ns = progress[i][k].waiting_ns = age_ns;
	}
	node[i].complete = true;
	tell(i);
}

/* All that the orders want, until the commit is given to the journal. */
static void reach_persist(void)
{
	for (uint32_t i = 0; i < 2; i++) {
		node[i].phase = WINDOW_CLOSED;
		node[i].count = node[i].sum_weight = (uint64_t)__builtin_popcountll(bits[i]);
		tell(i);
	}
	for (uint32_t i = 0; i < 2; i++) {
		node[i].phase = WINDOW_PREPARED;
		node[i].vote_term = order.term;
		node[i].vote_attempt = order.attempt;
		node[i].sumsq = 1;
		tell(i);
	}
}

START_TEST(the_parts_bits_become_the_jobs)
{
	bits[0] = 0777; /* three bits a rank */
	bits[1] = 077;
	give_all(0, 1);
	give_all(1, 1);
	reach_persist();
	ck_assert_int_eq(coord_phase(coord), COORD_PERSIST);
	ck_assert_uint_eq(stored.micro_count, 15);
	ck_assert_uint_eq(stored_bits, 077777);
	coord_on_persisted(coord, 0, ST_OK, now);
	for (uint32_t i = 0; i < 2; i++) {
		node[i] = (struct report){ .job_id = 1, .epoch = 1, .incarnation = 1, .part = i, .number = 99 };
		node[i].start = START_PARAMS;
		node[i].window = 1;
		for (uint32_t k = 0; k < parts[i].n; k++)
			progress[i][k].counted = i; /* the first of the next window */
		tell(i);
	}
	ck_assert_uint_eq(coord_window(coord), 1);
	ck_assert_uint_eq(coord_ranks(coord, &(uint32_t){ 0 })[4].counted, 1);
}
END_TEST

START_TEST(each_part_has_its_own_place)
{
	uint64_t window;
	bits[0] = 0421; /* ranks 0, 2, 3: micro-batches 0, 1, 2 */
	bits[1] = 013;	/* ranks 1, 4: 0 and 1; 0 */
	ck_assert_int_eq(coord_flush(coord, &window, now), ST_OK);
	reach_persist();
	ck_assert_int_eq(coord_phase(coord), COORD_PERSIST);
	ck_assert_uint_eq(stored_bits, 014231);
}
END_TEST

/* A node cannot say anything of another part's ranks. */
START_TEST(progress_of_a_foreign_rank_is_not_taken)
{
	progress[1][0].rank = 2;
	progress[1][0].counted = 3;
	progress[1][1].rank = 99;
	tell(1);
	ck_assert_uint_eq(coord_ranks(coord, &(uint32_t){ 0 })[2].counted, 0);
	progress[1][0].rank = 1;
	tell(1);
	ck_assert_uint_eq(coord_ranks(coord, &(uint32_t){ 0 })[1].counted, 3);
	node[1].part = 2;
	tell(1); /* there is no such part */
}
END_TEST

/* The clocks of the nodes are not compared: rank 4 became ready 10 s before rank 0, whatever they show. */
START_TEST(ages_are_compared_not_clocks)
{
	now.mono_ns += 20 * SECOND;
	bits[0] = 0777;
	bits[1] = 077;
	give_all(1, 12 * SECOND);
	ck_assert_int_eq(coord_rank_late_ns(coord, 0, now), 12 * SECOND);
	give_all(0, 2 * SECOND);
	give_all(1, 30 * SECOND); /* what a later report says of when does not count */
	reach_persist();
	ck_assert_int_eq(coord_phase(coord), COORD_PERSIST);
	ck_assert(stored.last_rank == 0 || stored.last_rank == 2 || stored.last_rank == 3);
	ck_assert_double_eq_tol(stored.wait_fraction, (2 * 12 + 3 * 2) / (5 * 20.0), 1e-9);
}
END_TEST

/* ---- hindrance and failure ---- */

static void expect_state(enum job_state state, const char *reason)
{
	const char *is;
	ck_assert_int_eq(coord_state(coord, &is, NULL), state);
	ck_assert_str_eq(is, reason);
}

START_TEST(a_job_is_hindered_while_any_part_is)
{
	snprintf(node[1].hindrance, REPORT_TEXT, "no room");
	tell(1);
	expect_state(JOB_STALLED, "part 1: no room");
	ck_assert_str_eq(last_event, "EngineFailing");
	last_event[0] = '\0';
	tell(1);
	ck_assert_str_eq(last_event, "");
	snprintf(node[0].hindrance, REPORT_TEXT, "no memory");
	tell(0);
	expect_state(JOB_STALLED, "part 0: no memory");
	node[0].hindrance[0] = '\0';
	tell(0);
	expect_state(JOB_STALLED, "part 1: no room");
	now.mono_ns += 2 * spec.stall_abort_ns;
	coord_tick(coord, now); /* nobody is late */
	ck_assert_str_eq(end_reason, "");
	node[1].hindrance[0] = '\0';
	tell(1);
	expect_state(JOB_RUNNING, "");
	ck_assert_str_eq(last_event, "EngineBack");
}
END_TEST

START_TEST(a_part_that_fails_ends_the_job)
{
	node[1].failed.status = ST_SEGMENT_CORRUPT;
	snprintf(node[1].failed.text, REPORT_TEXT, "both records are damaged");
	tell(1);
	ck_assert_str_eq(end_reason, "SEGMENT_CORRUPT: part 1: both records are damaged");
	coord_on_ended(coord, ST_OK, now);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_NODE_FAIL);
}
END_TEST

START_TEST(a_part_that_has_ended_is_left_alone)
{
	coord_end(coord, ST_CANCELLED, "by ana", now);
	coord_on_ended(coord, ST_OK, now);
	ck_assert_int_eq(order.want, WANT_END);
	node[0].ended = true;
	tell(0);
	int before[2] = { n_orders[0], n_orders[1] };
	now.mono_ns += SECOND;
	coord_tick(coord, now);
	ck_assert_int_eq(n_orders[0], before[0]);
	ck_assert_int_eq(n_orders[1], before[1] + 1);
}
END_TEST

/* ---- what is repeated ---- */

/* 100 ms go by n times. */
static void ticks(int n)
{
	for (int i = 0; i < n; i++) {
		now.mono_ns += SECOND / 10;
		coord_tick(coord, now);
	}
}

static void take_order(uint32_t i)
{
	node[i].term = order.term;
	node[i].order = order.number;
	tell(i);
}

START_TEST(an_order_is_repeated_until_it_was_taken)
{
	take_order(0);
	take_order(1);
	int before[2] = { n_orders[0], n_orders[1] };
	ticks(50);
	ck_assert_int_eq(n_orders[0], before[0]);
	ck_assert_int_eq(n_orders[1], before[1]);
	coord_pause(coord, "by ana", now);
	ck_assert(order.paused);
	take_order(1);
	ticks(10);
	ck_assert_int_ge(n_orders[0], before[0] + 5);
	ck_assert_int_eq(n_orders[1], before[1] + 1);
	node[0].term = 4; /* of an earlier coordinator, which may have counted further */
	node[0].order = 100;
	tell(0);
	ticks(10);
	ck_assert_int_ge(n_orders[0], before[0] + 9);
	take_order(0);
	before[0] = n_orders[0];
	ticks(10);
	ck_assert_int_eq(n_orders[0], before[0]);
}
END_TEST

/* Calls that time out name who is late: the nodes have to know it, and that it is over. */
START_TEST(late_ranks_are_told_while_there_are_any)
{
	take_order(0);
	take_order(1);
	give_all(1, 1);
	int before = n_orders[1];
	ticks(10);
	ck_assert_int_ge(n_orders[1], before + 4);
	ck_assert_uint_eq(order.n_late, 3);
	progress[1][0].waiting_ns = progress[1][1].waiting_ns = 0;
	tell(1);
	ticks(3);
	ck_assert_uint_eq(order.n_late, 0);
	before = n_orders[1];
	ticks(10);
	ck_assert_int_eq(n_orders[1], before);
}
END_TEST

START_TEST(nobody_is_late_for_a_window_that_closes)
{
	give_all(1, 1);
	ticks(10);
	ck_assert_uint_eq(order.n_late, 3);
	give_all(0, 1);
	ck_assert_int_ne(order.want, WANT_NOTHING);
	ck_assert_uint_eq(order.n_late, 0);
	take_order(0);
	take_order(1);
	int before = n_orders[1];
	ticks(10);
	ck_assert_int_eq(n_orders[1], before);
}
END_TEST

/* ---- attempts ---- */

static void reach_go(void)
{
	give_all(0, 1);
	give_all(1, 1);
	for (uint32_t i = 0; i < 2; i++) {
		node[i].phase = WINDOW_CLOSED;
		tell(i);
	}
	ck_assert_int_eq(coord_phase(coord), COORD_GO);
}

START_TEST(an_attempt_goes_on_while_any_part_gets_on)
{
	reach_go();
	uint64_t attempt = order.attempt;
	for (int i = 0; i < 20; i++) {
		ticks(199);
		if (_i)
			node[i % 2].pieces++;
		else
			node[i % 2].connected++;
		tell((uint32_t)i % 2);
	}
	ck_assert_str_ne(last_event, "AttemptFailed");
	ticks(199);
	ck_assert_uint_eq(order.attempt, attempt);
	ticks(5);
	ck_assert_str_eq(last_event, "AttemptFailed");
	ck_assert_uint_eq(order.attempt, attempt + 1);
}
END_TEST

START_TEST(a_hindered_attempt_is_not_stuck)
{
	reach_go();
	uint64_t attempt = order.attempt;
	snprintf(node[1].hindrance, REPORT_TEXT, "no room");
	tell(1);
	ticks(36000);
	ck_assert_uint_eq(order.attempt, attempt);
	ck_assert_str_eq(end_reason, "");
}
END_TEST

/* A window that closes is committed before the pause begins: its attempts go on, and only their bound does not run. */
START_TEST(an_attempt_that_hangs_in_a_pause_is_repeated)
{
	reach_go();
	uint64_t attempt = order.attempt;
	coord_pause(coord, "by ana", now);
	ticks(210);
	ck_assert_uint_eq(order.attempt, attempt + 1);
	ticks(12000); /* 20 min, twice stall_abort */
	ck_assert_uint_gt(order.attempt, attempt + 30);
	ck_assert_str_eq(end_reason, "");
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_PAUSED);
}
END_TEST

/* ---- which reports count ---- */

START_TEST(a_report_of_an_older_epoch_is_answered_with_the_order)
{
	struct commit last = { .window = 3, .epoch = 4, .outcome = OUTCOME_APPLIED, .next = *coord_carry(coord) };
	coord_restore(coord, &last);
	int before[2] = { n_orders[0], n_orders[1] };
	node[1].epoch = 3;
	node[1].window = 4;
	tell(1);
	ck_assert_int_eq(n_orders[0], before[0]);
	ck_assert_int_eq(n_orders[1], before[1] + 1);
	ck_assert_uint_eq(order.epoch, 4);
	ck_assert_uint_eq(coord_epoch(coord), 4);
	ck_assert_int_eq(order.want, WANT_COMMIT);
	node[1].epoch = 5; /* nobody but the journal says what the epoch is */
	tell(1);
	ck_assert_int_eq(n_orders[1], before[1] + 1);
	ck_assert_int_eq(coord_phase(coord), COORD_COMMIT);
	for (uint32_t i = 0; i < 2; i++) {
		node[i].epoch = 4;
		node[i].window = 4;
		tell(i);
	}
	ck_assert_int_eq(coord_phase(coord), COORD_COLLECT);
}
END_TEST

START_TEST(a_report_that_was_overtaken_is_ignored)
{
	snprintf(node[1].hindrance, REPORT_TEXT, "no room");
	tell(1);
	struct report old = node[1];
	node[1].hindrance[0] = '\0';
	tell(1);
	ck_assert_uint_eq(old.number + 1, node[1].number);
	coord_on_report(coord, &old, now);
	expect_state(JOB_RUNNING, "");
	old.incarnation++; /* its gaccd is new, and counts from 1 */
	old.number = 1;
	coord_on_report(coord, &old, now);
	expect_state(JOB_STALLED, "part 1: no room");
}
END_TEST

/* Reports that are not counted are compared by what they say. */
START_TEST(a_later_attempt_takes_a_vote_back)
{
	struct report next;
	node[1].phase = WINDOW_PREPARED;
	node[1].vote_term = 5;
	node[1].vote_attempt = 1;
	tell(1);
	next = node[1];
	next.number = 0;
	snprintf(next.hindrance, REPORT_TEXT, "no room");
	next.phase = WINDOW_CLOSED;
	next.vote_attempt = 0;
	coord_on_report(coord, &next, now);
	expect_state(JOB_RUNNING, "");
	next.vote_attempt = 2;
	coord_on_report(coord, &next, now);
	expect_state(JOB_STALLED, "part 1: no room");
}
END_TEST

Suite *of_parts_suite(void)
{
	Suite *s = suite_create("coordinator of parts");
	TCase *c = tcase_create("coordinator of parts");
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_add_test(c, the_parts_bits_become_the_jobs);
	tcase_add_test(c, each_part_has_its_own_place);
	tcase_add_test(c, progress_of_a_foreign_rank_is_not_taken);
	tcase_add_test(c, ages_are_compared_not_clocks);
	tcase_add_test(c, a_job_is_hindered_while_any_part_is);
	tcase_add_test(c, a_part_that_fails_ends_the_job);
	tcase_add_test(c, a_later_attempt_takes_a_vote_back);
	tcase_add_test(c, a_part_that_has_ended_is_left_alone);
	tcase_add_test(c, an_order_is_repeated_until_it_was_taken);
	tcase_add_test(c, late_ranks_are_told_while_there_are_any);
	tcase_add_test(c, nobody_is_late_for_a_window_that_closes);
	tcase_add_loop_test(c, an_attempt_goes_on_while_any_part_gets_on, 0, 2);
	tcase_add_test(c, an_attempt_that_hangs_in_a_pause_is_repeated);
	tcase_add_test(c, a_hindered_attempt_is_not_stuck);
	tcase_add_test(c, a_report_of_an_older_epoch_is_answered_with_the_order);
	tcase_add_test(c, a_report_that_was_overtaken_is_ignored);
	suite_add_tcase(s, c);
	return s;
}
