/* SPDX-License-Identifier: Apache-2.0 */
/* Attempts: the coordinator with two fake nodes, whose votes fail, differ, or come from another time; and the bounds of
 * the phases. */
#include "control/coordinator.h"
#include "engine/control_page.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

#define SECOND INT64_C(1000000000)

static struct job_spec spec;
static struct now now;
static char end_reason[300], last_event[32];

static void on_event(void *ctx, uint64_t job, bool warning, const char *reason, int64_t rank, const char *text)
{
	snprintf(last_event, sizeof(last_event), "%s", reason);
}

static void make_spec(uint32_t ranks)
{
	const char *field;
	char why[200];
	spec = (struct job_spec){ .name = "t", .ranks = ranks, .micro_size = 2, .master_f32 = true };
	spec.optim = (struct optim_config){ .type = OPTIM_SGD, .lr = 0.1 };
	ck_assert_int_eq(job_spec_check(&spec, &field, why, sizeof(why)), ST_OK);
	now = (struct now){ 1000 * SECOND, 5000 * SECOND };
	end_reason[0] = last_event[0] = '\0';
}

/* Two ranks, each a part of its own. */
static const struct part_ranks two_parts[2] = { { 1, (const uint32_t[]){ 0 } }, { 1, (const uint32_t[]){ 1 } } };

static struct coord *coord;
static struct order order;
static struct commit stored;
static int n_stored, n_orders;
static struct report node[2];
static struct rank_progress rank[2];
static uint64_t bits[2];

static void on_order(void *ctx, uint32_t n, const struct order *o)
{
	order = *o;
	n_orders++;
}
static void on_persist(void *ctx, const struct commit *k, const uint64_t *counted, uint32_t n)
{
	stored = *k;
	n_stored++;
}
static void on_end(void *ctx, uint64_t job, enum status st, const char *reason)
{
	snprintf(end_reason, sizeof(end_reason), "%s: %s", status_info(st)->name, reason);
}
static char held[300];
static int n_held;
static void on_hold(void *ctx, uint64_t job, const char *reason)
{
	snprintf(held, sizeof(held), "%s", reason);
	n_held++;
}
static void on_changed(void *ctx, uint64_t job)
{
}
static void on_norms(void *ctx, const struct commit *k)
{
}
static const struct coord_ports coord_ports = { .order = on_order,
						.persist_commit = on_persist,
						.persist_end = on_end,
						.hold = on_hold,
						.event = on_event,
						.changed = on_changed,
						.norms = on_norms };

static void tell(uint32_t i)
{
	node[i].part = i;
	node[i].rank = &rank[i];
	node[i].n_ranks = 1;
	node[i].counted = node[i].phase >= WINDOW_CLOSED ? &bits[i] : NULL;
	node[i].n_words = 1;
	coord_on_report(coord, &node[i], now);
}

static void open_coord(void)
{
	make_spec(2);
	n_stored = n_orders = n_held = 0;
	held[0] = '\0';
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 5, 2, two_parts, &coord_ports), ST_OK);
	for (uint32_t i = 0; i < 2; i++) {
		rank[i] = (struct rank_progress){ .rank = i, .attached = 1 };
		node[i] = (struct report){ .job_id = 1, .epoch = 1, .incarnation = 1, .start = START_PARAMS };
		bits[i] = 3;
		tell(i);
	}
	ck_assert_int_eq(coord_phase(coord), COORD_COLLECT);
}

static void close_coord(void)
{
	coord_free(coord);
}

static void fill_and_close(void)
{
	for (uint32_t i = 0; i < 2; i++) {
		node[i].complete = true;
		rank[i].counted = 2;
		tell(i);
	}
	ck_assert_int_eq(coord_phase(coord), COORD_GO);
	for (uint32_t i = 0; i < 2; i++) {
		node[i].phase = WINDOW_CLOSED;
		node[i].count = 2;
		node[i].sum_weight = 2;
		tell(i);
	}
	ck_assert_int_eq(coord_phase(coord), COORD_GO);
}

static void vote(uint32_t i, enum status st)
{
	node[i].phase = st ? node[i].phase : WINDOW_PREPARED;
	node[i].vote_term = order.term;
	node[i].vote_attempt = order.attempt;
	node[i].vote_status = st;
	node[i].sumsq = 1;
	node[i].digest = 77;
	tell(i);
}

