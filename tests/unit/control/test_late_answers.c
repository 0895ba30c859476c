/* SPDX-License-Identifier: Apache-2.0 */
/* A job whose engine answers late, refuses, or dies between an answer and the next order. */
#include "job_fakes.h"

#include "support/suite.h"

#include <check.h>

Suite *late_answers_suite(void);

static struct job_spec spec;
static const struct now now = { 1000, 5000 };
static struct job *job;
static struct control_state record;
static struct report last_report;

static void on_reply(void *ctx, uint64_t call, const struct reply *r)
{
}
static void on_report(void *ctx, const struct report *r)
{
	last_report = *r;
}
static const struct job_ports job_ports = { .reply = on_reply,
					    .engine_send = fake_send,
					    .report = on_report,
					    .allocate = fake_allocate,
					    .event = fake_event,
					    .process_alive = fake_alive,
					    .random16 = fake_random };

static void open_job(void)
{
	static const struct tensor_spec tensor = { .name = "w", .n_dims = 1, .shape = { 4 }, .dtype = DTYPE_F32 };
	const char *field;
	char why[200];
	spec = (struct job_spec){ .name = "t", .ranks = 1, .micro_size = 2, .master_f32 = true };
	spec.optim = (struct optim_config){ .type = OPTIM_SGD, .lr = 0.1 };
	ck_assert_int_eq(job_spec_check(&spec, &field, why, sizeof(why)), ST_OK);
	n_sent = 0;
	ck_assert_int_eq(job_new(&job, 1, part_whole(&spec), 7, 1, &job_ports), ST_OK);
	ck_assert_int_eq(job_set_tensors(job, &tensor, 1, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(control_state_init(&record, 1, spec.max_micro_size), ST_OK);
	record.r.micro_size = 2;
	record.r.loss_scale = 1;
	record.r.params_ready = 1;
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
}

static void close_job(void)
{
	job_free(job);
	control_state_fini(&record);
}

static void go(uint64_t term, uint64_t attempt)
{
	struct order o = { .job_id = 1, .epoch = 1, .term = term, .run = true, .want = WANT_GO, .attempt = attempt };
	job_on_order(job, &o, now);
}

static void answer(const struct engine_command *c, enum status st)
{
	struct engine_answer a = {
		.op = c->op, .id = c->id, .window = c->window, .attempt = c->attempt, .status = st, .digest = 9
	};
	job_on_answer(job, &a, now);
}

/* Among several nodes a GO waits for all of them, and may do so for ever when one of them has died. */
START_TEST(a_go_that_is_out_does_not_hold_back_a_later_one)
{
	static const struct {
		uint64_t term, attempt;
	} later[] = { { 1, 2 }, { 2, 1 } };
	go(1, 1);
	ck_assert_int_eq(n_sent, 1);
	go(1, 1);
	ck_assert_int_eq(n_sent, 1); /* the same one goes out once */
	go(later[_i].term, later[_i].attempt);
	ck_assert_int_eq(n_sent, 2);
	ck_assert_uint_eq(sent[1].op, ENGINE_GO);
	ck_assert_uint_eq(sent[1].term, later[_i].term);
	ck_assert_uint_eq(sent[1].attempt, later[_i].attempt);
	answer(&sent[0], ST_ATTEMPT_FAILED); /* given up: this is no vote for the later one */
	ck_assert_int_eq(last_report.vote_status, ST_OK);
	ck_assert_uint_eq(last_report.vote_attempt, 0);
	answer(&sent[1], ST_OK);
	ck_assert_uint_eq(last_report.vote_term, later[_i].term);
	ck_assert_uint_eq(last_report.vote_attempt, later[_i].attempt);
	ck_assert_int_eq(last_report.phase, WINDOW_PREPARED);
}
END_TEST

/* Attempt 1 failed; the engine prepared attempt 2 and died before it could say so. Its successor's record says it. */
START_TEST(a_failed_vote_does_not_hide_a_later_prepared_record)
{
	go(1, 1);
	answer(&sent[0], ST_ATTEMPT_FAILED);
	ck_assert_int_eq(last_report.vote_status, ST_ATTEMPT_FAILED);
	go(1, 2);
	ck_assert_uint_eq(sent[1].attempt, 2);
	job_on_engine_down(job, now);
	record.r.phase = WINDOW_PREPARED;
	record.r.prepared_term = 1;
	record.r.prepared_attempt = 2;
	record.r.prepared_digest = 9;
	ck_assert_int_eq(job_on_engine_up(job, &record, 0, now), ST_OK);
	ck_assert_int_eq(last_report.vote_status, ST_OK);
	ck_assert_uint_eq(last_report.vote_attempt, 2);
	ck_assert_uint_eq(last_report.digest, 9);
}
END_TEST

static void order_commit(void)
{
	struct order o = { .job_id = 1, .epoch = 1, .term = 1, .run = true, .want = WANT_COMMIT };
	o.commit = (struct commit){
		.term = 1, .attempt = 1, .applied_step = 1, .outcome = OUTCOME_APPLIED, .next_micro_size = 2
	};
	job_on_order(job, &o, now);
}

START_TEST(a_refused_commit_is_reported)
{
	go(1, 1);
	answer(&sent[0], ST_OK);
	order_commit();
	ck_assert_uint_eq(sent[1].op, ENGINE_COMMIT);
	answer(&sent[1], _i ? ST_NOT_READY : ST_INVALID_ARGUMENT); /* not ready for what? no rank reads a gradient */
	ck_assert_int_eq(last_report.refused, _i ? ST_INTERNAL : ST_INVALID_ARGUMENT);
	ck_assert(*last_report.refusal);
}
END_TEST

Suite *late_answers_suite(void)
{
	Suite *s = suite_create("late answers");
	TCase *j = tcase_create("job");
	tcase_add_checked_fixture(j, open_job, close_job);
	tcase_add_loop_test(j, a_go_that_is_out_does_not_hold_back_a_later_one, 0, 2);
	tcase_add_test(j, a_failed_vote_does_not_hide_a_later_prepared_record);
	tcase_add_loop_test(j, a_refused_commit_is_reported, 0, 2);
	suite_add_tcase(s, j);
	return s;
}
