/* SPDX-License-Identifier: Apache-2.0 */
/* What a job learns from its engine's record about pushes that came in mailboxes, and what it does not say before. */
#include "session_rig.h"

#include "support/suite.h"

#include <string.h>

#define S INT64_C(1000000000)

Suite *catch_up_suite(void);

static struct order run_order(uint64_t number)
{
	return (struct order){ .job_id = 1, .epoch = 1, .term = 1, .run = true, .number = number };
}

/* What the engine does with a micro-batch that lies in a cell. */
static void count_in_cell(uint32_t rank, uint32_t micro, double weight)
{
	control_set_bit(record.counted, spec.max_micro_size, rank, micro);
	ledger[rank * spec.max_micro_size + micro].weight = weight;
	record.rank[rank].counted++;
	record.r.count++;
	record.r.seq++;
}

static void void_in_cell(uint32_t rank, uint32_t micro)
{
	control_set_bit(record.voided, spec.max_micro_size, rank, micro);
	record.r.seq++;
}

static void progress(enum progress_kind kind, uint32_t rank, uint32_t micro, uint64_t window)
{
	struct engine_answer a = { .op = ENGINE_PROGRESS,
				   .result = kind,
				   .rank = rank,
				   .micro = micro,
				   .nonfinite_count = kind == PROGRESS_COMPLETE ? 0 : 3,
				   .window = window };
	job_on_answer(job, &a, now);
}

static struct now after(int64_t ns)
{
	return (struct now){ now.mono_ns + ns, now.unix_ns + ns };
}

/* ---- what has come ---- */

START_TEST(the_tick_finds_what_has_come)
{
	count_in_cell(0, 0, 3);
	count_in_cell(0, 1, 4);
	void_in_cell(0, 2);
	count_in_cell(1, 0, 5); /* of a rank without a mailbox, in a command whose answer is on its way */
	record.r.window_lr = 0.25;
	record.r.lr_rank = 1;
	row[0].last_push_unix_ns = row[1].last_push_unix_ns = 77777;
	job_tick(job, now);
	count_in_cell(0, 3, 8);
	uint64_t first = asked;
	int before = n_reports;
	job_tick(job, now);
	const struct control_state *m = job_record(job);
	ck_assert(control_bit(m->counted, spec.max_micro_size, 0, 1) && m->rank[0].counted == 3);
	ck_assert(m->r.count == 4 && m->rank[1].counted == 1 && m->r.window_lr == 0.25 && m->r.lr_rank == 1);
	ck_assert_int_eq(n_reports, before + 1);
	ck_assert(shown.counted == 3 && shown.voided == 1 && shown.first_void == 2 && shown.weight == 15);
	uint32_t n;
	ck_assert_int_eq(shown.last_push_unix_ns, 77777);
	ck_assert_int_eq(job_progress(job, &n)[1].last_push_unix_ns, 0); /* it has no mailbox */
	ck_assert_uint_lt(first, record.r.seq);
	job_tick(job, now);
	ck_assert_uint_eq(asked, record.r.seq); /* only a newer one */
	ck_assert_int_eq(n_reports, before + 1);
	char why[200];
	ck_assert_msg(!job_counts_wrong(job, why, sizeof(why)), "%s", why);
}
END_TEST

/* Its answer is on its way: it is not counted twice. */
START_TEST(a_push_by_rpc_that_was_read_counts_once)
{
	push(0, 0, 0);
	struct engine_command add = sent[n_sent - 1];
	count_in_cell(0, 0, 1);
	job_tick(job, now);
	sent[n_sent - 1] = add;
	answer(ENGINE_ADD, COUNTED);
	expect(0, ST_OK, COUNTED);
	job_tick(job, after(S));
	ck_assert(job_record(job)->r.count == 1 && shown.counted == 1 && shown.weight == 1);
}
END_TEST

START_TEST(a_window_that_gaccd_does_not_know_is_not_read)
{
	record.r.window = 1;
	count_in_cell(0, 0, 1);
	job_tick(job, now);
	ck_assert_uint_eq(job_record(job)->r.count, 0);
	progress(PROGRESS_VOID, 0, 1, 1);
	ck_assert_uint_eq(job_record(job)->r.count, 0);
	ck_assert_str_ne(last_event, "MicroRejected");
	record.r.window = 0; /* and it is looked at again when it is known */
	job_tick(job, now);
	ck_assert_uint_eq(job_record(job)->r.count, 1);
}
END_TEST

START_TEST(a_complete_window_is_reported_at_once)
{
	for (uint32_t i = 0; i < 8; i++)
		count_in_cell(i / 4, i % 4, 1);
	int before = n_reports;
	progress(PROGRESS_COMPLETE, 0, 0, 0);
	ck_assert_int_eq(n_reports, before + 1);
	ck_assert(reported.complete && shown.counted == 4 && shown.ready_ns > 0);
}
END_TEST