START_TEST(a_failed_vote_raises_the_attempt)
{
	fill_and_close();
	uint64_t first = order.attempt;
	vote(0, ST_OK);
	vote(1, ST_IO_ERROR);
	ck_assert_str_eq(last_event, "AttemptFailed");
	now.mono_ns += SECOND;
	coord_tick(coord, now);
	ck_assert_int_eq(order.want, WANT_GO);
	ck_assert_uint_eq(order.attempt, first + 1);
	tell(0); /* its vote is for the attempt that failed */
	tell(1);
	ck_assert_int_eq(coord_phase(coord), COORD_GO);
	ck_assert_uint_eq(order.attempt, first + 1);
	vote(0, ST_OK);
	ck_assert_int_eq(n_stored, 0);
	vote(1, ST_OK);
	ck_assert_int_eq(n_stored, 1);
	ck_assert_uint_eq(stored.attempt, first + 1);
}
END_TEST

START_TEST(a_job_whose_attempts_all_fail_ends)
{
	fill_and_close();
	int64_t begun = 0;
	int n = 0;
	for (; n < 1000 && coord_phase(coord) == COORD_GO; n++) {
		uint64_t attempt = order.attempt;
		vote(1, ST_IO_ERROR);
		begun = begun ? begun : now.mono_ns;
		int64_t failed = now.mono_ns;
		while (order.attempt == attempt && coord_phase(coord) == COORD_GO) {
			now.mono_ns += SECOND / 10;
			coord_tick(coord, now);
		}
		/* 0.1 s, 0.1 s, 0.2 s and so on; 0.1 s for the tick */
		int64_t pause = n < 2 ? SECOND / 10 : n > 8 ? 10 * SECOND : (SECOND / 10) << (n - 1);
		pause = pause < 10 * SECOND ? pause : 10 * SECOND;
		ck_assert(coord_phase(coord) != COORD_GO || now.mono_ns - failed - pause <= SECOND / 10);
		ck_assert(coord_phase(coord) != COORD_GO || now.mono_ns - failed >= pause);
		ck_assert_int_eq(coord_state(coord, NULL, NULL) == JOB_RUNNING,
				 now.mono_ns - begun < spec.stall_warn_ns);
	}
	ck_assert_int_gt(n, 50);
	ck_assert(now.mono_ns - begun - spec.stall_abort_ns <= SECOND / 10);
	ck_assert_msg(!strncmp(end_reason, "ATTEMPT_FAILED: attempt ", 24), "%s", end_reason);
}
END_TEST

START_TEST(nodes_that_disagree_on_the_sum_try_again)
{
	fill_and_close();
	uint64_t first = order.attempt;
	vote(0, ST_OK);
	node[1].phase = WINDOW_PREPARED;
	node[1].vote_term = order.term;
	node[1].vote_attempt = order.attempt;
	node[1].digest = _i == 0 ? 78 : 77;
	node[1].sumsq = _i == 1 ? 2 : 1;
	node[1].nonfinite = _i == 2;
	tell(1);
	ck_assert_int_eq(n_stored, 0);
	ck_assert_str_eq(last_event, "AttemptFailed");
	now.mono_ns += SECOND;
	coord_tick(coord, now);
	ck_assert_uint_eq(order.attempt, first + 1);
}
END_TEST

static void commit(void)
{
	fill_and_close();
	vote(0, ST_OK);
	vote(1, ST_OK);
	ck_assert_int_eq(coord_phase(coord), COORD_PERSIST);
	coord_on_persisted(coord, 0, ST_OK, now);
	ck_assert_int_eq(order.want, WANT_COMMIT);
}

static void apply(uint32_t i, uint64_t digest)
{
	node[i] = (struct report){
		.job_id = 1, .epoch = 1, .incarnation = 1, .start = START_PARAMS, .window = 1, .params_digest = digest
	};
	rank[i].counted = 0;
	tell(i);
}

/* It is paused, says why, and neither reports nor ticks say it again or end it. */
static void expect_held(const char *why)
{
	const char *reason;
	for (int i = 0; i < 3; i++) {
		ck_assert_int_eq(coord_state(coord, &reason, NULL), JOB_PAUSED);
		ck_assert_msg(strstr(reason, why), "%s", reason);
		ck_assert_str_eq(reason, held);
		ck_assert_str_eq(last_event, "Held");
		ck_assert_str_eq(end_reason, "");
		ck_assert_int_eq(n_held, 1);
		now.mono_ns += spec.stall_abort_ns + SECOND;
		coord_tick(coord, now);
		tell(1);
	}
}

START_TEST(parts_that_disagree_on_the_parameters_hold_the_job)
{
	commit();
	apply(0, 5);
	apply(1, 5 + (uint64_t)_i);
	ck_assert_int_eq(coord_phase(coord), _i ? COORD_COMMIT : COORD_COLLECT);
	if (!_i)
		return;
	expect_held("step 1 is applied, and the parts do not have the same parameters (digests part 0: "
		    "0000000000000005, part 1: 0000000000000006)");
	ck_assert_int_eq(coord_resume(coord, "ana", now), ST_OK); /* which compares them again */
	ck_assert(coord_held(coord) && n_held == 2);
	apply(1, 5);
	ck_assert_int_eq(coord_phase(coord), COORD_COLLECT);
	ck_assert_int_eq(coord_resume(coord, "ana", now), ST_OK);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_RUNNING);
}
END_TEST

START_TEST(a_held_job_can_be_cancelled)
{
	commit();
	apply(0, 5);
	apply(1, 6);
	expect_held("the same parameters");
	coord_end(coord, ST_CANCELLED, "by ana", now);
	ck_assert_str_eq(end_reason, "CANCELLED: by ana");
}
END_TEST

START_TEST(counts_and_bits_that_differ_end_the_job)
{
	bits[1] = 1; /* one bit, two counted */
	fill_and_close();
	vote(0, ST_OK);
	vote(1, ST_OK);
	ck_assert_int_eq(n_stored, 0);
	ck_assert_str_eq(end_reason, "INTERNAL: audit: counted micro-batches and bitmap disagree");
}
END_TEST

/* Another coordinator has taken over: this one says nothing any more, to nodes or journal. */
static void expect_silence(void)
{
	int orders = n_orders, commits = n_stored;
	now.mono_ns += 3600 * SECOND;
	coord_tick(coord, now);
	for (uint32_t i = 0; i < 2; i++) {
		node[i].complete = true;
		node[i].term = 0;
		tell(i);
	}
	coord_tick(coord, now);
	ck_assert_int_eq(n_orders, orders);
	ck_assert_int_eq(n_stored, commits);
	ck_assert_str_eq(end_reason, "");
}

START_TEST(a_report_of_a_later_term_silences)
{
	node[0].term = 6;
	tell(0);
	expect_silence();
}
END_TEST

START_TEST(a_refused_write_silences)
{
	fill_and_close();
	vote(0, ST_OK);
	vote(1, ST_OK);
	coord_on_persisted(coord, 0, ST_STALE_TERM, now);
	expect_silence();
}
END_TEST

START_TEST(a_refused_end_silences)
{
	coord_end(coord, ST_CANCELLED, "by ana", now);
	ck_assert_str_eq(end_reason, "CANCELLED: by ana");
	end_reason[0] = '\0';
	coord_on_ended(coord, ST_STALE_TERM, now);
	ck_assert_int_ne(coord_phase(coord), COORD_ENDED);
	expect_silence();
}
END_TEST

/* ---- bounds ---- */

static void expect_stalled(const char *part)
{
	const char *reason;
	ck_assert_int_eq(coord_state(coord, &reason, NULL), JOB_STALLED);
	ck_assert_msg(strstr(reason, part), "%s", reason);
}

START_TEST(a_node_that_does_not_close_is_named_and_ends_the_job)
{
	uint64_t window;
	ck_assert_int_eq(coord_flush(coord, &window, now), ST_OK);
	node[0].phase = WINDOW_CLOSED;
	tell(0);
	now.mono_ns += spec.stall_warn_ns - 1;
	coord_tick(coord, now);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_RUNNING);
	now.mono_ns += 1;
	coord_tick(coord, now);
	expect_stalled("part 1 has not closed it for 60 s");
	now.mono_ns += spec.stall_abort_ns;
	coord_tick(coord, now);
	ck_assert_str_eq(end_reason, "STALLED: window 0: part 1 has not closed it for 660 s");
}
END_TEST

/* A durable outcome is not given away, but for trainers who do not acknowledge the step before. */
START_TEST(a_commit_that_is_not_applied_holds_the_job)
{
	static const struct {
		enum status refused;
		const char *refusal, *held, *end;
	} cases[] = {
		{ ST_OK, "",
		  "held: window 0 has its outcome, but part 1 has not applied it for 660 s; it is in window 0, phase 2",
		  "" },
		{ ST_NOT_READY, "still read", "",
		  "STALLED: window 0 has its outcome, but it has not been applied for 660 s: still read" },
		{ ST_INVALID_ARGUMENT, "lr", "held: the engine of part 1 refuses the outcome of window 0: lr", "" },
	};
	commit();
	apply(0, 5);
	node[1].refused = cases[_i].refused;
	snprintf(node[1].refusal, sizeof(node[1].refusal), "%s", cases[_i].refusal);
	tell(1);
	now.mono_ns += spec.stall_warn_ns;
	coord_tick(coord, now);
	if (_i < 2)
		expect_stalled("for 60 s");
	now.mono_ns += spec.stall_abort_ns;
	coord_tick(coord, now);
	ck_assert_str_eq(end_reason, cases[_i].end);
	ck_assert_str_eq(held, cases[_i].held);
	if (_i == 1)
		return;
	expect_held("window 0");
	apply(1, 5); /* it is ordered all the time */
	ck_assert_int_eq(coord_phase(coord), COORD_COLLECT);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_PAUSED);
	ck_assert_int_eq(coord_resume(coord, "ana", now), ST_OK);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_RUNNING);
}
END_TEST