/* Since when it is complete, the engine says: gaccd may have looked much later. */
START_TEST(the_engine_knows_since_when_a_rank_is_ready)
{
	for (uint32_t m = 0; m < 4; m++)
		count_in_cell(0, m, 1);
	row[0].ready_mono_ns = now.mono_ns;
	row[1].ready_mono_ns = 1; /* of an earlier window */
	job_tick(job, after(2 * S));
	ck_assert_int_eq(shown.ready_ns, 2 * S);
	ck_assert_int_eq(shown.waiting_ns, 2 * S);
}
END_TEST

START_TEST(void_and_nonfinite_ones_are_announced)
{
	void_in_cell(0, 0);
	progress(PROGRESS_VOID, 0, 0, 0);
	ck_assert_str_eq(last_event, "MicroRejected");
	count_in_cell(0, 1, 1);
	progress(PROGRESS_NONFINITE, 0, 1, 0);
	job_tick(job, now);
	ck_assert(shown.voided == 1 && shown.first_void == 0);
	ck_assert(shown.nonfinite == 1 && shown.first_nonfinite == 1);
}
END_TEST

/* nonfinite: error ends the job, and does not wait for a tick. */
START_TEST(a_void_one_that_ends_the_job_is_reported_at_once)
{
	spec.nonfinite = NONFINITE_ERROR;
	void_in_cell(0, 0);
	int before = n_reports;
	progress(PROGRESS_VOID, 0, 0, 0);
	ck_assert(n_reports == before + 1 && shown.voided == 1);
}
END_TEST

/* A push that waits in the engine for another rank's: its own rank is late for nobody. */
START_TEST(a_queued_push_waits_for_another_rank)
{
	uint32_t rank = _i ? 0 : 1; /* whose mailbox it is in: rank 0's turn is first */
	struct attach_args a = { .world_size = 2, .rank = 1, .uid = 7, .pid = 50, .shared_memory = true };
	job_attach(job, 0, &a, now);
	answer(ENGINE_ATTACH, 0);
	job_on_mailbox(job, 1, 1);
	answer(ENGINE_MAILBOX, 0);
	row[rank].parked_since_mono_ns = now.mono_ns;
	row[rank].blocked_by = rank;
	job_tick(job, after(3 * S));
	uint32_t n;
	const struct rank_progress *p = job_progress(job, &n);
	ck_assert_uint_eq(n, 2);
	ck_assert_int_eq(p[rank].waiting_ns, _i ? 0 : 3 * S);
	ck_assert_int_eq(p[1 - rank].waiting_ns, 0);
	row[rank].parked_since_mono_ns = 0;
	count_in_cell(0, 0, 1);
	job_tick(job, after(4 * S));
	ck_assert_int_eq(p[1].waiting_ns, 0);
}
END_TEST

START_TEST(a_flush_says_what_is_counted)
{
	job_flush(job, 0, &key, 0, now);
	count_in_cell(0, 0, 1);
	count_in_cell(0, 1, 1);
	answer(ENGINE_FLUSH, 0);
	ck_assert(replied[0] && !reply_to[0].status);
	ck_assert_uint_eq(reply_to[0].flush.counted, 2);
}
END_TEST

START_TEST(a_rank_asks_only_for_what_is_missing)
{
	count_in_cell(0, 0, 1);
	void_in_cell(0, 1);
	job_wait_ready(job, 0, &key, 0, now);
	ck_assert(replied[0] && reply_to[0].ready.n_missing == 2);
}
END_TEST

/* ---- frozen ---- */

static struct engine_answer frozen(uint32_t op, uint64_t count)
{
	ck_assert_uint_eq(sent[n_sent - 1].op, op);
	return (struct engine_answer){ .op = op, .id = sent[n_sent - 1].id, .attempt = 1, .count = count };
}