/* One that is resumed and still not applied has its time once more. */
START_TEST(a_held_commit_is_waited_for_after_a_resume)
{
	commit();
	apply(0, 5);
	now.mono_ns += spec.stall_abort_ns;
	coord_tick(coord, now);
	expect_held("part 1 has not applied it");
	ck_assert_int_eq(coord_resume(coord, "ana", now), ST_OK);
	ck_assert(!coord_held(coord));
	now.mono_ns += spec.stall_abort_ns - SECOND;
	coord_tick(coord, now);
	expect_stalled("part 1 has not applied it");
	now.mono_ns += 2 * SECOND;
	coord_tick(coord, now);
	ck_assert(coord_held(coord) && n_held == 2);
	ck_assert_str_eq(end_reason, "");
}
END_TEST

START_TEST(a_journal_that_does_not_answer_is_said_and_waited_for)
{
	fill_and_close();
	vote(0, ST_OK);
	vote(1, ST_OK);
	now.mono_ns += 10 * spec.stall_abort_ns;
	coord_tick(coord, now);
	expect_stalled("the journal has not answered for 6000 s");
	ck_assert_str_eq(end_reason, "");
	coord_on_persisted(coord, 0, ST_OK, now);
	apply(0, 5);
	apply(1, 5);
	ck_assert_int_eq(coord_state(coord, NULL, NULL), JOB_RUNNING);
}
END_TEST

START_TEST(a_journal_behind_the_memory_ends_the_job)
{
	struct commit last = {
		.window = 3, .applied_step = 4, .outcome = OUTCOME_APPLIED, .next = *coord_carry(coord)
	};
	coord_free(coord);
	ck_assert_int_eq(coord_new(&coord, 1, &spec, 5, 2, two_parts, &coord_ports), ST_OK);
	if (_i)
		coord_restore(coord, &last);
	node[0].window = _i ? 5 : 1;
	tell(0);
	ck_assert_str_eq(end_reason, _i ? "STORE_FAILED: the journal is older than the job's memory: part 0 is in "
					  "window 5, the journal's next is 4"
					: "STORE_FAILED: the journal is older than the job's memory: part 0 is in "
					  "window 1, the journal's next is 0");
}
END_TEST

START_TEST(a_number_that_no_engine_takes_is_not_written)
{
	spec.schedule = (struct schedule){ .type = SCHEDULE_STEP, .step_size = 1, .gamma = 1e39 };
	coord_start_at(coord, 0, 2, NULL); /* the third step */
	fill_and_close();
	vote(0, ST_OK);
	vote(1, ST_OK);
	ck_assert_int_eq(n_stored, 0);
	ck_assert_msg(!strncmp(end_reason,
			       "INVALID_SPEC: window 0 cannot be applied: its lr is out of range (scale 0.25, lr 1e+77",
			       72),
		      "%s", end_reason);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("attempts");
	TCase *c = tcase_create("coordinator");
	tcase_add_checked_fixture(c, open_coord, close_coord);
	tcase_add_test(c, a_failed_vote_raises_the_attempt);
	tcase_add_test(c, a_job_whose_attempts_all_fail_ends);
	tcase_add_loop_test(c, nodes_that_disagree_on_the_sum_try_again, 0, 3);
	tcase_add_loop_test(c, parts_that_disagree_on_the_parameters_hold_the_job, 0, 2);
	tcase_add_test(c, a_held_job_can_be_cancelled);
	tcase_add_test(c, counts_and_bits_that_differ_end_the_job);
	tcase_add_test(c, a_report_of_a_later_term_silences);
	tcase_add_test(c, a_refused_write_silences);
	tcase_add_test(c, a_refused_end_silences);
	tcase_add_test(c, a_node_that_does_not_close_is_named_and_ends_the_job);
	tcase_add_loop_test(c, a_commit_that_is_not_applied_holds_the_job, 0, 3);
	tcase_add_test(c, a_held_commit_is_waited_for_after_a_resume);
	tcase_add_test(c, a_journal_that_does_not_answer_is_said_and_waited_for);
	tcase_add_loop_test(c, a_journal_behind_the_memory_ends_the_job, 0, 2);
	tcase_add_test(c, a_number_that_no_engine_takes_is_not_written);
	suite_add_tcase(s, c);
	return s;
}

Suite *late_answers_suite(void); /* test_late_answers.c */

int main(void)
{
	return suite_run(suite(), late_answers_suite());
}