/* The journal gets the mirror's bits: they must be all that the engine has frozen. */
START_TEST(a_frozen_window_is_known_whole)
{
	uint32_t op = _i ? ENGINE_GO : ENGINE_CLOSE;
	struct order o = run_order(1);
	o.want = _i ? WANT_GO : WANT_CLOSE;
	o.attempt = 1;
	count_in_cell(0, 0, 1);
	job_on_order(job, &o, now);
	struct engine_answer a = frozen(op, 2);
	readable = false;
	job_on_answer(job, &a, now);
	ck_assert_uint_eq(job_record(job)->r.phase, WINDOW_OPEN);
	job_tick(job, now); /* asks once more */
	ck_assert_int_eq(count_sent(op), 2);
	readable = true;
	a = frozen(op, 2);
	job_on_answer(job, &a, now); /* which is not all */
	ck_assert_uint_eq(job_record(job)->r.phase, WINDOW_OPEN);
	job_tick(job, now);
	count_in_cell(0, 1, 1);
	a = frozen(op, 2);
	job_on_answer(job, &a, now);
	ck_assert_uint_eq(job_record(job)->r.phase, _i ? WINDOW_PREPARED : WINDOW_CLOSED);
	ck_assert_uint_eq(reported.count, 2);
	ck_assert_int_eq(count_sent(op), 3);
}
END_TEST

/* A refused vote needs no record. */
START_TEST(a_failed_attempt_is_reported_without_the_record)
{
	struct order o = run_order(1);
	o.want = WANT_GO;
	o.attempt = 1;
	job_on_order(job, &o, now);
	struct engine_answer a = frozen(ENGINE_GO, 0);
	a.status = ST_ATTEMPT_FAILED;
	readable = false;
	job_on_answer(job, &a, now);
	ck_assert_int_eq(reported.vote_status, ST_ATTEMPT_FAILED);
}
END_TEST

/* A job ends at once when all have left and nothing is counted. */
START_TEST(that_all_have_left_is_not_said_before_the_record_is_read)
{
	job_detach(job, 0, &key, true, now);
	count_in_cell(0, 0, 1);
	readable = false;
	answer(ENGINE_FLUSH, 0);
	job_tick(job, after(S));
	ck_assert(!reported.all_left && shown.counted == 0);
	readable = true;
	job_tick(job, after(S));
	ck_assert(reported.all_left && shown.counted == 1);
}
END_TEST

/* The same, and nothing is counted. */
START_TEST(who_can_read_the_record_again_says_so)
{
	job_detach(job, 0, &key, true, now);
	readable = false;
	answer(ENGINE_FLUSH, 0);
	ck_assert(!reported.all_left);
	readable = true;
	job_tick(job, now);
	ck_assert(reported.all_left);
}
END_TEST

/* The same, and a new engine, whose record is read whole. */
START_TEST(a_new_engine_brings_its_record)
{
	job_detach(job, 0, &key, true, now);
	readable = false;
	answer(ENGINE_FLUSH, 0);
	ck_assert(!reported.all_left);
	job_on_engine_down(job, now);
	record.rank[0].sgen = 1;
	record.rank[0].flushed = RANK_LEFT;
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	ck_assert(reported.all_left);
}
END_TEST

/* Without mailboxes nothing is read. */
START_TEST(other_jobs_read_no_record)
{
	asked = 12345;
	readable = false;
	count_in_cell(0, 0, 1);
	job_tick(job, now);
	job_wait_ready(job, 0, &key, 0, now);
	ck_assert_uint_eq(asked, 12345);
	ck_assert_uint_eq(job_record(job)->r.count, 0);
}
END_TEST

static TCase *with(Suite *s, void (*begin)(void))
{
	TCase *c = tcase_create("catch up");
	tcase_add_checked_fixture(c, begin, teardown);
	suite_add_tcase(s, c);
	return c;
}

Suite *catch_up_suite(void)
{
	Suite *s = suite_create("catch up");
	TCase *c = with(s, setup);
	tcase_add_test(c, other_jobs_read_no_record);
	c = with(s, setup_mailbox);
	tcase_add_test(c, that_all_have_left_is_not_said_before_the_record_is_read);
	tcase_add_test(c, who_can_read_the_record_again_says_so);
	tcase_add_test(c, a_new_engine_brings_its_record);
	c = with(s, setup_mailbox_of_two);
	tcase_add_test(c, the_tick_finds_what_has_come);
	tcase_add_test(c, a_push_by_rpc_that_was_read_counts_once);
	tcase_add_test(c, a_window_that_gaccd_does_not_know_is_not_read);
	tcase_add_test(c, a_complete_window_is_reported_at_once);
	tcase_add_test(c, the_engine_knows_since_when_a_rank_is_ready);
	tcase_add_test(c, void_and_nonfinite_ones_are_announced);
	tcase_add_test(c, a_void_one_that_ends_the_job_is_reported_at_once);
	tcase_add_loop_test(c, a_queued_push_waits_for_another_rank, 0, 2);
	tcase_add_test(c, a_flush_says_what_is_counted);
	tcase_add_test(c, a_rank_asks_only_for_what_is_missing);
	tcase_add_loop_test(c, a_frozen_window_is_known_whole, 0, 2);
	tcase_add_test(c, a_failed_attempt_is_reported_without_the_record);
	return s;
}
